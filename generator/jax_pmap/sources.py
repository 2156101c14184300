"""Python files as Python itself reads them: found below a folder, decoded, parsed. Never a traceback."""

from __future__ import annotations

import ast
import codecs
import io
import os
import re
import stat
import subprocess
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import jax_pmap.notebook as notebook
from jax_pmap.model import Span, refused

#: Folders that hold no source of the project's own; hidden ones and virtual environments are left out too.
SKIPPED = frozenset({"site-packages", "node_modules", "build", "dist", "__pycache__"})
#: A folder with one of these files is a virtual or conda environment.
_ENVIRONMENT = ("pyvenv.cfg", "conda-meta")
#: Bytes. The largest hand-written modules stay below a tenth of this; parsing more takes gigabytes.
MAX_SIZE = 16 << 20
#: Folders, and files of the kinds that are looked for, below one project root before a bare name is given up.
MAX_ENTRIES = 200_000
#: Seconds git may take to list what it ignores.
GIT_TIMEOUT = 20.0


@dataclass(frozen=True, slots=True)
class SourceText:
    """A decoded file."""

    #: Line endings as in the file, without a byte order mark.
    text: str
    #: Python codec name; ``"utf-8-sig"`` when there was a byte order mark.
    encoding: str
    #: The line ending that the first line has.
    newline: str


class TooManyFilesError(Exception):
    """The folder holds more than `MAX_ENTRIES`; probably not a project."""


def python_files(folder: Path) -> Iterator[Path]:
    """Every Python file and notebook of a project; see `project_files`."""
    return project_files(folder, (".py", ".ipynb"))


def project_files(
    folder: Path, suffixes: tuple[str, ...], ignored: frozenset[str] = frozenset()
) -> Iterator[Path]:
    """Every file of a project that ends in one of `suffixes`, in a fixed order, links to folders aside.

    Folders that are `ignored` (absolute paths) are not entered. Other files are not counted: a project may
    hold any amount of data.

    Raises:
        TooManyFilesError: past `MAX_ENTRIES`.
    """
    entries = 0
    for top, folders, files in os.walk(folder):
        files = [name for name in files if name.endswith(suffixes) or name in _ENVIRONMENT]
        entries += 1 + len(files)
        if entries > MAX_ENTRIES:
            raise TooManyFilesError(folder)
        if top != str(folder) and any(name in files or name in folders for name in _ENVIRONMENT):
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED)
        if ignored:
            folders[:] = [name for name in folders if str(Path(top, name).absolute()) not in ignored]
        for name in sorted(files):
            if name.endswith(suffixes) and not name.startswith("."):
                yield Path(top, name)


def module_in(base: Path, dotted: str) -> Path | None:
    """File of a module below `base`; a package wins over a module of its name, as in an import."""
    place = base.joinpath(*dotted.split("."))
    return first_file(place / "__init__.py", place.with_name(place.name + ".py"))


def module_among(folders: Iterable[Path], dotted: str) -> Path | None:
    """File of a module below the first of `folders` that has it, as on ``sys.path``."""
    return next((path for folder in folders if (path := module_in(folder, dotted))), None)


def first_file(*paths: Path) -> Path | None:
    """The first of `paths` that is a file."""
    return next((path for path in paths if path.is_file()), None)


def ignored_folders(folder: Path) -> frozenset[str]:
    """Absolute paths of the folders below `folder` that git ignores; none where git has nothing to say.

    A folder that is itself ignored is looked at like any other: somebody named it.
    """
    # A repository's own settings may name a program for git to run.
    command = ["git", "-c", "core.fsmonitor=false", "ls-files", "-z", "--others", "--ignored"]
    try:
        done = subprocess.run(
            [*command, "--exclude-standard", "--directory"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    names = done.stdout.split(b"\0") if done.returncode == 0 else []
    found = (os.fsdecode(name).rstrip("/") for name in names if name.endswith(b"/"))
    return frozenset(str(folder.absolute() / name) for name in found if name not in ("", "."))


def read_bytes(path: Path) -> bytes | None:
    """Contents of a file of reasonable size, None for anything else (pipes, unreadable files …).

    Of a notebook, the Python code of its cells.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_SIZE:
            return None
        data = path.read_bytes()
        return notebook.python_text(data).encode() if notebook.is_notebook(path) else data
    except (OSError, ValueError, RecursionError, AttributeError, TypeError):
        return None


def decode(data: bytes, shown: str) -> SourceText:
    """Decode by byte order mark and coding comment, as the interpreter does.

    Raises:
        RefusalError: JP005, at the line that cannot be decoded.
    """
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = codecs.decode(data, encoding)
        if not isinstance(text, str):  # "hex" and the like are codecs, but not of text
            raise LookupError(f"{encoding!r} is not an encoding of text")
    except UnicodeDecodeError as error:
        _refuse_byte(error, data, shown)
    except SyntaxError as error:  # an unknown encoding, or a bad byte in the first two lines
        if "missing" in error.msg:
            try:
                data.decode()
            except UnicodeDecodeError as bad:
                _refuse_byte(bad, data, shown)
        _refuse(error.msg, Span(shown, 1), "")
    except Exception as error:  # codecs that are not of text raise what they like
        _refuse(f"the declared encoding does not fit: {error}", Span(shown, 1), "")
    found = re.search(r"\r\n|\r|\n", text)
    return SourceText(text, encoding, found[0] if found else "\n")


def parse(text: str, shown: str) -> ast.Module:
    """Parse a decoded file.

    Raises:
        RefusalError: JP005 with line and column, and the offending line in the reason.
    """
    if "\0" in text:
        _refuse("there is a null byte in it", Span(shown, text.count("\n", 0, text.index("\0")) + 1), "")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes are the user's, and said elsewhere
            return ast.parse(text)
    except SyntaxError as error:
        line = error.lineno or 1
        span = Span(shown, line, max((error.offset or 1) - 1, 0))
        lines = re.split(r"\r\n|\r|\n", text)
        _refuse(error.msg, span, lines[line - 1].strip() if line <= len(lines) else "")
    except (ValueError, RecursionError, MemoryError) as error:
        _refuse(f"it is nested too deeply ({error or type(error).__name__})", Span(shown, 1), "")


def _refuse_byte(error: UnicodeDecodeError, data: bytes, shown: str) -> NoReturn:
    line = data.count(b"\n", 0, error.start) + 1
    _refuse(f"byte {data[error.start]:#04x} is not {error.encoding}", Span(shown, line), "")


def _refuse(message: str, span: Span, line: str) -> NoReturn:
    where = f" in line {span.line}, `{line if len(line) <= 80 else line[:77] + '...'}`" if line else ""
    raise refused(
        "JP005",
        f"`{span.file}` does not parse: {message}{where}.",
        "Correct the file. Syntax newer than the Python that runs jax-pmap needs a newer Python for it.",
        span,
    )
