"""Widths of the batch's arrays for which a function is another program than for the given ones.

Arrays of one column hide what is done with several: ``x.T.reshape(x.shape)`` is ``x``, and exchanges numbers
of different examples where each has two. Emitted code takes batches of any width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .budget import size as operations
from .jaxpr.trace import Traced
from .sizes import Program, coincidences, program_of

#: Times that a width is made wider, the first that gives no size which is there already.
TIMES = (3, 5, 7, 11, 13)
#: Operations up to which axes of one size are changed one by one, too.
FEW = 300


@dataclass(frozen=True, slots=True)
class Wider:
    """Inputs of another width."""

    leaves: tuple[Any, ...]
    #: One of them that is wider, by its place.
    first: int


def wider(leaves: Sequence[Any], axes: "Sequence[int | None]", reference: Traced) -> Iterator[list[Wider]]:
    """Inputs in which axes of one size are larger, and other ways to make them so, where that is not taken.

    Args:
        leaves: shapes of the inputs.
        axes: the batch axis of each, None of those without one.
        reference: the function, traced for these.
    """
    shapes = [tuple(getattr(leaf, "shape", ())) for leaf in leaves]
    every = [(i, at) for i, shape in enumerate(shapes) for at in range(len(shape)) if at != axes[i]]
    used = {size for shape in shapes for size in shape}
    widths = [(i, at) for i, at in every if axes[i] is not None]
    for size in sorted({shapes[i][at] for i, at in widths}):
        new = next((size * times for times in TIMES if size * times not in used), 0)
        own = [(i, at) for i, at in widths if shapes[i][at] == size]
        if not new:
            continue
        # Weights may have to be as wide.
        others = [(i, at) for i, at in every if axes[i] is None and shapes[i][at] == size]
        yield [_with(leaves, own, new), *([_with(leaves, [*own, *others], new)] if others else [])]
        if len(own) > 1 and operations(reference.jaxpr) <= FEW:
            yield from ([_with(leaves, [each], new)] for each in own)


def _with(leaves: Sequence[Any], at: "Sequence[tuple[int, int]]", size: int) -> Wider:
    """Inputs with some axes of a size."""
    made = list(leaves)
    for index, axis in at:
        shape = (*made[index].shape[:axis], size, *made[index].shape[axis + 1 :])
        made[index] = made[index].update(shape=shape)
    return Wider(tuple(made), at[0][0])


def hides(reference: Traced, other: Traced, rows: int) -> bool:
    """Whether one program says less than another one, of inputs of another width.

    Numbers in it are equal by chance, or it has other operations.
    """
    few, more = (program_of(each.jaxpr, rows) for each in (reference, other))
    return _operations(few) != _operations(more) or coincidences(few) != coincidences(more)


def _operations(program: Program) -> tuple[Any, ...]:
    return program.operations, len(program.numbers), [each.ndim for each in program.constants]
