"""JP124: what jax deprecates."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module
from jax_pmap.checking.removals import WITH_MESH
from jax_pmap.checking.removed import uses


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """What still works and says that it will not, where the code does not ask whether it is there."""
    for use in uses(module):
        if not use.removal.gone:
            yield module.finding("JP124", use.node, use.message, use.hint, use.edits)
    for node in module.nodes:
        if isinstance(node, ast.With):
            for item in node.items:
                if _is_mesh(module, item.context_expr) and not module.is_guarded(node):
                    yield _with_mesh(module, mappings, node, item.context_expr)


def _with_mesh(module: Module, mappings: Mappings, node: ast.With, mesh: ast.expr) -> Finding:
    maps = any(mappings.pmap_at(call.func) is not None for call in module.calls(node))
    hint = (
        "Leave it out: `pmap` makes a mesh of its own, and raises an error under another `jax.set_mesh`"
        if maps
        else f"{WITH_MESH.cure[0].upper()}{WITH_MESH.cure[1:]}"
    )
    return module.finding(
        "JP124",
        mesh,
        f"`with {' '.join(module.segment(mesh).split())}:` is deprecated since jax {WITH_MESH.since}",
        hint,
    )


def _is_mesh(module: Module, node: ast.expr) -> bool:
    made = module.assigned(node)
    return isinstance(made, ast.Call) and module.qualname(made.func) in (
        "jax.sharding.Mesh",
        "jax.make_mesh",
        "jax.experimental.maps.Mesh",
    )
