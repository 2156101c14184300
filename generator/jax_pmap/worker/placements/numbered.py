"""Rules for rows that a loop over the examples reads and writes by their number, as ``acc.at[i].add(p[i])``.

The rounds of a device are those of its rows in the whole batch's loop, in the same order. So what a round
reads of row `i` of a share is what the whole loop reads of that row, and a value of which each round writes
its own row alone has the device's part of the whole one whenever it is the turn of one of its rows.
"""

from collections.abc import Sequence
from dataclasses import replace

from ..jaxpr.walk import SCATTERS
from .arithmetic import kind_of
from .equation import Equation, Result, Stuck
from .lattice import WHOLE, Filled, Placement, Replicated, Row, RowNumber, Sharded
from .rules.elementwise import common_power, describe, holds_positions, power_of
from .rules.gathers import Addressing, common_of, filled

#: Operations that lay out one number, or copies of it, in another way.
SHAPES = frozenset({"broadcast_in_dim", "reshape", "squeeze", "expand_dims"})


def of_number(eq: Equation, places: Sequence[Placement]) -> Result:
    """What a rule gives where an operand is the number of a round's row, or filled row by row.

    Raises:
        Stuck: no relation is claimed.
    """
    first = places[0]
    if eq.name == "convert_element_type" and isinstance(first, RowNumber) and kind_of(eq.dtypes[0]) in "iuf":
        holds_positions(eq)
        return first
    if eq.name == "convert_element_type" and eq.terms[eq.operands[0].term].dtype == eq.dtypes[0]:
        return first
    if eq.name in SHAPES and isinstance(first, RowNumber) and first.column is None:
        if not eq.varying():
            return first
    if eq.name == "concatenate":
        return _columns(eq, places)
    if (eq.name in ("lt", "ge") and isinstance(first, RowNumber) and eq.is_zero(1)) or (
        eq.name in ("gt", "le") and isinstance(places[1], RowNumber) and eq.is_zero(0)
    ):
        return WHOLE  # It is never negative.
    if eq.name in ("dynamic_slice", "gather"):
        return _read(eq, places)
    if eq.name == "dynamic_update_slice" or eq.name in SCATTERS:
        return _written(eq, places)
    if eq.name == "add":
        return _added(eq, places)
    if eq.name == "select_n":
        cases = filled_alike(places[1:], [eq.is_zero(i) for i in range(1, len(places))])
        if cases is not None:
            _of_round(eq, 0, first, cases.loop)
            return cases
    raise Stuck(describe(next(place for place in places if isinstance(place, (RowNumber, Filled)))))


def filled_alike(places: Sequence[Placement], zero: Sequence[bool]) -> "Filled | None":
    """How one of several values is filled that differ in the round's row alone from what was carried.

    Zeros, given by `zero`, fit every power. None where they are not alike.
    """
    found = [(place, none) for place, none in zip(places, zero, strict=True) if isinstance(place, Filled)]
    powers = {place.power for place, none in found if not none}
    if (
        len(found) < len(places)
        or len({replace(place, power=0) for place, _ in found}) > 1
        or len(powers) > 1
    ):
        return None
    return replace(found[0][0], power=powers.pop() if powers else 0)


def _of_round(eq: Equation, operand: int, place: Placement, loop: int) -> None:
    """Raise `Stuck` where an operand may differ from what it is in that row's round of the whole loop."""
    alike = isinstance(place, Replicated) and not eq.terms.varies(eq.operands[operand].term, loop)
    if not (alike or (isinstance(place, Row) and place.loop == loop)):
        raise Stuck("one example is combined with what differs between devices, or between examples")
    if eq.name == "select_n" and power_of(place):
        raise Stuck("a choice depends on the size of the share")


def _columns(eq: Equation, places: Sequence[Placement]) -> RowNumber:
    """A list of places, of which one column is the row's number."""
    at = [i for i, place in enumerate(places) if isinstance(place, RowNumber)]
    last = eq.params["dimension"] == len(eq.out()) - 1
    if len(at) != 1 or not last or eq.shape(at[0])[-1] != 1 or eq.varying():
        raise Stuck(describe(next(place for place in places if not isinstance(place, Row))))
    number = places[at[0]]
    assert isinstance(number, RowNumber)
    for index, place in enumerate(places):
        if index != at[0]:
            _of_round(eq, index, place, number.loop)
    if number.column is not None or any(power_of(place) for place in places):
        raise Stuck(describe(number))
    return replace(number, column=sum(eq.shape(i)[-1] for i in range(at[0])))


