"""JP121: the average of the devices' masked means."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.flow import events
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module
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
