"""Operations by what they do to the numbers that they are given: move them, add them up, exchange them."""

from collections.abc import Sequence
from typing import Any

#: Operations whose operands may be exchanged.
COMMUTATIVE = frozenset({"max", "min", "and", "or", "xor", "eq", "ne"})
#: Operations that hand their operand on.
IDENTITIES = frozenset(
    {
        "copy",
        "stop_gradient",
        "optimization_barrier",
        "device_put",
        "sharding_constraint",
        "pvary",
        "name",
        "random_clone",
        "jax_pmap_mark",
    }
)
#: Operations linear in their first operand.
LINEAR = frozenset(
    {
        "reduce_sum",
        "broadcast_in_dim",
        "reshape",
        "squeeze",
        "expand_dims",
        "transpose",
        "slice",
        "rev",
        "real",
        "imag",
        "conj",
        "cumsum",
        "gather",
        "dynamic_slice",
        "reduce_window_sum",
        "split",
        "unstack",
        "fft",
        "select_and_gather_add",
        "scatter_mul",
    }
)
#: Operations linear in each of their first two operands.
BILINEAR = frozenset({"dot_general", "conv_general_dilated"})
#: Operations linear in some operands together: pieces of an array, and what is between them.
TOGETHER = {
    "pad": (0, 1),
    "dynamic_update_slice": (0, 1),
    "scatter": (0, 2),
    "scatter_add": (0, 2),
    "scatter_sub": (0, 2),
}
#: Operations element by element that take a scalar for an array.
SPREADING = frozenset(
    [
        "add",
        "sub",
        "mul",
        "div",
        "max",
        "min",
        "and",
        "or",
        "xor",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "pow",
        "rem",
        "atan2",
        "nextafter",
        "select_n",
        "clamp",
    ]
)
#: Nonlinear functions of one or more operands, element by element.
FUNCTIONS = (
    "log1p",
    "expm1",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "atan2",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "logistic",
    "erf",
    "erfc",
    "erf_inv",
    "lgamma",
    "digamma",
    "polygamma",
    "regularized_incomplete_beta",
    "igamma",
    "igammac",
    "igamma_grad_a",
    "bessel_i0e",
    "bessel_i1e",
    "zeta",
    "exp2",
    "floor",
    "ceil",
    "round",
    "is_finite",
    "pow",
    "not",
    "and",
    "or",
    "xor",
    "clamp",
    "population_count",
    "clz",
    "nextafter",
    "rem",
    "shift_left",
    "shift_right_logical",
    "shift_right_arithmetic",
    "bitcast_convert_type",
    "exp",
    "log",
    "mulhi",
    "log2",
    "one_minus_square",
    "polynomial",
)
#: Operations whose elements are each of the elements at the same place, or of scalars.
ELEMENTWISE = frozenset(
    {
        *SPREADING,
        *FUNCTIONS,
        "scale",
        "sum",
        "prod",
        "convert_element_type",
        "reduce_precision",
        "neg",
        "sign",
    }
    | {"abs", "square", "integer_pow", "sqrt", "rsqrt", "cbrt", "real", "imag", "conj", "complex"}
)
#: Operations that are linear over the real numbers only.
REAL = frozenset({"real", "imag", "conj", "fft"})
#: Operations that only move elements.
MOVES = frozenset(
    {
        "broadcast_in_dim",
        "reshape",
        "transpose",
        "slice",
        "rev",
        "dynamic_slice",
        "split",
        "tile",
        "unstack",
        "reduce_max",
        "reduce_min",
    }
)


def linear_in(op: str, params: Any) -> tuple[int, ...]:
    """The operands in each of which an operation is linear, the others being fixed."""
    if op == "gather" and dict(params).get("fill_value") not in (None, 0):
        return ()
    if op in LINEAR:
        return (0,)
    return (0, 1) if op in BILINEAR else ()


def linear_together(op: str, params: Any, count: int) -> Sequence[int]:
    """The operands, of `count`, in which an operation is linear when all of them are multiplied alike.

    Not those of a selection: what it leaves out may be a division by zero, as in `where(n > 0, x / n, 0)`.
    """
    if op == "scatter" and dict(params).get("update_jaxpr") is not None:
        # `x.at[i].apply(f)`.
        return ()
    return range(count) if op in ("concatenate", "stack") else TOGETHER.get(op, ())
