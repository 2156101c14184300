"""`--confined`: run nothing but the project's own code, and touch no file outside the project.

For those who approve command lines beforehand, as the Claude Code plugin does. The flag stands in front of
the subcommand, where an approved beginning names it, so that nothing that is appended takes it back.
What is left is what was approved: the file of the target and those it imports *are run*, under the
interpreter that the project or the shell names.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any, NoReturn

from jax_pmap.config import project_root
from jax_pmap.model import Request, refused
from jax_pmap.proof.layouts import read_convert
from jax_pmap.sources import SKIPPED, parse

FLAG = "--confined"


def confine(
    request: Request, *, parallel: str | None = None, convert: str | None = None, output: str | None = None
) -> None:
    """Refuse a request that runs, reads or writes something else than the project's own files.

    Args:
        request: as asked for, the defaults of pyproject.toml included.
        parallel: the function that `verify` holds against the target.
        convert: the function that `verify` calls on its trees, as typed.
        output: the file that is written, or compared with.

    Raises:
        RefusalError: JP022, naming the option or the file; what `locate` raises for a target.
    """
    if request.run is not None:
        _refuse("`--run` runs any program")
    if request.python is not None:
        _refuse("`--python` runs any program as the interpreter")
    root = Path(os.path.realpath(project_root(request.directory)))
    for option, path in (("--plan", request.plan), ("-o", Path(output) if output else None)):
        if path is not None:
            _own(request.directory / path, root, f"{option} {path}")
    if request.inputs is not None:
        _confine_function(request.inputs, f"--inputs {request.inputs}", request.directory, root)
    if convert is not None:
        _confine_function(read_convert(convert)[1], f"--convert {convert}", request.directory, root)

    from jax_pmap.locate import locate, locate_object

    source = locate(request.target, request.directory)
    _own(source.path, root, request.target)
    tree = parse(source.text, source.shown_path)
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for text in request.args:
        _confine_argument(text, classes)
    if parallel is not None:
        _own(locate_object(parallel, request.directory).path, root, parallel)


def confine_check(paths: tuple[str, ...], directory: Path, *, run: bool, writes: str | None) -> None:
    """Refuse a `check` that runs anything, writes, or reads outside the project.

    Args:
        paths: as typed.
        directory: where relative ones start from.
        run: whether generated files are made again and snippets run.
        writes: the option that writes files, if one was given.

    Raises:
        RefusalError: JP022.
    """
    if writes is not None:
        _refuse(f"`check {writes}` writes files")
    if run:
        _refuse(
            "`check` runs the commands in the headers of generated files, and the snippets of pages",
            "Add `--no-run`, or leave out `--confined` if that is what you mean.",
        )
    root = Path(os.path.realpath(project_root(directory)))
    for text in paths:
        if text != "-":
            _inside(directory / text, root, text)


def refuse_writing(option: str) -> NoReturn:
    """Refuse an option that writes a file besides the one that holds the code.

    Raises:
        RefusalError: JP022, always.
    """
    _refuse(f"`{option}` writes a file")


def _confine_function(function: str, option: str, directory: Path, root: Path) -> None:
    """Refuse an option with ``FILE::FUNC`` or ``module:FUNC`` that is not the project's own."""
    from jax_pmap.locating.project import Project

    file, double, _ = function.partition("::")
    if double:
        _own(directory / Path(file).expanduser(), root, option)
        return
    module = function.partition(":")[0]
    found = Project(directory).module_files(module)
    if not found:
        _refuse(f"`{option}` calls a function of a module that the project does not have")
    for path, _ in found:
        _own(path, root, option)


def _confine_argument(text: str, classes: set[str]) -> None:
    """Refuse a spec that calls something: typed Python, or a class that the target's file does not define.

    What is called in ``Params{w: SPEC}`` may be any name that is reached from the module.
    """
    from jax_pmap.inputs.spec import parse_argument

    waiting: list[Any] = [parse_argument(text)[1]]
    while waiting:
        spec = waiting.pop()
        if spec["kind"] == "python":
            _refuse(f"`--arg {text}` runs Python that was typed (`py:`)")
        if spec["kind"] == "object" and spec["type"] not in classes:
            _refuse(f"`--arg {text}` calls `{spec['type']}`, which is no class of the target's file")
        items = spec.get("items", ())
        waiting += [item[1] for item in items] if spec["kind"] in ("dict", "object") else items


def _own(path: Path, root: Path, said: str) -> None:
    """Refuse a file that a bare name is not looked for in: outside the project, hidden, or installed."""
    inside = _inside(path, root, said)
    for name in inside.parts[:-1]:
        if name.startswith(".") or name in SKIPPED:
            _refuse(f"`{said}` names a file in a folder `{name}`, which does not hold the project's own code")


def _inside(path: Path, root: Path, said: str) -> Path:
    """The path below `root` that `path` leads to, through links."""
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(root):
        _refuse(f"`{said}` names a file outside the project `{root}`")
    return real.relative_to(root)


def _refuse(what: str, hint: str = "Leave out `--confined` if that is what you mean.") -> NoReturn:
    raise refused("JP022", f"{what}, and `{FLAG}` runs and touches the project's own files alone.", hint)
