"""Every code, one file each (`jpNNN.py`), found by name: adding a file registers it.

Refusals are here; the rules of `check` are in `checking/rules/`, with the diagnostic in the rule's own file.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax_pmap.diagnostics.base import Diagnostic

_RULES = str(Path(__file__).parents[1] / "checking" / "rules")
_CODE = re.compile(r"JP\d{3}", re.ASCII)


def codes() -> tuple[str, ...]:
    """All registered codes, in order."""
    names = (module.name.upper() for path in (__path__, [_RULES]) for module in pkgutil.iter_modules(path))
    return tuple(sorted(name for name in names if _CODE.fullmatch(name)))


def find(code: str) -> Diagnostic | None:
    """The diagnostic registered as `code` (``"JP043"``), or None. Loads that one file only."""
    if code not in codes():
        return None
    package = (
        __name__ if (Path(__file__).parent / f"{code.lower()}.py").is_file() else "jax_pmap.checking.rules"
    )
    module = importlib.import_module(f"{package}.{code.lower()}")
    diagnostic: Diagnostic = module.DIAGNOSTIC
    return diagnostic


def exit_code(code: str) -> int:
    """Exit status of a refusal with `code`: 1 for "no", 2 for "could not ask".

    Raises:
        KeyError: `code` is not registered.
    """
    diagnostic = find(code)
    if diagnostic is None:
        raise KeyError(code)
    return diagnostic.exit_code


def nearest(text: str) -> str | None:
    """The code a person most likely meant by `text` (``jp43``, ``43``, ``JP0430``), or None."""
    import difflib

    known = codes()
    digits = re.sub(r"\D", "", text)
    if digits and f"JP{int(digits):03d}" in known:
        return f"JP{int(digits):03d}"
    matches = difflib.get_close_matches(text.upper(), known, n=1, cutoff=0.85)
    return matches[0] if matches else None
