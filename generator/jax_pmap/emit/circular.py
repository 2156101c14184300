"""Which imports would come back to the file that they are added to."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import jax_pmap.sources as sources
from jax_pmap.model import Source
from jax_pmap.syntax.imports import absolute
from jax_pmap.worker.scopes import own_nodes


def comes_back(module: str, source: Source) -> bool:
    """Whether importing a module imports the file of a `source` again, before the file has all its names."""
    pending = [module, *_above(module, source)]
    for dotted in pending:
        path = sources.module_among((*source.folders, source.path.parent), dotted)
        if path is None:
            continue
        if path == source.path:
            return True
        data = sources.read_bytes(path) or b""
        try:
            tree = ast.parse(data)
        except (SyntaxError, ValueError):
            continue
        for name in _imported(tree, dotted, path.name == "__init__.py"):
            pending += [each for each in (name, *_above(name, source)) if each not in pending]
    return False


def _above(module: str, source: Source) -> list[str]:
    """The packages that a module is in, but for those that are imported already when the file is."""
    parts = module.split(".")
    packages = [".".join(parts[:count]) for count in range(1, len(parts))]
    return [each for each in packages if not source.module.startswith(f"{each}.")]


def _imported(tree: ast.Module, module: str, package: bool) -> Iterator[str]:
    """Modules that a file imports when it is imported, and names in them that may be modules."""
    for node in own_nodes(tree.body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = absolute("." * node.level + (node.module or ""), module, package=package)
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)
