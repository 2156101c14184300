"""How a program is to be compiled that runs a few times: as a rule, as quickly as XLA can.

A chain of operations is fused into everything that reads its end, again and again: where each of many
results hangs on a long chain of its own, as the gradients of a deep product do, compile time grows with
the square of the length. Without fusing it grows with the length, but costs more for short chains.

Convolutions that no library does for XLA become loops, which run a hundred times slower where they are
not optimized: those in float64 that are strided (their gradients are dilated), grouped, or not over images.
"""

import functools
import operator
from typing import Any

from .jaxpr.forward import Forward
from .jaxpr.versions import opened, primitive_name
from .jaxpr.walk import subjaxprs
from .work import work

#: Operations that are computed element by element, or only move elements.
FUSED = """
abs add and atan2 broadcast_in_dim cbrt ceil clamp convert_element_type copy cos cosh div eq erf exp
exp2 expand_dims expm1 floor ge gt integer_pow iota is_finite le log log1p logistic lt max min mul ne neg
nextafter not or pad pow real reduce_precision rem reshape rev round rsqrt select_n shift_left
shift_right_arithmetic shift_right_logical sign sin sinh slice sqrt square squeeze stop_gradient sub tan tanh
transpose xor
"""
#: Repeated operations below which compiling takes no time to speak of.
FEW = 10_000
#: Times an operation is repeated, on average, from which on it is quicker not to fuse, with the second start
#: that this takes: jax's random numbers alone compile ten times as long so.
OFTEN = 40
#: Products in loops of convolutions from which on optimizing them is worth a second start.
PRODUCTS = 200_000


def compiled_as(jaxpr: Any) -> list[str]:
    """What compiling a program takes besides: ``"unfused"``, ``"optimized"``, both or nothing."""
    return [
        way
        for way, better in (
            ("unfused", better_unfused(jaxpr)),
            ("optimized", work(jaxpr, looped) > PRODUCTS),
        )
        if better
    ]


def looped(equation: Any) -> bool:
    """Whether an operation is a convolution that becomes loops."""
    if equation.primitive.name != "conv_general_dilated":
        return False
    params = equation.params
    dilated = any(step > 1 for step in (*params["lhs_dilation"], *params["rhs_dilation"]))
    grouped = params["feature_group_count"] > 1 or params["batch_group_count"] > 1
    return dilated or grouped or len(params["window_strides"]) != 2


def better_unfused(jaxpr: Any) -> bool:
    """Whether a program compiles quicker without the fusing of operations."""
    repeated, single = count(jaxpr)
    return repeated > max(FEW, OFTEN * single)


def count(jaxpr: Any) -> tuple[int, int]:
    """Operations in all fused kernels together, and operations that are fused."""
    counter = _Counter()
    counter.ends(counter.run(jaxpr, [0] * len(opened(jaxpr)[0].invars)))
    return counter.repeated, counter.single


class _Counter(Forward[int]):
    """Follows the operations behind every value that a kernel would compute again: a set, as bits."""

    enters = frozenset({"jit"})
    fused = frozenset(FUSED.split())

    def __init__(self) -> None:
        super().__init__()
        self.repeated = 0
        self.single = 0

    def ends(self, behind: list[int]) -> None:
        """Count kernels that compute values with these operations behind them."""
        self.repeated += sum(each.bit_count() for each in behind)

    def constant(self, value: Any) -> int:
        return 0

    def operation(self, equation: Any, behind: list[int]) -> list[int]:
        if primitive_name(equation) in self.fused:
            union = functools.reduce(operator.or_, behind, 1 << self.single)
            self.single += 1
            return [union] * len(equation.outvars)
        # A kernel ends before it.
        self.ends(behind)
        for each in subjaxprs(equation):
            self.ends(self.run(each, [0] * len(opened(each)[0].invars)))
        return [0] * len(equation.outvars)
