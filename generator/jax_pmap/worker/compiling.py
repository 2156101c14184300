"""How a program is to be compiled that runs a few times: as a rule, as quickly as XLA can.

A chain of operations is fused into everything that reads its end, again and again: where each of many
results hangs on a long chain of its own, as the gradients of a deep product do, compile time grows with
the square of the length. Without fusing it grows with the length, but costs more for short chains.

Convolutions that no library does for XLA become loops, which run a hundred times slower where they are
not optimized: those in float64 that are strided (their gradients are dilated), grouped, or not over images.
"""

from typing import Any

from .work import jaxprs, work

#: Operations that are computed element by element, or only move elements.
FUSED = """
abs add add_any and atan2 broadcast_in_dim cbrt ceil clamp convert_element_type copy cos cosh div eq erf exp
exp2 expand_dims expm1 floor ge gt integer_pow iota is_finite le log log1p logistic lt max min mul ne neg
nextafter not or pad pow real reduce_precision rem reshape rev round rsqrt select_n shift_left
shift_right_arithmetic shift_right_logical sign sin sinh slice sqrt square squeeze stop_gradient sub tan tanh
transpose xor
"""
#: Primitives that run a jaxpr of their own in the place where they stand.
CALLS = """
jit pjit closed_call core_call custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr remat checkpoint
"""
#: Repeated operations below which compiling takes no time to speak of.
FEW = 10_000
#: Times an operation is repeated, on average, from which on it is quicker not to fuse.
OFTEN = 25
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
    counter.ends(counter.walk(jaxpr, [0] * len(jaxpr.invars)))
    return counter.repeated, counter.single


class _Counter:
    """Follows the operations behind every value that a kernel would compute again: a set, as bits."""

    def __init__(self) -> None:
        self.fused, self.calls = frozenset(FUSED.split()), frozenset(CALLS.split())
        self.repeated = 0
        self.single = 0

    def ends(self, behind: list[int]) -> None:
        """Count kernels that compute values with these operations behind them."""
        self.repeated += sum(each.bit_count() for each in behind)

    def walk(self, jaxpr: Any, given: list[int]) -> list[int]:
        """The operations behind the results of `jaxpr`, from those behind what it is given."""
        known = dict(zip(jaxpr.invars, given, strict=True))

        def behind(variable: Any) -> int:
            return 0 if hasattr(variable, "val") else known.get(variable, 0)

        for equation in jaxpr.eqns:
            name, read = equation.primitive.name, [behind(each) for each in equation.invars]
            inner = [each for value in equation.params.values() for each in jaxprs(value)]
            if name in self.calls and len(inner) == 1 and len(inner[0].invars) == len(read):
                made = self.walk(inner[0], read)
            elif name in self.fused:
                union = 1 << self.single
                self.single += 1
                for each in read:
                    union |= each
                made = [union] * len(equation.outvars)
            else:
                self.ends([each for each in read if each])
                for each in inner:
                    self.ends(self.walk(each, [0] * len(each.invars)))
                made = [0] * len(equation.outvars)
            known.update(zip(equation.outvars, made, strict=True))
        return [behind(each) for each in jaxpr.outvars]
