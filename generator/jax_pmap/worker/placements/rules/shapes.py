"""Operations that move elements: reshapes, transposes, broadcasts, slices, concatenations."""

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from ..equation import Equation, Result, Same, Stuck, rule
from ..lattice import (
    Blocks,
    Copies,
    Corner,
    Diagonal,
    Downward,
    Extreme,
    Index,
    Labels,
    Mixed,
    OwnKey,
    Partial,
    Placement,
    Positions,
    Replicated,
    Sharded,
    Spread,
    times,
)
from ..terms import Shape
from .elementwise import common_power, describe, holds_positions, layout, partial_power, placed

#: Placements of values that are of one shape on a device and in the whole-batch program.
SHAPED_ALIKE = (Replicated, Partial, Extreme, OwnKey)


@rule("broadcast_in_dim")
def broadcast_in_dim(
    eq: Equation, x: Placement, *_: Placement, broadcast_dimensions: Sequence[int], shape: Any, **__: Any
) -> Result:
    """Along new axes; one that grows with the share holds this device's part of as many copies."""
    varying = eq.varying()
    if isinstance(x, Diagonal):
        axes = tuple(broadcast_dimensions[axis] for axis in x.axes)
        if varying != tuple(sorted(axes)):
            raise Stuck("an array is spread over the examples twice")
        return x.at(axes)
    if in_squares(eq) and (isinstance(x, Replicated) or (isinstance(x, Sharded) and x.outer == 1)):
        if isinstance(x, Sharded) and eq.shape(0)[x.axis] != eq.out()[broadcast_dimensions[x.axis]]:
            raise Stuck("an array is spread over the examples twice")
        return Diagonal((varying[0], varying[1]), x.power, eq.is_zero(0))
    if isinstance(x, (Index, Downward)) or (isinstance(x, Positions) and x.column is not None):
        raise Stuck(describe(x))
    if isinstance(x, (Sharded, Positions, Labels)):
        axis = broadcast_dimensions[x.axis]
        if varying != (axis,):
            raise Stuck("an array is spread over the examples twice")
        if isinstance(x, Sharded) and eq.shape(0)[x.axis] != eq.out()[axis]:
            raise Stuck("an array is spread over the examples twice")
        return replace(x, axis=axis)
    if isinstance(x, Mixed):
        axes = tuple(broadcast_dimensions[axis] for axis in x.axes)
        if any(eq.shape(0)[a] != eq.out()[b] for a, b in zip(x.axes, axes, strict=True)):
            raise Stuck(describe(x))
        if varying != (broadcast_dimensions[x.axis],):
            raise Stuck("an array is spread over the examples twice")
        return replace(x, axes=axes, axis=broadcast_dimensions[x.axis])
    if isinstance(x, Copies):
        raise Stuck(describe(x))
    if isinstance(x, Blocks):
        raise Stuck(describe(x))
    if varying and isinstance(x, (Replicated, Partial)):
        alone = len(varying) == 1 and varying[0] not in broadcast_dimensions
        sizes = zip(eq.outputs, eq.counts, strict=True)
        if isinstance(x, Replicated) and alone and all(each[0][varying[0]] == count for each, count in sizes):
            return copies(eq, x, varying[0], broadcast_dimensions)
        own = eq.split()
        assert own is not None
        if own in broadcast_dimensions and eq.shape(0)[list(broadcast_dimensions).index(own)] != 1:
            raise Stuck("the sizes of its result depend on the number of devices")
        return Sharded(own, x.power) if isinstance(x, Replicated) else Spread(own, x.power)
    if varying:
        raise Stuck(describe(x))
    return x


def copies(eq: Equation, x: Replicated, axis: int, kept: Sequence[int]) -> Result:
    """One copy for each device, stacked, as what is handed to a mapped function may be."""
    if tuple(kept) == tuple(i for i in range(len(eq.out())) if i != axis) and eq.shape(0) == tuple(
        size for i, size in enumerate(eq.out()) if i != axis
    ):
        return Same(Copies(axis, x.power))
    raise Stuck("the sizes of its result depend on the number of devices")


