"""Loops over groups of a device's rows, that add up what each makes: read as one program over all rows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..jaxpr.versions import opened, primitive_name, scan_sizes
from .arithmetic import kind_of
from .equation import Value
from .interpreter import Interpreter
from .lattice import WHOLE, Mixed, Partial, Replicated, Sharded, Unknown


def is_grouped(value: Value) -> bool:
    """Whether a value is a device's rows in groups, as ``reshape(K, -1, ...)`` makes them."""
    return len(value.places) == 1 and value.places[0] == Mixed((0, 1), 1, 1)


def in_microbatches(walk: Interpreter, equations: Sequence[Any], operands: Sequence[Value]) -> list[Value]:
    """What a scan over K groups of each device's rows adds up and stacks.

    A group is a share as that of one of K times as many devices, so the body is read as their program:
    what is whole to these is, and of what is partial the sum over the rounds is taken here, and over the
    devices later. As ``(N K)**power * sum(v) == V``, what is added up is ``K**power`` times too small. A
    collective over the devices is none over the groups, so in the body nothing is claimed of it.
    """
    params = equations[0].params
    constants, carried = scan_sizes(params)
    groups = params["length"]
    start, over = operands[constants : constants + carried], operands[constants + carried :]
    bodies = [opened(e.params["jaxpr"])[0] for e in equations]
    [(axis, counts)] = walk.axes.items()

    def given(value: Value) -> Value:
        place = value.places[0]
        if place == WHOLE or isinstance(place, Unknown):
            return value
        if isinstance(place, Replicated) and kind_of(walk.terms[value.term].dtype) in "fc":
            return Value(walk.terms.scale(float(groups) ** place.power, value.term), value.places)
        return walk.unknown("each round of a loop over groups of rows has the same of it", equations[0])

    def item(value: Value) -> Value:
        if not is_grouped(value):
            return walk.unknown("a loop over groups of rows goes over something else too", equations[0])
        node = walk.terms[value.term]
        assert node.shape is not None
        rows = (node.shape[0] * node.shape[1], *node.shape[2:])
        return Value(walk.terms.apply("reshape", (), (value.term,), rows, node.dtype), (Sharded(0),))

    def zero(value: Value, body: Any, index: int) -> Value:
        if is_replaced(body, constants + index):
            return value
        if not walk.terms.is_zero(value.term) or value.places != walk.whole:
            return walk.unknown("a loop over groups of rows starts with what is not zero", equations[0])
        if not adds_up(body, constants + index, index):
            return walk.unknown("a loop over groups of rows does more than add up", equations[0])
        return value

    inside = [
        *map(given, operands[:constants]),
        *(zero(value, bodies[0], index) for index, value in enumerate(start)),
        *map(item, over),
    ]
    inner = f"{axis} in {groups} groups"
    outside = walk.axes, walk.seen, walk.scalars
    # What power of the count a number is off by is another question for another count.
    walk.axes, walk.scalars = {inner: tuple(count * groups for count in counts)}, {}
    walk.seen = {inner: walk.seen[axis]}
    try:
        out = walk.run([e.params["jaxpr"] for e in equations], inside)
    finally:
        walk.axes, walk.seen, walk.scalars = outside
    for table in (walk.conditions, walk.unmet):
        for each in [each for each in table if each.axis == inner]:
            del table[each]
            table[replace(each, multiple=each.multiple * groups, axis=axis)] = None

    def ended(index: int, value: Value) -> Value:
        if index >= carried:
            return _grouped_again(walk, value, groups, equations[0])
        if not is_replaced(bodies[0], constants + index):
            return _added_up(walk, value, groups, equations[0])
        if value.places == walk.whole or isinstance(value.places[0], Unknown):
            return value
        return walk.unknown("a loop over groups of rows keeps what is of the last of them", equations[0])

    return [ended(index, value) for index, value in enumerate(out)]


def _added_up(walk: Interpreter, value: Value, groups: int, equation: Any) -> Value:
    """The sum over the rounds of a loop over groups of rows."""
    [place] = value.places
    if isinstance(place, Unknown):
        return value
    if not isinstance(place, (Partial, Replicated)):
        return walk.unknown("a loop over groups of rows adds up what is divided among them", equation)
    power = -place.power if isinstance(place, Partial) else 1 - place.power
    if power not in (0, 1) and kind_of(walk.terms[value.term].dtype) not in "fc":
        return walk.unknown("a loop over groups of rows adds up parts of whole numbers", equation)
    factor = groups**power if power in (0, 1) else float(groups) ** power
    return Value(walk.terms.scale(factor, value.term), value.places)


def _grouped_again(walk: Interpreter, value: Value, groups: int, equation: Any) -> Value:
    """What a loop over groups of rows stacks, which joined again is that of all rows."""
    [place] = value.places
    node = walk.terms[value.term]
    if isinstance(place, Unknown):
        return value
    if place != Sharded(0) or node.shape is None:
        return walk.unknown("a loop over groups of rows stacks what is not of each row", equation)
    shape = (groups, node.shape[0] // groups, *node.shape[1:])
    term = walk.terms.apply("reshape", (), (value.term,), shape, node.dtype)
    return Value(term, (Mixed((0, 1), 1, 1),))


def adds_up(body: Any, given: int, index: int) -> bool:
    """Whether a loop only adds to one of the values that it carries: input `given`, and result `index`."""
    carry, result = body.invars[given], body.outvars[index]
    users = [e for e in body.eqns if any(v is carry for v in e.invars)]
    return (
        len(users) == 1
        and primitive_name(users[0]) in ("add", "add_any")
        and users[0].outvars[0] is result
        and sum(v is carry for v in users[0].invars) == 1
        and not any(v is carry for v in body.outvars)
    )


def is_replaced(body: Any, given: int) -> bool:
    """Whether a loop makes a value that it carries anew in each round, and reads nothing of the last."""
    carry = body.invars[given]
    return not any(v is carry for e in body.eqns for v in e.invars) and not any(
        v is carry for v in body.outvars
    )
