"""Derivation as a witness: a parallel function held against its reference, for all inputs."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from . import arguments, prove
from .arguments import Packed, Values
from .budget import fitting
from .budget import size as operations
from .jaxpr.trace import Traced, abstract_leaves, counts_for, leaf_names, sizes_for
from .leaves import is_abstract
from .placements.derive import Derivation, Ending, derive, describe
from .proving import Emitted, Question
from .server import Answer, Problem, summary
from .sizes import MANY, alike, program_of

#: Operations up to which a program is traced for four counts of devices, and not for two.
FEW = 3000


def witness(
    question: Question,
    parallel: Callable[[int], Callable[[Values], Any]],
    room: int,
    seconds: float,
    *,
    foreign: bool = False,
) -> Answer:
    """What deriving shows of a parallel function; see `derive.describe`.

    Where it is shown equal, ``"run"`` says which run the second witness can afford: ``{"rows", "counts",
    "why"}``, rows 0 for none.

    Args:
        question: the reference, its inputs and their roles.
        parallel: gives the function for a number of devices, while jax shows that many; it is called with
            values as the reference is.
        room: bytes that a run may take.
        seconds: processor time that it may take.
        foreign: whether the function is not made of the reference's own text.
    """
    values = question.data[0]
    base = arguments.batch_size(values, question.axes)
    packed = Packed(values, question.statics)
    answer = _ended(f"a batch of {base} is too small to be divided in two ways")
    for size in sizes_for(base):
        with prove.x64(question.x64):
            answer = _derived(question, parallel, packed, size, room, seconds, foreign=foreign)
        if answer["batch"]:
            break
    if is_abstract(values):
        answer["run"] = {"rows": 0, "counts": [], "why": "the inputs are shapes alone"}
    return answer


def _derived(
    question: Question,
    parallel: Callable[[int], Callable[[Values], Any]],
    packed: Packed,
    size: int,
    room: int,
    seconds: float,
    *,
    foreign: bool,
) -> Answer:
    """The answer of `witness` for one size of the batch; its ``"batch"`` is 0 where that is not traced."""
    leaves = abstract_leaves(packed, question.axes, size)
    try:
        reference = Traced(question.traceable, packed, leaves)
    except (MemoryError, Problem):
        raise
    except BaseException as error:
        return _ended(f"the original is not traced for a batch of {size}: {summary(error)}")
    # What is done otherwise on one number of devices shows on that one alone.
    small = operations(reference.jaxpr) <= FEW
    chosen = counts_for(size, most=4 if small else 2)
    try:
        found = _held(reference, parallel, packed, leaves, chosen)
    except _Untraced as problem:
        return _ended(str(problem))
    many = _larger(question, reference, packed, size, foreign=foreign) if found.complete else None
    if many is not None:
        # A slice that takes all of a small batch is another program on a large one.
        larger, rows = many
        try:
            found = _held(larger, parallel, packed, abstract_leaves(packed, question.axes, rows), chosen)
        except _Untraced as problem:
            return _ended(f"with a batch of {rows} {problem}")
        if not found.complete:
            first = found.endings[0]
            why = f"a batch of {rows} is worked on in another way than one of {size}, and there {first.why}"
            found = dataclasses.replace(found, endings=(dataclasses.replace(first, why=why),))
    base = arguments.batch_size(question.data[0], question.axes)
    run = fitting(packed, question.axes, reference.jaxpr, base, (size, chosen[:2]), room, seconds)
    return {
        **describe(found),
        "counts": chosen,
        "batch": size,
        "run": {"rows": run.rows, "counts": list(run.counts), "why": run.why},
    }


class _Untraced(Exception):
    """The parallel function is not traced, or gives something of another form; says why."""


def _held(
    reference: Traced,
    parallel: Callable[[int], Callable[[Values], Any]],
    packed: Packed,
    leaves: Sequence[Any],
    chosen: Sequence[int],
) -> Derivation:
    """The parallel function on some counts of devices, held against the traced reference.

    Raises:
        _Untraced: it cannot be.
    """
    programs = []
    for count in chosen:
        # jax keeps what it traced: a function that asks for the number of devices would give the first.
        jax.clear_caches()
        with prove.only_devices(count):
            try:
                programs.append(Traced(parallel(count), packed, leaves))
            except (MemoryError, Problem):
                raise
            except BaseException as error:
                raise _Untraced(f"it is not traced on {count} devices: {summary(error)}") from error
    jax.clear_caches()
    why = _other_form(reference, programs)
    if why:
        raise _Untraced(why)
    return derive(reference.jaxpr, [each.jaxpr for each in programs], leaf_names(packed))


def _larger(
    question: Question, reference: Traced, packed: Packed, size: int, *, foreign: bool
) -> "tuple[Traced, int] | None":
    """The reference on a batch of thousands of rows, and their number, where that is another program.

    None where it is the same, but for numbers in proportion to the rows, or not traced for so many. Rows
    that are gone through one by one are not. A parallel function that is `foreign`, and not made of the
    reference's own text, may have thresholds of its own: for that the larger batch always counts.
    """
    sizes = (2 * size, -(-MANY // size) * size)
    try:
        twice = Traced(question.traceable, packed, abstract_leaves(packed, question.axes, sizes[0]))
        if operations(twice.jaxpr) >= operations(reference.jaxpr) + size:
            return None
        many = Traced(question.traceable, packed, abstract_leaves(packed, question.axes, sizes[1]))
    except (MemoryError, Problem):
        raise
    except BaseException:
        return None
    programs = (
        program_of(each.jaxpr, rows)
        for each, rows in zip((reference, twice, many), (size, *sizes), strict=True)
    )
    return None if not foreign and alike(*programs) else (many, sizes[1])


def _ended(why: str) -> Answer:
    """The answer where nothing could be derived at all."""
    return {**describe(Derivation(0, (Ending(0, why),))), "counts": [], "batch": 0, "run": None}


def _other_form(reference: Traced, programs: Sequence[Traced]) -> str:
    """How the results differ in structure, shapes or dtypes; ``""`` where they do not."""
    for program in programs:
        if program.form[0] != reference.form[0]:
            return "its result has another structure"
        for got, want in zip(program.jaxpr.out_avals, reference.jaxpr.out_avals, strict=True):
            if (got.shape, got.dtype) != (want.shape, want.dtype):
                return f"a result is {got.str_short()}, and {want.str_short()} in the original"
        same = all(
            arguments.same_constant(a, b) for a, b in zip(program.form[1], reference.form[1], strict=True)
        )
        if len(program.form[1]) != len(reference.form[1]) or not same:
            return "its result has other constants"
    return ""


def of_emitted(question: Question, emitted: Emitted, room: int, seconds: float) -> Answer:
    """What deriving shows of code that was emitted, called as the user calls it."""

    def parallel(count: int) -> Callable[[Values], Any]:
        function = emitted.define(count, question.x64)
        return lambda values: question.invoke(function, values)

    return witness(question, parallel, room, seconds)
