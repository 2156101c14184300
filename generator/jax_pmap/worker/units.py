"""Units of rounding: how finely each value of a program is known, from the dtypes that it went through.

A float64 value that passed through float32 is no finer than float32, unless nothing was rounded there: a
mask or a count is the same number in both. So whole numbers are followed as long as their dtype can hold
every one of their size.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from .jaxpr.forward import Forward
from .jaxpr.trace import Traced
from .jaxpr.versions import primitive_name
from .jaxpr.walk import MAPS, equations, subjaxprs
from .leaves import is_float

#: The finest there is.
FINEST = float(np.finfo(np.float64).eps)


def unit(dtype: Any) -> float:
    """The unit of rounding of numbers of a dtype; 0 where they are exact, or no numbers."""
    is_float = dtype is not None and jax.dtypes.issubdtype(dtype, np.inexact)
    return float(jax.numpy.finfo(dtype).eps) if is_float else 0.0


def unit_of(leaf: Any) -> float:
    """The unit of rounding of an argument; 0 where it has none."""
    return unit(leaf.dtype) if is_float(leaf) else 0.0


@dataclasses.dataclass(frozen=True)
class Rounding:
    """Units of rounding in one precision."""

    #: Of the coarsest result of an operation anywhere in the function.
    coarsest: float
    #: Of the coarsest that each output leaf of one call depends on; empty where it is not known.
    leaves: tuple[float, ...] = ()
    #: The same by dtypes alone, as if what is exact in a narrow one were rounded there.
    by_dtype: "Rounding | None" = None

    def at(self, step: int, leaf: int) -> float:
        """Of an output leaf after `step` earlier calls, whose state may hold any of the rounding."""
        return self.leaves[leaf] if step == 0 and leaf < len(self.leaves) else self.coarsest

    def with_that_of(self, other: "Rounding | None") -> "Rounding":
        """The rounding of a function that is computed as another one does, no coarser than `by_dtype`.

        `other` is that one's; None where it is not known.
        """
        most = self.by_dtype or self
        if other is None:
            return most
        leaves = map(min, map(max, self.leaves, other.leaves), most.leaves)
        return Rounding(min(max(self.coarsest, other.coarsest), most.coarsest), tuple(leaves))


@dataclasses.dataclass(frozen=True)
class _Known:
    """What is known of how fine a value is."""

    #: The coarsest unit that it went through, and that by dtypes alone.
    unit: float
    by_dtype: float
    #: As large as it is at most, where it is a whole number that was not rounded; infinite elsewhere.
    most: float = math.inf


def rounding_of(program: Traced, inputs: Sequence[float]) -> Rounding:
    """The rounding in a program, of every leaf of its result; `inputs` are the units of what goes in.

    An output is no finer than its own dtype. To be called in the 64-bit mode that the program is of.
    """
    followed, jaxpr = _Units(), program.jaxpr
    given = [_Known(one, one, most_of(aval.dtype)) for one, aval in zip(inputs, jaxpr.in_avals, strict=True)]
    found = [*zip(followed.run(jaxpr, given), jaxpr.out_avals, strict=True)]
    number = unit(jax.dtypes.canonicalize_dtype(float))
    of_numbers = {"float": number, "complex": number}

    def by_leaf(of: Callable[[_Known], float]) -> tuple[float, ...]:
        arrays = iter(max(FINEST, of(each), unit(aval.dtype)) for each, aval in found)
        computed = ((kind, 0.0 if kind == "opaque" else next(arrays)) for kind in program.kinds)
        return tuple(one if kind in ("array", "key") else of_numbers.get(kind, 0.0) for kind, one in computed)

    exact, by_dtype = by_leaf(lambda each: each.unit), by_leaf(lambda each: each.by_dtype)
    return Rounding(followed.coarsest, exact, Rounding(followed.by_dtype, by_dtype))


def most_of(dtype: Any) -> float:
    """As large as whole numbers of a dtype are at most; infinite of floats."""
    if dtype == np.bool_:
        return 1.0
    return float(jax.numpy.iinfo(dtype).max) if jax.dtypes.issubdtype(dtype, np.integer) else math.inf


def _unit_of_results(equation: Any) -> float:
    """The coarsest unit of rounding among the results of an equation."""
    return max((unit(getattr(out.aval, "dtype", None)) for out in equation.outvars), default=0.0)


def _sum_of(equation: Any, most: list[float]) -> float:
    operand, result = (each[0].aval for each in (equation.invars, equation.outvars))
    return float(most[0] * max(math.prod(operand.shape) // max(math.prod(result.shape), 1), 1))


def _product_of(equation: Any, most: list[float]) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    shape = equation.invars[0].aval.shape
    return float(math.prod(most) * math.prod(shape[each] for each in contracted))


def _along(equation: Any, most: list[float]) -> float:
    return float(most[0] * equation.invars[0].aval.shape[equation.params["axis"]])


def _on_all(equation: Any, most: list[float]) -> float:
    return max(most) * len(jax.devices())


def _largest(equation: Any, most: list[float]) -> float:
    return max(most)


#: How large results are, by operation, of how large the operands are: of those that make whole numbers of
#: whole numbers. What only moves, or chooses among, its operands makes none that is larger.
MOST: dict[str, Callable[[Any, list[float]], float]] = {
    **dict.fromkeys(("add", "sub", "add_any"), lambda equation, most: sum(most)),
    "mul": lambda equation, most: math.prod(most),
    "reduce_sum": _sum_of,
    "cumsum": _along,
    "dot_general": _product_of,
    **dict.fromkeys(("psum", "psum2", "psum_invariant"), _on_all),
    "iota": lambda equation, most: float(equation.params["shape"][equation.params["dimension"]]),
    "sign": lambda equation, most: 1.0,
    # The first operand of a choice is what chooses, and of a gather the others are places.
    "select_n": lambda equation, most: max(most[1:]),
    **dict.fromkeys(("gather", "dynamic_slice"), lambda equation, most: most[0]),
    **dict.fromkeys(
        (
            *(
                "max",
                "min",
                "neg",
                "abs",
                "reshape",
                "broadcast_in_dim",
                "squeeze",
                "expand_dims",
                "transpose",
            ),
            *("slice", "concatenate", "rev", "reduce_max", "reduce_min", "pmax", "pmin", "all_gather", "pad"),
            *("stop_gradient", "convert_element_type", "sort", "split", "ppermute", "all_to_all"),
            *("pvary", "pcast", "sharding_constraint", "optimization_barrier", "device_put", "pbroadcast"),
        ),
        _largest,
    ),
}


class _Units(Forward[_Known]):
    """Follows the coarsest unit of rounding to every value; a loop or a branch is one operation."""

    enters = frozenset({"jit"}) | MAPS

    def __init__(self) -> None:
        super().__init__()
        #: The coarsest unit of all results, and that by dtypes alone.
        self.coarsest = self.by_dtype = FINEST

    def constant(self, value: Any) -> _Known:
        # Numbers that are written in a program are taken as exact.
        dtype = jax.dtypes.result_type(value)
        own = unit(dtype) if np.ndim(value) else 0.0
        if jax.dtypes.issubdtype(dtype, np.number) or dtype == np.bool_:
            parts = np.asarray(value)
            real = parts.dtype.kind in "biuf" and bool(np.all(np.isfinite(parts)))
            if real and parts.size and bool(np.all(parts == np.floor(parts))):
                return _Known(own, own, float(np.max(np.abs(parts.astype(np.float64)))))
        return _Known(own, own)

    def operation(self, equation: Any, facts: list[_Known]) -> list[_Known]:
        inside = [each for body in subjaxprs(equation) for each in equations(body)]
        here = max(map(_unit_of_results, (equation, *inside)))
        before = max((each.unit for each in facts), default=0.0)
        by_dtype = max((each.by_dtype for each in facts), default=0.0)
        rule = MOST.get(primitive_name(equation)) if not inside else None
        most = rule(equation, [each.most for each in facts]) if rule is not None else math.inf
        self.by_dtype = max(self.by_dtype, here)
        made = []
        for out in equation.outvars:
            dtype = getattr(out.aval, "dtype", None)
            known = min(most, most_of(dtype)) if dtype is not None else math.inf
            exact = known * unit(dtype) <= 1
            own = before if exact else max(before, here)
            self.coarsest = max(self.coarsest, own)
            made.append(_Known(own, max(by_dtype, here), known if exact else math.inf))
        return made
