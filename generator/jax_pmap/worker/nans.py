"""What becomes of a NaN: jax's `pmax` and `pmin` pass over one that only some devices have."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from . import arguments, prove
from .arguments import LeafAxes, Values
from .distance import distance
from .exceptions import attempted
from .jaxpr.forward import goes_into
from .jaxpr.walk import is_mapped
from .leaves import category, is_float


@dataclass(frozen=True)
class Lost:
    """A leaf of the result of which one NaN makes something else on one device than on several.

    `passed` where it is NaN on one device and a number on several; else numbers are others, as where the
    largest value decides.
    """

    path: str
    leaf: int
    one: np.ndarray
    several: np.ndarray
    passed: bool


#: Leaves of a batch that get NaN by themselves, at most.
ALONE = 6
#: The rows that get one.
FIRST, EVERY = slice(1), slice(None)


def lost(
    reference: Callable[[Values], Any],
    call: Callable[[Values], Any],
    values: Values,
    axes: LeafAxes,
    *,
    each: bool = False,
) -> list[Lost]:
    """The leaves of which one NaN makes something else on one device than on several.

    `values` are those of a run that went well; the NaN is put into the first row of every float leaf. If
    nothing shows, where it is asked for `each`, all rows of one leaf after the other are NaN: a weight that
    is NaN hides that a row was passed over. One row alone may be masked, and then compiled code has 0 for
    NaN times a truth value.
    """
    ways = [(axes, FIRST)]
    if each:
        leaves = [
            (name, index, axis)
            for name, by_leaf in axes.items()
            for index, axis in by_leaf.items()
            if is_float(jax.tree.leaves(values[name])[index])
        ]
        ways += [({name: {index: axis}}, EVERY) for name, index, axis in leaves[:ALONE] if len(leaves) > 1]
    return next(filter(None, (_lost(reference, call, values, *way) for way in ways)), [])


def _lost(
    reference: Callable[[Values], Any],
    call: Callable[[Values], Any],
    values: Values,
    axes: LeafAxes,
    rows: slice,
) -> list[Lost]:
    """The same with NaN in some rows of the leaves of `axes`."""

    def found() -> list[Lost]:
        spoiled = arguments.map_batch(values, axes, functools.partial(spoil, rows=rows))
        want, got = reference(spoiled), call(spoiled)
        pairs = zip(prove.leaf_table(want), jax.tree.leaves(got), strict=True)
        return [
            Lost(path, index, prove.host(one), prove.host(several), passed)
            for index, ((path, one), several) in enumerate(pairs)
            if (passed := lacks(one, several)) or strays(one, several)
        ]

    return attempted(found) or []  # What no function takes shows nothing.


def noted(leaves: Sequence[Lost]) -> list[str]:
    """A sentence for each kind of such leaves."""
    ways = (
        (True, "shows in {} on one device and not on several, as behind a pmax or pmin"),
        (False, "decides on numbers in {} on one device and not on several: pmax and pmin pass over it"),
    )
    notes = []
    for passed, way in ways:
        paths = [each.path for each in leaves if each.passed is passed]
        names = ", ".join(f"`{path}`" for path in paths if path) or "the output"
        notes += [f"a NaN among the rows {way.format(names)}"] if paths else []
    return notes


def behind_extremes(jaxpr: Any) -> list[bool]:
    """For each result of a program, whether it hangs on what loses a NaN that only some devices have.

    That is a maximum or minimum over devices; to the compiler's mind, one over rows may be one.
    """
    return goes_into(jaxpr, ("pmax", "pmin") if is_mapped(jaxpr) else ("reduce_max", "reduce_min"))


def is_behind(results: Sequence[bool], leaf: int) -> bool:
    """Whether a leaf is one of such `results` of a program, among which what is no array has no place."""
    return results[leaf] if leaf < len(results) else any(results)


def spoil(leaf: Any, axis: int, rows: slice) -> Any:
    """A float leaf with NaN in some of its rows."""
    if not is_float(leaf):
        return leaf
    changed = np.array(leaf)
    changed[(slice(None),) * axis + (rows,)] = np.nan
    return changed


def lacks(one: Any, several: Any) -> bool:
    """Whether NaNs of the first are numbers in the second."""
    if not is_float(one):
        return False
    a, b = prove.host(one), prove.host(several)
    return a.shape == b.shape and bool(np.any(np.isnan(a) & ~np.isnan(b)))


def strays(one: Any, several: Any) -> bool:
    """Whether numbers of the first are other ones in the second, by more than rounding."""
    if category(one) in ("key", "opaque"):
        return False
    a, b = prove.host(one), prove.host(several)
    if a.shape != b.shape:
        return False
    if not is_float(a):
        return not np.array_equal(a, b)
    numbers = np.isfinite(a) & np.isfinite(b)
    off, scale = distance(b[numbers], a[numbers])
    return off > math.sqrt(jax.numpy.finfo(a.dtype).eps) * scale
