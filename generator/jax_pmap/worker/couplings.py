"""Reductions over the examples of a batch, found by tracing a function with all of it and with half of it."""

from collections.abc import Iterator
from typing import Any

from .jaxpr.versions import inner_jaxpr
from .layers import OURS

#: Equations that make one value of several along ``axes``.
REDUCING = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod"})
Frames = list[tuple[str, int, str]]


def reductions(whole: Any, half: Any, around: Frames | None = None) -> Iterator[Frames]:
    """Where each reduction along an axis that grows with the batch stands: its frames, the outermost first.

    `whole` and `half` are jaxprs of one function on batches of two sizes. What is not the same in both but
    for shapes is passed over, and so is what a jax without frames says nothing of.
    """
    whole, half = (getattr(each, "jaxpr", each) for each in (whole, half))
    if len(whole.eqns) != len(half.eqns):
        return
    for left, right in zip(whole.eqns, half.eqns, strict=True):
        if left.primitive is not right.primitive:
            return
        if "transpose(" in str(getattr(left.source_info, "name_stack", "")):
            continue  # Of a gradient; it sums what the function itself spread.
        traceback = getattr(left.source_info, "traceback", None)
        own = [(f.file_name, f.line_num, f.function_name) for f in getattr(traceback, "frames", ())]
        frames = [*(around or []), *(frame for frame in reversed(own) if not frame[0].startswith(OURS))]
        inner, other = inner_jaxpr(left.params), inner_jaxpr(right.params)
        if inner is not None and other is not None:
            yield from reductions(inner, other, frames)
        elif left.primitive.name in REDUCING:
            shapes = left.invars[0].aval.shape, right.invars[0].aval.shape
            if any(shapes[0][axis] != shapes[1][axis] for axis in left.params["axes"]):
                yield frames
