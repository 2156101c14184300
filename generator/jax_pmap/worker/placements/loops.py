"""Loops and branches: what their results are, of what a round or a branch makes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jax.extend.core import Literal

from ..jaxpr.raising import raises
from ..jaxpr.versions import named_axes, opened, primitive_name, scan_sizes
from ..jaxpr.walk import equations as equations_in
from .arithmetic import kind_of, largest_integer
from .equation import Value
from .families import IDENTITIES
from .interpreter import Interpreter, Slice, Stacked, control, has_effects
from .lattice import (
    OF_ROUNDS,
    WHOLE,
    Blocks,
    Copies,
    Corner,
    Dealt,
    Diagonal,
    Downward,
    Extreme,
    Filled,
    Index,
    Labels,
    Loose,
    Mixed,
    Offset,
    OwnKeys,
    Partial,
    Placement,
    Positions,
    Replicated,
    Rounds,
    Row,
    RowNumber,
    Running,
    Sharded,
    Spread,
    Unknown,
)
from .microbatched import in_microbatches, is_grouped
from .numbered import filled_alike
from .rules.elementwise import LARGEST_BATCH, describe
from .terms import Shape, Term

#: Times that the placements of a loop's carry may change before no relation is claimed of them.
MOST_ROUNDS = 16
NOTHING: Mapping[int, Value] = {}


def _carry(
    walk: Interpreter,
    index: int,
    like: Any,
    places: Sequence[Placement],
    shapes: Sequence[Shape],
    first: Value,
    loops: int,
) -> Value:
    """What a loop's body is given of the round before; `loops` around it change it as well.

    `first` is what it is in the first round.
    """
    shape = walk.whole_shape(shapes, places)
    dtype = str(getattr(like, "dtype", "?"))
    made = Value(walk.terms.make("carry", (walk.loops.depth, index, loops), (), shape, dtype), tuple(places))
    walk.loops.first[made.term] = first.term
    if walk.added is not None:
        walk.added.carried(made, first, walk.loops.given[-1])
    return made


def _slice(walk: Interpreter, given: Slice) -> Value:
    """What a loop's body is given in each round of what the loop goes over.

    Of what an earlier loop has stacked, it is what a round of that one makes of what it carries. So the
    gradients through two loops that carry the same are one, whatever else each has kept for its own.
    """
    stacked = walk.loops.stacks.get(given.over)
    known = stacked is None or (walk.loops.depth, given.over) in walk.loops.again
    if stacked is not None and not known and not any(stacked is each for each in walk.loops.running_again):
        _run_again(walk, stacked)
    term = walk.loops.again.get((walk.loops.depth, given.over))
    if term is None:
        term = walk.terms.make("item", (walk.loops.depth,), (given.over,), given.shape, given.dtype)
        walk.loops.first[term] = given.first
        if walk.terms.is_zero(given.over):
            term = walk.terms.scale(0, term)
    return Value(term, given.places)


def _run_again(walk: Interpreter, stacked: Stacked) -> None:
    """Find what the slices of all that a loop has stacked are in the rounds of another one."""
    noted = walk.listed, walk.operations, set(walk.not_whole)
    walk.listed = None
    walk.loops.running_again.append(stacked)
    try:
        inside = [
            _slice(walk, replace(each, places=moved(each.places, stacked.depth, walk.loops.depth)))
            if isinstance(each, Slice)
            else each
            for each in stacked.inputs
        ]
        out = walk.run(stacked.jaxprs, inside)[-len(stacked.results) :]
    finally:
        walk.loops.running_again.pop()
        walk.listed, walk.operations, walk.not_whole = noted
    for result, value in zip(stacked.results, out, strict=True):
        if not any(isinstance(place, Unknown) for place in value.places):
            walk.loops.again[walk.loops.depth, result] = value.term


@control("scan")
def scan(walk: Interpreter, equations: Sequence[Any], operands: Sequence[Value]) -> list[Value]:
    """Placements of the carry are those that a round gives back; slices keep theirs."""
    params = equations[0].params
    constants, carried = scan_sizes(params)
    jaxprs = [e.params["jaxpr"] for e in equations]
    bodies = [opened(jaxpr)[0] for jaxpr in jaxprs]
    lengths = {e.params["length"] for e in equations}
    over = operands[constants + carried :]
    if len(lengths) == 1 and any(is_grouped(operand) for operand in over):
        walk.could_be_microbatches = True
        if walk.microbatches:
            return in_microbatches(walk, equations, operands)
    by_row = len(lengths) > 1
    if by_row:
        # As many rounds as there are examples on a device.
        lost = next((p for each in over for p in each.places if isinstance(p, Unknown)), None)
        if lost is not None:
            return [walk.unknown(lost.reason, lost.equations) for _ in equations[0].outvars]
        counts = next(iter(walk.axes.values()))
        lengths = {e.params["length"] * n for e, n in zip(equations, counts, strict=True)}
        divided = [p for each in over for p in each.places]
        alone = len(walk.axes) == 1 and all(
            (p.axis, p.length) == (0, min(lengths)) and p.outer in (None, 1)
            if isinstance(p, Positions)
            else isinstance(p, Sharded) and (p.axis, p.outer) == (0, 1)
            for p in divided
        )
        if not alone or len(lengths) > 1:
            return walk.lost(equations[0], "a loop goes over the examples of this device")
    [length] = lengths
    shapes = [[tuple(v.aval.shape) for v in body.invars] for body in bodies]
    start = operands[constants : constants + carried]
    loops = [walk.terms.loops(value.term) for value in start]
    numbers = {
        index: _row_numbers(walk, bodies[0].invars[constants + index].aval, length, by_row)
        for index, value in enumerate(start)
        if walk.terms.value(value.term) == 0 and not params.get("reverse", False)
        if all(counts_rounds(body, constants + index, index) for body in bodies)
    }
    walk.loops.depth += 1
    try:

        def sliced(index: int, operand: Value) -> Slice:
            places = tuple(_item(walk, p, by_row) for p in operand.places)
            shape = walk.whole_shape([s[index] for s in shapes], places)
            dtype = str(getattr(bodies[0].invars[index].aval, "dtype", "?"))
            return Slice(operand.term, operand.term, shape, dtype, places)

        counted = {index: sliced(constants + index, each) for index, each in numbers.items()}
        slices = [sliced(index, each) for index, each in enumerate(over, constants + carried)]
        known = {index: _slice(walk, each) for index, each in counted.items()}
        rows = [_slice(walk, each) for each in slices]
        if walk.added is not None:
            for row, operand in zip([*known.values(), *rows], [*numbers.values(), *over], strict=True):
                walk.added.sliced(row, operand)
        # What no round changes is as it was.
        known |= {index: start[index] for index in unchanged(bodies[0], constants, carried)}
        begun = [_by_rows(walk, v, i) if by_row and i not in known else v for i, v in enumerate(start)]

        def body(places: Sequence[Sequence[Placement]], zeros: Mapping[int, Value] = NOTHING) -> list[Value]:
            carry = [
                known.get(i)
                or zeros.get(i)
                or _carry(
                    walk,
                    i,
                    bodies[0].invars[constants + i].aval,
                    row,
                    [s[constants + i] for s in shapes],
                    start[i],
                    loops[i],
                )
                for i, row in enumerate(places)
            ]
            return walk.run(jaxprs, [*operands[:constants], *carry, *rows])

        if walk.added is not None:
            walk.added.scan_begins(walk.loops.depth)
        settled, out = _settled(walk, body, begun, loops, equations[0], known)
        while walk.added is not None and not walk.added.stays(walk.loops.depth, out[:carried]):
            settled, out = _settled(walk, body, begun, loops, equations[0], known)
    finally:
        if walk.added is not None:
            walk.added.scan_ends(walk.loops.depth)
        walk.loops.depth -= 1
    # The terms of a round hold those of the constants and slices already.
    inner = [value.term for value in out]
    depth = walk.loops.depth + 1
    backwards = bool(params.get("reverse", False))
    needed = walk.terms.carries(inner, depth)

    def meaning(kind: str, index: int) -> "tuple[Any, tuple[Term, ...]]":
        """What a result means, which depends on part of what the loop carries."""
        which = tuple(i for i in range(carried) if needed[index] >> i & 1 or (kind != "rows" and i == index))
        own = (inner[index],) if kind == "rows" else ()
        number = index if kind != "rows" else 0
        key = (depth, length, backwards and bool(which), kind, number, which)
        return key, (*own, *(inner[i] for i in which), *(start[i].term for i in which))

    around = [*inner, *(operand.term for operand in (*start, *over))]
    made = []
    for index, variable in enumerate(equations[0].outvars):
        if index in known and out[index].term == start[index].term:
            made.append(start[index])
            continue
        if index < carried:
            at = [_ended(place, depth) for place in settled[index]]
            if by_row and not _of_rows(settled[index], depth):
                why = "a loop carries something from one example to the next"
                at = [Unknown(why, walk.path(equations[0]))]
        elif by_row:
            at = [_by_row(walk, out[index], place, depth, equations[0]) for place in out[index].places]
        else:
            at = [_rows(place, depth) for place in out[index].places]
        ends = [inner[index], start[index].term] if index < carried else inner[index : index + 1]
        key, terms = meaning("end" if index < carried else "rows", index)
        result = _looped(walk, equations, index, variable, "scan", key, terms, at, around, ends)
        if all(walk.terms.is_zero(end) for end in ends):
            result = Value(walk.terms.scale(0, result.term), result.places)
        made.append(result)
    if walk.added is None:
        inputs: list[Slice | Value] = [*operands[:constants]]
        for index, value in enumerate(start):
            if inner[index] == value.term:
                inputs.append(value)  # It stays as it is.
                continue
            if index in counted:
                inputs.append(counted[index])
                continue
            shape = walk.whole_shape([s[constants + index] for s in shapes], settled[index])
            dtype = walk.terms[value.term].dtype
            key, terms = meaning("before", index)
            before = walk.terms.make("scan", key, terms, shape and (key[1], *shape), dtype)
            inputs.append(Slice(before, value.term, shape, dtype, tuple(settled[index])))
        results = tuple(value.term for value in made[carried:])
        stacked = Stacked(depth, jaxprs, (*inputs, *slices), results)
        after = inner[:carried]
        for term, own in zip(results, inner[carried:], strict=True):
            # What is carried to the next round as well is as good as that. A later loop that makes the
            # same rows may go over what was made of these.
            if own not in after:
                walk.loops.stacks.setdefault(term, stacked)
    return made


def _row_numbers(walk: Interpreter, like: Any, rows: int, by_row: bool) -> Value:
    """The numbers of all rounds of a loop, which one that counts them goes over."""
    dtype = str(like.dtype)
    params = (("dimension", 0), ("dtype", dtype), ("shape", (rows,)), ("sharding", None))
    term = walk.terms.make("iota", params, (), (rows,), dtype)
    return Value(term, (Positions(0, rows),) if by_row else walk.whole)


def _by_rows(walk: Interpreter, value: Value, index: int) -> Value:
    """What a loop over the examples carries first, as number `index`: a round may write its own row."""
    [place] = value.places
    if walk.added is None and isinstance(place, Sharded) and place.outer == 1:
        return replace(value, places=(Filled(place.axis, walk.loops.depth, index, place.power),))
    return value


def _looped(
    walk: Interpreter,
    equations: Sequence[Any],
    index: int,
    variable: Any,
    op: str,
    params: Any,
    operands: Sequence[Term],
    places: Sequence[Placement],
    around: Sequence[Term],
    ends: Sequence[Term] = (),
) -> Value:
    """One result of a loop or of a branch.

    Args:
        walk: the walk that the loop is met in.
        equations: the loop in each trace.
        index: which of its results.
        variable: what that is called in the first trace.
        op: the operation of its term.
        params: parameters of that.
        operands: operands of that.
        places: where it is.
        around: all that goes into it.
        ends: what each of its elements is one of; empty where that is not followed.
    """
    lost = next((place for place in places if isinstance(place, Unknown)), None)
    if lost is not None:
        return walk.unknown(lost.reason, lost.equations)
    shape = walk.whole_shape([tuple(e.outvars[index].aval.shape) for e in equations], places)
    if shape is None:
        return walk.unknown("the sizes of its result depend on the number of devices", equations[0])
    term = walk.terms.make(op, params, operands, shape, str(variable.aval.dtype))
    walk.terms.made_by.setdefault(term, walk.path(equations[0]))
    if walk.added is not None:
        given = [each.term for each in walk.loops.given[-1]]
        walk.added.looped(Value(term, tuple(places)), [*around, *given], ends)
    return Value(term, tuple(places))


def _settled(
    walk: Interpreter,
    body: Any,
    start: Sequence[Value],
    loops: list[int],
    equation: Any,
    known: Collection[int] = (),
) -> "tuple[list[list[Placement]], list[Value]]":
    """Placements of a carry that a round gives back as it takes them, and what that round makes.

    Zeros that start a carry fit every placement; what is whole at the start may be sharded after a round
    only if it is zero, and partial in one way. `loops` are those around this one that the start of each
    value differs by; what a round adds to these is put there. Those that are `known` are as they were.
    """
    places = [list(value.places) for value in start]
    zeros = {
        index: value
        for index, value in enumerate(start)
        if walk.terms.is_zero(value.term) and index not in known
    }
    for _ in range(MOST_ROUNDS):
        out = body(places, zeros) if zeros else body(places)
        # What a round makes of zeros they are from then on; others may need several rounds for it.
        still = {index: value for index, value in zeros.items() if walk.is_zero(out[index])}
        given_zeros, changed, zeros = zeros, len(still) < len(zeros), still
        for index, (value, given) in enumerate(zip(out, start, strict=False)):
            if index in known:
                continue
            around = loops[index] | walk.terms.loops(value.term) & ((1 << walk.loops.depth) - 1)
            changed |= around != loops[index]
            loops[index] = around
            is_zero = walk.is_zero(value)
            for at, place in enumerate(value.places):
                now = places[index][at]
                if place == now or isinstance(now, Unknown):
                    continue
                if is_zero and isinstance(place, Replicated) and isinstance(now, (Replicated, Partial)):
                    continue  # Zeros are a sum of zeros, and zeros times any number.
                changed = True
                zero = walk.terms.is_zero(given.term) and isinstance(given.places[at], (Replicated, Sharded))
                # What is whole is one N-th of itself, N times.
                part = isinstance(now, Replicated) and place == Partial(now.power - 1)
                fits = isinstance(place, (Replicated, Partial)) and isinstance(now, Replicated)
                if isinstance(place, Sharded) and isinstance(now, Sharded):
                    fits = (place.axis, place.outer) == (now.axis, now.outer)
                if isinstance(place, (Rounds, Row)) and isinstance(now, Replicated):
                    # Of a loop around this one it may be anything; of this one, what is added up.
                    fits = place.loop == walk.loops.depth
                    place = Running(place.loop, place.power)
                row = value.places[at]
                if isinstance(row, Row) and row.loop < walk.loops.depth:
                    # What is whole, and the same for all examples, is one of them as well.
                    place, zero = row, not walk.terms.varies(given.term, row.loop)
                    fits = now == Replicated(row.power)
                if isinstance(place, Dealt):
                    fits = (
                        place.loop < walk.loops.depth and isinstance(now, Sharded) and now.axis == place.axis
                    )
                if isinstance(place, Filled) and isinstance(now, Filled):
                    zero = index in given_zeros
                    fits = place.carry in (None, index) and place.axis == now.axis
                    place = replace(place, carry=index)
                taken = part or (zero and fits)
                if (taken and now == given.places[at]) or isinstance(place, Unknown):
                    places[index][at] = place
                else:
                    places[index][at] = Unknown(
                        "a value that a loop carries is another kind of value after a round",
                        walk.path(equation),
                    )
        if not changed:
            return places, out
    return [
        [Unknown("the values that a loop carries do not settle", walk.path(equation)) for _ in row]
        for row in places
    ], out


def _item(walk: Interpreter, place: Placement, by_row: bool) -> Placement:
    """The placement of one slice of what a scan goes over, `by_row` in as many rounds as examples."""
    if by_row and isinstance(place, Sharded):
        return Row(walk.loops.depth, place.power)
    if by_row and isinstance(place, Positions):
        return RowNumber(walk.loops.depth, place.length, place.column)
    if isinstance(place, Sharded):
        if place.axis == 0:
            return Unknown("a loop goes over the examples of this device")
        return Sharded(place.axis - 1, place.power, place.outer)
    if isinstance(place, Mixed):
        if 0 not in place.axes:
            return replace(place, axes=tuple(axis - 1 for axis in place.axes), axis=place.axis - 1)
        if len(place.axes) == 2 and place.axis:
            way = (place.ahead, place.axes[0] == 0)
            return Dealt(place.axis - 1, walk.loops.depth, way, place.power)
        return Unknown("a loop goes over groups of other rows than in the whole batch")
    if isinstance(place, Loose):
        if 0 in place.axes:
            return Unknown("a loop goes over sums of other rows than in the whole batch")
        return replace(place, axes=tuple(axis - 1 for axis in place.axes))
    if isinstance(place, Dealt):
        if place.axis == 0:
            return Unknown("a loop goes over the examples of this device")
        return replace(place, axis=place.axis - 1)
    if isinstance(place, (Positions, Labels, Blocks, Copies, OwnKeys)):
        return Unknown("a loop goes over positions")
    if isinstance(place, (Spread, Offset, Corner, Diagonal)):
        return Unknown(describe(place))
    return place


def _by_row(walk: Interpreter, value: Value, place: Placement, loop: int, equation: Any) -> Placement:
    """The placement of what a loop over the examples stacks."""
    if isinstance(place, Row) and place.loop == loop:
        return Sharded(0, place.power)
    if isinstance(place, RowNumber) and place.loop == loop:
        return Positions(0, place.length, place.column)
    if isinstance(place, Replicated) and not walk.terms.varies(value.term, loop):
        return Sharded(0, place.power)
    if isinstance(place, Unknown):
        return place
    return Unknown("a loop carries something from one example to the next", walk.path(equation))


def _ended(place: Placement, loop: int) -> Placement:
    """The placement of what a scan carries when it has ended."""
    if isinstance(place, Filled) and place.loop == loop:
        return Sharded(place.axis, place.power)
    return Partial(place.power) if isinstance(place, Running) and place.loop == loop else place


def _rows(place: Placement, loop: int) -> Placement:
    """The placement of what a scan stacks."""
    if isinstance(place, Mixed):
        return replace(place, axes=tuple(axis + 1 for axis in place.axes), axis=place.axis + 1)
    if isinstance(place, Loose):
        return replace(place, axes=tuple(axis + 1 for axis in place.axes))
    if isinstance(place, Dealt):
        if place.loop != loop:
            return replace(place, axis=place.axis + 1)
        axes = (0, place.axis + 1) if place.way[1] else (place.axis + 1, 0)
        return Mixed(axes, place.axis + 1, place.way[0], place.power)
    if isinstance(place, Rounds) and place.loop == loop:
        return Loose((0,), place.power)
    if isinstance(place, Running):
        return Unknown("what a loop has added up so far is used before its end")
    if isinstance(place, (Spread, Offset, Corner, Diagonal, Filled)):
        return Unknown(describe(place))
    if isinstance(place, (Sharded, Blocks, Copies, OwnKeys)):
        return replace(place, axis=place.axis + 1)
    if isinstance(place, (Positions, Labels, Index, Downward, RowNumber)):
        return Unknown("positions are stacked by a loop")
    return place


@control("custom_linear_solve")
def custom_linear_solve(
    walk: Interpreter, equations: Sequence[Any], operands: Sequence[Value]
) -> list[Value]:
    """What its function for the solution makes of the constants of that, and of the right-hand sides."""
    lengths = equations[0].params["const_lengths"]
    before = lengths.matvec + lengths.vecmat
    own = operands[before : before + lengths.solve]
    jaxprs = [e.params["jaxprs"].solve for e in equations]
    return walk.run(jaxprs, [*own, *operands[sum(lengths) :]])


@control("while")
def while_(walk: Interpreter, equations: Sequence[Any], operands: Sequence[Value]) -> list[Value]:
    """All devices must do as many rounds."""
    params = equations[0].params
    ahead, inside = params["cond_nconsts"], params["body_nconsts"]
    bodies = [e.params["body_jaxpr"] for e in equations]
    tests = [e.params["cond_jaxpr"] for e in equations]
    shapes = [[tuple(v.aval.shape) for v in opened(b)[0].invars] for b in bodies]
    start = operands[ahead + inside :]
    loops = [walk.terms.loops(value.term) for value in start]
    walk.loops.depth += 1
    try:

        def carry(places: Sequence[Sequence[Placement]], zeros: Mapping[int, Value] = NOTHING) -> list[Value]:
            return [
                zeros.get(i)
                or _carry(
                    walk,
                    i,
                    opened(bodies[0])[0].invars[inside + i].aval,
                    row,
                    [s[inside + i] for s in shapes],
                    start[i],
                    loops[i],
                )
                for i, row in enumerate(places)
            ]

        # What decides on the first round is seen as it is in that round.
        walk.run(tests, [*operands[:ahead], *carry([value.places for value in start])])
        places, out = _settled(
            walk,
            lambda now, zeros=NOTHING: walk.run(
                bodies, [*operands[ahead : ahead + inside], *carry(now, zeros)]
            ),
            start,
            loops,
            equations[0],
        )
        last = carry(places)
        test = walk.run(tests, [*operands[:ahead], *last])[0]
    finally:
        walk.loops.depth -= 1
    alone = not any(collective_in(opened(jaxpr)[0]) for jaxpr in (*bodies, *tests))
    # In a loop over examples each has as many rounds as it needs.
    rows = [place for place in test.places if alone and isinstance(place, Row) and not place.power]
    apart = next((place for place in test.places if place != WHOLE and place not in rows), None)
    if apart is not None and not isinstance(apart, Unknown):
        # Devices go round until the last of their own examples is done.
        if alone and _each_until_done(walk, test, [value.term for value in last], out, places):
            apart = None
    if apart is not None:
        why = (
            apart.reason
            if isinstance(apart, Unknown)
            else "devices decide on another round of a loop by values that differ between them"
        )
        return walk.lost(equations[0], why)
    places = [
        [
            _of_row(walk, more, place, (end.term, first.term), equations[0])
            if more in rows
            else _every_round(walk, place, test.term, equations[0])
            for more, place in zip(test.places, row, strict=True)
        ]
        for row, end, first in zip(places, out, start, strict=True)
    ]
    inner = (*(value.term for value in out), test.term)
    terms = (*inner, *(value.term for value in start))
    # Which parameters are its own, and where the terms of a round end, is part of what a loop means.
    key = (walk.loops.depth + 1, len(inner))
    return [
        _looped(walk, equations, index, variable, "while", (*key, index), terms, places[index], terms)
        for index, variable in enumerate(equations[0].outvars)
    ]


def _each_until_done(
    walk: Interpreter,
    test: Value,
    carry: Sequence[Term],
    out: Sequence[Value],
    places: Sequence[Sequence[Placement]],
) -> bool:
    """Whether rounds change no example that is done, so that it does not matter how many there are.

    So is a loop under `vmap`: its test is of each example, and one that is done is left as it is. Written
    by hand, it goes on while it is true of any that there is more to do, ``reduce_or(more)``, and a round
    gives ``where(more, new, old)``.
    """
    node = walk.terms[test.term]
    if node.shape:
        return all(
            place == WHOLE
            or (
                isinstance(place, Sharded)
                and not place.power
                and place.axis < len(node.shape)
                and all(row[at] == place for row in places)
            )
            for at, place in enumerate(test.places)
        )
    if node.op != "reduce_or" or not all(p in (WHOLE, Extreme("max")) for p in test.places):
        return False
    more = node.operands[0]
    inner = walk.terms[more]
    done = inner.operands[0] if inner.op == "not" else None
    rank = len(inner.shape or ())

    def kept(value: Value, old: Term) -> bool:
        made = walk.terms[value.term]
        if value.term == old:
            return True
        if made.op == "or":
            return done == old and old in made.operands
        if made.op != "select_n" or len(made.operands) != 3:
            return False
        which = walk.terms.spread_from(made.operands[0], rank)
        return (which == more and made.operands[1] == old) or (
            which is not None and which == done and made.operands[2] == old
        )

    return all(kept(value, old) for value, old in zip(out, carry, strict=True))


@control("cond")
def cond(walk: Interpreter, equations: Sequence[Any], operands: Sequence[Value]) -> list[Value]:
    """All devices must take one branch; what the branches give must be of one kind.

    A branch that raises gives nothing. Where a device takes it by a maximum of its own, so does the
    whole-batch program by that of all; else all devices take the one that is left. A branch for kernels
    that are written in Mosaic, which `jnp.diag` has, is none of a program's own.
    """
    which, given = operands[0], operands[1:]
    bodies = list(zip(*(e.params["branches"] for e in equations), strict=True))
    machines = equations[0].params.get("branches_platforms") or (None,) * len(bodies)
    left = [
        body
        for body, where in zip(bodies, machines, strict=True)
        if where != ("mosaic",) and not all(map(raises, body))
    ]
    if len(left) == 1 and all(place == WHOLE or isinstance(place, Extreme) for place in which.places):
        return walk.run(left[0], given)
    rows = [place for place in which.places if isinstance(place, Row) and not place.power]
    apart = next((place for place in which.places if place != WHOLE and place not in rows), None)
    if apart is not None:
        why = (
            apart.reason
            if isinstance(apart, Unknown)
            else "devices take a branch by values that differ between them"
        )
        # What the branches compute may be what the choice depends on, in an earlier round of a loop.
        for body in bodies if walk.supposes else ():
            walk.run(body, given)
        return walk.lost(equations[0], why)
    branches = [walk.run(body, given) for body in bodies]
    made = []
    for index, variable in enumerate(equations[0].outvars):
        values = [branch[index] for branch in branches]
        places = tuple(_joined(walk, values, at, equations[0]) for at in range(len(walk.axes)))
        if rows:
            places = tuple(
                _of_row(walk, chosen, place, [value.term for value in values], equations[0])
                for chosen, place in zip(which.places, places, strict=True)
            )
        else:
            places = tuple(_every_round(walk, place, which.term, equations[0]) for place in places)
        terms = [value.term for value in values]
        if len(set(terms)) == 1 and not any(isinstance(p, Unknown) for p in places):
            made.append(Value(terms[0], places))
        else:
            key, chosen = (len(branches), index), (which.term, *terms)
            made.append(_looped(walk, equations, index, variable, "cond", key, chosen, places, chosen, terms))
    return made


def _of_row(
    walk: Interpreter, test: Placement, place: Placement, terms: Sequence[Term], equation: Any
) -> Placement:
    """The placement of what is chosen for each example by itself."""
    if not isinstance(test, Row) or isinstance(place, Unknown):
        return place
    if isinstance(place, Filled) and place.loop == test.loop:
        return place  # But for that example's row it is what it was.
    if place == test or (place == WHOLE and not any(walk.terms.varies(t, test.loop) for t in terms)):
        return test
    return Unknown(
        "what is chosen for one example differs between devices in another way", walk.path(equation)
    )


def _every_round(walk: Interpreter, place: Placement, test: Term, equation: Any) -> Placement:
    """A placement that holds if all rounds of a loop are seen together, where all do what a test says."""
    if isinstance(place, OF_ROUNDS) and walk.terms.varies(test, place.loop):
        why = "a loop goes over groups of other rows than in the whole batch, and not all alike"
        return Unknown(why, walk.path(equation))
    return place


def _joined(walk: Interpreter, values: Sequence[Value], at: int, equation: Any) -> Placement:
    """The placement that what several branches give has in common."""
    places = [value.places[at] for value in values]
    lost = next((place for place in places if isinstance(place, Unknown)), None)
    if lost is not None:
        return lost
    if len(set(places)) == 1:
        return places[0]
    if isinstance(places[0], Filled):
        same = filled_alike(places, [walk.is_zero(value) for value in values])
        return same or Unknown("the branches write rows of different values", walk.path(equation))
    partial = [p for p in places if isinstance(p, Partial)]
    powers = {
        place.power if isinstance(place, Partial) else place.power - 1
        for place, value in zip(places, values, strict=True)
        if isinstance(place, (Partial, Replicated))
        and not (walk.terms.is_zero(value.term) and isinstance(place, Replicated))
    }
    if partial and len(powers) == 1 and all(isinstance(p, (Partial, Replicated)) for p in places):
        return Partial(powers.pop())
    return Unknown(
        "the branches give values that are divided over the devices in different ways",
        walk.path(equation),
    )


def collective_in(jaxpr: Any) -> bool:
    """Whether a program has a collective in it, or what may have one."""
    return any(
        (named_axes(each.params) and primitive_name(each) != "axis_index") or has_effects(each)
        for each in equations_in(jaxpr)
    )


def moved(places: Sequence[Placement], loop: int, to: int) -> tuple[Placement, ...]:
    """Placements in a round of one loop as those in a round of another, by the loops' nesting depths."""
    return tuple(
        replace(place, loop=to) if getattr(place, "loop", None) == loop else place  # type: ignore[arg-type]
        for place in places
    )