@rule("reshape")
def reshape(eq: Equation, x: Placement, *_: Placement, dimensions: Any = None, **__: Any) -> Result:
    """The sharded axis may be joined with those behind it, and split where its first part is the batch."""
    if dimensions is not None and tuple(dimensions) != tuple(range(len(eq.shape(0)))):
        if isinstance(x, SHAPED_ALIKE) and not eq.varying():
            return x
        if isinstance(x, Sharded):
            ordered = [tuple(shapes[0][axis] for axis in dimensions) for shapes in eq.inputs]
            return reshaped(eq, replace(x, axis=tuple(dimensions).index(x.axis)), ordered)
        raise Stuck("a reshape in another order of the axes has no rule")
    if isinstance(x, Positions) and x.column is None and math.prod(eq.shape(0)) == eq.shape(0)[x.axis]:
        placed = of_rows(eq, Sharded(x.axis))
        if isinstance(placed, Sharded) and placed.outer == 1 == math.prod(eq.out()[: placed.axis]):
            alike = eq.out()[placed.axis] == x.length // eq.counts[0]
            return replace(x, axis=placed.axis) if alike else Labels(placed.axis, x.length)
    if isinstance(x, Sharded):
        return of_rows(eq, x)
    if isinstance(x, Mixed):
        return regrouped(eq, x)
    if isinstance(x, Diagonal):
        return diagonal_reshaped(eq, x)
    if isinstance(x, SHAPED_ALIKE):
        if not eq.varying():
            return x
        if isinstance(x, Replicated):
            return into_blocks(eq, x)
    if isinstance(x, (Blocks, Copies)):
        return out_of_blocks(eq, x)
    raise Stuck(describe(x))


