"""Which program of the project calls a function: what `--run` may be given, for a hint."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from pathlib import Path

import jax_pmap.sources as sources
from jax_pmap.locating.paths import made_by_us
from jax_pmap.locating.project import Project
from jax_pmap.model import RefusalError, Source
from jax_pmap.notebook import is_notebook

#: Statements at the top of a file that define, and do nothing.
_DEFINING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


def command_of(source: Source, directory: Path, *, own: bool = False) -> str | None:
    """``"python train.py"``, or a notebook, where that calls the function; None where there is none.

    The function's own file comes first, then those nearest to it; with `own`, no other is looked at.
    """
    project, name = Project(directory), source.name
    for path in (source.path, *(() if own else _others(project, source.path))):
        if _calls(project, path, name):
            return project.typed(path) if is_notebook(path) else f"python {project.typed(path)}"
    return None


def _others(project: Project, own: Path) -> Iterator[Path]:
    found = [path for path in project.python_files() if path != own and not path.name.startswith("test_")]
    yield from sorted(found, key=lambda path: (path.parent != own.parent, len(path.parts), path))


def _calls(project: Project, path: Path, name: str) -> bool:
    """Whether a file is a program, and calls something of that name."""
    data = sources.read_bytes(path) or b""
    if name.encode() not in data or made_by_us(data):
        return False
    with contextlib.suppress(RefusalError):
        tree = project.parsed(path, data).tree
        return _is_program(tree) and any(
            isinstance(node, ast.Call)
            and name == (node.func.attr if isinstance(node.func, ast.Attribute) else _id(node.func))
            for node in ast.walk(tree)
        )
    return False


def _is_program(tree: ast.Module) -> bool:
    """Whether running a file does something: it has a ``__main__`` guard, or calls for the effect of it."""
    return any(
        "__main__" in ast.dump(node.test) if isinstance(node, ast.If) else _acts(node)
        for node in tree.body
        if not isinstance(node, _DEFINING)
    )


def _acts(node: ast.stmt) -> bool:
    loops = isinstance(node, ast.For | ast.While | ast.With)
    return loops or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))


def _id(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""
