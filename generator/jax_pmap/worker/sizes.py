"""Runs of a parallel function on batches of other sizes than the given one.

A batch size that is written down is right for batches of that size, a count in a narrow dtype for small ones,
and code that keeps small batches on one device shows nothing of what it does with large ones.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from . import arguments, protocol, prove, strengthen
from .arguments import Packed, Values
from .budget import peak
from .budget import size as operations
from .comparing import Explain, Parallel
from .decisions import COMPARISONS, constants_of
from .exceptions import attempted
from .explain import with_cause, with_ragged_cause
from .generator import drawn_sizes
from .jaxpr.coincidences import Program, alike, program_of
from .jaxpr.symbolic import is_narrow
from .jaxpr.trace import abstract_leaves, arrays_of, traced_arrays
from .jaxpr.versions import primitive_name
from .jaxpr.walk import equations
from .leaves import is_key
from .protocol import Check, Raised
from .specs import SEED
from .trials import Question, Trials
from .uneven import uneven_sizes
from .work import work

#: Rows from which on counts in 8 and 16 bits, and in floats of those widths, go wrong.
MANY = 4096
#: As many, and no multiple of any size of a chunk.
PRIME = 4099
#: Rows of which half are more than integers of 16 bits count to.
WRAPPING = (1 << 16) + 3
#: Bytes of inputs of so many rows, above which they are left out.
ROOM = 1 << 26
#: Most rows that are made to show one of them beyond a limit, and numbers computed of them.
MOST_ROWS, MOST_WORK = 1 << 18, 2e10
#: Bytes that the reference may take for so many rows, and numbers that it may compute. With all
#: triples of rows, say, a batch of thousands is out of reach.
TAKEN, COMPUTED = 1 << 31, 1e11
#: Numbers that may be limits on the elements of an array, at most, how many of them are tried, and up to how
#: many operations of the reference.
MOST_ELEMENTS, MOST_LENGTHS, MOST_OPERATIONS = 1 << 20, 3, 1000
#: Operations that add up numbers in the dtype of their results.
SUMS = frozenset({"reduce_sum", "cumsum", "dot_general", "psum", "scatter_add", "reduce_window_sum"})
#: Bytes of the inputs of a device, up to which what it computes of them is handed to the user's own code.
HANDED = 1 << 14


def check_sizes(
    parallel: Parallel, lies_on: int, laid_out: Callable[[Values], Any], named: Sequence[int] = ()
) -> tuple[list[Check], list[str]]:
    """Runs with one or two examples a device, and with many where that can tell; and notes.

    `lies_on` is on how many devices the results of the given batch lie; those of a larger one may on more.
    `laid_out` calls the parallel function, and returns what it does. Numbers that are `named` in its code may
    be limits on the batch.
    """
    question, count, notes = parallel.trials.question, parallel.count, list[str]()
    base = question.rows
    checks: list[Check] = []
    failed: dict[int, Raised] = {}
    for size in (count, 2 * count):
        if size >= base // count * count:
            break
        found = run_size(parallel, size, 0)
        if found is None:
            continue
        if found.raised is not None:
            failed[size] = found.raised
            continue
        # A number of rows that is written down may show on other inputs alone: a mask of nothing but True.
        first = len(question.data) + len(strengthen.PERTURBED)
        others = range(first, first + len(question.found.inputs))
        more = (run_size(parallel, size, index) for index in others)
        checks += [found, *(each for each in more if each is not None and each.raised is None)]
        break
    if failed:
        error = next(iter(failed.values()))
        these = "batches of {} and {} fail" if len(failed) > 1 else "a batch of {} fails"
        notes.append(f"{these.format(*failed)} on {count} devices: {error.type}: {error.message}")
    wrong = next((check for check in checks if check.failure is not None), None)
    if wrong is not None:
        return [wrong], notes
    narrow = narrower(parallel, base // count * count)
    # Numbers may be needed where it is traced, such as by a drop-in that prepares its batch.
    # Where all is derived, so is a batch of thousands.
    minds = not question.derived and (minds_size(question) or minds_size(question, laid_out, count))
    rows = 0 if question.derived else fine_rows(question, laid_out, base // count * count, count)
    if any(each.endswith("int16") for each in narrow):
        rows = max(rows, WRAPPING * count)
    # A capacity may be beyond what any few rows fill.
    if not narrow and lies_on > 1 and not minds and not rows and not question.found.stuck:
        return checks, notes
    if not narrow and goes_row_by_row(question, laid_out, count):
        notes.append(
            "no batch of thousands was run: a Python loop over the rows makes operations for each of them"
        )
        return checks, notes
    if (many := run_many(parallel, rows)) is not None:
        limit = beyond(question, named, many.batch, base, count) if minds and many.failure is None else 0
        sizes = ((limit,) if limit else None, () if narrow and many.failure is None else None)
        # A count in 8 bits of a multiple of 256 is zero.
        more = (run_large(parallel, each) for each in sizes if each is not None)
        return [*checks, many, *(each for each in more if each is not None and each.raised is None)], notes
    if narrow:
        notes.append(
            f"it computes with {narrow[0]}, and the reference does not: counts go wrong in large batches"
        )
    return checks, notes


def beyond(question: "Question", named: Sequence[int], ran: int, size: int, count: int) -> int:
    """Rows beyond the largest of some numbers that `ran` rows do not pass; 0 where that may take too long."""
    if (traced := traced_for(question, question.traceable, size)) is None:
        return 0
    each = work(traced) / size
    known = sorted((n + count for n in named if ran <= n < MOST_ROWS), reverse=True)
    return next((rows for rows in known if each * rows <= MOST_WORK), 0)


def check_odd(parallel: Parallel, size: int) -> list[Check]:
    """A run on an odd number of rows, where devices are; none where a function takes no such batch.

    The other batches are mostly multiples of 8, as 8 devices share them: what is cut or padded to such a
    multiple shows in none of these.
    """
    rows = parallel.count * ((size // parallel.count - 1) | 1)
    if parallel.count % 2 == 0 or rows == size:
        return []
    found = run_size(parallel, rows, 0)
    return [] if found is None or found.raised is not None else [found]


def fine_rows(question: "Question", laid_out: Callable[[Values], Any], size: int, count: int) -> int:
    """Rows of which one alone shows beyond a limit that only the parallel function compares with.

    ``mean(mask) > 0.999`` is ``all(mask)`` of a hundred rows, and not of some thousand. 0 where it compares
    with no number that the reference does not compare with, or so many rows take too long.
    """
    packed = Packed(arguments.cut(question.data[0], question.axes, size), question.statics)
    with prove.x64(question.x64):
        traced = [traced_arrays(program, packed) for program in (question.traceable, laid_out)]
    if any(each is None for each in traced):
        return 0
    known, compared = (set(constants_of(each, COMPARISONS)) for each in traced)
    own = [abs(number) for number in compared - known if abs(number) not in (0.0, 1.0)]
    gaps = [min(number, 1 - number) if number < 1 else 1 / number for number in own]
    rows = [int(2 / gap) + 1 for gap in gaps if gap * MOST_ROWS > 2]
    if not rows or work(traced[0]) / size * max(rows) > MOST_WORK:
        return 0
    return max(*rows, MANY * count)


def check_ragged(parallel: Parallel, laid_out: Callable[[Values], Any]) -> list[Check]:
    """Runs of a drop-in on batches that do not divide, up to the first that fails.

    What it or the reference does not take is left out. So are random numbers: rows that are added draw some.
    `laid_out` calls the parallel function, and returns what it does.
    """
    question, count = parallel.trials.question, parallel.count
    base = question.rows
    sizes = [(size, 0) for size in uneven_sizes(count, base)]
    if enlarge(parallel.trials, MANY) and not goes_row_by_row(question, laid_out, count):
        # The rest of a large batch is left out more lightly than that of a small one.
        sizes.append((MANY - 1 if (MANY - 1) % count else MANY - 2, -2))
    checks: list[Check] = []
    for size, index in sizes if not question.draws else ():
        found = run_size(parallel, size, index, with_ragged_cause)
        if found is None or found.raised is not None:
            continue
        checks.append(found)
        if found.failure is not None:
            break
    return checks


def check_columns(parallel: Parallel) -> list[Check]:
    """A run with several columns where the given arrays have one, for which a sum and a mean are alike.

    What the reference or the function does not take is left out. What is derived is so for several.
    """
    trials = parallel.trials
    question, count = trials.question, parallel.count
    size = question.rows // count * count
    for made in strengthen.with_columns(question.data[0], question.axes, question.statics):
        found = _of_shapes(parallel, made, size, protocol.SEVERAL)
        if found is not None:
            return [found] if found.raised is None else []
    return []


def check_lengths(parallel: Parallel, named: Sequence[int]) -> list[Check]:
    """Runs with longer arrays, beyond numbers that are `named` in the function's code alone.

    What sends, rounds or leaves out parts of large gradients alone does so in none that are small, and a
    trace is of arrays of one size. What the reference or the function does not take is left out.
    """
    trials = parallel.trials
    question, count = trials.question, parallel.count
    given, axes, statics = question.data[0], question.axes, question.statics
    size = question.rows // count * count
    shapes = strengthen.shapes_of(given, axes, statics)
    lengths = dict.fromkeys(each for shape in shapes for each in shape if each > 1)
    longest = max(lengths, default=MOST_ELEMENTS + 1)
    numbers = [each for each in named if longest <= each <= MOST_ELEMENTS][:MOST_LENGTHS]
    traced = traced_for(question, question.traceable, size) if numbers else None
    if traced is None or operations(traced) > MOST_OPERATIONS:
        return []
    checks: list[Check] = []
    for number in numbers:
        # All of them at once where that is taken: a limit may be on the shortest axis of an array.
        for some in (tuple(lengths), *((length,) for length in lengths if len(lengths) > 1)):
            found = _longer(parallel, size, number, some, [shape for shape in shapes if {*shape} & {*some}])
            checks += [found] if found is not None else []
            if found is not None and (found.failure is not None or len(some) == len(lengths)):
                break
        if checks and checks[-1].failure is not None:
            break
    return checks


def _longer(
    parallel: Parallel, size: int, number: int, lengths: Sequence[int], shapes: Sequence[tuple[int, ...]]
) -> Check | None:
    """A run in which axes of some `lengths` have more elements than `number`, or else the arrays of them."""
    question = parallel.trials.question
    given, axes, statics = question.data[0], question.axes, question.statics
    power = max(sum(each in lengths for each in shape) for shape in shapes)
    for elements in (min(lengths), max(map(math.prod, shapes))):
        times = number // elements + 1
        if strengthen.size_of(given) * times**power > ROOM:
            continue
        made = strengthen.lengthened(given, axes, statics, lengths, times)
        found = _of_shapes(parallel, made, size, protocol.LONGER)
        if found is not None and found.raised is None:
            return found
    return None


def _of_shapes(parallel: Parallel, values: Values, size: int, words: str) -> Check | None:
    """A run on inputs of other shapes, which are called so in `words`; None where it tells nothing."""
    trials, question = parallel.trials, parallel.trials.question
    if strengthen.size_of(values) > ROOM:
        return None
    trials.question = dataclasses.replace(question, large=(values,))
    found = run_size(parallel, size, -1)
    trials.question = question
    trials.forget(-1)  # Of as many rows, and others.
    if found is not None and found.failure is not None:
        failure = dataclasses.replace(found.failure, on=words)
        found = dataclasses.replace(found, resized=False, failure=failure)
    return found


def run_many(parallel: Parallel, rows: int = 0) -> Check | None:
    """One run on a batch of `rows` at least, thousands on each device; None where each such batch raises.

    What chunks of some size leave over shows on shares of a prime number, which not all functions take.
    """
    for sizes in ((max(rows, PRIME * parallel.count),), ()):
        found = run_large(parallel, sizes)
        if found is not None and found.raised is None:
            return found
    return None


def run_large(parallel: Parallel, sizes: Sequence[int] = ()) -> Check | None:
    """One run on the first of `sizes` that there is room for, by default `MANY` rows a device, or in all.

    None where there is none, or the reference fails on it.
    """
    trials, count = parallel.trials, parallel.count
    if calls_out(trials.question):
        # On simulated devices, jax does not come back from callbacks with large arrays.
        row = strengthen.size_of(trials.question.data[0]) // trials.question.rows
        sizes = (min(MANY, HANDED // max(row, 1)) * count,)
    many = next((rows for rows in sizes or (MANY * count, MANY) if enlarge(trials, rows)), 0)
    if not many:
        return None
    size, others = many // count * count, range(-3, -1 - len(trials.question.large), -1)
    # The rows as they are given where other numbers in them are not taken; masks that are nearly all alike.
    ran = [run_size(parallel, size, -1)]
    ran += [run_size(parallel, size, i) for i in (others if ran[0] else (-2,))]
    found = sorted((each for each in ran if each is not None), key=lambda each: each.raised is not None)
    return next((each for each in found if each.failure is not None), found[0] if found else None)


def enlarge(trials: "Trials", rows: int) -> bool:
    """Have inputs of so many rows, at indices below 0; False where they are there, or cost too much."""
    question = trials.question
    base = question.rows
    times = -(-rows // base)
    if times < 2 or times * strengthen.size_of(question.data[0]) > ROOM or is_out_of_reach(question, rows):
        return False
    big = enlarged(question.data[0], question.axes, times)
    wild = strengthen.perturbed(question, big, "wild", SEED)
    alone = strengthen.lone(big, question.axes, question.settled)
    trials.question = dataclasses.replace(question, large=(wild, big, *alone))
    return True


def is_out_of_reach(question: "Question", rows: int) -> bool:
    """Whether the reference takes too much memory or time for so many rows, as far as its trace tells."""
    try:
        traced = traced_for(question, question.traceable, rows)
    except MemoryError:
        return True  # NumPy makes arrays of so many rows in it.
    # Of what is not traced, running it tells.
    return traced is not None and (peak(traced) > TAKEN or work(traced) > COMPUTED)


def minds_size(question: "Question", function: Callable[[Values], Any] | None = None, count: int = 1) -> bool:
    """Whether a function, by default the reference, computes otherwise with many rows than with those given.

    True where it cannot be traced without numbers, and where it calls out of jax. Rows are a multiple of
    `count`, `MANY` for each device.
    A slice that takes all of a small batch and part of a large one is not in the program of the small one.
    What grows or shrinks with the batch otherwise than in proportion is taken for a sign of it too.
    """
    base = question.rows // count * count
    traced = question.traceable if function is None else function
    few, more = (program(question, traced, rows) for rows in (base, 2 * base))
    if few is None or more is None:
        return True
    if is_unrolled(few, more, base):
        return False
    many = None if few.calls_out else program(question, traced, MANY * count // base * base)
    return many is None or not alike(few, more, many)


def is_unrolled(few: Program, more: Program, rows: int) -> bool:
    """Whether twice as many rows have operations of their own each: thousands could not be compiled."""
    return len(more.operations) >= len(few.operations) + rows


def goes_row_by_row(question: "Question", function: Callable[[Values], Any], count: int) -> bool:
    """Whether a function has a Python loop over the rows, as over the microbatches of a pipeline."""
    rows = max(question.rows // count, 1) * count
    few, more = (program(question, function, each) for each in (rows, 2 * rows))
    # Of what is not traced, running it tells.
    return few is not None and more is not None and is_unrolled(few, more, rows)


def calls_out(question: "Question") -> bool:
    """Whether the reference calls what jax does not see, as far as it is traced."""
    rows = question.rows
    found = program(question, question.traceable, rows)
    return found is not None and found.calls_out


def program(question: "Question", function: Callable[[Values], Any], rows: int) -> Program | None:
    """What a function is traced to for `rows` of the question's inputs; None where it is not."""
    traced = traced_for(question, function, rows)
    return None if traced is None else program_of(traced, rows)


