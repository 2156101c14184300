"""Products that sum over axes of two operands: matrix products and convolutions."""

from dataclasses import replace
from typing import Any

from ..equation import Equation, Result, Stuck, rule
from ..lattice import Diagonal, Loose, Mixed, Partial, Placement, Replicated, Sharded
from .elementwise import describe, power_of


@rule("dot_general")
def dot_general(eq: Equation, x: Placement, y: Placement, *, dimension_numbers: Any, **_: Any) -> Result:
    """Contracting the sharded axis gives a partial sum; other axes stay sharded."""
    (contract, batch) = dimension_numbers
    power = power_of(x) + power_of(y)
    if isinstance(x, Mixed) or isinstance(y, Mixed):
        return of_groups(eq, x, y, contract, batch)
    if isinstance(x, Diagonal) or isinstance(y, Diagonal):
        return of_diagonal(eq, x, y, contract, batch)
    for place in (x, y):
        if not isinstance(place, (Replicated, Sharded, Partial)):
            raise Stuck(describe(place))
    partial = [place for place in (x, y) if isinstance(place, Partial)]
    if partial:
        if len(partial) == 2 or any(isinstance(place, Sharded) for place in (x, y)):
            raise Stuck(describe(partial[0]))
        return Partial(power)
    free, at = [], len(batch[0])
    for operand, place in enumerate((x, y)):
        own = [
            axis
            for axis in range(len(eq.shape(operand)))
            if axis not in contract[operand] and axis not in batch[operand]
        ]
        if isinstance(place, Sharded) and place.axis in own:
            free.append(Sharded(at + own.index(place.axis), power, place.outer))
        at += len(own)
    sharded = [place if isinstance(place, Sharded) else None for place in (x, y)]
    if not any(sharded):
        return Replicated(power)
    if len(free) == 2:
        raise Stuck("every example is combined with every other")
    if free:
        if all(sharded):
            raise Stuck("two operands are divided over the devices along different axes")
        return free[0]
    left, right = sharded
    if left is None or right is None or left.outer != right.outer:
        raise Stuck("examples are summed over with values that are whole on every device")
    for kind in (contract, batch):
        pairs = list(zip(*kind, strict=True))
        if (left.axis, right.axis) in pairs:
            if kind is contract:
                return Partial(power)
            return Sharded(pairs.index((left.axis, right.axis)), power, left.outer)
    raise Stuck("two operands are divided over the devices along different axes")


def of_groups(eq: Equation, x: Placement, y: Placement, contract: Any, batch: Any) -> Result:
    """Products of what is divided into groups: contracted over all of their axes, or over others."""
    power = power_of(x) + power_of(y)
    if isinstance(x, Mixed) and isinstance(y, Mixed):
        contracted, kept = list(zip(*contract, strict=True)), list(zip(*batch, strict=True))
        together = list(zip(x.axes, y.axes, strict=False))
        same = (x.ahead, x.axes.index(x.axis), len(x.axes)) == (y.ahead, y.axes.index(y.axis), len(y.axes))
        if not same or (x.axis, y.axis) not in contracted:
            raise Stuck(describe(x))
        if not all(pair in contracted or pair in kept for pair in together):
            raise Stuck(describe(x))
        left = tuple(kept.index(pair) for pair in together if pair in kept)
        return Loose(left, power) if left else Partial(power)
    operand = 0 if isinstance(x, Mixed) else 1
    place, other = (x, y) if operand == 0 else (y, x)
    assert isinstance(place, Mixed)
    own, at = (
        [[a for a in range(len(eq.shape(i))) if a not in contract[i] and a not in batch[i]] for i in (0, 1)],
        0,
    )
    at = len(batch[0]) + (len(own[0]) if operand else 0)
    if not isinstance(other, Replicated) or not all(axis in own[operand] for axis in place.axes):
        raise Stuck(describe(place))
    axes = tuple(at + own[operand].index(axis) for axis in place.axes)
    return Mixed(axes, axes[place.axes.index(place.axis)], place.ahead, power)


