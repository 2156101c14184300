"""Sizes of the batch at which a function is another program: what hangs on them in Python shows there.

A rate of ``min(rows / 256, 64)`` is in proportion to the rows up to 16384 of them, and ``rows == 1024`` holds
for one number alone. A trace is of one size, so several are made; for most functions one of them suffices, in
which the rows are a symbol.
"""

import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .arguments import LeafAxes, Packed, Values
from .budget import size as operations
from .functions import codes, enclosed, unwrapped
from .jaxpr.coincidences import alike, coincidences, program_of
from .jaxpr.symbolic import is_exact
from .jaxpr.trace import Traced, abstract_leaves, counts_for
from .neighbours import INSTALLED
from .protocol import Problem

#: Rows, in units that 3 and 8 devices share. From one to the next they are at most eight times as many: a
#: threshold then lies between a share of one of them and the whole. Some are odd, some divide by 16, and the
#: share of 3 devices is a power of 2 for one.
LADDER = (1, 7, 54, 64, 428, 3416, 27313, 218480)
UNIT = 24
#: A size for which two polynomials in it are equal by no number that somebody writes down.
GENERIC = 100_003
#: Operations from which on a program is traced for fewer sizes, and these.
MANY_OPERATIONS, FEW_STEPS = 3000, (54, 3416)
#: Numbers in the user's code that are tried as sizes.
MOST_NUMBERS = 12
#: Numbers of devices up to which code is likely to know one.
MOST_DEVICES = 1024


def telling(
    function: Callable[[Values], Any],
    one: Traced | None,
    source: Any,
    packed: Packed,
    axes: LeafAxes,
    size: int,
    multiple: int = 1,
) -> "tuple[int, ...] | None":
    """Sizes of the batch for which `function` is not the program that it is for `size` rows.

    None where it is one program for all of them, and no two sizes in it, or numbers, are equal for `size`
    rows alone.

    Numbers in a trace may be in proportion to the rows, or inversely. A size that the function does not take
    is left out, and what goes through rows one by one is not tried on many.

    Args:
        function: is traced; it is called with values.
        one: its trace with a symbol for the rows, where it is one program for all numbers of them.
        source: the user's function that it calls, whose numbers are tried as sizes.
        packed: the values.
        axes: their batch axes.
        size: rows; of 0, nothing is found.
        multiple: what the rows on a device are a multiple of.
    """

    def traced(rows: int) -> "Traced | None":
        try:
            return Traced.of(function, packed, abstract_leaves(packed, axes, rows))
        except Problem:
            raise
        except BaseException:  # What grows with the square of the rows has no room: whoever calls it is told.
            return None

    if one is not None and is_exact(one.jaxpr):

        def equal_in(rows: int) -> list[int]:
            return coincidences(program_of(one.jaxpr, rows))

        # Polynomials that are equal for the given size need not be for others, and two never are for many.
        generic = equal_in(GENERIC)
        if not size or equal_in(size) == generic:
            return None
        sizes = [step * UNIT * multiple for step in LADDER[1:]]
        return (next((rows for rows in sizes if equal_in(rows) == generic), sizes[0]),)
    if not size:
        return ()
    reference, twice = traced(size), traced(2 * size)
    if reference is None:
        return ()
    length, few = operations(reference.jaxpr), program_of(reference.jaxpr, size)
    if twice is not None and operations(twice.jaxpr) >= length + size:
        return ()
    more = None if twice is None else program_of(twice.jaxpr, 2 * size)
    equal = coincidences(few)
    found, hidden = list[int](), list[int]()
    for rows in tried(length, [source], multiple):
        if rows == size or not (program := traced(rows)):
            continue
        other = program_of(program.jaxpr, rows)
        # Where twice as many are not taken, nothing tells how the numbers grow.
        if more is None or not alike(few, more, other):
            found.append(rows)
        elif equal != coincidences(other):
            hidden.append(rows)
        if operations(program.jaxpr) > 2 * length + UNIT:
            break  # It is unrolled, and would be a longer program each time.
    return tuple(found or hidden[:1])


def tried(operations: int, sources: Sequence[Any], multiple: int = 1) -> tuple[int, ...]:
    """Sizes of the batch that may tell more than another one, of a program of so many operations.

    Numbers in the code of the functions that are its `sources` are some of them.
    """
    if operations > MANY_OPERATIONS:
        return tuple(step * UNIT * multiple for step in FEW_STEPS)
    every = sorted({number for source in sources for number in numbers_in(source)})
    every = [number for number in every if UNIT // 3 <= number <= LADDER[-1] * UNIT]
    numbers = [number for number in every if len(counts_for(number)) == 2]
    return (*(step * UNIT * multiple for step in LADDER), *numbers[:MOST_NUMBERS])


def counts_in(sources: Sequence[Any]) -> tuple[int, ...]:
    """Numbers in the code of functions that may be numbers of devices, the smallest of them."""
    found = sorted({number for source in sources for number in numbers_in(source)})
    return tuple(number for number in found if 1 < number <= MOST_DEVICES)[:MOST_NUMBERS]


def numbers_in(source: Any) -> list[int]:
    """Whole numbers in the code of a function, and of functions and tables of the user's that it names."""
    found: set[int] = set()
    seen: set[int] = set()

    def of(value: Any) -> Iterator[Any]:
        raw = unwrapped(value)[0]
        if raw is not None and not INSTALLED.search(raw.__code__.co_filename):
            yield raw.__code__
            names = {name for code in codes(raw.__code__) for name in code.co_names}
            yield from (raw.__globals__[name] for name in sorted(names & raw.__globals__.keys()))
            yield from enclosed(raw).values()

    waiting = [source]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, types.CodeType):
            waiting += [each for code in codes(value) for each in code.co_consts]
        elif type(value) is int:
            found.add(value)
        elif isinstance(value, (tuple, list, set, frozenset, dict)) and len(value) <= UNIT:
            waiting += [*value, *(value.values() if isinstance(value, dict) else ())]
        elif unwrapped(value)[0] is None and hasattr(value, "__wrapped__"):
            waiting.append(value.__wrapped__)  # What maps or compiles it.
        else:
            waiting += of(value)
    return sorted(found)
