"""Numbers of programs: their kinds and limits, and what operations make of constant ones."""

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import jax
import numpy as np

Number: TypeAlias = "complex | float | int | bool"
#: The unit of rounding of float32.
SINGLE = 2.0**-23
#: How far apart, of their size, numbers are one that are computed here in another order.
ROUNDED = 2.0**-49
NAMES: dict[Any, str] = {}
KINDS: dict[str, str] = {}
FOLDED: dict[str, Callable[..., Any]] = {
    "max": max,
    "min": min,
    "sqrt": lambda x: math.sqrt(x) if x >= 0 else None,
    "rsqrt": lambda x: 1 / math.sqrt(x) if x > 0 else None,
    "exp": lambda x: math.exp(x) if x < 700 else None,
    "log": lambda x: math.log(x) if x > 0 else None,
    "pow": lambda x, y: x**y if x > 0 else None,
    "abs": abs,
    "sign": lambda x: (x > 0) - (x < 0),
    "floor": math.floor,
    "ceil": math.ceil,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "not": lambda x: not x if isinstance(x, bool) else ~x,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "convert_element_type": lambda x: x,
    "reduce_precision": lambda x: x,
    "integer_pow": lambda x, y: x**y if x or y > 0 else None,
    "rem": lambda x, y: abs(x) % abs(y) * (1 if x >= 0 else -1) if y and isinstance(x, int) else None,
    "is_finite": math.isfinite,
}


@functools.cache
def eps_of(dtype: str) -> float:
    """The unit of rounding of a float dtype."""
    return float(jax.numpy.finfo(dtype).eps)


@functools.cache
def largest_of(dtype: str) -> float:
    """The largest number that a float dtype holds."""
    return float(jax.numpy.finfo(dtype).max)


@functools.cache
def largest_integer(dtype: str) -> int:
    """The largest number that an integer dtype holds."""
    return int(jax.numpy.iinfo(dtype).max)


def written(value: Any, dtype: str) -> Any:
    """The number that stands in a program, which holds it rounded: 0.1 for float32's 0.10000000149.

    Two that differ in a program stand for two: ``1 - 1e-7`` is not 1, and ``1 - rate * decay`` not either.
    """
    if dtype == "complex64":
        return complex(written(value.real, "float32"), written(value.imag, "float32"))
    if dtype != "float32" or not value or not math.isfinite(value):
        return value
    rounded = np.float32(value)
    return next((each for each in likely(float(value)) if np.float32(each) == rounded), value)


@functools.cache
def likely(value: float) -> tuple[float, ...]:
    """What a rounded number is likely to stand for: a short decimal, or a ratio of small integers."""
    found = [float(f"{value:.6g}")]
    if 1e-8 < abs(value) < 1e8:
        found += [1 / round(1 / value)] if round(1 / value) else []
        found.append(float(Fraction(value).limit_denominator(1000)))
    return (*found, float(f"{value:.7g}"))


def wrapped(value: int, dtype: str) -> int:
    """A whole number as it comes out of arithmetic in a dtype of limited width."""
    info = jax.numpy.iinfo(dtype)
    if info.min <= value <= info.max:
        return value
    return (value - int(info.min)) % (1 << int(info.bits)) + int(info.min)


def name_of(dtype: Any) -> str:
    """The name of a dtype, which numpy makes anew each time that it is asked."""
    found = NAMES.get(dtype)
    if found is None:
        found = NAMES[dtype] = str(dtype)
    return found


def kind_of(dtype: str) -> str:
    """``"f"``, ``"i"``, ``"u"``, ``"c"``, ``"b"``, or ``"?"`` of keys and objects."""
    known = KINDS.get(dtype)
    if known is None:
        try:
            kind = jax.numpy.dtype(dtype)
        except TypeError:
            known = "?"
        else:
            known = next(
                (
                    letter
                    for letter, parent in (
                        ("f", np.floating),
                        ("c", np.complexfloating),
                        ("u", np.unsignedinteger),
                        ("i", np.integer),
                    )
                    if jax.dtypes.issubdtype(kind, parent)
                ),
                "b" if kind == np.bool_ else "?",
            )
        KINDS[dtype] = known
    return known


def fold(op: str, params: Any, values: Sequence[Any], dtype: str) -> Any:
    """The number that an operation makes of numbers, or None where it is not told."""
    if any(v is None or v != v or isinstance(v, complex) for v in values):
        return None
    if op in ("lt", "le", "gt", "ge", "eq", "ne") and any(isinstance(v, float) for v in values):
        # Numbers that were written as two may have been taken for one.
        if values[0] == values[1] != 0 or (
            values[0] * values[1] > 0 and abs(values[0] - values[1]) < 1e-3 * abs(values[0])
        ):
            return None
    if op == "integer_pow":
        values = [*values, dict(params)["y"]]
    if op == "convert_element_type" and kind_of(dtype) in "iu" and isinstance(values[0], float):
        whole = int(values[0]) if math.isfinite(values[0]) else None
        return whole if whole is not None and wrapped(whole, dtype) == whole else None
    if op == "div" and kind_of(dtype) in "iu":
        return None
    try:
        return FOLDED[op](*values)
    except (ArithmeticError, ValueError, TypeError):
        return None
