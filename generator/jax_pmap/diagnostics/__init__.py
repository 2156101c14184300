"""Every refusal code, one file each (`jpNNN.py`), found by name: adding a file registers it."""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax_pmap.diagnostics.base import Diagnostic

_CODE = re.compile(r"JP\d{3}", re.ASCII)


def codes() -> tuple[str, ...]:
    """All registered codes, in order."""
    names = (module.name.upper() for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name for name in names if _CODE.fullmatch(name)))


def find(code: str) -> Diagnostic | None:
    """The diagnostic registered as `code` (``"JP043"``), or None. Loads that one file only."""
    if code not in codes():
        return None
    module = importlib.import_module(f"{__name__}.{code.lower()}")
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