def _own_row(
    eq: Equation, places: Sequence[Placement], first: int, at: "Addressing | None"
) -> "tuple[RowNumber, Sharded | Filled]":
    """The number by which the first operand is read or written, and how that is divided.

    Args:
        eq: the equation.
        places: placements of its operands.
        first: the first operand that holds places: one for each axis without `at`, a list of them with it.
        at: which axes belong together.

    Raises:
        Stuck: it is not the round's own row.
    """
    numbers = [i for i, place in enumerate(places) if isinstance(place, RowNumber)]
    whole = places[0]
    if len(numbers) != 1 or numbers[0] < first or not isinstance(whole, (Sharded, Filled)):
        raise Stuck(describe(next(p for p in places if isinstance(p, (RowNumber, Filled)))))
    number = places[numbers[0]]
    assert isinstance(number, RowNumber)
    if at is None:
        axis = numbers[0] - first if number.column is None else None
        for index in range(first, len(places)):
            if index != numbers[0]:
                _of_round(eq, index, places[index], number.loop)
                if power_of(places[index]):
                    raise Stuck("a place depends on the share")
    else:
        column = 0 if number.column is None and len(at.columns) == 1 else number.column
        axis = None if column is None or at.batched else at.columns[column]
        if axis in at.windows.values():
            axis = None
    ok = axis == whole.axis and number.length == eq.whole_size(0, whole.axis)
    if isinstance(whole, Sharded):
        ok &= whole.outer == 1 and not eq.terms.varies(eq.operands[0].term, number.loop)
    else:
        ok &= whole.loop == number.loop
    if not ok:
        raise Stuck(describe(number))
    return number, whole


def _read(eq: Equation, places: Sequence[Placement]) -> Row:
    """The round's own row, or part of it."""
    if eq.name == "gather":
        number, whole = _own_row(eq, places, 1, Addressing.of_gather(eq))
        mode, fill = eq.params.get("mode"), eq.params.get("fill_value")
        filled(eq, Sharded(whole.axis, whole.power), mode, fill)
    else:
        number, whole = _own_row(eq, places, 1, None)
        if eq.params["slice_sizes"][whole.axis] != 1:
            raise Stuck(describe(number))
    return Row(number.loop, whole.power)


def _written(eq: Equation, places: Sequence[Placement]) -> Filled:
    """What is written into the round's own row, or added to that."""
    updates = 1 if eq.name == "dynamic_update_slice" else 2
    if updates == 1:
        number, whole = _own_row(eq, places, 2, None)
        if eq.shape(1)[whole.axis] != 1:
            raise Stuck(describe(number))
    else:
        number, whole = _own_row(eq, places, 1, Addressing.of_scatter(eq))
        if eq.name == "scatter" and eq.params.get("update_jaxpr") is not None:
            raise Stuck(describe(number))
    if isinstance(whole, Sharded) and not eq.is_zero(0):
        raise Stuck("a loop over the examples writes rows of what it does not carry")
    _of_round(eq, updates, places[updates], number.loop)
    if eq.name == "scatter_mul" and power_of(places[2]):
        raise Stuck("a number that depends on the size of this device's share is used as if it were whole")
    carry = whole.carry if isinstance(whole, Filled) else None
    given = places[0], places[updates]
    power = common_power(eq, given) if updates == 1 else common_of(eq, *given)
    return Filled(whole.axis, number.loop, carry, power)


def _added(eq: Equation, places: Sequence[Placement]) -> Filled:
    """To what is carried, or to zeros, what has other than zeros in the round's row alone."""
    rows = [place for i, place in enumerate(places) if not eq.is_zero(i)]
    found = [place for place in rows if isinstance(place, Filled)]
    carries = [place.carry for place in found if place.carry is not None]
    if not found or len(found) < len(rows) or len(carries) > 1:
        raise Stuck(describe(next(place for place in places if isinstance(place, (RowNumber, Filled)))))
    if len({replace(place, carry=None) for place in found}) > 1:
        raise Stuck("rows that depend on the size of the share in different ways are added")
    return replace(found[0], carry=carries[0] if carries else None)
