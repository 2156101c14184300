"""JP116: keyword arguments to a function with an in_axes tuple."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module
from jax_pmap.checking.rule import rule


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


RULE = rule(
    "JP116",
    "keyword argument to a pmapped function",
    find,
    meaning="A function that was mapped with an `in_axes` tuple is called with keyword arguments.",
    why=(
        "`in_axes` counts positional arguments only, and keyword arguments are always mapped over axis "
        "0: the call fails with an error about pytree structure."
    ),
    cure="Give all arguments by position.",
    example="""\
import jax


def scale(x, factor):
    return x * factor


parallel_scale = jax.pmap(scale, in_axes=(0, None))


def run(x):
    return parallel_scale(x, factor=2.0)
""",
    fixed="""\
import jax


def scale(x, factor):
    return x * factor


parallel_scale = jax.pmap(scale, in_axes=(0, None))


def run(x):
    return parallel_scale(x, 2.0)
""",
)
DIAGNOSTIC = RULE.diagnostic
