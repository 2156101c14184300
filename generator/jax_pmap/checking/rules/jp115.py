"""JP115: pmap inside pmap."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module
from jax_pmap.checking.rule import rule


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


RULE = rule(
    "JP115",
    "pmap inside pmap",
    find,
    meaning="A function that is mapped with `pmap` maps another one with `pmap`.",
    why="Since jax 0.8 it is an error about a context mesh.",
    cure="Use `jax.vmap` for the inner map, or one `jax.shard_map` over a mesh with two axes.",
    example="""\
import jax

both = jax.pmap(jax.pmap(lambda x: 2 * x))
""",
    fixed="""\
import jax

both = jax.pmap(jax.vmap(lambda x: 2 * x))
""",
)
DIAGNOSTIC = RULE.diagnostic
