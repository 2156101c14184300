"""JP121: the average of the devices' masked means."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.flow import events
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module
from jax_pmap.checking.rule import rule
from jax_pmap.checking.values import Reduction, leaves


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """``pmean(sum(values * mask) / sum(mask))``, or of its gradient, with a mask that is split."""
    seen: set[object] = set()
    for mapping in mappings.all:
        if mapping.kind not in ("pmap", "shard_map"):
            continue
        for reduction in events(mappings, mapping).reductions:
            ratio = _ratio(reduction) if reduction.name == "pmean" else None
            if ratio is None or ratio in seen or reduction.call in seen:
                continue
            seen |= {ratio, reduction.call}
            yield module.finding(
                "JP121",
                reduction.call,
                f"the average of the devices' masked means is not the mean over all: each device's "
                f"`{ast.unparse(ratio.right)}` (line {ratio.lineno}) is another one",
                "Add up numerator and denominator over the devices first: "
                "`total, count = jax.lax.psum((total, count), …)`, then divide",
            )


def _ratio(reduction: Reduction) -> ast.BinOp | None:
    """The masked mean that a collective averages, or averages the gradient of."""
    for array in leaves(reduction.value):
        found = [array.ratio]
        if array.is_gradient:
            found += [made.loss.ratio for made in array.gradients if made.loss is not None]
        for ratio in found:
            if isinstance(ratio, ast.BinOp):
                return ratio
    return None


RULE = rule(
    "JP121",
    "average of masked means",
    find,
    meaning=(
        "A mapped function divides by the sum of a mask or of weights on its own share of the batch, and "
        "averages the quotients, or their gradients, over the devices."
    ),
    why=(
        "The quotients have different weights: a device with two valid rows counts as much as one with "
        "two hundred, and one with none makes everything NaN. Nothing fails, and with full batches the "
        "numbers are even right."
    ),
    cure="Sum numerator and denominator over the devices, then divide.",
    example="""\
import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.pmap, axis_name="batch")
def masked_mean(values, mask):
    return jax.lax.pmean(jnp.sum(values * mask) / jnp.sum(mask), axis_name="batch")
""",
    fixed="""\
import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.pmap, axis_name="batch")
def masked_mean(values, mask):
    total, count = jax.lax.psum((jnp.sum(values * mask), jnp.sum(mask)), axis_name="batch")
    return total / count
""",
)
DIAGNOSTIC = RULE.diagnostic