def traced_for(question: "Question", function: Callable[[Values], Any], rows: int) -> Any:
    """The jaxpr of a function for `rows` of the question's inputs; None where it is not traced."""

    def trace() -> Any:
        packed = question.packed
        return jax.make_jaxpr(arrays_of(function, packed))(abstract_leaves(packed, question.axes, rows))

    with prove.x64(question.x64):
        return attempted(trace)


def sizes_drawn(question: "Question", rows: int) -> tuple[set[int], set[int]]:
    """Sizes of what the reference draws for `rows`, and for twice as many."""
    few, many = (drawn_sizes(traced_for(question, question.traceable, size)) for size in (rows, 2 * rows))
    return few, many or few


def run_size(parallel: Parallel, size: int, index: int, explain: Explain = with_cause) -> Check | None:
    """One run on `size` rows of inputs `index`; None where it tells nothing.

    The reference fails or gives no numbers, or a NaN is passed over in what hangs on a maximum over devices,
    or the function fails where there are numbers of rows in the inputs that are left out: a part of an
    embedding has no row for a token beyond, and the whole gives its last one.

    `explain` tells of a failure what the output is instead.
    """
    question, count = parallel.trials.question, parallel.count
    shares = question.shares(size, count)
    found = attempted(parallel.trials.at, question.kind, index, size, shares)
    if found is None or not found[0].finite:
        return None
    expected, allowed = found
    about = Check(count, question.kind, size, len(expected.results), index, resized=True, alone=True)
    check = parallel.run(about, expected, allowed, shares, explain=explain)
    if check.failure is not None and strengthen.names_rows(question.data[0], question.axes, size):
        return None
    return None if parallel.passes_over(expected, check) else check


