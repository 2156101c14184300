"""Paths: as people type and see them, and as modules are imported from them."""

from __future__ import annotations

import os
from pathlib import Path

from jax_pmap.config import is_project_root
from jax_pmap.files import MARK, is_generated


def import_name(path: Path) -> tuple[str, Path]:
    """Dotted name of the file at `path`, and the folder it starts from, going up through `__init__.py`.

    A file whose name cannot be imported (``my-script.py``, ``v1.2.py``) gets a name that is not an
    identifier, with dashes for its dots, so that it can be told and still names no package.
    """
    parts = [path.stem.replace(".", "-")]
    folder = path.parent
    if path.stem == "__init__" and folder.name.isidentifier():
        parts, folder = [folder.name], folder.parent
    elif not parts[0].isidentifier():
        return parts[0], folder
    # The top of a checkout is no package, even with a stray `__init__.py`.
    while (folder / "__init__.py").is_file() and folder.name.isidentifier() and not is_project_root(folder):
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts), folder


def exists(path: Path) -> bool:
    """Whether there is something at `path`, which may be any text."""
    try:
        return path.exists()
    except (OSError, ValueError):  # names too long, null bytes
        return False


def relative(path: Path, start: Path) -> str:
    """`path` as seen from `start`, in printable text."""
    try:
        text = Path(os.path.relpath(path, start)).as_posix()
    except ValueError:  # another drive
        text = path.as_posix()
    # File names need not be text; what is shown has to be.
    return text.encode("utf-8", "backslashreplace").decode()


def made_by_us(data: bytes) -> bool:
    """Whether a file with these bytes was generated."""
    return MARK.encode() in data and is_generated(data[:4096].decode("utf-8", "replace"))
