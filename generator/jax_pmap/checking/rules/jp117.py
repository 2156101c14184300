"""JP117: a static argument that changes in every call."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Counters of a loop over `range` or `enumerate` that are given to a static argument."""
    if not mappings.pmaps:
        return
    for loop in module.nodes:
        if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call):
            continue
        source = module.qualname(loop.iter.func)
        if source == "builtins.range":
            counter: ast.expr = loop.target
        elif source == "builtins.enumerate" and isinstance(loop.target, ast.Tuple):
            counter = loop.target.elts[0]
        else:
            continue
        if not isinstance(counter, ast.Name):
            continue
        for call in (each for statement in loop.body for each in module.calls(statement)):
            mapping = mappings.pmap_at(call.func)
            if mapping is None or not mapping.is_jax_pmap:
                continue
            node = mapping.application.argument(99, "static_broadcasted_argnums")
            static = module.constant(node) if node is not None else ()
            for position in static if isinstance(static, tuple) else (static,):
                if not isinstance(position, int) or not 0 <= position < len(call.args):
                    continue
                given = call.args[position]
                if isinstance(given, ast.Name) and given.id == counter.id:
                    yield module.finding(
                        "JP117",
                        given,
                        f"`{given.id}` changes in every turn and is a static argument: every call compiles "
                        "anew",
                        "Make it an ordinary argument that all devices get whole: `None` at its place in "
                        "`in_axes`",
                    )
