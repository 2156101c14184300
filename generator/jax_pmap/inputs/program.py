"""The text of `--run`: which Python program it names, and how Python would start it."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import jax_pmap.sources as sources
from jax_pmap.notebook import is_notebook
from jax_pmap.options import refuse
from jax_pmap.worker import protocol

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*(?:\.exe)?")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
#: Programs that start another one with the user's environment; what follows them is the program.
_STARTERS = (
    ("uv", "run"),
    ("poetry", "run"),
    ("pdm", "run"),
    ("hatch", "run"),
    ("pixi", "run"),
    ("rye", "run"),
)
#: Words that only a shell understands.
_SHELL = frozenset({"&&", "||", "|", ";", "&", ">", "<", ">>", "2>", "2>&1"})
#: Options of Python that take a value of their own.
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_EXAMPLE = '`--run "python train.py --steps 1"`'


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A Python program, and how it is started."""

    program: protocol.Program
    #: Environment variables set in front of the command.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: The interpreter, where it was named by a path.
    python: Path | None = None


def read_program(text: str, directory: Path) -> CommandLine:
    """Take a command line apart as a shell and Python would, without either.

    Raises:
        RefusalError: JP018 for what is not the command line of a Python program.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        refuse(f"`--run {text}` cannot be split into words: {error}.", "Close the quotes.")
    environment: dict[str, str] = {}
    while words and (match := _ASSIGNMENT.fullmatch(words[0])):
        environment[match[1]] = match[2]
        words.pop(0)
    for starter in _STARTERS:
        if tuple(words[:2]) == starter:
            words = words[2:]
    if not words:
        refuse("`--run` names no program.", f"Write the command that runs yours, such as {_EXAMPLE}.")
    shell = next((word for word in words if word in _SHELL or word.endswith(";")), None)
    if shell is not None or words[0] in ("cd", "source", "export", "env", "bash", "sh"):
        refuse(
            f"`--run {text}` is for a shell (`{shell or words[0]}`), and it is run without one.",
            f"Give the one command that runs the Python program, such as {_EXAMPLE}.",
        )
    folder = directory.absolute()
    first, *rest = words
    python: Path | None = None
    if _PYTHON.fullmatch(os.path.basename(first)):  # noqa: PTH119 (a word, not a path of ours)
        if "/" in first:
            python = Path(os.path.normpath(folder / Path(first).expanduser()))
        kind, what, args = _python(text, rest)
    elif first in ("pytest", "py.test"):
        kind, what, args = "pytest", "", rest
    elif first.endswith((".py", ".ipynb")):
        kind, what, args = "script", first, rest
    else:
        refuse(
            f"`--run {text}`: `{first}` is not known to be a Python program.",
            f"Start it as Python does: {_EXAMPLE}, `python -m package.module` or `pytest tests/test_x.py`.",
        )

    def started(kind: str, what: str, name: str, first: str | None, cells: str = "") -> CommandLine:
        program = protocol.Program(kind, what, tuple(args), (name, *args), first, cells)
        return CommandLine(program, environment, python)

    if kind == "module" and what == "pytest":
        return started("pytest", "", "pytest", str(folder))
    if kind == "pytest":
        return started(kind, what, "pytest", None)
    if kind == "script":
        path = Path(os.path.normpath(folder / Path(what).expanduser()))
        if not path.is_file():
            _no_script(what, path)
        cells = ""
        if is_notebook(path):
            kind, cells = "notebook", _cells(what, path)
        return started(kind, str(path), what, str(path.resolve().parent), cells)
    return started(kind, what, "-m" if kind == "module" else "-c", str(folder))


def _python(text: str, words: list[str]) -> tuple[str, str, list[str]]:
    """Kind, program and arguments of what follows the word ``python``."""
    while words:
        word, *words = words
        if word == "--":
            continue
        if word in ("-m", "-c"):
            if not words:
                refuse(f"`--run {text}` ends with `{word}`.", "Name what it runs.")
            return ("module" if word == "-m" else "code"), words[0], words[1:]
        if word in _WITH_VALUE:
            words = words[1:]
        elif word == "-":
            break
        elif not word.startswith("-"):
            return "script", word, words
    refuse(f"`--run {text}` starts Python without a program.", f"Name it: {_EXAMPLE}.")


def _cells(typed: str, path: Path) -> str:
    data = sources.read_bytes(path)
    if data is None:
        refuse(f"`--run`: `{typed}` is not the JSON of a notebook.", "Save it again in Jupyter.")
    return data.decode()


def _no_script(typed: str, path: Path) -> NoReturn:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix in (".py", ".ipynb")]
    except OSError:
        names = []
    near = difflib.get_close_matches(path.name, names, n=1)
    hint = f"Paths start from `{path.parent}`." if path.parent.is_dir() else "Check its folder."
    if near:
        hint = f"Did you mean `{typed.removesuffix(path.name)}{near[0]}`?"
    refuse(f"`--run`: there is no file `{typed}`.", hint)
