"""Which Python runs the user's code. Paths only: the worker finds out whether jax is there."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from jax_pmap.config import TABLE, project_root, read_config
from jax_pmap.model import Request, refused
from jax_pmap.worker.stubs import VARIABLE

#: Where a virtual environment keeps its interpreter.
_IN_ENVIRONMENT = ("bin/python", "bin/python3", "Scripts/python.exe", "python.exe")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The user's interpreter."""

    #: Absolute; symbolic links are kept, because a virtual environment's ``bin/python`` is one.
    path: Path
    #: Who named it: ``"--python"``, ``"[tool.jax-pmap] python"``, ``"$VIRTUAL_ENV"``, ``".venv"`` or
    #: ``"the running interpreter"``.
    origin: str


def interpreter_of(request: Request) -> tuple[Path, dict[str, str]]:
    """The interpreter that runs the user's code, and the variables that its program sets.

    Raises:
        RefusalError: JP009, or JP018 for a program that cannot be read.
    """
    named: Path | None = request.python
    environment: dict[str, str] = {}
    if request.run is not None:
        from jax_pmap.inputs.program import read_program

        program = read_program(request.run, request.directory)
        named, environment = named or program.python, dict(program.environment)
    if request.stub:
        environment[VARIABLE] = ",".join(request.stub)
    found = find_interpreter(named, request.directory, read_config(request.directory).python)
    return found.path, environment


def find_interpreter(request_python: Path | None, directory: Path, configured: str | None) -> Interpreter:
    """The first of: --python, `[tool.jax-pmap] python`, $VIRTUAL_ENV, ./.venv, the running interpreter.

    The first that is *named* counts: one that is named and missing is refused, never passed over, because
    the next in line would have other packages.

    Args:
        request_python: the value of ``--python``: an executable, a command on $PATH, or the folder of a
            virtual environment.
        directory: folder that relative paths of `request_python` and ``./.venv`` start from.
        configured: the value in pyproject.toml, relative to the project root.

    Raises:
        RefusalError: JP009, naming the path and who asked for it.
    """
    directory = directory.absolute()
    root = project_root(directory)
    if request_python is not None:
        return _named(str(request_python), directory, "--python")
    if configured is not None:
        return _named(configured, root, f"[{TABLE}] python")
    if environment := os.environ.get("VIRTUAL_ENV"):
        return _named(environment, directory, "$VIRTUAL_ENV")
    for folder in dict.fromkeys((directory / ".venv", root / ".venv")):
        if (folder / "pyvenv.cfg").is_file() or _inside(folder):
            return _named(str(folder), directory, ".venv")
    if not sys.executable:
        _refuse("The running Python does not know its own path.", "Name one with `--python PATH`.")
    return Interpreter(Path(sys.executable).absolute(), "the running interpreter")


def _named(text: str, base: Path, origin: str) -> Interpreter:
    """The interpreter that `text` names, or JP009."""
    path = Path(os.path.normpath(base / os.path.expanduser(text)))  # noqa: PTH111 (Path's raises for unknown users)
    hint = _hint(origin)
    try:
        if path.is_dir():
            found = _inside(path)
            if found is None:
                _refuse(f"`{text}` ({origin}) is a folder without a Python in `bin` or `Scripts`.", hint)
            path = found
        elif not os.path.lexists(path) and _is_command(text) and (command := shutil.which(text)):
            path = Path(command).absolute()
        elif not path.is_file():
            what = "is a broken symbolic link" if path.is_symlink() else "is not there"
            _refuse(f"`{text}` ({origin}) {what}.", hint)
    except (OSError, ValueError) as error:
        _refuse(
            f"`{text}` ({origin}) cannot be looked at: {getattr(error, 'strerror', None) or error}.", hint
        )
    if not os.access(path, os.X_OK):
        _refuse(f"`{path}` ({origin}) is not executable.", hint)
    return Interpreter(path, origin)


def _inside(folder: Path) -> Path | None:
    """The interpreter of the virtual environment at `folder`."""
    return next((folder / name for name in _IN_ENVIRONMENT if (folder / name).is_file()), None)


def _is_command(text: str) -> bool:
    return Path(text).name == text


def _hint(origin: str) -> str:
    if origin == "$VIRTUAL_ENV":
        return "Leave that environment (`deactivate`), or name the Python you train with: `--python PATH`."
    if origin == ".venv":
        return "Make the environment again, or name the Python you train with: `--python PATH`."
    if origin == "--python":
        return "Name an executable or the folder of a virtual environment: `--python .venv`."
    return (
        "Correct it in pyproject.toml (paths start from the project root), or override it: `--python PATH`."
    )


def _refuse(reason: str, hint: str) -> NoReturn:
    raise refused("JP009", reason, hint)
