"""Operations over windows: pooling and what differentiation makes of it."""

from collections.abc import Sequence
from typing import Any

from ..equation import Equation, Result, Stuck, rule
from ..lattice import Partial, Placement, Replicated, Sharded
from .elementwise import common_power, describe, layout, no_powers, placed, power_of


def apart(eq: Equation, axis: int) -> bool:
    """Whether windows have one element along an axis, each its own: examples are not combined."""
    ones = ("window_dimensions", "window_strides", "base_dilation", "window_dilation")
    given = {name: eq.params[name] for name in ones if eq.params.get(name) is not None}
    padding = eq.params.get("padding")
    return all(sizes[axis] == 1 for sizes in given.values()) and (
        padding is None or tuple(padding[axis]) == (0, 0)
    )


def windowed(eq: Equation, places: Sequence[Placement]) -> Any:
    """How operands lie, where windows go over none of the examples.

    Raises:
        Stuck: they do, or operands do not lie alike.
    """
    how = layout(eq, places)
    if how is None:
        return None
    if not isinstance(how, Sharded):
        raise Stuck(describe(how))
    if not apart(eq, how.axis):
        raise Stuck("windows go over the examples")
    if any(isinstance(place, Replicated) for place in places):
        raise Stuck("windows go over examples and over values that are whole on every device")
    return how


@rule("reduce_window_sum")
def window_sum(eq: Equation, x: Placement, **_: Any) -> Result:
    """Linear."""
    if isinstance(x, Partial):
        return x
    return placed(windowed(eq, (x,)), power_of(x))


@rule("reduce_window_max", "reduce_window_min")
def window_extreme(eq: Equation, x: Placement, **_: Any) -> Result:
    """A positive factor comes out of them; what is around the operand is infinite, with any factor."""
    if eq.dtypes[0][:5] not in ("float", "bfloa"):
        no_powers(eq, (x,))
    return placed(windowed(eq, (x,)), power_of(x))


@rule("reduce_window")
def window_function(eq: Equation, *places: Placement, **_: Any) -> Result:
    """Some function over windows, from an initial value for each of its operands."""
    no_powers(eq, places)
    count = len(places) // 2
    if any(not isinstance(place, Replicated) for place in places[count:]):
        raise Stuck("the value that a reduction begins with differs between devices")
    return placed(windowed(eq, places[:count]), 0)


@rule("select_and_gather_add")
def select_and_gather(eq: Equation, tangents: Placement, x: Placement, **_: Any) -> Result:
    """Linear in the tangents, by the order of the operand."""
    if not isinstance(x, (Replicated, Sharded)):
        raise Stuck(describe(x))
    if isinstance(tangents, Partial) and isinstance(x, Replicated):
        return tangents
    return placed(windowed(eq, (tangents, x)), power_of(tangents))


@rule("select_and_scatter_add")
def select_and_scatter(eq: Equation, source: Placement, x: Placement, **_: Any) -> Result:
    """Linear in the source, by the order of the operand."""
    if not isinstance(x, (Replicated, Sharded)):
        raise Stuck(describe(x))
    if isinstance(source, Partial) and isinstance(x, Replicated):
        return source
    return placed(windowed(eq, (source, x)), power_of(source))


@rule("select_and_scatter")
def select_and_scatter_function(
    eq: Equation, x: Placement, source: Placement, start: Placement, **_: Any
) -> Result:
    """As `select_and_scatter`, with functions of the caller's own."""
    no_powers(eq, (x, source, start))
    common_power(eq, (x, source))
    if not isinstance(start, Replicated):
        raise Stuck(describe(start))
    return placed(windowed(eq, (x, source)), 0)
