"""Reductions over the examples of a batch, found by tracing a function with it and with twice as much."""

from collections.abc import Iterator
from typing import Any

from .jaxpr.walk import walk
from .layers import OURS

#: Equations that make one value of several along ``axes``.
REDUCING = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod"})


def reductions(whole: Any, twice: Any) -> Iterator[list[tuple[str, int, str]]]:
    """Where each reduction along an axis that grows with the batch stands: its frames, the outermost first.

    `whole` and `twice` are jaxprs of one function on batches of two sizes. What is not the same in both but
    for shapes is passed over, and so is what a jax without frames says nothing of.
    """
    for rows in walk(whole, twice):
        path, (left, right) = [row[0] for row in rows], rows[-1]
        # In a gradient it sums what the function itself spread.
        if left.primitive.name not in REDUCING or any(map(is_transposed, path)):
            continue
        shapes = left.invars[0].aval.shape, right.invars[0].aval.shape
        if any(shapes[0][axis] != shapes[1][axis] for axis in left.params["axes"]):
            yield [frame for equation in path for frame in frames(equation)]


def is_transposed(equation: Any) -> bool:
    """Whether an equation was made by transposing another one."""
    return "transpose(" in str(getattr(equation.source_info, "name_stack", ""))


def frames(equation: Any) -> list[tuple[str, int, str]]:
    """File, line and function of the calls that led to an equation, the outermost first."""
    traceback = getattr(equation.source_info, "traceback", None)
    found = [(f.file_name, f.line_num, f.function_name) for f in getattr(traceback, "frames", ())]
    return [frame for frame in reversed(found) if not frame[0].startswith(OURS)]
