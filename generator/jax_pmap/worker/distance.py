"""How far two arrays are apart, block by block: a step's parameters and moments may be many megabytes."""

from collections.abc import Iterator

import numpy as np

#: Elements compared at a time; what is made of them stays in the cache.
BLOCK = 1 << 15


def blocks(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Arrays of one size, flat, in pieces of `BLOCK` elements."""
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, flat[0].size, BLOCK):
        yield tuple(array[start : start + BLOCK] for array in flat)


def distance(got: np.ndarray, want: np.ndarray) -> tuple[float, float]:
    """Largest absolute error and largest magnitude of `want`; inf where NaNs or infinities differ."""
    if got.shape != want.shape:
        return float("inf"), 1.0
    if got.dtype.kind not in "fcV" and want.dtype.kind not in "fcV":
        return (0.0 if np.array_equal(got, want) else float("inf")), 1.0
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    error = scale = 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        for one, other in blocks(got, want):
            one, other = one.astype(wide, copy=False), other.astype(wide, copy=False)
            apart, size = np.abs(one - other), np.abs(other)
            if not np.isfinite(apart.max()):
                finite = np.isfinite(other)
                same = np.array_equal(np.isfinite(one), finite)
                if not same or not np.array_equal(one[~finite], other[~finite], equal_nan=True):
                    return float("inf"), 1.0
                apart, size = apart[finite], size[finite]
            error = max(error, float(apart.max(initial=0.0)))
            scale = max(scale, float(size.max(initial=0.0)))
    return error, scale


def is_finite(array: np.ndarray, most: float = np.inf) -> bool:
    """Whether every element of an array of floats is a number, of at most some magnitude."""
    return all(
        bool(np.isfinite(block).all()) and bool((np.abs(block) <= most).all()) for (block,) in blocks(array)
    )


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays are the same bytes: of NaNs, and of a zero and its negative, each is itself.

    A function among the leaves, as an Equinox module has its activation, is the same where it is equal.
    """
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.hasobject:
        return np.array_equal(one, other)
    word = f"u{min(one.dtype.itemsize, 8)}"
    return all(np.array_equal(a.view(word), b.view(word)) for a, b in blocks(one, other))