def enlarged(values: Values, axes: arguments.LeafAxes, times: int) -> Values:
    """The same rows, each `times` over before the next, so that shares are as unlike as they are."""

    def repeated(leaf: Any, axis: int) -> Any:
        return np.repeat(np.asarray(leaf), times, axis) if not is_key(leaf) else leaf

    return arguments.map_batch(values, axes, repeated)


def narrower(parallel: Parallel, size: int) -> list[str]:
    """What the parallel function computes in 8 or 16 bits, and the reference nowhere.

    A reference that casts labels of 8 bits and adds them up in 32 has numbers of 8 bits, and no sums of them.
    """
    question = parallel.trials.question
    expected, _ = parallel.trials.at(question.kind, 0, size, question.shares(size, parallel.count))
    packed = Packed(expected.values[0], question.statics)
    found = []
    with prove.x64(question.precision(question.kind)):
        for program in (question.traceable, parallel.make(expected)):
            traced = traced_arrays(program, packed)
            if traced is None:
                return []
            made = [("", aval) for aval in traced.in_avals]
            for equation in equations(traced):
                sums = "sums in " if primitive_name(equation) in SUMS else ""
                made += [(each, out.aval) for out in equation.outvars for each in {"", sums}]
            kinds = {(each, getattr(aval, "dtype", None)) for each, aval in made}
            found.append({f"{each}{k}" for each, k in kinds if k is not None and is_narrow(k)})
    return sorted(found[1] - found[0])
