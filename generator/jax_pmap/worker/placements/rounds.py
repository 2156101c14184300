"""Rules for slices of groups in the rounds of a loop, and for sums of groups: those of shares, and of parts.

A rule that gives `Sharded` works row by row, and one that gives `Partial` adds up over rows. So both hold for
rows that are dealt to the rounds of a loop in one way or another, where other operands are always alike.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..jaxpr.versions import named_axes
from .equation import Equation, Result, Rule, Same, Stuck
from .lattice import (
    OF_ROUNDS,
    WHOLE,
    Dealt,
    Filled,
    Loose,
    Partial,
    Placement,
    Replicated,
    Rounds,
    Row,
    RowNumber,
    Running,
    Sharded,
)
from .numbered import of_number
from .rules.elementwise import describe, power_of

#: Operations element by element that are linear in operands which are sums of groups.
LINEAR = frozenset({"add", "sub", "mul", "div", "neg", "convert_element_type", "copy", "stop_gradient"})


def grouped(places: Sequence[Placement]) -> bool:
    """Whether an operand is a slice of groups, or a sum of them."""
    return any(isinstance(place, (*OF_ROUNDS, Loose)) for place in places)


def of_groups(found: "Rule | None", eq: Equation, places: Sequence[Placement]) -> Result:
    """What a rule gives for operands of which some are slices of groups, or sums of them.

    Raises:
        Stuck: no relation is claimed.
    """
    if named_axes(eq.params):
        raise Stuck(describe(next(place for place in places if grouped([place]))))
    if any(isinstance(place, (RowNumber, Filled)) for place in places):
        return of_number(eq, places)
    if any(isinstance(place, Running) for place in places):
        return _added(eq, places)
    if any(isinstance(place, Row) for place in places):
        return _of_rows(found, eq, places)
    if found is None:
        raise Stuck(f"`{eq.name}` has no rule")
    if any(isinstance(place, Loose) for place in places):
        return _of_sums(found, eq, places)
    loops = {place.loop for place in places if isinstance(place, (Dealt, Rounds))}
    ways = {(place.axis, place.way) for place in places if isinstance(place, Dealt)}
    if len(loops) > 1 or len({way for _, way in ways}) > 1:
        raise Stuck("rows that are divided into groups in different ways are combined")
    loop, way = loops.pop(), next((way for _, way in ways), None)
    given: list[Placement] = []
    for index, place in enumerate(places):
        term = eq.operands[index].term
        if isinstance(place, Dealt):
            given.append(Sharded(place.axis, place.power))
        elif isinstance(place, Rounds):
            given.append(Partial(place.power))
        elif eq.terms.varies(term, loop):
            raise Stuck("a loop goes over groups of other rows than in the whole batch, and not all alike")
        elif isinstance(place, Sharded):
            if not eq.terms.constant_along(term, (place.axis,)):
                raise Stuck("groups of other rows than in the whole batch are combined with single examples")
            given.append(place)
        elif isinstance(place, Replicated):
            given.append(place)
        else:
            raise Stuck(describe(place))
    result = found(eq, *given, **eq.params)

    def back(made: "Placement | Same") -> "Placement | Same":
        if isinstance(made, Same):
            place = back(made.place)
            assert not isinstance(place, Same)
            return replace(made, place=place)
        if isinstance(made, Sharded) and made.outer == 1 and way is not None:
            return Dealt(made.axis, loop, way, made.power)
        if isinstance(made, Partial):
            return Rounds(loop, made.power)
        raise Stuck("the groups that a loop goes over are of other rows than in the whole batch")

    return tuple(map(back, result)) if isinstance(result, tuple) else back(result)


def _of_rows(found: "Rule | None", eq: Equation, places: Sequence[Placement]) -> Result:
    """What is made of one example, and of what is whole on every device and the same in all rounds."""
    loops = {place.loop for place in places if isinstance(place, Row)}
    loop = loops.pop()
    given: list[Placement] = []
    for index, place in enumerate(places):
        if isinstance(place, Row):
            given.append(Replicated(place.power))
        elif not isinstance(place, Replicated) or loops or eq.terms.varies(eq.operands[index].term, loop):
            raise Stuck("one example is combined with what differs between devices, or between examples")
        else:
            given.append(place)
    if eq.name != "rng_uniform" and all(place == WHOLE for place in given):
        if not any(eq.varying(result) for result in range(len(eq.outputs[0]))):
            return Row(loop)
    if found is None:
        raise Stuck(f"`{eq.name}` has no rule")
    result = found(eq, *given, **eq.params)
    rows = result if isinstance(result, tuple) else (result,)
    if not all(isinstance(row, Replicated) for row in rows):
        raise Stuck("one example is combined with what differs between devices, or between examples")
    made = tuple(Row(loop, power_of(row)) for row in rows if isinstance(row, Replicated))
    return made if isinstance(result, tuple) else made[0]


def _added(eq: Equation, places: Sequence[Placement]) -> Result:
    """A running sum, to which more is added, or nothing."""
    index = next(i for i, place in enumerate(places) if isinstance(place, Running))
    place = places[index]
    other = places[1 - index] if len(places) == 2 else None
    assert isinstance(place, Running)
    if eq.name == "convert_element_type" and eq.terms[eq.operands[0].term].dtype == eq.dtypes[0]:
        return Same(place)
    if eq.name == "add" and (eq.is_zero(1 - index) or _adds_up(other, place)):
        return place
    if eq.name in ("scatter_add", "scatter_sub") and index == 0:
        at, more = (
            Row(place.loop, power_of(each))
            if isinstance(each, Replicated) and not eq.terms.varies(operand.term, place.loop)
            else each
            for each, operand in zip(places[1:], eq.operands[1:], strict=True)
        )
        some = isinstance(places[1], Row) or isinstance(places[2], (Row, Rounds))
        if some and at == Row(place.loop) and _adds_up(more, place):
            return place  # Each row adds to the places that it points to.
    raise Stuck(describe(place))


def _adds_up(other: "Placement | None", place: Running) -> bool:
    """Whether something is of the rounds of a running sum, and off by its power."""
    return isinstance(other, (Rounds, Row)) and (other.loop, other.power) == (place.loop, place.power)


def _of_sums(found: Rule, eq: Equation, places: Sequence[Placement]) -> Result:
    """Sums of groups, in what is linear in them."""
    axes = {place.axes for place in places if isinstance(place, Loose)}
    where = axes.pop()
    if eq.name == "reduce_sum":
        assert isinstance(places[0], Loose)
        removed: Sequence[int] = eq.params["axes"]
        left = tuple(axis - sum(other < axis for other in removed) for axis in where if axis not in removed)
        return Loose(left, places[0].power) if left else Partial(places[0].power)
    given: list[Any] = []
    for index, place in enumerate(places):
        if isinstance(place, Loose):
            given.append(Partial(place.power))
        elif isinstance(place, Replicated) and eq.terms.constant_along(eq.operands[index].term, where):
            given.append(place)
        else:
            raise Stuck("groups of other rows than in the whole batch are not all treated alike")
    if axes or eq.name not in LINEAR:
        raise Stuck(describe(next(place for place in places if isinstance(place, Loose))))
    result = found(eq, *given, **eq.params)
    rows = result if isinstance(result, tuple) else (result,)
    made: list[Placement] = []
    for row in rows:
        place = row.place if isinstance(row, Same) else row
        if not isinstance(place, Partial):
            raise Stuck(describe(places[0]))
        made.append(Loose(where, place.power))
    return tuple(made)
