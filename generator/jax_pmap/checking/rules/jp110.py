"""JP110: negative out_axes."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Negative numbers in `out_axes`."""
    for mapping in mappings.pmaps:
        node = mapping.application.argument(99, "out_axes")
        if not mapping.is_jax_pmap or not isinstance(node, ast.expr):
            continue
        axes = module.assigned(node)
        negative = (
            next(
                (
                    each
                    for each in ast.walk(axes)
                    if isinstance(each, ast.UnaryOp) and isinstance(each.op, ast.USub)
                ),
                None,
            )
            if axes is not None
            else None
        )
        if negative is not None and isinstance(module.constant(negative), int):
            yield module.finding(
                "JP110",
                negative,
                f"`out_axes` holds `{module.segment(negative)}`: `pmap` does not count from the end, and "
                "the result "
                "has another shape",
                "Count the axis of the stacked result from the front",
            )
