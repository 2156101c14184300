"""Batches with arrays of several columns in place of one: what is done with these shows there alone.

``x.T.reshape(x.shape)`` is ``x`` where that has one column, and exchanges numbers of different examples where
it has two. Emitted code takes batches of any width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

#: Columns in place of one: the first of these that is no size already.
COLUMNS = (3, 5, 7, 11, 13)


@dataclass(frozen=True, slots=True)
class Wider:
    """Inputs of which some have several columns."""

    leaves: tuple[Any, ...]
    #: One of them, by its place.
    first: int


def wider(leaves: Sequence[Any], axes: "Sequence[int | None]") -> Iterator[tuple[Wider, ...]]:
    """Inputs with more columns: all arrays of one column together, and each of them by itself.

    Each is followed by another way to make it so, for where the function does not take the first.

    Args:
        leaves: shapes of the inputs.
        axes: the batch axis of each, None of those without one.
    """
    shapes = [tuple(getattr(leaf, "shape", ())) for leaf in leaves]
    single = [(i, at) for i, shape in enumerate(shapes) for at, size in enumerate(shape) if size == 1]
    own = [(i, at) for i, at in single if axes[i] not in (None, at)]
    # Weights may have to be as wide.
    others = [(i, at) for i, at in single if axes[i] is None]
    columns = next((size for size in COLUMNS if not any(size in shape for shape in shapes)), 0)
    if own and columns:
        yield (_with(leaves, own, columns), *([_with(leaves, [*own, *others], columns)] if others else []))
        yield from ((_with(leaves, [each], columns),) for each in own if len(own) > 1)


def _with(leaves: Sequence[Any], at: Sequence[tuple[int, int]], size: int) -> Wider:
    """Inputs with some axes of a size."""
    made = list(leaves)
    for index, axis in at:
        shape = (*made[index].shape[:axis], size, *made[index].shape[axis + 1 :])
        made[index] = made[index].update(shape=shape)
    return Wider(tuple(made), at[0][0])