def of_rows(eq: Equation, x: Sharded) -> Placement:
    """A sharded value reshaped, and the multiples of rows for which it is so."""
    placed = reshaped(eq, x, [shapes[0] for shapes in eq.inputs])
    if isinstance(placed, Sharded):
        rows, groups = eq.shape(0)[x.axis] // x.outer, eq.out()[placed.axis] // placed.outer
        if groups and rows > groups:
            # Sizes in the program may be rounded (`len(x) // 4`): other shares are other groups.
            eq.in_multiples(x.axis, rows // groups * x.outer)
    return placed


def reshaped(eq: Equation, x: Sharded, given: Sequence[Shape]) -> Placement:
    """A sharded value of a shape, given in each trace, in another.

    With the elements in a row, a value of shape ``(before…, outer * rows, behind…)`` repeats, `before` times
    `outer` times, a run of this device's elements. It stays sharded along the axis of the result whose
    elements ahead of it are as many, or that ends with a group of them. Else it is mixed along the axes that
    its own has become part of.
    """
    shape, out = given[0], eq.out()
    ahead = math.prod(shape[: x.axis]) * x.outer
    varying = eq.varying()
    if math.prod(shape) == 0 or len(varying) != 1:
        raise Stuck("a reshape mixes the examples of this device with the axis ahead of them")
    axis = varying[0]
    before = math.prod(out[:axis])
    if before and ahead % before == 0:
        outer = ahead // before
        # All that varies with the share is in this axis: its part behind `outer` is rows of this device.
        if all(shapes[0][axis] % outer == 0 for shapes in eq.outputs):
            return Sharded(axis, x.power, outer)
    outs = [shapes[0] for shapes in eq.outputs]
    for first in range(x.axis, -1, -1):
        for last in range(x.axis + 1, len(shape) + 1):
            start, end = (boundary(given, outs, at) for at in (first, last))
            if start is not None and end is not None and start <= axis < end:
                axes = tuple(range(start, end))
                return Mixed(axes, axis, math.prod(shape[first : x.axis]) * x.outer, x.power)
    raise Stuck("a reshape mixes the examples of this device with the axis ahead of them")


def in_squares(eq: Equation) -> bool:
    """Whether the result has the device's share along two axes of one size, and is whole along all others."""
    axes = eq.varying()
    sizes = {
        shapes[0][axis] * count for shapes, count in zip(eq.outputs, eq.counts, strict=True) for axis in axes
    }
    return len(axes) == 2 and len(sizes) == 1


def diagonal_reshaped(eq: Equation, x: Diagonal) -> Placement:
    """Either axis may be joined with those behind it, and split where its first part is the batch."""
    given, outs = [shapes[0] for shapes in eq.inputs], [shapes[0] for shapes in eq.outputs]
    to = []
    for axis in x.axes:
        start = boundary(given, outs, axis)
        ends = (boundary(given, outs, last) for last in range(axis + 1, len(given[0]) + 1))
        end = next((end for end in ends if end is not None), None)
        if start is None or end is None:
            raise Stuck(describe(x))
        to += [at for at in eq.varying() if start <= at < end and math.prod(outs[0][start:at]) == 1]
    if tuple(sorted(to)) != eq.varying() or len(to) != 2:
        raise Stuck(describe(x))
    return x.at(to)


def boundary(given: Sequence[Shape], outs: Sequence[Shape], at: int) -> "int | None":
    """The axis of a result ahead of which as many elements stand as ahead of `at` of what was reshaped."""
    if at == len(given[0]):
        return len(outs[0])
    sizes = [math.prod(shape[:at]) for shape in given]
    return next(
        (to for to in range(len(outs[0]) + 1) if [math.prod(out[:to]) for out in outs] == sizes), None
    )


def regrouped(eq: Equation, x: Mixed) -> Placement:
    """Groups of rows in another shape: their axes stay as they are, or become one and are divided anew."""
    outs = [shapes[0] for shapes in eq.outputs]
    given = [shapes[0] for shapes in eq.inputs]
    to = {axis: boundary(given, outs, axis) for axis in x.axes}
    kept = all(
        at is not None
        and at < len(outs[0])
        and all(o[at] == g[axis] for o, g in zip(outs, given, strict=True))
        for axis, at in to.items()
    )
    if kept and len(set(to.values())) == len(to):
        return replace(x, axes=tuple(to[axis] or 0 for axis in x.axes), axis=to[x.axis] or 0)
    first, end = x.axes[0], x.axes[-1] + 1
    if x.axes != tuple(range(first, end)):
        raise Stuck(describe(x))
    joined = [(*shape[:first], math.prod(shape[first:end]), *shape[end:]) for shape in given]
    return reshaped(eq, Sharded(first, x.power, x.ahead), joined)


def into_blocks(eq: Equation, x: Replicated) -> Result:
    """``(…, B, …)`` as ``(…, N, B // N, …)``, outside the mapped function; or as groups, ``(…, K, N, …)``."""
    for axis in eq.varying():
        shape = eq.out()
        whole = (*shape[:axis], shape[axis] * math.prod(shape[axis + 1 : axis + 2]), *shape[axis + 2 :])
        ok = all(
            shapes[0][axis] == count
            and (*shapes[0][:axis], math.prod(shapes[0][axis : axis + 2]), *shapes[0][axis + 2 :]) == whole
            for shapes, count in zip(eq.outputs, eq.counts, strict=True)
        )
        if ok and len(shape) > axis + 1:
            return Same(Blocks(axis, x.power), 0, None if whole == eq.shape(0) else whole)
    raise Stuck("the sizes of its result depend on the number of devices")


def out_of_blocks(eq: Equation, x: Any) -> Result:
    """Blocks joined again."""
    if isinstance(x, Blocks) and not eq.varying():
        ok = all(
            shapes[0]
            == (*given[0][: x.axis], given[0][x.axis] * given[0][x.axis + 1], *given[0][x.axis + 2 :])
            for shapes, given in zip(eq.outputs, eq.inputs, strict=True)
        )
        if ok:
            return Same(Replicated(x.power))
    raise Stuck(describe(x))


@rule("squeeze")
def squeeze(eq: Equation, x: Placement, *, dimensions: Sequence[int], **_: Any) -> Result:
    """Axes of size 1 are dropped."""
    if isinstance(x, SHAPED_ALIKE):
        return x
    if isinstance(x, (Sharded, Blocks, Labels)) or (isinstance(x, Positions) and x.column is None):
        if x.axis in dimensions:
            raise Stuck("the axis of the examples is dropped")
        return replace(x, axis=x.axis - sum(d < x.axis for d in dimensions))
    if isinstance(x, Diagonal) and not set(x.axes) & set(dimensions):
        return x.at([axis - sum(d < axis for d in dimensions) for axis in x.axes])
    if isinstance(x, Mixed) and not set(x.axes) & set(dimensions):
        kept = {axis: axis - sum(d < axis for d in dimensions) for axis in x.axes}
        return replace(x, axes=tuple(kept.values()), axis=kept[x.axis])
    raise Stuck(describe(x))


@rule("transpose")
def transpose(eq: Equation, x: Placement, *, permutation: Sequence[int], **_: Any) -> Result:
    """The sharded axis goes where it is sent."""
    if isinstance(x, SHAPED_ALIKE):
        return x
    if isinstance(x, Mixed):
        axes = tuple(list(permutation).index(axis) for axis in x.axes)
        return replace(x, axes=axes, axis=list(permutation).index(x.axis))
    if isinstance(x, Diagonal):
        return x.at([list(permutation).index(axis) for axis in x.axes])
    if isinstance(x, (Sharded, Labels)) or (isinstance(x, Positions) and x.column is None):
        return replace(x, axis=list(permutation).index(x.axis))
    raise Stuck(describe(x))


@rule("iota")
def iota(eq: Equation, *_: Placement, dimension: int, **__: Any) -> Result:
    """Positions along an axis that is whole; within the share where they are those of examples."""
    if in_squares(eq) and dimension in eq.varying():
        holds_positions(eq)
        return Corner(dimension, sum(eq.varying()) - dimension)
    axis = eq.split()
    if axis is None:
        return Replicated()
    if axis == dimension:
        holds_positions(eq)
        return Positions(axis, eq.out()[axis] * eq.counts[0])
    return Sharded(axis)


@rule("rev")
def rev(eq: Equation, x: Placement, *, dimensions: Sequence[int], **_: Any) -> Result:
    """The other way round along axes that are whole."""
    if isinstance(x, SHAPED_ALIKE):
        return x
    if isinstance(x, Sharded) and x.axis not in dimensions:
        return x
    raise Stuck("the order of the examples is reversed")


@rule("slice")
def slice_(
    eq: Equation,
    x: Placement,
    *,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: "Sequence[int] | None" = None,
    **_: Any,
) -> Result:
    """Parts of axes that are whole."""
    if isinstance(x, SHAPED_ALIKE) and not eq.varying():
        return x
    if isinstance(x, Copies):
        return one_copy(eq, x, start_indices, limit_indices, strides)
    if isinstance(x, Sharded):
        axis = x.axis
        whole = start_indices[axis] == 0 and limit_indices[axis] == eq.shape(0)[axis]
        if whole and (strides is None or strides[axis] == 1) and eq.varying() == (axis,):
            return x
        if strides is not None and x.outer == 1 and every_nth(eq, axis, start_indices[axis], strides[axis]):
            eq.in_multiples(axis, strides[axis])
            return x
        bounds = [[params[name][axis] for params in eq.every] for name in ("start_indices", "limit_indices")]
        first, end = (groups_in(eq, x, rows) for rows in bounds)
        if first is not None and end is not None and (strides is None or strides[axis] == 1):
            return replace(x, outer=end - first)
        raise Stuck("some of the examples are cut out of this device's share")
    raise Stuck(describe(x))


def groups_in(eq: Equation, x: Sharded, rows: Sequence[int]) -> "int | None":
    """How many groups of a device's rows make up so many of them, given for each trace; None of no groups."""
    own = [shapes[0][x.axis] // x.outer for shapes in eq.inputs]
    return None if x.outer == 1 else times(rows, own)


def every_nth(eq: Equation, axis: int, start: int, stride: int) -> bool:
    """Whether a slice has one of each `stride` rows, to the end, beginning among the first."""
    return start < stride and all(
        params["start_indices"][axis] == start and params["limit_indices"][axis] == shapes[0][axis]
        for params, shapes in zip(eq.every, eq.inputs, strict=True)
    )


def one_copy(
    eq: Equation, x: Copies, start: Sequence[int], limit: Sequence[int], strides: "Sequence[int] | None"
) -> Result:
    """One of the copies of a stack; its axis, of size 1 now, stays."""
    shape = eq.shape(0)
    whole = all(
        (start[axis], limit[axis]) == (0, shape[axis]) for axis in range(len(shape)) if axis != x.axis
    )
    given = eq.terms[eq.operands[0].term].shape
    one = limit[x.axis] - start[x.axis] == 1 and given is not None
    if one and whole and (strides is None or set(strides) == {1}):
        assert given is not None
        return Same(Replicated(x.power), 0, (*given[: x.axis], 1, *given[x.axis :]))
    raise Stuck(describe(x))


@rule("concatenate")
def concatenate(eq: Equation, *places: Placement, dimension: int, **_: Any) -> Result:
    """Joined along an axis that is whole; columns of indices may hold positions."""
    positions = [i for i, place in enumerate(places) if isinstance(place, Positions)]
    if positions:
        return columns(eq, places, positions, dimension)
    if any(isinstance(place, Partial) for place in places):
        return parts_joined(eq, places)
    if all(isinstance(place, OwnKey) for place in places):
        return OwnKey()
    if all(place == places[0] for place in places) and isinstance(places[0], Extreme):
        return places[0]
    if any(isinstance(place, Sharded) and place.axis == dimension for place in places):
        return joined(eq, places, dimension)
    how = layout(eq, places)
    if isinstance(how, (Blocks, Copies)):
        raise Stuck(describe(how))
    if how is not None and eq.varying() != (how.axis,):
        raise Stuck("the sizes of its result depend on the number of devices")
    if how is not None and any(isinstance(p, Replicated) for p in places):
        raise Stuck("examples are joined with values that are whole on every device")
    if how is None and eq.varying():
        raise Stuck("the sizes of its result depend on the number of devices")
    return placed(how, common_power(eq, places))


def parts_joined(eq: Equation, places: Sequence[Placement]) -> Partial:
    """Parts of sums, one behind the other."""
    powers = {p for i, place in enumerate(places) if (p := partial_power(eq, i, place)) is not None}
    if len(powers) > 1:
        raise Stuck("parts of sums over the batch are joined with what is whole already")
    return Partial(powers.pop() if powers else 0)


def joined(eq: Equation, places: Sequence[Placement], axis: int) -> Placement:
    """Batches one behind the other, each a group of the result: ``x`` and ``y`` of a rows are two of a rows.

    All groups must have as many rows on a device.
    """
    outer, rows = 0, set()
    for at, place in enumerate(places):
        if not isinstance(place, Sharded) or place.axis != axis:
            raise Stuck("examples are joined with values that are whole on every device")
        rows.add(tuple(shapes[at][axis] // place.outer for shapes in eq.inputs))
        outer += place.outer
    if len(rows) > 1:
        raise Stuck("different numbers of examples are joined along their own axis")
    return Sharded(axis, common_power(eq, places), outer)


def columns(eq: Equation, places: Sequence[Placement], positions: list[int], dimension: int) -> Result:
    """Indices of which one column is the position of the row."""
    first = places[positions[0]]
    assert isinstance(first, Positions)
    others = [place for i, place in enumerate(places) if i not in positions]
    ok = (
        len(positions) == 1
        and first.column is None
        and dimension == len(eq.out()) - 1 != first.axis
        and eq.shape(positions[0])[dimension] == 1
    )
    if not ok:
        raise Stuck(describe(first))
    return with_others(first, others, sum(eq.shape(i)[dimension] for i in range(positions[0])))


def with_others(first: Positions, others: Sequence[Placement], column: int) -> Positions:
    """Positions in a `column`, with columns that hold something for the same rows."""
    groups = {place.outer for place in others if isinstance(place, Sharded)}
    if len(groups) > 1 or any(place != Sharded(first.axis, outer=min(groups, default=1)) for place in others):
        raise Stuck(describe(first))
    return replace(first, column=column, outer=min(groups, default=None))


@rule("stack")
def stack(eq: Equation, *places: Placement, axis: int, **_: Any) -> Result:
    """Joined along an axis that is new; columns of indices may hold positions."""
    positions = [i for i, place in enumerate(places) if isinstance(place, Positions)]
    if positions:
        first = places[positions[0]]
        assert isinstance(first, Positions)
        others = [place for i, place in enumerate(places) if i not in positions]
        if len(positions) > 1 or first.column is not None or axis != len(eq.out()) - 1:
            raise Stuck(describe(first))
        return with_others(first, others, positions[0])
    if any(isinstance(place, Partial) for place in places):
        return parts_joined(eq, places)
    if len(set(places)) == 1 and isinstance(places[0], (Extreme, OwnKey)):
        return places[0]
    how = layout(eq, places)
    if isinstance(how, (Sharded, Blocks, Copies)):
        if any(isinstance(place, Replicated) for place in places):
            raise Stuck("examples are joined with values that are whole on every device")
        if not isinstance(how, Sharded):
            raise Stuck(describe(how))
        how = replace(how, axis=how.axis + (how.axis >= axis))
    return placed(how, common_power(eq, places))


@rule("unstack")
def unstack(eq: Equation, x: Placement, *, axis: int, **_: Any) -> Result:
    """Taken apart along an axis that is whole."""
    if isinstance(x, SHAPED_ALIKE):
        return x
    if isinstance(x, Sharded) and x.axis != axis:
        return replace(x, axis=x.axis - (x.axis > axis))
    raise Stuck("the examples of this device are taken apart")


@rule("tile")
def tile(eq: Equation, x: Placement, *, reps: Sequence[int], **_: Any) -> Result:
    """Repeated along axes that are whole; as often as there are examples, each device has its part of it.

    A batch that is repeated is so many groups of rows, one behind the other.
    """
    if isinstance(x, SHAPED_ALIKE) and not eq.varying():
        return x
    if isinstance(x, Replicated):
        axis = eq.split()
        assert axis is not None
        return Sharded(axis, x.power)
    if isinstance(x, Sharded) and eq.varying() == (x.axis,):
        times = {int(params["reps"][x.axis]) for params in eq.every}
        if len(times) == 1:
            return replace(x, outer=x.outer * times.pop())
    raise Stuck("examples of this device are repeated as often as its share has rows")


@rule("split")
def split(eq: Equation, x: Placement, *, axis: int, **_: Any) -> Result:
    """Parts along an axis that is whole."""
    if isinstance(x, SHAPED_ALIKE) and not eq.varying():
        return x
    if isinstance(x, Sharded) and x.axis != axis:
        return x
    if all(len(params["sizes"]) == 1 for params in eq.every):
        return x  # All of it.
    if isinstance(x, Sharded):
        sizes = zip(*(params["sizes"] for params in eq.every), strict=True)
        groups = [groups_in(eq, x, [int(size) for size in row]) for row in sizes]
        if all(groups):
            return tuple(replace(x, outer=count) for count in groups if count)
    raise Stuck("the examples of this device are divided into groups")


@rule("pad")
def pad(eq: Equation, x: Placement, value: Placement, *, padding_config: Any, **_: Any) -> Result:
    """Around axes that are whole; linear in the array and what is put around it together."""
    if isinstance(x, Partial) or isinstance(value, Partial):
        powers = {p for i, place in enumerate((x, value)) if (p := partial_power(eq, i, place)) is not None}
        if len(powers) > 1:
            raise Stuck("what is whole already is put around a part of a sum over the batch")
        return Partial(powers.pop() if powers else 0)
    how = layout(eq, (x, value))
    if isinstance(how, Sharded) and tuple(padding_config[how.axis]) != (0, 0, 0):
        return placed(with_groups(eq, how), common_power(eq, (x, value)))
    if how is None and eq.varying():
        raise Stuck("the sizes of its result depend on the number of devices")
    if isinstance(how, (Blocks, Copies)):
        raise Stuck(describe(how))
    return placed(how, common_power(eq, (x, value)))


def with_groups(eq: Equation, x: Sharded) -> Sharded:
    """As many rows of padding as a device has in a group, or twice as many, are groups themselves."""
    outer = x.outer
    for end in (0, 1):
        groups = {
            Fraction(params["padding_config"][x.axis][end] * x.outer, max(shapes[0][x.axis], 1))
            for params, shapes in zip(eq.every, eq.inputs, strict=True)
        }
        count = groups.pop()
        if groups or count.denominator != 1 or count < 0:
            raise Stuck("values are put between or around the examples of this device")
        outer += int(count)
    if any(params["padding_config"][x.axis][2] for params in eq.every):
        raise Stuck("values are put between or around the examples of this device")
    return replace(x, outer=outer)
