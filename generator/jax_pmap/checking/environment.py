"""What of the user's machine an answer depends on, told without starting their interpreter."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from jax_pmap.checking.cache import digest

#: Bytes from which on a file is told by its size and time: data sets are not read to the end.
LARGE = 1 << 24
#: Beginnings of variables, with their ``=``, that say where and how a command was typed.
BOOKKEEPING = (
    *("_=", "CLAUDE", "COLORTERM=", "COLUMNS=", "LINES=", "NO_COLOR=", "OLDPWD=", "PS1=", "PWD="),
    *("PYTEST_", "SHLVL=", "SSH_", "STY=", "TERM", "TMUX", "VTE_", "WINDOWID="),
)


def machine_digest(python: Path, given: Mapping[str, str] | None = None) -> str:
    """Changes with the packages of `python`'s environment, and with the variables that programs are given."""
    return digest(_of_packages(python), _of_variables(given or {}))


def _of_packages(python: Path) -> str:
    prefix = python.parent.parent
    names = [str(python)]
    for folder in sorted(prefix.glob("lib/python3*/site-packages")):
        names += sorted(path.name for path in folder.glob("*.dist-info"))
    settings = prefix / "pyvenv.cfg"
    if settings.is_file():
        names.append(settings.read_text(encoding="utf-8", errors="replace"))
    return digest(*names)


def _of_variables(given: Mapping[str, str]) -> str:
    """A program may read any of them.

    Those by which shells and terminals keep their own books change without anybody setting them.
    """
    kept = {name: value for name, value in os.environ.items() if not f"{name}=".startswith(BOOKKEEPING)}
    return digest(repr(sorted({**kept, **given}.items())))


def file_digests(files: list[str]) -> dict[str, str]:
    """Path -> hash of what is in it now; a file that is not there has an empty one."""
    found = {}
    for file in files:
        try:
            status = Path(file).stat()
            found[file] = (
                digest(Path(file).read_bytes())
                if status.st_size <= LARGE
                else digest(f"{status.st_size} {status.st_mtime_ns}")
            )
        except OSError:
            found[file] = ""
    return found


def unchanged(digests: dict[str, str]) -> bool:
    """Whether every file still is what it was."""
    return file_digests(list(digests)) == digests
