"""Paths: as people type and see them, and as modules are imported from them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from jax_pmap.config import is_project_root
from jax_pmap.files import MARK, is_generated
from jax_pmap.model import Source

#: ``from package.module import``, ``import package.module``: both names.
_IMPORTED = re.compile(rb"^[ \t]*(?:from|import)[ \t]+([A-Za-z_]\w*)\.([A-Za-z_]\w*)", re.MULTILINE)
#: ``from package import module, other as name``: the package, and what is taken from it.
_TAKEN = re.compile(rb"^[ \t]*from[ \t]+([A-Za-z_]\w*)[ \t]+import[ \t]+(\([^)]*|[^(\n#]*)", re.MULTILINE)
#: ``from package.module import names``: the module, and what stands behind; ``import package.module``.
_FROM = re.compile(rb"^[ \t]*from[ \t]+([A-Za-z_][\w.]*)[ \t]+import[ \t]+(\([^)]*|[^(\n#]*)", re.MULTILINE)
_PLAIN = re.compile(rb"^[ \t]*import[ \t]+([A-Za-z_][\w.]*)", re.MULTILINE)


def import_name(path: Path) -> tuple[str, Path]:
    """Dotted name of the file at `path`, and the folder it starts from, going up through `__init__.py`.

    A folder above without one is a package, too, where the file imports modules of it by its name.
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
    top = _package_above(path, folder)
    while top is not None and folder != top.parent:
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts), folder


def _package_above(path: Path, folder: Path) -> Path | None:
    """The nearest of `folder` and those above it that the file itself imports modules from, by its name."""
    try:
        text = path.read_bytes()
    except OSError:
        return None
    imported = set(_IMPORTED.findall(text))
    for package, names in _TAKEN.findall(text):
        imported |= {(package, name) for name in re.findall(rb"(?:^|[(,])\s*([A-Za-z_]\w*)", names)}
    for above in (folder, *folder.parents):
        parts = [part.decode() for name, part in imported if name == above.name.encode()]
        if any((above / part).is_dir() or (above / f"{part}.py").is_file() for part in parts):
            return above
        if not above.name.isidentifier():
            return None
    return None


def imported_as(path: Path, importer: Path, roots: Sequence[Path] = ()) -> tuple[str, Path] | None:
    """The dotted name by which another file imports that at `path`, and the folder it starts from; or None.

    That is the folder of the other file, the one above its packages, or one of `roots`.

    Under another name, the file would be loaded twice, and its classes be others the second time.
    """
    try:
        text = importer.read_bytes()
    except OSError:
        return None
    if path.stem.encode() not in text:
        return None
    dotted = {each.decode() for each in _PLAIN.findall(text)}
    for package, names in _FROM.findall(text):
        inside = re.findall(rb"[A-Za-z_]\w*", names)
        dotted |= {package.decode(), *(f"{package.decode()}.{each.decode()}" for each in inside)}
    for start in dict.fromkeys((importer.parent, import_name(importer)[1], *roots)):
        for name in sorted(dotted):
            if path == start.joinpath(*name.split(".")).with_suffix(".py"):
                return name, start
    return None


def folders_with(package: str, source: Source) -> list[Path]:
    """The folders with a package or module of this name, of those that a file imports the user's from."""
    tops = [folder / package for folder in source.folders]
    return [top.parent for top in tops if top.is_dir() or top.with_name(f"{package}.py").is_file()]


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
