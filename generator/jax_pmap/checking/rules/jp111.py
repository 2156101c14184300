"""JP111: pmap made anew in a loop."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module
from jax_pmap.worker.scopes import names_in, names_stored


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Mapped functions that are made again in every turn of a loop although nothing in them changes."""
    for mapping in mappings.pmaps:
        node = mapping.node
        loop = _loop(module, node)
        if loop is None or not isinstance(node, ast.Call) or not node.args:
            continue
        first = node.args[0]
        fresh = isinstance(first, ast.Lambda) or (
            isinstance(first, ast.Call) and module.qualname(first.func) == "functools.partial"
        )
        if not fresh or names_in(node) & _assigned(loop, node) or not _is_called(module, node, loop):
            continue
        yield module.finding(
            "JP111",
            node,
            "`pmap` of a function that is made in the loop: every turn compiles it again",
            "Make the mapped function once, before the loop, and call it in the loop",
        )


def _loop(module: Module, node: ast.AST) -> ast.For | ast.AsyncFor | ast.While | None:
    """The loop of the same function whose body `node` is in."""
    child = node
    for parent in module.ancestors(node):
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            return None
        if isinstance(parent, ast.For | ast.AsyncFor | ast.While) and child in parent.body:
            return parent
        child = parent
    return None


def _assigned(loop: ast.AST, inner: ast.AST) -> set[str]:
    """Names that a turn of `loop` sets, but for parameters of the mapped function itself."""
    own = {each.arg for each in ast.walk(inner) if isinstance(each, ast.arg)}
    stored = names_stored(loop)
    defined = {each.name for each in ast.walk(loop) if isinstance(each, ast.FunctionDef)}
    return (stored | defined) - own


def _is_called(module: Module, node: ast.Call, loop: ast.AST) -> bool:
    """Whether what `node` makes is called in the loop, at once or by the name it is given."""
    parent = module.parents.get(node)
    if isinstance(parent, ast.Call):
        return parent.func is node
    if not isinstance(parent, ast.Assign) or not isinstance(parent.targets[0], ast.Name):
        return False
    name = parent.targets[0].id
    return any(isinstance(call.func, ast.Name) and call.func.id == name for call in module.calls(loop))
