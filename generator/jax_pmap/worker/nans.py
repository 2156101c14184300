"""What becomes of a NaN: jax's `pmax` and `pmin` pass over one that only some devices have."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from . import arguments, prove
from .arguments import LeafAxes, Values
from .leaves import is_float


def passed_over(
    reference: Callable[[Values], Any], call: Callable[[Values], Any], values: Values, axes: LeafAxes
) -> str | None:
    """A sentence on outputs that one NaN makes NaN on one device and not on several; None without any.

    `values` are those of a run that went well; the NaN is put into the first row of every float leaf.
    """
    try:
        spoiled = arguments.map_batch(values, axes, spoil)
        want, got = reference(spoiled), call(spoiled)
        pairs = zip(prove.leaf_table(want), jax.tree.leaves(got), strict=True)
        lost = [path for (path, one), several in pairs if lacks(one, several)]
    except MemoryError:
        raise
    except BaseException:
        return None  # What no function takes shows nothing.
    if not lost:
        return None
    names = ", ".join(f"`{path}`" for path in lost if path) or "the output"
    return f"a NaN among the rows shows in {names} on one device and not on several, as behind a pmax or pmin"


def spoil(leaf: Any, axis: int) -> Any:
    """A float leaf with NaN in its first row."""
    if not is_float(leaf):
        return leaf
    changed = np.array(leaf)
    changed[(slice(None),) * axis + (0,)] = np.nan
    return changed


def lacks(one: Any, several: Any) -> bool:
    """Whether NaNs of the first are numbers in the second."""
    if not is_float(one):
        return False
    a, b = prove.host(one), prove.host(several)
    return a.shape == b.shape and bool(np.any(np.isnan(a) & ~np.isnan(b)))
