"""Words of the refusals: names near to what was typed, lists, and the refusal itself."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import NoReturn

from jax_pmap.model import Span, refused

FORMS = "FUNC, FILE::FUNC or package.module:FUNC"


def near_names(qualname: str, names: Sequence[str]) -> list[str]:
    """Names nearest to `qualname`, compared whole and by their last parts, whatever their case."""
    last = qualname.rpartition(".")[2].lower()
    by_key: dict[str, list[str]] = {}
    for name in names:
        for key in {name.lower(), name.rpartition(".")[2].lower()}:
            by_key.setdefault(key, []).append(name)
    keys = [key for text in (qualname.lower(), last) for key in difflib.get_close_matches(text, by_key)]
    return list(dict.fromkeys(name for key in keys for name in by_key[key]))[:3]


def any_of(texts: Iterable[str]) -> str:
    """``"`a`, `b` or `c`"``."""
    return " or ".join(", ".join(f"`{text}`" for text in texts).rsplit(", ", 1))


def clip(text: str) -> str:
    """`text`, or as much of it as goes into a sentence."""
    return text if len(text) <= 60 else text[:57] + "..."


def refuse(
    code: str, reason: str, hint: str, span: Span | None = None, details: tuple[str, ...] = ()
) -> NoReturn:
    """Raise the refusal."""
    raise refused(code, reason, hint, span, details)