def _of_rows(places: Sequence[Placement], loop: int) -> bool:
    """Whether what a loop over the examples carries is made of its rows, or not known."""
    return all(isinstance(place, Unknown) or getattr(place, "loop", None) == loop for place in places)


def unchanged(body: Any, constants: int, carried: int) -> list[int]:
    """Which of the values that a loop carries it hands on as they are; `constants` go ahead of them."""
    handed = {
        out: given
        for each in body.eqns
        if primitive_name(each) in IDENTITIES
        for out, given in zip(each.outvars, each.invars, strict=True)
    }

    def origin(result: Any) -> Any:
        while not isinstance(result, Literal) and result in handed:
            result = handed[result]
        return result

    given = body.invars[constants : constants + carried]
    return [i for i, own in enumerate(given) if origin(body.outvars[i]) is own]


def counts_rounds(body: Any, given: int, index: int) -> bool:
    """Whether a loop adds one in each round to a whole number that it carries: input `given`."""
    carry, result = body.invars[given], body.outvars[index]
    dtype = str(getattr(carry.aval, "dtype", "?"))
    if carry.aval.shape or kind_of(dtype) not in "iu" or largest_integer(dtype) < LARGEST_BATCH:
        return False
    return any(
        primitive_name(each) == "add"
        and each.outvars[0] is result
        and each.invars[0] is carry
        and getattr(each.invars[1], "val", None) == 1
        for each in body.eqns
    )
