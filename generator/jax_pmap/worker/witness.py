"""Derivation as a witness: a parallel function held against its reference, for all inputs."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import jax
import numpy as np

from . import arguments, meshes, protocol, prove, telling
from .arguments import Packed, Values
from .budget import fitting
from .budget import size as operations
from .exceptions import summary
from .following import traced_as, traced_or_none
from .forms import Other, others
from .jaxpr import symbolic
from .jaxpr.coincidences import Program, alike, coincidences, program_of
from .jaxpr.trace import COUNTS, LCM, Traced, abstract_leaves, counts_for, leaf_names, resized, sizes_for
from .jaxpr.versions import primitive_name
from .jaxpr.walk import equations
from .leaves import is_abstract
from .narrowed import only_wraps_elsewhere
from .placements.derive import (
    Derivation,
    counted,
    derive,
    derive_from_parallel,
    describe,
    mesh_axes,
)
from .placements.interpreter import Apart
from .protocol import NOT_FOUND, Affordable, Ending, FixedForm, Multiple, Problem
from .sizes import MANY
from .trials import Emitted, OnMesh, Question

#: Operations up to which a program is traced for four counts of devices, and not for two.
FEW = 1000
#: A prime above `MANY`, and one that gives about as many for a few devices: no share of so many rows is a
#: multiple of anything by chance.
PRIMES = (4099, 277)
#: Counts of devices whose batches need not be even: most that are tried else are multiples of 24.
ODD = (3, 5)
#: Counts beside one that the code names: of those it may have a table of powers of 2.
COMPANIONS = (ODD, (2, 4))
#: Counts on which code is traced that may have limits of its own: more devices than a machine has, say.
UNUSUAL = (3, 5, 64)
#: Counts that are beyond most limits: what is another program on few devices may be one on these.
BEYOND = (64, 128)
#: Sizes of an axis beside one that has two, the longest first: what is another program on a few devices along
#: it may be one with these. How many there can be, arrays say that are divided along it.
LONG = (64, 32, 24, 16, 12, 8, 6, 5)
#: Counts that a run tells of where nothing is derived, and each count has a program of its own: an even one
#: that is no power of 2, and more devices than a machine has.
BESIDE = (6, 16)
#: Counts that a run tells of where a function is traced on no others besides.
MOST_UNTOLD = 2
#: Multiples that shares are tried in, where a rule asks for one.
MOST_MULTIPLE = 64


def witness(
    question: Question,
    parallel: Callable[[int], Callable[[Values], Any]],
    room: int,
    seconds: float,
    *,
    foreign: bool = False,
    multiple: int = 1,
    mesh: "OnMesh | None" = None,
    uniform: bool = False,
    telling: Callable[[int], Sequence[int]] = lambda operations: (),
    counts: Sequence[int] = (),
    refused: Sequence[tuple[int, int]] = (),
) -> protocol.Derivation:
    """What deriving shows of a parallel function; see `derive.describe`.

    It is complete only where `multiple` holds what the rows on each device must be a multiple of, and would
    be with what is asked for in its place. Where it is shown equal, it says which run the second witness can
    afford.

    Args:
        question: the reference, its inputs and their roles.
        parallel: gives the function for a number of devices, while jax shows that many; it is called with
            values as the reference is.
        room: bytes that a run may take.
        seconds: processor time that it may take.
        foreign: whether the function is not made of the reference's own text.
        multiple: what the function itself takes multiples of alone, as rows on a device.
        mesh: what the function arranges its devices in; it is derived for their number alone then.
        uniform: whether the reference is known to be one program for batches of all sizes: those that are
            `telling` tell of all, in place of the given one, where it is shown equal for them.
        telling: other sizes of the batch that a program of so many operations is derived for besides;
            ``"unshown"`` are those for which it is not, where it is for the given one.
        counts: numbers of devices that the code may know.
        refused: from and up to how many rows, on a device or in all, the code says that it does not take.
    """
    values = question.data[0]
    base = arguments.batch_size(values, question.axes)
    packed = Packed(values, question.statics)
    answer = _ended(f"a batch of {base} is too small to be divided in two ways")
    # Of shares as large as the given batch the function surely takes each.
    sizes = (*sizes_for(base), LCM * base) if mesh is None else [max(base // mesh.shares, 1) * mesh.shares]
    if isinstance(question.axes, arguments.MadeInside):
        sizes = [base]
    derived = functools.partial(
        _derived,
        question,
        parallel,
        packed,
        room=room,
        seconds=seconds,
        foreign=foreign,
        multiple=multiple,
        mesh=mesh,
        uniform=uniform,
        named=counts,
        told=not foreign and bool(telling(0)),
    )
    # Sizes of two things may be equal in the given batch alone, which then says less than one in which not.
    generic = [rows // multiple for rows in telling(0)] if uniform else []
    for size in (*generic, *sizes):
        with prove.x64(question.x64):
            answer, asked = derived(size * multiple)
            if multiple < asked <= MOST_MULTIPLE:
                # On shares that a rule asks for, more can be said.
                answer, _ = derived(size * asked)
        if answer.batch and (answer.complete or size not in generic):
            break
    besides = telling(answer.operations) if answer.complete and size not in generic else ()
    for rows in besides:
        with prove.x64(question.x64):
            counts_there = _sharing(rows, multiple, refused)
            why = _otherwise_on(question, parallel, packed, rows, counts_there, foreign=foreign)
            share = answer.batch // max(answer.counts)
            suits = None if why is None else _suiting(question, parallel, packed, rows, share // multiple)
        if why is not None:
            unshown = (*answer.unshown, rows)
            answer = dataclasses.replace(answer, complete=False, endings=(why,), unshown=unshown)
        if suits is not None:
            # Code that checks its batch would be equal.
            answer = dataclasses.replace(answer, asked=multiple * suits)
            break
    if foreign and mesh is None and not answer.complete and not answer.elsewhere:
        with prove.x64(question.x64):
            answer = dataclasses.replace(answer, beside=_beside(question, parallel, packed))
    if is_abstract(values):
        return dataclasses.replace(answer, run=Affordable(0, (), "the inputs are shapes alone", 0.0))
    return answer


def _derived(
    question: Question,
    parallel: Callable[[int], Callable[[Values], Any]],
    packed: Packed,
    size: int,
    *,
    room: int,
    seconds: float,
    foreign: bool,
    multiple: int,
    mesh: "OnMesh | None",
    uniform: bool,
    named: Sequence[int],
    told: bool,
) -> tuple[protocol.Derivation, int]:
    """The answer of `witness` for one size of the batch, and the multiple of rows that rules ask for.

    Its batch is 0 where that is not traced. `told` says whether other sizes are asked about besides.
    """
    leaves = abstract_leaves(packed, question.axes, size)
    try:
        reference = traced_as(question.traceable, packed, leaves)
    except (MemoryError, Problem):
        raise
    except BaseException as error:
        return _ended(f"the original is not traced for a batch of {size}: {summary(error)}"), 0
    # What is done otherwise on one number of devices shows on that one alone.
    small = operations(reference.jaxpr) <= FEW
    chosen = counts_for(size, most=4 if small else 2) if mesh is None else [mesh.devices]
    try:
        found = _compared(reference, parallel, packed, leaves, chosen, mesh, foreign=foreign)
    except _Untraced as problem:
        return _ended(str(problem)), math.lcm(_asked_by(problem.found, size), multiple)
    asked = _multiple(found.unmet, size)
    needed = _multiple(found.conditions, size)
    elsewhere: tuple[int, ...] = ()
    if found.complete and question.axes and foreign and mesh is None:
        unseen = [count for count in named if count not in (*UNUSUAL, *chosen)] if small else []
        held = functools.partial(_held, question, parallel, packed, multiple)
        found, elsewhere = _on_many(found, held, unseen)
        if found.complete and found.axes > 1 and small:
            found, more = _long_axes_held(found, question, parallel, packed, multiple, named)
            elsewhere = (*elsewhere, *more)
    larger: Sequence[tuple[Traced, int, Sequence[int]]] = ()
    if found.complete and question.axes and not uniform:
        known = math.lcm(needed, multiple)
        larger, hidden = _larger(question, reference, packed, size, chosen, foreign=foreign, multiple=known)
        needed = math.lcm(needed, hidden if found.axes else 1)
    for program, rows, counts in larger:
        # A slice that takes all of a small batch is another program on a large one.
        try:
            given = abstract_leaves(packed, question.axes, rows)
            found = _compared(program, parallel, packed, given, counts, mesh)
        except _Untraced as problem:
            if program is not larger[-1][0] or told:
                continue  # Whoever calls it with so many is told; others that tell are asked about.
            return _ended(f"with a batch of {rows} {problem}"), 0
        found = _of_rows(found, rows, size)
        needed = math.lcm(needed, _multiple(found.conditions, rows))
        break
    forms: list[FixedForm] = []
    if found.complete and question.axes and (foreign or found.axes):
        sources = question.sources if small and not foreign else ()

        def takes(other: Other) -> bool:
            return _reference(question, other.packed, other.leaves) is not None

        def decides(leaves: Sequence[Any]) -> "Sequence[int] | None":
            return _asked_of(question.traceable, packed, leaves, sources)

        def fails(other: Other) -> "BaseException | None":
            return _failure(question.traceable, other)

        each = others(
            question.data[0],
            question.statics,
            question.axes,
            leaves,
            sources,
            takes,
            decides,
            fails,
            parts=mesh.parts if mesh is not None else (),
        )
        if foreign:
            # Code that was written is for the forms it is called with, but for columns that hide others.
            each = (tuple(way for way in ways if way.hides) for ways in each)
        for form, ending in _other_forms(
            each, question, parallel, reference, size, chosen, mesh, math.lcm(needed, multiple)
        ):
            if foreign:
                found = ending
                break
            forms += form.given
    # What code that checks its batch would be equal for.
    wanted = math.lcm(needed, multiple) if found.complete else 0
    if found.complete and multiple % needed:
        found = dataclasses.replace(found, endings=(_only_multiples(found, needed),))
    base = arguments.batch_size(question.data[0], question.axes)
    traced = (size, chosen[:2])
    shares = mesh.shares if mesh is not None else 0
    run = fitting(packed, question.axes, reference.jaxpr, base, traced, room, seconds, multiple, shares)
    answer = describe(
        found,
        counts=tuple(chosen),
        batch=size,
        multiple=needed,
        asked=wanted,
        run=run,
        forms=tuple(dict.fromkeys(forms)),
        elsewhere=elsewhere,
    )
    return answer, math.lcm(asked, multiple) if asked > 1 else 0


def _on_many(
    found: Derivation,
    held: Callable[[Sequence[int]], "tuple[bool, Derivation | None]"],
    named: Sequence[int],
) -> tuple[Derivation, tuple[int, ...]]:
    """Where deriving ends on some counts of devices, else what was `found`; and the counts that a run tells.

    Those are the ones on which it may work in another way than on the usual ones: the derivation ends there,
    or the function takes the largest alone, which tells nothing of how numbers depend on how many there are.
    They are `UNUSUAL` ones and those that the code has `named`, of whose companions the first are taken that
    it takes. ``min(jax.device_count(), 8)`` is the number of devices up to 8, and ``{6: 0.5}.get(n, 1)``
    mostly 1.

    `held` says whether it takes the largest of some counts, and what is derived where it takes all of them.
    """
    unlike: dict[int, None] = {}
    untold: dict[int, None] = {}
    ways = [[UNUSUAL], *([(*companions, count) for companions in COMPANIONS] for count in named)]
    for several in ways:
        largest, counts = max(several[0]), several[0]
        taken, ended = False, None
        for counts in several:
            takes, ended = held(counts)
            taken = taken or takes
            if ended is not None:
                break
        if ended is None:
            untold |= {largest: None} if taken else {}
            continue
        if ended.complete:
            continue
        beyond = held(tuple(dict.fromkeys((*BEYOND, largest))))[1] if unlike else None
        if beyond is None or not beyond.complete:
            unlike |= dict.fromkeys(counts)
        if found.complete:
            said = f"{', '.join(map(str, counts[:-1]))} and {counts[-1]}"
            found = _only_there(ended, f"on {said} devices it works in another way")
    more = [count for count in untold if count > max(COUNTS)]
    return found, (*unlike, *more[:MOST_UNTOLD])


def _on_long_axes(
    found: Derivation,
    derived: Callable[[Sequence[Sequence[Traced]]], Derivation],
    functions: Sequence[Callable[[int], Callable[[Values], Any]]],
    packed: Packed,
    leaves: Sequence[Any],
    named: Sequence[int],
) -> tuple[Derivation, tuple[int, ...]]:
    """`_on_many` of functions with a mesh of several axes, each of which is long by itself.

    Along each it has the first of `LONG` sizes that they take, and those that the code has `named`. What is
    `derived` of the programs of each function is asked for one long axis at a time.
    """
    lengths = {size for leaf in leaves for size in getattr(leaf, "shape", ())}
    first = [2] * found.axes

    def may_divide(size: int) -> bool:
        return size == LONG[0] or any(length > size and length % size == 0 for length in lengths)

    def traced(sizes: Sequence[int]) -> "list[Traced] | None":
        try:
            programs = [_traced_on(each, packed, leaves, math.prod(sizes), sizes) for each in functions]
            axes = mesh_axes([each.jaxpr for each in programs])
        except (_Untraced, Apart):  # Whoever calls it so is told.
            return None
        # A mesh that is written down has the sizes it has.
        return programs if max(map(max, axes.values()), default=0) == max(sizes) else None

    start = traced(first)
    if start is None:
        return found, ()
    usual = _on_meshes(functions, packed, leaves, [[each] for each in start], [math.prod(first)])
    if len(usual[0]) == 1:
        return found, ()
    others = [[size] for size in named if 4 < size < LONG[0] and may_divide(size)]
    for at in range(found.axes):
        for several in ([*filter(may_divide, LONG)], *others):
            meshes = ([*first[:at], size, *first[at + 1 :]] for size in several)
            long = next(((sizes, made) for sizes in meshes if (made := traced(sizes)) is not None), None)
            if long is None:
                continue
            sizes, made = long
            ended = derived([[*row, program] for row, program in zip(usual, made, strict=True)])
            if not ended.complete:
                there = f"on a mesh of {' × '.join(map(str, sizes))} devices it works in another way"
                return _only_there(ended, there), (math.prod(sizes),)
    return found, ()


def _long_axes_held(
    found: Derivation,
    question: Question,
    parallel: Callable[[int], Callable[[Values], Any]],
    packed: Packed,
    multiple: int,
    named: Sequence[int],
) -> tuple[Derivation, tuple[int, ...]]:
    """`_on_long_axes` of a function against the reference on one device."""
    leaves = abstract_leaves(packed, question.axes, multiple * math.lcm(LCM, LONG[0]))
    reference = _reference(question, packed, leaves)
    if reference is None:
        return found, ()

    def derived(rows: Sequence[Sequence[Traced]]) -> Derivation:
        why = _other_form(reference, rows[0])
        given = [each.jaxpr for each in rows[0]]
        return Derivation(0, (Ending(0, why),)) if why else derive(reference.jaxpr, given, leaf_names(packed))

    return _on_long_axes(found, derived, [parallel], packed, leaves, named)


def _held(
    question: Question,
    parallel: Callable[[int], Callable[[Values], Any]],
    packed: Packed,
    multiple: int,
    counts: Sequence[int],
) -> "tuple[bool, Derivation | None]":
    """Whether a function takes the largest of `counts`, and what is derived where it takes all of them."""
    leaves = abstract_leaves(packed, question.axes, multiple * math.lcm(*counts))
    if (reference := _reference(question, packed, leaves)) is None:
        return False, None
    try:
        largest = _traced_on(parallel, packed, leaves, max(counts))
    except _Untraced:  # Whoever calls it so is told.
        return False, None
    try:
        if len(mesh_axes([largest.jaxpr])) > 1:
            return True, None  # It would be held on sizes of a mesh by themselves.
        return True, _compared(reference, parallel, packed, leaves, counts, foreign=False)
    except (Apart, _OtherForm) as problem:
        return True, Derivation(0, (Ending(0, str(problem)),))
    except _Untraced:
        return True, None


def _beside(
    question: Question, parallel: Callable[[int], Callable[[Values], Any]], packed: Packed
) -> tuple[int, ...]:
    """Counts of devices besides the usual ones that are to be run, where each has a program of its own.

    What holds for a few of them says little of others then: a ring has a step for each device, and a group of
    8 is all devices up to 8. Shares have as many rows on all of them.
    """
    if not question.axes or isinstance(question.axes, arguments.MadeInside):
        return ()

    def form(count: int) -> "list[Any] | None":
        leaves = abstract_leaves(packed, question.axes, LCM * count)
        try:
            program = _traced_on(parallel, packed, leaves, count)
        except _Untraced:  # Whoever calls it so is told.
            return None
        return [
            (primitive_name(each), *(repr(each.params.get(name)) for name in ("perm", "axis_index_groups")))
            for each in equations(program.jaxpr)
        ]

    usual = [form(count) for count in (4, 8)]
    if None in usual or usual[0] == usual[1]:
        return ()
    others = {count: form(count) for count in BESIDE}
    return tuple(count for count, found in others.items() if found is not None and len(found) <= FEW)


def _both_held(
    question: Question,
    functions: Sequence[Callable[[int], Callable[[Values], Any]]],
    packed: Packed,
    counts: Sequence[int],
) -> "tuple[bool, Derivation | None]":
    """`_held` of two parallel functions against each other, a reference first."""
    leaves = abstract_leaves(packed, question.axes, math.lcm(*counts))
    try:
        largest = [_traced_on(each, packed, leaves, max(counts)) for each in functions]
    except _Untraced:
        return False, None
    try:
        if any(len(mesh_axes([each.jaxpr])) > 1 for each in largest):
            return True, None
        one, other = (_traced(each, packed, leaves, counts, "it is") for each in functions)
    except Apart as problem:
        return True, Derivation(0, (Ending(0, str(problem)),))
    except _Untraced:
        return True, None
    return True, _of_two(packed, (one, other))


def _of_two(packed: Packed, rows: Sequence[Sequence[Traced]]) -> Derivation:
    """What is derived of the programs of two parallel functions, a reference first."""
    one, other = rows
    why = next((why for a, b in zip(one, other, strict=True) if (why := _other_form(a, [b]))), "")
    if why:
        return Derivation(0, (Ending(0, why),))
    before, after = ([each.jaxpr for each in row] for row in rows)
    return derive_from_parallel(before, after, leaf_names(packed))


def _other_forms(
    inputs: Iterable[Sequence[Other]],
    question: Question,
    parallel: Callable[[int], Callable[[Values], Any]],
    reference: Traced,
    size: int,
    chosen: Sequence[int],
    mesh: "OnMesh | None",
    multiple: int,
) -> Iterator[tuple[Other, Derivation]]:
    """Of `inputs` of other forms those for which the derivation ends, and where it ends.

    The `reference` is traced for the given one, of a batch of so many rows: on a device a multiple of
    `multiple`. A form that the function does not take is left out: whoever calls it so is told.
    """
    known: list[Program] = []
    covering: dict[int, bool] = {}
    fixed: set[FixedForm] = set()
    for ways in inputs:
        for way in ways:
            if way.in_parts and fixed.issuperset(way.given):
                break
            known = known or [program_of(reference.jaxpr, size)]
            if way.settles:
                yield way, Derivation(0, (Ending(0, f"with {way.said} it may be another function"),))
                break
            if way.covers:
                if id(way) not in covering:
                    found = _of_form(question, parallel, reference, known, way, size, chosen[:2], mesh)
                    covering[id(way)] = found is not None and found[0].complete
                if covering[id(way)]:
                    break
                continue
            found = _of_form(question, parallel, reference, known, way, size, chosen[:2], mesh)
            if found is None and way.decides:
                found = Derivation(0, (Ending(0, "the original is not traced"),)), size
            if found is None:
                continue  # The function does not take it, or code that is made of its text raises.
            ended, rows = found
            needed = _multiple(ended.conditions, rows)
            if ended.complete and multiple % needed:
                ended = dataclasses.replace(ended, endings=(_only_multiples(ended, needed),))
            if not ended.complete:
                fixed.update(way.given)
                yield way, _only_there(ended, f"with {way.said} it is worked on in another way")
            break


def _of_form(
    question: Question,
    parallel: Callable[[int], Callable[[Values], Any]],
    reference: Traced,
    known: list[Program],
    way: Other,
    size: int,
    chosen: Sequence[int],
    mesh: "OnMesh | None",
) -> "tuple[Derivation, int] | None":
    """What deriving shows for inputs of another form, and for how many rows; None where these are not taken.

    `known` are programs of the `reference` for forms for which it is shown equal, the given one first, of a
    batch of `size`; one that is found is added.
    Shares of few rows may not suit another width: where they do not, they have as many as surely do.
    """
    axes = way.packed.axes(way.axes or question.axes)
    for rows in (size, LCM * size) if mesh is None and not way.of_rows else (size,):
        leaves = [resized(leaf, axis, rows) for leaf, axis in zip(way.leaves, axes, strict=True)]
        traced = _reference(question, way.packed, leaves)
        if traced is None:
            return None
        program = program_of(traced.jaxpr, size)
        if way.covers and program.operations != known[0].operations:
            return None
        if rows == size and way.in_parts:
            # Of an array in parts devices see another size than the original, which may decide a number.
            if _covers(known[0], program) and _as_columns_grow(question, way, known[0], program):
                return Derivation(0, ()), rows
        elif rows == size and any(_covers(each, program) for each in known):
            return Derivation(0, ()), rows
        if rows == size and way.bits and only_wraps_elsewhere(reference.jaxpr, traced.jaxpr, way.bits):
            return Derivation(0, ()), rows
        try:
            found = _compared(traced, parallel, way.packed, leaves, chosen, mesh)
            known += [program] if found.complete and rows == size else []
            return found, rows
        except _OtherForm as problem:
            return Derivation(0, (Ending(0, str(problem)),)), rows
        except _Untraced:
            continue
    # Devices with one row each do take it, for that row.
    return (Derivation(0, (Ending(0, "no device has several rows"),)), size) if way.of_rows else None


def _asked_of(
    function: Callable[[Values], Any], packed: Packed, leaves: Sequence[Any], sources: Sequence[Any]
) -> "Sequence[int] | None":
    """Numbers that a function may hold a size against, a symbol in some `leaves`: the likeliest first.

    None where it does not take such leaves, which have to be as long as others perhaps; empty where it holds
    them against nothing, and 0 alone where it does and no number is known.
    """
    answer = symbolic.traced_unasked(lambda: Traced.of(function, packed, leaves))
    jax.clear_caches()
    if answer.is_asked:
        return telling.named(sources, answer.rows) or (0,)
    return None if answer.made is None else ()


def _failure(function: Callable[[Values], Any], other: Other) -> "BaseException | None":
    """What tracing a function on other inputs ends with, also where names of parts alone are others."""
    jax.clear_caches()
    try:
        Traced.of(function, other.packed, other.leaves)
    except (MemoryError, Problem):
        raise
    except BaseException as error:
        return error
    return None


def _as_columns_grow(question: Question, way: Other, given: Program, program: Program) -> bool:
    """Whether the numbers of the reference are in proportion to the columns of a form, or to a power of them.

    `given` is its program for the given form, and `program` that for the other one, of as many rows.
    """
    before, columns = way.columns
    third, made = way.third
    axes = way.packed.axes(way.axes or question.axes)
    leaves = [resized(leaf, axis, given.rows) for leaf, axis in zip(made, axes, strict=True)]
    if (traced := _reference(question, way.packed, leaves)) is None:
        return False
    few, more, many = (
        dataclasses.replace(each, rows=size)
        for each, size in (
            (given, before),
            (program_of(traced.jaxpr, given.rows), third),
            (program, columns),
        )
    )
    return alike(few, more, many)


def _covers(one: Program, other: Program) -> bool:
    """Whether programs have the same operations, and sizes that are equal in `one` are in the `other`.

    What is shown of the first holds for any sizes of which these are equal, also where others happen to be.
    """
    if one.operations != other.operations or one.numbers.shape != other.numbers.shape:
        return False
    numbers = np.array([0, 1, *other.numbers])
    return bool(np.array_equal(numbers, numbers[coincidences(one)], equal_nan=True))


def _reference(question: Question, packed: Packed, leaves: Sequence[Any]) -> "Traced | None":
    """The trace of the reference; None where it does not take such inputs: whoever calls it so is told."""
    return traced_or_none(question.traceable, packed, leaves)


def _otherwise_on(
    question: Question,
    parallel: Callable[[int], Callable[[Values], Any]],
    packed: Packed,
    rows: int,
    counts: Sequence[int],
    *,
    foreign: bool,
) -> "Ending | None":
    """Where the derivation ends for a batch of `rows` on these `counts` of devices.

    None where it does not, where there are no counts, or where the function raises.

    On numbers of devices on which a `foreign` function raises, whoever calls it is told, and it is held on
    those that it takes. Emitted code should check its batch there, and say what it takes.
    """
    leaves = abstract_leaves(packed, question.axes, rows)
    if not counts or (reference := _reference(question, packed, leaves)) is None:
        return None
    try:
        try:
            found = _compared(reference, parallel, packed, leaves, counts)
        except _Untraced as problem:
            if not foreign or len(problem.programs) != 1:
                raise
            # One tells nothing of how its numbers depend on how many there are.
            found = _compared(reference, parallel, packed, leaves, counts_for(rows, most=len(COUNTS)))
    except _Untraced as problem:
        if not problem.programs:
            return None
        known = problem.found if foreign else None
        found = known or Derivation(0, (Ending(0, str(problem)),))
    if found.complete:
        return None
    there = f"a batch of {rows} is worked on in another way than the given one"
    return _only_there(found, there).endings[0]


def _sharing(rows: int, multiple: int, refused: Sequence[tuple[int, int]] = ()) -> list[int]:
    """Counts of devices that share `rows`, and of which each has several: with one, `few` is asked.

    On all of them a device has a multiple of `multiple` rows, and on none the code says that it takes no such
    batch: from and up to so many rows are `refused`.
    """
    counts = [
        count
        for count in counts_for(rows, most=len(COUNTS))
        if rows // count % multiple == 0 and not telling.is_refused(refused, rows // count, rows)
    ]
    several = [count for count in counts if rows > count]
    if refused and len(counts) == 1:
        # One tells nothing of how numbers depend on how many there are, and one device has all rows.
        counts = [*counts, 1]
    return (several if len(several) > 1 else counts)[:2]


def _suiting(
    question: Question,
    parallel: Callable[[int], Callable[[Values], Any]],
    packed: Packed,
    rows: int,
    share: int,
) -> int | None:
    """What shares are a multiple of for which the function is equal, where it is not for a batch of `rows`.

    It cuts its share in parts, say: the `share` that it took has as many rows as these need.
    """
    for part in (part for part in range(2, share + 1) if share % part == 0):
        leaves = abstract_leaves(packed, question.axes, rows * part)
        if (reference := _reference(question, packed, leaves)) is None:
            continue
        try:
            if _compared(reference, parallel, packed, leaves, counts_for(rows * part)).complete:
                return part
        except _Untraced:  # It does not take so many.
            continue
    return None


def _multiple(conditions: Sequence[Multiple], size: int) -> int:
    """What the rows on a device must be a multiple of for conditions from traces with a batch of `size`."""
    found = 1
    for each in conditions:
        # So many rows of what it is about come with one example.
        rows = Fraction(each.length, size)
        found = math.lcm(found, (each.multiple / rows).numerator)
    return found


def _asked_by(found: "Derivation | None", size: int) -> int:
    """The multiple of rows that rules ask for, and what is shown holds under, on some counts of devices."""
    return 1 if found is None else _multiple((*found.unmet, *found.conditions), size)


def _only_multiples(found: Derivation, needed: int) -> Ending:
    """Where a derivation ends that holds for some shares alone."""
    why = f"it holds only where each device has a multiple of {needed} rows, and others are not refused"
    first = next(iter(found.conditions), None)
    return Ending(0, why, first.primitive if first else "", first.places if first else ())


def _of_rows(found: Derivation, rows: int, size: int) -> Derivation:
    """What was `found` of a batch of `rows`, where it is shown equal for one of `size`."""
    if found.complete:
        return found
    return _only_there(found, f"a batch of {rows} is worked on in another way than one of {size}")


def _only_there(found: Derivation, there: str) -> Derivation:
    """A derivation that ended, with words ahead of why that say in which case it did."""
    first = found.endings[0]
    return dataclasses.replace(
        found, endings=(dataclasses.replace(first, why=f"{there}, and there {first.why}"),)
    )


class _Untraced(Exception):
    """The parallel function is not traced, or gives something of another form; says why.

    `programs` are those on the counts of devices on which it is traced, and `found` is what is known of
    these, where they are several.
    """

    def __init__(self, why: str, found: "Derivation | None" = None, programs: Sequence[Traced] = ()) -> None:
        super().__init__(why)
        self.found = found
        self.programs = programs


class _OtherForm(_Untraced):
    """The parallel function is traced, and gives something of another form."""


def _compared(
    reference: Traced,
    parallel: Callable[[int], Callable[[Values], Any]],
    packed: Packed,
    leaves: Sequence[Any],
    chosen: Sequence[int],
    mesh: "OnMesh | None" = None,
    *,
    foreign: bool = True,
) -> Derivation:
    """The parallel function on some counts of devices, or on its `mesh`, held against the traced reference.

    A `foreign` one that fails on some may be written for as many as there are.

    Raises:
        _Untraced: it cannot be.
    """
    failed = ""
    try:
        [programs] = _everywhere({"it is": parallel}, packed, leaves, chosen, mesh, foreign=foreign)
    except _Untraced as problem:
        programs, failed = list(problem.programs), str(problem)
    why = _other_form(reference, programs)
    if why and not failed:
        raise _OtherForm(why, programs=programs)
    if why:
        raise _Untraced(failed, programs=programs)
    jaxprs = [each.jaxpr for each in programs]
    found = derive(reference.jaxpr, jaxprs, leaf_names(packed)) if len(jaxprs) > 1 or not failed else None
    if found is not None and mesh is not None:
        # Those of parts of other arrays hold on the mesh that there is, as it was traced.
        conditions, unmet = (
            tuple(each for each in some if each.axis == mesh.along)
            for some in (found.conditions, found.unmet)
        )
        found = dataclasses.replace(found, conditions=conditions, unmet=unmet)
    if failed or found is None:
        raise _Untraced(failed, found, programs)
    return found


def _everywhere(
    functions: Mapping[str, Callable[[int], Callable[[Values], Any]]],
    packed: Packed,
    leaves: Sequence[Any],
    chosen: Sequence[int],
    mesh: "OnMesh | None" = None,
    *,
    foreign: bool = True,
) -> list[list[Traced]]:
    """Functions on some counts of devices, or on meshes of several sizes; each by what a message says of it.

    Those that are `foreign` and fail on some of them are tried on as many devices as there are.

    Raises:
        _Untraced: one of them cannot be.
    """
    try:
        rows = [_traced(each, packed, leaves, chosen, subject) for subject, each in functions.items()]
    except _Untraced as problem:
        if not foreign:
            raise
        # Its mesh may be written down, for as many devices as there are.
        every = len(jax.devices())
        try:
            rows = [_traced(each, packed, leaves, [every], subject) for subject, each in functions.items()]
        except _Untraced:
            raise problem from None
        rows = _on_meshes(list(functions.values()), packed, leaves, rows, [every])
        if len(rows[0]) < 2:
            raise
        return rows
    return _on_meshes(list(functions.values()), packed, leaves, rows, chosen, mesh)


def _traced(
    function: Callable[[int], Callable[[Values], Any]],
    packed: Packed,
    leaves: Sequence[Any],
    chosen: Sequence[int],
    subject: str,
) -> list[Traced]:
    """A function on some counts of devices.

    Raises:
        _Untraced: it cannot be on one of them; `subject` is what the message says that of.
    """
    programs: list[Traced] = []
    failed = ""
    for count in chosen:
        try:
            programs.append(_traced_on(function, packed, leaves, count))
        except _Untraced as problem:
            failed = failed or f"{subject} not traced on {count} devices: {problem}"
    jax.clear_caches()
    if failed:
        raise _Untraced(failed, programs=programs)
    return programs


def _traced_on(
    function: Callable[[int], Callable[[Values], Any]],
    packed: Packed,
    leaves: Sequence[Any],
    count: int,
    sizes: "Sequence[int] | None" = None,
    *,
    more: bool = False,
) -> Traced:
    """A function on so many devices, its meshes of the `sizes` that are asked for, with `more` devices too.

    Raises:
        _Untraced: it is not there for so many, or fails.
    """
    # jax keeps what it traced: a function that asks for the number of devices would give the first.
    jax.clear_caches()
    try:
        every = jax.devices() if more else ()
        showing = prove.only_devices if count <= len(jax.devices()) else prove.repeated_devices
        with showing(count), meshes.of_sizes(sizes, every):
            called = function(count)
            with meshes.set_inside():
                return Traced.of(called, packed, leaves)
    except MemoryError:
        raise
    except Problem as problem:
        if problem.kind not in NOT_FOUND:
            raise
        raise _Untraced(str(problem)) from problem
    except BaseException as error:
        raise _Untraced(summary(error)) from error


def _on_meshes(
    functions: Sequence[Callable[[int], Callable[[Values], Any]]],
    packed: Packed,
    leaves: Sequence[Any],
    traced: Sequence[Sequence[Traced]],
    counts: Sequence[int],
    mesh: "OnMesh | None" = None,
) -> list[list[Traced]]:
    """Functions of which one has a mesh of several axes, with each of these in several sizes by itself.

    How large each is, is up to its code: two for all numbers of devices, say. So it is with the one axis of
    code that was `traced` on one of the `counts` of devices alone, which may be the only one it takes; that
    counts too.
    Where none has such a mesh, where it has more axes than the devices here suffice for, or one is not traced
    so, they are as they were `traced`.

    Where the `mesh` is known, the program is that of its sizes, and others are there to tell what depends on
    them: those with which it is another program are left out.
    """
    before = [list(row) for row in traced]
    try:
        number = max(len(mesh_axes([each.jaxpr for each in row])) for row in traced)
    except Apart:
        return before
    most = len(jax.devices())
    first = [2] * number if mesh is None else list(mesh.axes.values())
    written = number == 1 and len(before[0]) == 1
    if not number or (number < 2 and not written) or (mesh is None and math.prod(first) > most):
        return before

    def made(sizes: Sequence[int]) -> "list[Traced] | None":
        # Code that writes the number of devices down takes no other.
        for count in dict.fromkeys((math.prod(sizes), *counts, most)):
            try:
                return [
                    _traced_on(each, packed, leaves, count, sizes, more=mesh is not None)
                    for each in functions
                ]
            except _Untraced:
                continue
        return None

    def alike(one: Sequence[Traced], other: Sequence[Traced]) -> bool:
        return [operations(each.jaxpr) for each in one] == [operations(each.jaxpr) for each in other]

    start = made(first) if mesh is None else [row[0] for row in before]
    found = [start, *([[row[0] for row in before]] if written and mesh is None else [])]
    enough = 1 if operations(traced[0][0].jaxpr) > FEW else 2
    for at in (at for at, size in enumerate(first) if size > 1):
        others: list[list[Traced] | None] = []
        # One device tells least. An array of which each device has one row alone is broadcast.
        for size in (3, 4) if mesh is None else (2, 3, 4, 1):
            sizes = [*first[:at], size, *first[at + 1 :]]
            fits = len(others) < (enough if size > 1 else 1) and math.prod(sizes) <= most
            other = made(sizes) if fits and sizes != first else None
            if other is not None and (mesh is None or (start is not None and alike(start, other))):
                others.append(other)
        found += others or [None]
    jax.clear_caches()
    every = [each for each in found if each is not None]
    return [list(row) for row in zip(*every, strict=True)] if len(every) == len(found) else before


def _larger(
    question: Question,
    reference: Traced,
    packed: Packed,
    size: int,
    chosen: Sequence[int],
    *,
    foreign: bool,
    multiple: int,
) -> "tuple[Sequence[tuple[Traced, int, Sequence[int]]], int]":
    """The reference on batches of thousands of rows, where that is another program.

    Each with its rows, and the counts of devices to hold it on. None where it is the same, but for numbers
    in proportion to the rows, or not traced for so many. Rows that are gone through one by one are not. A
    parallel function that is `foreign`, and not made of the reference's own text, may have thresholds of its
    own: for that the first of several batches counts that it takes.

    Also what rows must be a multiple of for it to be the same: what the batches in the traces have in common
    did not show in these. ``x[: len(x) // 4 * 4]`` is all of ``x`` on shares of 4 and of 8, and
    ``-len(x) % 8`` is 0 for every batch that 8 devices share. That they are a multiple of `multiple` is
    known.
    """

    def traced(rows: int) -> "Traced | None":
        return _reference(question, packed, abstract_leaves(packed, question.axes, rows))

    twice = traced(2 * size)
    if twice is None or operations(twice.jaxpr) >= operations(reference.jaxpr) + size:
        return (), 1

    def same(rows: int, other: Traced) -> bool:
        given = ((reference, size), (twice, 2 * size), (other, rows))
        return alike(*(program_of(each.jaxpr, n) for each, n in given))

    round_ = -(-MANY // size) * size
    if foreign:
        tried = [
            (multiple * math.prod(ODD) * PRIMES[1], ODD),
            (multiple * math.lcm(*chosen) * PRIMES[1], chosen),
            (round_, chosen),
        ]
        return [(each, rows, counts) for rows, counts in tried if (each := traced(rows)) is not None], 1
    odd = traced(multiple * PRIMES[0])
    if odd is not None and same(multiple * PRIMES[0], odd):
        return (), 1
    many = traced(round_)
    if many is None or not same(round_, many):
        return [(many, round_, chosen)] if many is not None else (), 1
    differs = odd is not None  # What it does not take raises by itself.
    for part in (n for n in range(2, size) if size % n == 0):
        rows = math.lcm(part, multiple) * PRIMES[0]
        other = traced(rows)
        if other is not None and same(rows, other):
            return (), part if differs else 1
        differs = differs or other is not None
    return (), size if differs else 1


def programs_of(
    question: Question, parallel: Callable[[int], Callable[[Values], Any]]
) -> tuple[Sequence[Traced], list[str]]:
    """A parallel function traced on some numbers of devices, and what its inputs are called.

    Its batch is like the given one. There are no traces where it cannot be traced.
    """
    packed = Packed(question.data[0], question.statics)
    for size in sizes_for(arguments.batch_size(question.data[0], question.axes))[::-1]:
        leaves = abstract_leaves(packed, question.axes, size)
        try:
            with prove.x64(question.x64):
                [programs] = _everywhere({"it is": parallel}, packed, leaves, counts_for(size))
        except _Untraced:
            continue
        return programs, leaf_names(packed)
    return (), leaf_names(packed)


def witness_of_two(
    question: Question,
    reference: Callable[[int], Callable[[Values], Any]],
    parallel: Callable[[int], Callable[[Values], Any]],
    counts: Sequence[int] = (),
) -> protocol.Derivation:
    """`witness` of a parallel function against a reference that is parallel itself.

    Both give the function for a number of devices, and may know the `counts`. The answer is about a batch
    like the given one and one of thousands of rows.
    """
    values = question.data[0]
    base = arguments.batch_size(values, question.axes)
    packed = Packed(values, question.statics)
    answer = _ended(f"a batch of {base} is too small to be divided in two ways")
    for size in sizes_for(base):
        with prove.x64(question.x64):
            try:
                found, chosen = _two(question, reference, parallel, packed, size, 4)
            except _Untraced as problem:
                answer = _ended(str(problem))
                continue
            needed = _multiple(found.conditions, size)
            elsewhere: tuple[int, ...] = ()
            if found.complete and question.axes:
                unseen = [each for each in counts if each not in (*UNUSUAL, *chosen)]
                held = functools.partial(_both_held, question, (reference, parallel), packed)
                small = found.operations <= FEW
                found, elsewhere = _on_many(found, held, unseen if small else ())
                if found.complete and found.axes > 1 and small:
                    leaves = abstract_leaves(packed, question.axes, math.lcm(LCM, LONG[0]))
                    both, derived = (reference, parallel), functools.partial(_of_two, packed)
                    found, more = _on_long_axes(found, derived, both, packed, leaves, counts)
                    elsewhere = (*elsewhere, *more)
            if found.complete:
                for rows in (math.lcm(*chosen) * PRIMES[1], -(-MANY // size) * size):
                    try:
                        found, _ = _two(question, reference, parallel, packed, rows, 2)
                    except _Untraced:
                        continue  # Whoever calls it with so many is told.
                    found = _of_rows(found, rows, size)
                    needed = math.lcm(needed, _multiple(found.conditions, rows))
                    break
            if found.complete and needed > 1:
                found = dataclasses.replace(found, endings=(_only_multiples(found, needed),))
        return describe(
            found,
            counts=tuple(chosen),
            batch=size,
            multiple=needed,
            asked=0,
            run=None,
            elsewhere=elsewhere,
        )
    return answer


def _two(
    question: Question,
    reference: Callable[[int], Callable[[Values], Any]],
    parallel: Callable[[int], Callable[[Values], Any]],
    packed: Packed,
    size: int,
    most: int,
) -> tuple[Derivation, list[int]]:
    """Two parallel functions, held against each other, on `most` counts of devices or fewer; and these.

    Raises:
        _Untraced: one of them cannot be.
    """
    leaves = abstract_leaves(packed, question.axes, size)
    try:
        whole = traced_as(question.traceable, packed, leaves)
    except (MemoryError, Problem):
        raise
    except BaseException as error:
        raise _Untraced(f"the reference is not traced for a batch of {size}: {summary(error)}") from error
    chosen = counts_for(size, most=most if operations(whole.jaxpr) <= FEW else 2)
    both = {"the reference is": reference, "it is": parallel}
    first, programs = _everywhere(both, packed, leaves, chosen)
    for before, after in zip(first, programs, strict=True):
        why = _other_form(before, [after])
        if why:
            raise _Untraced(why)
    one, other = ([each.jaxpr for each in row] for row in (first, programs))
    return derive_from_parallel(one, other, leaf_names(packed)), chosen


def _ended(why: str) -> protocol.Derivation:
    """The answer where nothing could be derived at all."""
    ended = Derivation(0, (Ending(0, why),))
    return describe(ended, counts=(), batch=0, multiple=1, asked=0, run=None)


def _other_form(reference: Traced, programs: Sequence[Traced]) -> str:
    """How the results differ in structure, shapes or dtypes; ``""`` where they do not."""
    for program in programs:
        if program.tree != reference.tree:
            return "its result has another structure"
        for got, want in zip(program.jaxpr.out_avals, reference.jaxpr.out_avals, strict=True):
            if (got.shape, got.dtype) != (want.shape, want.dtype):
                return f"a result is {got.str_short()}, and {want.str_short()} in the original"
        same = all(arguments.same_constant(a, b) for a, b in zip(program.rest, reference.rest, strict=True))
        if len(program.rest) != len(reference.rest) or not same:
            return "its result has other constants"
    return ""


def of_emitted(
    question: Question,
    emitted: Emitted,
    room: int,
    seconds: float,
    multiple: int = 1,
    telling: Sequence[int] = (),
    zeros: "Collection[str] | None" = None,
    *,
    uniform: bool = False,
    refused: Sequence[tuple[int, int]] = (),
) -> protocol.Derivation:
    """What deriving shows of code that was emitted, called as the user calls it.

    It is derived for the batches that are `telling` besides; `uniform` says whether the reference is one
    program for all of them. Where it adds rows to uneven batches, with `zeros` in these leaves, it is
    complete only where they do not count. It takes no batch of the few rows that are `refused`.
    """

    def parallel(count: int) -> Callable[[Values], Any]:
        function = emitted.define(count, question.x64)
        return lambda values: question.invoke(function, values)

    found = witness(
        question,
        parallel,
        room,
        seconds,
        multiple=multiple,
        mesh=emitted.mesh,
        uniform=uniform,
        telling=lambda operations: telling,
        refused=refused,
    )
    if zeros is None or not found.complete:
        return found
    for rows in (found.batch, *telling):
        with prove.x64(question.x64):
            why = _counted(question, rows, zeros)
        if why is not None:
            return dataclasses.replace(found, complete=False, endings=(why,))
    return found


def _counted(question: Question, rows: int, zeros: Collection[str]) -> "Ending | None":
    """Where added rows are seen to count in a batch of `rows` with them; see `counted`."""
    packed = Packed(question.data[0], question.statics)
    counts = counts_for(rows, most=3)
    try:
        programs = [
            traced_as(question.traceable, packed, abstract_leaves(packed, question.axes, rows // count)).jaxpr
            for count in counts
        ]
    except (MemoryError, Problem):
        raise
    except BaseException as error:
        return Ending(0, f"the original is not traced for a part of {rows} rows: {summary(error)}")
    why = counted(programs, counts, leaf_names(packed), packed.axes(question.axes), zeros)
    return None if why is None else dataclasses.replace(why, why=f"in an uneven batch, {why.why}")


def apart_by_size(question: Question, sizes: Collection[int], zeros: Collection[str]) -> tuple[int, ...]:
    """Two of some sizes of the batch of which rows that are added are not seen to make one; or none.

    A function that asks for its rows may be one for few and another for many, and of a batch a little below
    the limit added rows make one above it. Where that lies, and whether there is one, is seen from the
    function on both sides. What it does not take is left out.
    """
    packed = Packed(question.data[0], question.statics)
    names, axes = leaf_names(packed), packed.axes(question.axes)
    with prove.x64(question.x64):
        traced = {
            size: _reference(question, packed, abstract_leaves(packed, question.axes, size))
            for size in sorted(sizes)
        }
        programs = {size: each.jaxpr for size, each in traced.items() if each is not None}
        for few, more in itertools.pairwise(programs):
            rows = 2 * math.lcm(few, more)
            if counted([programs[few], programs[more]], (rows // few, rows // more), names, axes, zeros):
                return few, more
    return ()
