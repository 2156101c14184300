"""Other example arguments made of the given ones: in generic position, far out, hardly different."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from .arguments import LeafAxes, Values, batch_size, constants, map_batch, take
from .leaves import category, is_float, typed_as

#: How far ahead counters are put.
AHEAD = 1000


def along(numbers: np.ndarray, leaf: Any, axis: int) -> np.ndarray:
    """One number a row, shaped to go with a leaf."""
    return numbers.reshape([-1] + [1] * (leaf.ndim - 1 - axis))


def in_floats(values: Values, axes: LeafAxes, change: Callable[[Any, int], Any]) -> Values:
    """The same values with the floats of the batch changed, in their own dtypes."""

    def row(leaf: Any, axis: int) -> Any:
        return change(leaf, axis).astype(leaf.dtype) if is_float(leaf) and leaf.size else leaf

    return map_batch(values, axes, row)


def perturb(
    values: Values,
    axes: LeafAxes,
    statics: Sequence[str],
    seed: int,
    wild: bool = False,
    skew: float = 0.0,
) -> Values:
    """The same kind of data in generic position: other rows first, other numbers, no leaf all equal.

    Floats keep their sign and size (each is scaled by a factor in [0.8, 1.2]); all-zero leaves
    become small positive numbers, since zero-initialised weights and moments would make summed
    and averaged gradients look alike. What rises or falls throughout along an axis, as times and the
    edges of bins do, still does. Batch leaves are also put in another order, one that makes
    shards as unlike each other as the data allows; `wild` scales their rows by factors from -2 to
    3 as well, in order (0.1 to 3 where no element is negative), so that a clip, a branch or an
    absolute value behind a reduction does on some shard what it does not do on the whole; and it
    draws their integers and booleans anew, so that a mask of ones does not make a masked mean look
    like a mean.
    """
    random = np.random.default_rng(seed)
    size = batch_size(values, axes)
    if wild:
        values = map_batch(values, axes, lambda leaf, axis: redrawn(leaf, axis, random, skew))
    order = uneven_order(values, axes, size, random)
    moved = map_batch(values, axes, lambda leaf, axis: take(leaf, axis, order))

    def one(leaf: Any) -> Any:
        if not is_float(leaf):
            return leaf
        wide = np.asarray(leaf, np.complex128 if leaf.dtype.kind == "c" else np.float64)
        noise = random.uniform(-1.0, 1.0, wide.shape)
        if not wide.any():
            return typed_as(np.asarray(0.02 * (1.5 + noise)), leaf)
        return typed_as(np.asarray(in_order(wide, wide * (1.0 + 0.2 * noise))), leaf)

    def row(leaf: Any, axis: int) -> Any:
        real = leaf.dtype.kind != "c"
        low = -2.0 if real and not np.min(np.asarray(leaf, np.float64), initial=0.0) >= 0 else 0.1
        return leaf * along(np.linspace(low, 3.0, size), leaf, axis)

    moved = in_floats(moved, axes, row) if wild else moved
    return {name: value if name in statics else jax.tree.map(one, value) for name, value in moved.items()}


def uneven_order(values: Values, axes: LeafAxes, size: int, random: np.random.Generator) -> np.ndarray:
    """An order of the rows: sorted by an integer leaf when there is one, else random.

    Labels and masks cannot be scaled, and shards with the same mix of them look alike.
    """
    order = random.permutation(size)
    for name, by_leaf in axes.items():
        leaves = jax.tree.leaves(values[name])
        for index, axis in by_leaf.items():
            leaf = leaves[index]
            if category(leaf) == "array" and leaf.dtype.kind in "iub" and leaf.size:
                first = np.moveaxis(np.asarray(leaf), axis, 0).reshape(size, -1)[:, 0]
                return order[np.argsort(first[order], kind="stable")]
    return order


def redrawn(leaf: Any, axis: int, random: np.random.Generator, skew: float = 0.0) -> Any:
    """Other integers and booleans from the range they had, with 0 (or 1) where they were all equal.

    The first rows hold only the smallest and the last only the largest, so that some shard has no
    True and some no False: else `any`, `all` and a count of one label look replicated.
    """
    if category(leaf) != "array" or leaf.dtype.kind not in "biu" or not leaf.size:
        return leaf
    low, high = int(np.min(leaf)), int(np.max(leaf))
    if leaf.dtype.kind == "b":
        low, high = 0, 1
    elif low == high:
        low, high = min(low, 0), max(high, 0 if low else 1)
    size = leaf.shape[axis]
    rise = along(np.linspace(skew - 1.25, skew + 1.25, size), leaf, axis)
    share = np.clip(rise + random.uniform(0.0, 1.0, leaf.shape), 0.0, 1.0 - 1e-9)
    span = high - low + 1
    return (low + np.minimum(np.floor(share * span), span - 1)).astype(leaf.dtype)


def in_order(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """`after`, sorted along the axes along which all of `before` rises, or falls."""
    if before.dtype.kind == "c":
        return after
    for axis, size in enumerate(before.shape):
        steps = np.diff(before, axis=axis)
        if size > 2 and (np.all(steps > 0) or np.all(steps < 0)):
            after = np.sort(after, axis=axis)
            after = after if np.all(steps > 0) else np.flip(after, axis)
    return after


def exaggerate(values: Values, axes: LeafAxes, statics: Sequence[str]) -> Values:
    """The same values far out: rows of the batch up to a thousand times as large, counters far ahead.

    What a clip, a threshold or a schedule does only there is else never compared.
    """
    factors = np.logspace(-1.0, 3.0, batch_size(values, axes))
    out = in_floats(values, axes, lambda leaf, axis: leaf * along(factors, leaf, axis))
    return ahead(out, axes, statics)


def ahead(values: Values, axes: LeafAxes, statics: Sequence[str]) -> Values:
    """The same values with counters far ahead: the sum of shares of one at zero is as good as a whole one."""

    def one(name: str, leaf: Any, index: int) -> Any:
        number = category(leaf) == "int" or (
            category(leaf) == "array" and leaf.dtype.kind in "iu" and leaf.ndim == 0
        )
        if index in axes.get(name, {}) or not number or abs(int(leaf)) >= AHEAD:
            return leaf
        return type(leaf)(leaf + AHEAD) if category(leaf) == "int" else far(leaf)

    out = dict(values)
    for name, value in values.items():
        if name not in statics:
            leaves, tree = jax.tree.flatten(value)
            out[name] = jax.tree.unflatten(tree, [one(name, leaf, i) for i, leaf in enumerate(leaves)])
    return out


def far(leaf: Any) -> Any:
    """An integer scalar further on, in its own dtype; as it is where that has no room."""
    room = int(np.iinfo(leaf.dtype).max) - int(leaf)
    return np.asarray(int(leaf) + AHEAD, leaf.dtype) if room > AHEAD else leaf


def shrunk(leaf: Any, axis: int) -> Any:
    """Floats a fiftieth as large, so that they hardly differ.

    A threshold on how far the examples lie apart is else on one side of it throughout.
    """
    return leaf * 0.02


def shifted(leaf: Any, axis: int) -> Any:
    """Floats far from zero, a thousand times as far as they are apart.

    ``mean(x**2) - mean(x)**2`` is else as good a variance as that of what is left of the mean.
    """
    with np.errstate(all="ignore"):
        spread = np.std(np.asarray(leaf, np.complex128))
    return leaf + 1e3 * (spread if np.isfinite(spread) else 1.0)


def jitter(
    values: Values, statics: Sequence[str], eps: float, seed: int, *, narrow: bool = False
) -> Values | None:
    """`values` with every float changed by up to `eps` of itself; None where there is no float.

    Or with those alone that have 16 bits or less.
    """
    random = np.random.default_rng(seed)
    found = False

    def one(leaf: Any) -> Any:
        nonlocal found
        if not is_float(leaf) or (narrow and leaf.dtype.itemsize > 2):
            return leaf
        found = True
        wide = np.asarray(leaf, np.complex128 if leaf.dtype.kind == "c" else np.float64)
        return typed_as(np.asarray(wide * (1.0 + eps * random.uniform(-1.0, 1.0, wide.shape))), leaf)

    out = {name: value if name in statics else jax.tree.map(one, value) for name, value in values.items()}
    return out if found else None


def vary_numbers(values: Values, statics: Sequence[str], seed: int) -> Values:
    """Other Python numbers among the arguments: a number written down is then found out.

    Floats are others by up to a fifth, and integers by 1 or 2: large ones are smaller, since emitted code may
    take none above those that were shown to be held by 32 bits. Those that are compiled for stay as they are:
    code may be right for these alone.
    """
    random = np.random.default_rng(seed)

    def one(leaf: Any) -> Any:
        noise, step = float(random.uniform(-0.2, 0.2)), int(random.integers(1, 3))
        if type(leaf) is int:
            return leaf + step if leaf <= step else leaf - step
        if type(leaf) is not float or not np.isfinite(leaf):
            return leaf
        return leaf * (1.0 + noise) if leaf else abs(noise)

    out = dict(values)
    for name in [name for name in values if name not in statics]:
        leaves, tree = jax.tree.flatten(values[name])
        fixed = constants(values[name])
        out[name] = tree.unflatten([leaf if i in fixed else one(leaf) for i, leaf in enumerate(leaves)])
    return out
