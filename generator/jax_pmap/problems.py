"""What went wrong in the worker, in the user's code: which exception, at which of the user's lines."""

from __future__ import annotations

import re
from pathlib import Path

from jax_pmap.config import project_root
from jax_pmap.model import Source, Span
from jax_pmap.worker.origins import is_users
from jax_pmap.worker.protocol import Raised


def error_span(error: Raised | None, directory: Path, source: Source | None = None) -> Span | None:
    """The deepest frame in user code, or the deepest one in the target's own file.

    Args:
        error: the user's exception, if there is one.
        directory: files below the project that `directory` is in are named from its root.
        source: the target, if its own file is the one to name.
    """
    if error is None:
        return None
    if source is not None:
        for file, line, _ in reversed(error.frames):
            if Path(file) == source.path:
                return Span(source.shown_path, line)
    for file, line, _ in reversed(error.frames):
        if is_users(file):
            return Span(shown_file(file, directory), line)
    if error.file and is_users(error.file):
        return Span(shown_file(error.file, directory), error.line)
    return None


def shown_file(file: str, directory: Path) -> str:
    """`file` as reports name it: from the project root, or absolute where it is outside."""
    root = project_root(directory.absolute())
    path = Path(file)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else file


def error_details(error: Raised | None) -> tuple[str, ...]:
    """The user's own traceback, as one detail."""
    blocks = error.traceback if error is not None else ()
    return ("Traceback (most recent call last):\n" + "".join(blocks).rstrip(),) if blocks else ()


def error_line(error: Raised) -> str:
    """``TypeError: `` and the first line of its message."""
    return f"{error.type}: {first_line(error.message)}"


def missing_package(message: str) -> str:
    """The package that an import error says is not there, and ``""`` of any other error."""
    found = re.search(r"No module named '(\w+)", message)
    return found[1] if found is not None else ""


def install(error: Raised | None, python: str) -> str:
    """What to do where an import failed for a package that is not there; ``""`` for any other error."""
    if error is None or error.type not in ("ModuleNotFoundError", "ImportError"):
        return ""
    package = missing_package(error.message)
    if not package:
        return ""
    return (
        f"Install `{package}` for `{python}`, or name a Python that has it: --python PATH{or_stub(package)}"
    )


def or_stub(package: str) -> str:
    """What ends a hint on a package that is not there."""
    return f"; if it only loads data or logs: --stub {package}"


def first_line(text: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")
