"""What of the user's interpreter an answer depends on, told without starting it."""

from __future__ import annotations

from pathlib import Path

from jax_pmap.checking.cache import digest


def interpreter_digest(python: Path) -> str:
    """Changes when packages of `python`'s environment are installed, upgraded or removed."""
    prefix = python.parent.parent
    names = [str(python)]
    for folder in sorted(prefix.glob("lib/python3*/site-packages")):
        names += sorted(path.name for path in folder.glob("*.dist-info"))
    settings = prefix / "pyvenv.cfg"
    if settings.is_file():
        names.append(settings.read_text(encoding="utf-8", errors="replace"))
    return digest(*names)


def file_digests(files: list[str]) -> dict[str, str]:
    """Path -> hash of what is in it now; a file that is not there has an empty one."""
    found = {}
    for file in files:
        try:
            found[file] = digest(Path(file).read_bytes())
        except OSError:
            found[file] = ""
    return found


def unchanged(digests: dict[str, str]) -> bool:
    """Whether every file still is what it was."""
    return file_digests(list(digests)) == digests
