"""Code written for other versions of the libraries it uses, known by how it fails."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: What Python, and jax where it took something away, say of a name that a module does not have.
GONE = (
    re.compile(r"cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'"),
    re.compile(r"module '(?P<module>[\w.]+)' has no attribute '(?P<name>\w+)'"),
    re.compile(r"No module named '(?P<module>\w+(?:\.\w+)*)\.(?P<name>\w+)'"),
    re.compile(r"(?P<module>jax(?:\.\w+)*)\.(?P<name>\w+) (?:was|is|has been|were) (?:deprecated|removed)"),
)
#: Errors that speak of it.
KINDS = frozenset({"AttributeError", "ImportError", "ModuleNotFoundError"})


def outdated(error: Mapping[str, Any], directory: Path) -> str | None:
    """What to do about a name that the installed version of a library does not have, or None.

    `error` is an exception as the worker describes it; modules in `directory` are the user's own.
    """
    if error.get("type") not in KINDS:
        return None
    found = next((match for form in GONE if (match := form.search(str(error.get("message", ""))))), None)
    if found is None:
        return None
    library = found["module"].partition(".")[0]
    if (directory / library).exists() or (directory / f"{library}.py").exists():
        return None
    return (
        f"The installed `{library}` has no `{found['module']}.{found['name']}`: bring that line up to date, "
        f"or name a Python with the version of `{library}` that it was written for: --python PATH"
    )
