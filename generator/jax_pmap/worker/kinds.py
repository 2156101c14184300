"""What a value is, seen across shards: replicated, sharded along an axis, partial, or varying."""

from collections.abc import Sequence
from typing import Any

import numpy as np

#: In order of preference when the data cannot tell them apart.
REPLICATED = "replicated"
PARTIAL = ("pmean", "psum", "pmax", "pmin")
VARYING = "varying"
#: Bytes from which on it pays to see whether all shards have the same.
LARGE = 1 << 16


def tolerance(dtype: Any, coarsest: float) -> float:
    """Relative error at which two values count as equal: 4096 units of the coarsest rounding involved."""
    own = float(np.finfo(dtype).eps) if np.issubdtype(dtype, np.inexact) else 0.0
    return 4096 * max(own, coarsest)


def close(left: np.ndarray, right: np.ndarray, rtol: float, noise: float = 0.0) -> bool:
    """Equality up to `rtol` of the larger magnitude, or `noise`; NaN and infinities must agree in place."""
    if left.shape != right.shape:
        return False
    if left.dtype.kind not in "fc":
        return bool(np.array_equal(left, right))
    if not right.size:
        return True
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.max(np.abs(left - right))
    if np.isfinite(apart):  # nearly always, and there are thousands of values to compare
        return bool(apart <= max(rtol * float(np.max(np.abs(right))), noise))
    finite = np.isfinite(right)
    if not np.array_equal(np.isfinite(left), finite):
        return False
    if not np.array_equal(left[~finite], right[~finite], equal_nan=True):
        return False
    if not finite.any():
        return True
    scale = float(np.max(np.abs(right[finite])))
    return bool(np.max(np.abs(left[finite] - right[finite])) <= max(rtol * scale, noise))


def stacked(array: Any) -> np.ndarray:
    """One value a shard, stacked on axis 0; where all have the same bits, one of them seen many times."""
    parts = np.asarray(array)
    if parts.nbytes < LARGE or parts.shape[0] < 2:
        return parts
    raw = parts.reshape(parts.shape[0], -1).view(np.uint8)
    if all(np.array_equal(part, raw[0]) for part in raw[1:]):
        return np.broadcast_to(parts[0].copy(), parts.shape)
    return parts


def candidates(whole: np.ndarray, parts: np.ndarray, coarsest: float, noise: float = 0.0) -> set[str]:
    """Every kind this data allows; `parts` stacks one value a shard on axis 0.

    Differences up to `noise` are rounding. What is equal but for that is replicated only where the shards
    agree to the last bit.
    """
    count = parts.shape[0]
    if whole.dtype.kind not in "biufc":
        whole, parts = whole.astype(np.float64), parts.astype(np.float64)
    rtol = tolerance(whole.dtype, coarsest)
    found: set[str] = set()
    if parts.shape[1:] == whole.shape and parts.size and not parts.strides[0]:
        # The same on every shard (see `stacked`): any of these gives back what each has.
        if close(parts[0], whole, rtol, noise):
            found |= {REPLICATED, "pmax", "pmin"} if whole.dtype.kind != "c" else {REPLICATED}
            found |= {"pmean"} if whole.dtype.kind in "fc" else set()
        if whole.dtype.kind != "b" and close(parts[0] * count, whole, rtol, noise):
            found.add("psum")
    elif parts.shape[1:] == whole.shape:
        one = not noise or all(part.tobytes() == parts[0].tobytes() for part in parts)
        if one and all(close(part, whole, rtol, noise) for part in parts):
            found.add(REPLICATED)
        if whole.dtype.kind in "fc" and close(parts.mean(axis=0), whole, rtol, noise):
            found.add("pmean")
        if whole.dtype.kind != "b" and close(parts.sum(axis=0), whole, rtol, noise):
            found.add("psum")
        if whole.dtype.kind != "c":
            if close(parts.max(axis=0), whole, rtol, noise):
                found.add("pmax")
            if close(parts.min(axis=0), whole, rtol, noise):
                found.add("pmin")
    elif parts.ndim == whole.ndim + 1:
        for axis, size in enumerate(parts.shape[1:]):
            if size * count == whole.shape[axis]:
                joined = np.concatenate(list(parts), axis=axis)
                if close(joined, whole, rtol, noise):
                    found.add(f"sharded {axis}")
    return found


def common(found: Sequence[set[str] | None]) -> set[str]:
    """The kinds that every run of data allows (None: the run said nothing)."""
    said = [kinds for kinds in found if kinds is not None]
    return set.intersection(*said) if said else set()


def agree(found: Sequence[set[str] | None]) -> str:
    """The first in order of preference of the kinds that every run of data allows."""
    shared = common(found)
    if REPLICATED in shared:
        return REPLICATED
    for kind in sorted(shared):
        if kind.startswith("sharded"):
            return kind
    return next((op for op in PARTIAL if op in shared), VARYING)
