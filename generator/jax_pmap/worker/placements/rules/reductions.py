"""Operations that make one value of several along axes: sums, extremes, positions of extremes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..arithmetic import kind_of
from ..equation import Equation, Result, Same, Stuck, rule
from ..lattice import (
    Blocks,
    Copies,
    Diagonal,
    Extreme,
    Loose,
    Mixed,
    Partial,
    Placement,
    Replicated,
    Sharded,
    scaled,
)
from .elementwise import describe, layout, no_powers, power_of


def kept_axis(axis: int, removed: Sequence[int]) -> int:
    """Where an axis is once others before it are removed."""
    return axis - sum(other < axis for other in removed)


def across(eq: Equation, what: str) -> Stuck:
    """What to say of an operation that goes over the examples of all devices."""
    return Stuck(f"{what} over the examples needs those of all devices")


@rule("reduce_sum")
def reduce_sum(eq: Equation, x: Placement, *, axes: Sequence[int], **_: Any) -> Result:
    """A sum over the sharded axis is partial."""
    if isinstance(x, (Partial, Replicated)):
        return x
    if isinstance(x, Copies):
        if tuple(axes) == (x.axis,):
            return Same(Replicated(x.power - 1))
        if all(axis < x.axis for axis in axes):
            return scaled(Copies(kept_axis(x.axis, axes)), x.power)
        raise across(eq, "a sum")
    if isinstance(x, Blocks):
        return blocks_reduced(eq, x, axes)
    if isinstance(x, Sharded):
        if x.axis in axes:
            # Where all rows are alike, those of all devices are, and the share has one N-th of them.
            alike = eq.terms.constant_along(eq.operands[0].term, (x.axis,))
            return Replicated(x.power + 1) if alike else Partial(x.power)
        return Sharded(kept_axis(x.axis, axes), x.power, x.outer)
    if isinstance(x, Diagonal):
        left = tuple(kept_axis(axis, axes) for axis in x.axes if axis not in axes)
        if len(left) == 2:
            return x.at(left)
        if not x.alone:
            raise across(eq, "a sum")
        return Sharded(left[0], x.power) if left else Partial(x.power)
    if isinstance(x, Mixed):
        if x.axis in axes:
            left = tuple(kept_axis(axis, axes) for axis in x.axes if axis not in axes)
            return Loose(left, x.power) if left else Partial(x.power)
        return mixed_reduced(x, axes)
    raise Stuck(describe(x))


def mixed_reduced(x: Mixed, axes: Sequence[int]) -> Mixed:
    """Groups of rows stay so under a reduction of other axes.

    Raises:
        Stuck: it goes over some of theirs.
    """
    if any(axis in axes for axis in x.axes):
        raise Stuck(describe(x))
    return replace(x, axes=tuple(kept_axis(axis, axes) for axis in x.axes), axis=kept_axis(x.axis, axes))


def blocks_reduced(eq: Equation, x: Blocks, axes: Sequence[int]) -> Placement:
    """What is divided in blocks stays so under a reduction of other axes."""
    # Axes behind the blocks are numbered otherwise in the whole value.
    if any(axis >= x.axis for axis in axes):
        raise across(eq, "a reduction")
    return Blocks(kept_axis(x.axis, axes), x.power)


@rule("reduce_max", "reduce_min", "reduce_or", "reduce_and", "reduce_prod", "reduce_xor")
def reduce_extreme(eq: Equation, x: Placement, *, axes: Sequence[int], **_: Any) -> Result:
    """The extreme over the sharded axis is that of this device alone."""
    op = {"reduce_max": "max", "reduce_or": "max", "reduce_min": "min", "reduce_and": "min"}.get(eq.name)
    if eq.name in ("reduce_or", "reduce_and", "reduce_xor") and eq.dtypes[0] != "bool":
        op = None
        no_powers(eq, (x,))  # Bit by bit.
    if kind_of(eq.dtypes[0]) == "c":
        op = None  # Ordered by their real parts first: what is made of the largest has no such order.
    if isinstance(x, Extreme) and x.op == op:
        return x
    if isinstance(x, Replicated):
        if eq.name == "reduce_prod" and x.power:
            raise Stuck("a product of numbers that depend on the size of the share")
        return x
    if isinstance(x, Sharded):
        if x.axis not in axes:
            if eq.name == "reduce_prod":
                no_powers(eq, (x,))
            return Sharded(kept_axis(x.axis, axes), x.power, x.outer)
        if op is None or x.power:
            raise across(eq, "a reduction")
        return Extreme(op)
    if isinstance(x, Mixed):
        if eq.name == "reduce_prod":
            no_powers(eq, (x,))
        if all(axis in axes for axis in x.axes) and op is not None and not x.power:
            return Extreme(op)
        return mixed_reduced(x, axes)
    if isinstance(x, Copies) and op is not None and tuple(axes) == (x.axis,):
        return Same(Replicated(x.power))
    if isinstance(x, Blocks) and not x.power:
        return blocks_reduced(eq, x, axes)
    raise Stuck(describe(x))


@rule("argmax", "argmin")
def position(eq: Equation, x: Placement, *, axes: Sequence[int], **_: Any) -> Result:
    """Along an axis that is whole."""
    if isinstance(x, Replicated):
        return Replicated()
    if isinstance(x, Sharded) and x.axis not in axes:
        return Sharded(kept_axis(x.axis, axes), 0, x.outer)
    if isinstance(x, Mixed):
        return replace(mixed_reduced(x, axes), power=0)
    if isinstance(x, Sharded):
        raise across(eq, "the position of an extreme")
    raise Stuck(describe(x))


@rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def cumulative(eq: Equation, x: Placement, *, axis: int, **_: Any) -> Result:
    """Along an axis that is whole; cumulative sums are linear."""
    if eq.name == "cumsum" and isinstance(x, (Partial, Replicated)):
        return x
    how = layout(eq, (x,))
    if eq.name in ("cumprod", "cumlogsumexp"):
        no_powers(eq, (x,))
    if isinstance(how, Sharded) and how.axis != axis:
        return x
    if how is None:
        return Replicated(power_of(x))
    raise across(eq, "what is accumulated")


@rule("sort")
def sort(eq: Equation, *places: Placement, dimension: int, **_: Any) -> Result:
    """Along an axis that is whole; all operands are sorted together."""
    no_powers(eq, places)
    how = layout(eq, places)
    if how is None or (isinstance(how, Sharded) and how.axis != dimension):
        return tuple(Replicated() if how is None else how for _ in places)
    raise across(eq, "sorting")


@rule("reduce")
def reduce_function(eq: Equation, *places: Placement, dimensions: Sequence[int], **_: Any) -> Result:
    """Some function over axes that are whole, from an initial value for each of its operands."""
    no_powers(eq, places)
    count = len(places) // 2
    if any(not isinstance(place, Replicated) for place in places[count:]):
        raise Stuck("the value that a reduction begins with differs between devices")
    how = layout(eq, places[:count])
    if how is None:
        return Replicated()
    if isinstance(how, Sharded) and how.axis not in dimensions and Replicated() not in places[:count]:
        return Sharded(kept_axis(how.axis, dimensions), 0, how.outer)
    raise across(eq, "a reduction")


@rule("approx_top_k")
def approx_top_k(eq: Equation, x: Placement, *, reduction_dimension: int, **_: Any) -> Result:
    """Along an axis that is whole."""
    no_powers(eq, (x,))
    how = layout(eq, (x,))
    if how is None or (isinstance(how, Sharded) and how.axis != reduction_dimension % len(eq.shape(0))):
        return Replicated() if how is None else how
    raise across(eq, "the largest")


@rule("top_k")
def top_k(eq: Equation, x: Placement, **params: Any) -> Result:
    """Along the last axis, or the one that is named."""
    rank = len(eq.shape(0))
    axis = params.get("axis", rank - 1) % rank
    no_powers(eq, (x,))
    how = layout(eq, (x,))
    if how is None or (isinstance(how, Sharded) and how.axis != axis):
        return tuple(Replicated() if how is None else how for _ in range(2))
    raise across(eq, "the largest")
