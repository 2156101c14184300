"""Numbers of rows with which a function is another program than with many of them.

``jnp.squeeze`` takes the axis of the batch away where it has one row, ``x.shape.index(w.shape[0])`` finds it
where there are as many rows as weights, and ``argmin(images.shape)`` takes it for that of the colours where
there are as few. Batches that are traced for what they tell give no device such a number of rows.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from . import prove
from .arguments import LeafAxes, Packed, Values
from .comparing import Parallel
from .exceptions import attempted
from .following import traced_as
from .jaxpr.coincidences import Program, alike, program_of
from .jaxpr.symbolic import used
from .jaxpr.trace import COUNTS, abstract_leaves
from .leaves import shape_of
from .protocol import Check
from .sizes import enlarge, is_unrolled, run_size

#: Rows that every program is traced for; and of how many operations one is at most that is traced for as many
#: rows as other axes are long, how many of these lengths there are, and the longest of them.
FIRST = (1, 2)
FEW, MOST_LENGTHS, LONGEST = 1000, 8, 512


def few_rows(
    function: Callable[[Values], Any],
    packed: Packed,
    axes: LeafAxes,
    size: int,
    multiple: int = 1,
    devices: int = 1,
    *,
    large: bool = True,
    named: Sequence[int] = (),
) -> tuple[tuple[int, int], ...]:
    """From and up to how many rows on each of some devices a function is another program than for many.

    Only multiples of `multiple` are looked at. What the function does not take is left out: it raises.

    Args:
        function: is traced; it is called with values.
        packed: the values.
        axes: their batch axes.
        size: many rows, on all of the devices.
        multiple: what the rows on each are a multiple of.
        devices: how many there are.
        large: whether a program of many operations is looked at, too.
        named: numbers in the code that may be ones of rows.
    """
    known: dict[int, Program | None] = {}

    def program(rows: int) -> "Program | None":
        if rows not in known:
            traced = attempted(traced_as, function, packed, abstract_leaves(packed, axes, rows))
            # A function that is seen to need an axis is traced again, and may have left a part behind.
            known[rows] = None if traced is None else program_of(used(traced.jaxpr), rows, spread=False)
        return known[rows]

    given = program(size)
    if given is None or (len(given.operations) > FEW and not large):
        return ()

    def lines() -> "list[tuple[int, Program]]":
        # What holds for one multiple alone shows beside another one. What is written into a table may take no
        # more rows than that has.
        for sizes in ((2 * size, 3 * size), (size + size // 2,), (size // 2, size // 3)):
            taken = [(at, line) for at in sizes if at % (multiple * devices) == 0 and (line := program(at))]
            if taken:
                return taken
        return []

    double = program(2 * size)
    # One that goes through its rows one by one is another program for every number of them.
    unrolled = double is not None and is_unrolled(given, double, size)

    def is_other(rows: int) -> bool:
        if given.calls_out or unrolled:
            return rows == 1
        found = program(rows * devices)
        if found is None or rows * devices == size:
            return False
        return not any(alike(given, line, found) for at, line in lines() if at != rows * devices)

    others = [n for n in named if FIRST[-1] < n <= LONGEST][:MOST_LENGTHS]
    tried = [*FIRST, *(sorted({*lengths(packed, axes), *others}) if len(given.operations) <= FEW else ())]
    # Shares of as many devices as are traced are derived by themselves.
    return merged(_ranges(tried, multiple, size // max(COUNTS), functools.cache(is_other)))


def _ranges(
    sizes: Iterable[int], multiple: int, many: int, is_other: Callable[[int], bool]
) -> Iterator[tuple[int, int]]:
    """The `sizes` with which it is another one, and those around where it seems to be for them, too.

    ``np.argmax(x.shape)`` is the batch from as many rows on as there are columns, or from one more: where it
    becomes the program for many rows is looked for up to the next of the `sizes`, and then up to `many`.
    """
    tried = [rows for rows in sizes if rows % multiple == 0]
    ends = [*(rows for rows in tried if rows < many), many]
    for rows in filter(is_other, tried):
        less, last = rows - multiple, rows
        beyond = next((end for end in ends if end > rows and not is_other(end)), rows)
        while beyond - last > multiple:
            middle = last + (beyond - last) // (2 * multiple) * multiple
            last, beyond = (middle, beyond) if is_other(middle) else (last, middle)
        yield (multiple if less > 0 and is_other(less) else rows), last


def lengths(packed: Packed, axes: LeafAxes) -> list[int]:
    """Lengths of axes other than the batch's, which a function may take this one for."""
    shapes = [(shape_of(leaf), axis) for leaf, axis in zip(packed.leaves, packed.axes(axes), strict=True)]
    others = {n for shape, axis in shapes for at, n in enumerate(shape) if at != axis and n <= LONGEST}
    return sorted(others - {0, *FIRST})[:MOST_LENGTHS]


def merged(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ranges in order, those that meet made one."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return tuple(found)


def runs_on_few(
    parallel: Parallel, ends: tuple[int, int], shares: int, multiple: int = 1
) -> "Iterator[Check | None]":
    """Runs with the most and the fewest rows of a range on each of some shares, and of the batch in all.

    None stands for one that cannot be, or on which the reference fails. No two devices share as few rows in
    all as one takes, which are a `multiple`.
    """
    trials = parallel.trials
    base = trials.question.rows
    for rows in dict.fromkeys(ends[::-1]):
        for size in (rows * shares, *([rows] if rows > multiple else [])):
            if size % shares:
                yield None  # Other numbers of devices share them, down to one row for each.
                continue
            larger = size > base
            yield (
                run_size(parallel, size, -2 if larger else 0) if not larger or enlarge(trials, size) else None
            )


def is_equal(checks: "Iterable[Check | None]") -> bool:
    """Whether all runs gave what the reference gives, or raised."""
    return all(each is not None and (each.failure is None or each.raised is not None) for each in checks)


def check_few(
    parallel: Parallel, laid_out: Callable[[Values], Any], named: Sequence[int] = ()
) -> list[Check]:
    """Runs of a parallel function with few rows on each device, where it or the reference is another then.

    Up to the first that fails. What either of the two does not take is left out. Numbers that are `named` in
    their code are tried as rows, too.
    """
    question, count = parallel.trials.question, parallel.count
    packed, axes, size = question.packed, question.axes, question.rows // count * count
    with prove.x64(question.x64):
        found = {
            *few_rows(question.traceable, packed, axes, size, large=False, named=named),
            *few_rows(laid_out, packed, axes, size, devices=count, large=False, named=named),
        }
    checks: list[Check] = []
    for ends in sorted(found):
        for check in runs_on_few(parallel, ends, count):
            if check is not None and check.raised is None:
                checks.append(check)
                if check.failure is not None:
                    return checks
    return checks
