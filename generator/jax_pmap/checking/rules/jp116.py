"""JP116: keyword arguments to a function with an in_axes tuple."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Keyword arguments given to a function that was mapped with a tuple of `in_axes`."""
    if not mappings.pmaps:
        return
    for call in module.all_calls:
        named = [keyword for keyword in call.keywords if keyword.arg is not None]
        if not named or len(named) != len(call.keywords):
            continue
        mapping = mappings.pmap_at(call.func)
        if mapping is None or not mapping.is_jax_pmap or mapping.application.factory:
            continue
        axes = module.assigned(mapping.application.argument(99, "in_axes"))
        if isinstance(axes, ast.Tuple) and len(call.args) < len(axes.elts):
            yield module.finding(
                "JP116",
                named[0].value,
                f"`{named[0].arg}` is given by keyword: `pmap` maps keyword arguments over axis 0, and its "
                "`in_axes` "
                "then has too many entries",
                "Give it by position",
            )
