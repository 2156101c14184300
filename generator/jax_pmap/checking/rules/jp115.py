"""JP115: pmap inside pmap."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Maps over devices that are made or called in a function that is itself mapped over devices."""
    mapped = {m.function.node for m in mappings.pmaps if m.is_jax_pmap and m.function is not None}
    for mapping in mappings.pmaps:
        if not mapping.is_jax_pmap:
            continue
        inner = mapping.application.argument(0, "fun")
        nested = isinstance(inner, ast.Call) and any(other.node is inner for other in mappings.pmaps)
        if nested or module.enclosing_function(mapping.node) in mapped:
            yield module.finding(
                "JP115",
                mapping.node,
                "`pmap` inside `pmap`, which current jax does not take",
                "Map the inner function with `jax.vmap`, or use `jax.shard_map` over a mesh with two axes",
            )