def of_diagonal(eq: Equation, x: Placement, y: Placement, contract: Any, batch: Any) -> Result:
    """A product with what is zero outside the device's own block: of other rows only the device's own count.

    Contracted over one of the axes of the diagonal it is whole, and sharded along the other one.
    """
    operand = 0 if isinstance(x, Diagonal) else 1
    place, other = (x, y) if operand == 0 else (y, x)
    assert isinstance(place, Diagonal)
    power = power_of(x) + power_of(y)
    own = [a for a in range(len(eq.shape(operand))) if a not in (*contract[operand], *batch[operand])]
    more = len(eq.shape(0)) - len(contract[0]) - len(batch[0]) if operand else 0
    to = {axis: at for at, axis in enumerate(batch[operand])}
    to |= {axis: len(batch[0]) + more + at for at, axis in enumerate(own)}
    pairs = [*zip(contract[operand], contract[1 - operand], strict=True)]
    pairs += zip(batch[operand], batch[1 - operand], strict=True)
    met = [pair for pair in pairs if pair[0] in place.axes]
    if isinstance(other, Replicated) and not met:
        return replace(place, power=power).at([to[axis] for axis in place.axes])
    if not isinstance(other, Sharded) or other.outer != 1 or [pair[1] for pair in met] != [other.axis]:
        raise Stuck(describe(place if isinstance(other, Replicated) else other))
    if met[0][0] in contract[operand]:
        if not place.alone:
            raise Stuck(describe(place))
        return Sharded(to[next(axis for axis in place.axes if axis != met[0][0])], power)
    return replace(place, power=power).at([to[axis] for axis in place.axes])


@rule("conv_general_dilated")
def convolution(
    eq: Equation,
    x: Placement,
    y: Placement,
    *,
    dimension_numbers: Any,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    **_: Any,
) -> Result:
    """Batched in its batch axis; contracted in it by the gradient of the weights.

    The batch is the feature axis of both operands there, or, with groups, stands in `batch_group_count`.
    Where every example has weights of its own, each is a group, or as many are: a device has its own groups.
    """
    power = power_of(x) + power_of(y)
    spec = dimension_numbers
    for place in (x, y):
        if not isinstance(place, (Replicated, Sharded, Partial)):
            raise Stuck(describe(place))
    partial = [place for place in (x, y) if isinstance(place, Partial)]
    if partial:
        if len(partial) == 2 or any(isinstance(place, Sharded) for place in (x, y)):
            raise Stuck(describe(partial[0]))
        return Partial(power)
    if isinstance(x, Replicated) and isinstance(y, Replicated):
        return Replicated(power)
    if isinstance(x, Sharded) and isinstance(y, Replicated):
        if x.axis == spec.lhs_spec[0] and batch_group_count == 1:
            return Sharded(spec.out_spec[0], power, x.outer)
    if isinstance(x, Replicated) and isinstance(y, Sharded):
        if y.axis == spec.rhs_spec[0] and feature_group_count == batch_group_count == 1:
            return Sharded(spec.out_spec[1], power, y.outer)
    if isinstance(x, Sharded) and isinstance(y, Sharded) and x.outer == y.outer:
        if x.axis == spec.lhs_spec[1] and y.axis == spec.rhs_spec[1] and feature_group_count == 1:
            return Partial(power)
        named = {spec.lhs_spec[1]: "feature_group_count", spec.lhs_spec[0]: "batch_group_count"}
        groups = [each.get(named.get(x.axis, "")) for each in eq.every]
        shared = {n and n * count for n, count in zip(groups, eq.counts, strict=True)}
        if len(shared) == 1 < len({*groups}) and y.axis == spec.rhs_spec[0] and x.outer == 1:
            return Sharded(spec.out_spec[1], power)
    raise Stuck("examples are combined along an axis of the convolution that is no batch axis")
