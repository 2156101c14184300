"""Sizes of the batch at which a function is another program: what hangs on them in Python shows there.

A rate of ``min(rows / 256, 64)`` is in proportion to the rows up to 16384 of them, and ``rows == 1024`` holds
for one number alone. A trace is of one size, so several are made; for most functions one of them suffices, in
which the rows are a symbol.
"""

import types
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from .arguments import LeafAxes, Packed, Values
from .budget import size as operations
from .following import traced_as
from .functions import codes, enclosed, unwrapped
from .jaxpr.coincidences import alike, coincidences, program_of
from .jaxpr.trace import Traced, abstract_leaves, counts_for
from .origins import file_of, is_users
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
#: Numbers in the user's code that are tried as sizes, and the least of them.
MOST_NUMBERS, LEAST = 12, 3
#: Rows from which on a batch is shared by devices; fewer leave them hardly any.
ENOUGH = UNIT // 3
#: Devices on whose shares a number of rows shows that no devices share evenly.
EVEN = 8
#: Numbers of devices up to which code is likely to know one, and those that it is traced on in any case.
MOST_DEVICES, MANY_DEVICES = 1024, 64
#: Containers that may be asked for a number, or for how many they have.
TABLES = (tuple, list, set, frozenset, dict, range)


def telling(
    function: Callable[[Values], Any],
    one: Traced | None,
    named: Sequence[int],
    packed: Packed,
    axes: LeafAxes,
    size: int,
    multiple: int = 1,
) -> "tuple[int, ...] | None":
    """Numbers of rows for which `function` is not the program that it is for `size` of them.

    None where it is one program for all of them, and no two sizes in it, or numbers, are equal for `size`
    rows alone.

    Numbers in a trace may be in proportion to the rows, or inversely. A size that the function does not take
    is left out, and what goes through rows one by one is not tried on many.

    Args:
        function: is traced; it is called with values.
        one: its trace with a symbol for the rows, where it is one program for all numbers of them.
        named: numbers that are tried as sizes.
        packed: the values.
        axes: their batch axes.
        size: rows; of 0, nothing is found.
        multiple: what the rows on a device are a multiple of.
    """

    def traced(rows: int) -> "Traced | None":
        try:
            return traced_as(function, packed, abstract_leaves(packed, axes, rows))
        except Problem:
            raise
        except BaseException:  # What grows with the square of the rows has no room: whoever calls it is told.
            return None

    if one is not None:

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
    # What holds for twice as many alone shows beside three times as many.
    thrice = traced(3 * size)
    lines = [(n, program_of(each.jaxpr, n)) for n, each in ((2 * size, twice), (3 * size, thrice)) if each]
    equal = coincidences(few)
    found, hidden = list[int](), list[int]()
    for rows in tried(length, named, multiple):
        if rows == size or not (program := traced(rows)):
            continue
        other = program_of(program.jaxpr, rows)
        # Where no multiple is taken, nothing tells how the numbers grow.
        line = next((more for n, more in lines if n != rows), None)
        if line is None or not alike(few, line, other):
            found.append(rows)
        elif equal != coincidences(other):
            hidden.append(rows)
        if operations(program.jaxpr) > 2 * length + UNIT:
            break  # It is unrolled, and would be a longer program each time.
    return tuple(found or hidden[:1])


def tried(operations: int, named: Sequence[int], multiple: int = 1) -> tuple[int, ...]:
    """Sizes of the batch that may tell more than another one, of a program of so many operations.

    The first of the numbers that are `named` are some of them.
    """
    if operations > MANY_OPERATIONS:
        return tuple(step * UNIT * multiple for step in FEW_STEPS)
    return (*(step * UNIT * multiple for step in LADDER), *likely(named))


def beside(named: Sequence[int]) -> tuple[int, ...]:
    """Sizes of the batch on both sides of the first of the numbers that are `named`, and these."""
    return tuple(dict.fromkeys(number + more for number in likely(named) for more in (-1, 0, 1)))


def likely(named: Sequence[int]) -> list[int]:
    """The first of the numbers that are `named` that may be sizes of a batch."""
    return [number for number in named if LEAST <= number <= LADDER[-1] * UNIT][:MOST_NUMBERS]


def is_refused(refused: Iterable[tuple[int, int]], share: int, rows: int) -> bool:
    """Whether code says of a batch of `rows`, or of a `share` of it on each device, that it takes none such.

    From and up to so many rows are `refused`.
    """
    return any(low <= each <= high for low, high in refused for each in (share, rows))


def is_shared(rows: int) -> bool:
    """Whether devices share a batch of so many rows."""
    return rows >= ENOUGH and shared(rows) == rows


def shared(rows: int) -> int:
    """A size of the batch that shows what is done with so many rows, on all devices or on each."""
    return rows if len(counts_for(rows)) == 2 else EVEN * rows


def in_all_and_on_each(operations: int, sources: Sequence[Any]) -> tuple[int, ...]:
    """Sizes of the batch that show what code does with as many rows as it names: in all, or on a device.

    Args:
        operations: of the program.
        sources: the code that may name them.
    """
    every, steps = tried(operations, named(sources)), tried(operations, ())
    on_each = [EVEN * number for number in every[len(steps) :]]
    return tuple(dict.fromkeys(map(shared, [*every, *on_each])))


def named(sources: Sequence[Any], asked: Collection[int] = ()) -> tuple[int, ...]:
    """Numbers that code may compare a size with, the likeliest first.

    Those are the ones that it `asked` for, then those in the code of functions, and in the values they use.
    """
    every = sorted({number for source in sources for number in numbers_in(source)})
    # Small ones are mostly something else.
    return tuple(dict.fromkeys([*sorted(asked), *(n for n in every if n >= ENOUGH), *every]))


def counts_in(sources: Sequence[Any]) -> tuple[int, ...]:
    """Numbers in the code of functions that may be numbers of devices: beyond limits, then the smallest.

    ``min(jax.device_count(), 100)`` is the number of devices on 100 of them, too. The lengths of tables are
    limits as well, and so is the first count that one lacks which has others.
    """
    found = {
        number
        for source in sources
        for value in values_in(source)
        for number in (_counts_of(value) if isinstance(value, TABLES) else of_number(value))
    }
    known = sorted(number for number in found if 1 < number <= MOST_DEVICES)
    beyond = [known[-1] + 1] if known and known[-1] >= MANY_DEVICES else []
    return (*beyond, *known[:MOST_NUMBERS])


def _counts_of(table: Any) -> Iterator[int]:
    """How many a table has, and the first count of devices that is not in it, where others are."""
    yield len(table)
    if any(type(each) is int for each in table):
        yield next((count for count in range(2, MOST_DEVICES) if count not in table), 0)


def numbers_in(source: Any) -> list[int]:
    """Whole numbers in the code of a function, and in the user's functions, tables and objects it names.

    The lengths of arrays are some of them.
    """
    return sorted({number for value in values_in(source) for number in of_number(value)})


def of_number(value: Any) -> Sequence[int]:
    """A whole number, the lengths of an array, or nothing."""
    if type(value) is int:
        return (value,)
    shape = value.shape if isinstance(value, (np.ndarray, jax.Array)) else ()
    return [size for size in shape if type(size) is int]  # What a trace left behind has no numbers.


def names_in(sources: Iterable[Any]) -> set[str]:
    """Names of attributes and variables that code uses."""
    codes_of = (each for source in sources for each in values_in(source) if isinstance(each, types.CodeType))
    return {name for code in codes_of for name in code.co_names}


def values_in(source: Any) -> Iterator[Any]:
    """Code, numbers, arrays and tables in the code of a function, and in what it names that is the user's."""
    seen, names = set[int](), set[str]()

    def of(value: Any) -> Iterator[Any]:
        raw, args, kwargs = unwrapped(value)
        yield from (*args, *kwargs.values())
        if raw is not None and is_users(raw.__code__.co_filename):
            yield raw.__code__
            names.update(name for code in codes(raw.__code__) for name in code.co_names)
            yield from (raw.__globals__[name] for name in sorted(names & raw.__globals__.keys()))
            yield from enclosed(raw).values()
            yield from (*(raw.__defaults__ or ()), *(raw.__kwdefaults__ or {}).values())
        elif isinstance(value, types.ModuleType):
            if is_users(file_of(value)):
                yield from (vars(value)[name] for name in sorted(names & vars(value).keys()))
        elif not isinstance(value, type) and len(own := getattr(value, "__dict__", ())) <= UNIT:
            yield from dict(own).values()

    waiting = [source]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, types.CodeType):
            every = tuple(codes(value))
            yield from every
            waiting += [each for code in every for each in code.co_consts]
        elif type(value) is int or isinstance(value, (np.ndarray, jax.Array)):
            yield value
        elif isinstance(value, TABLES):
            yield value
            if len(value) <= UNIT:
                waiting += [*value, *(value.values() if isinstance(value, dict) else ())]
        elif unwrapped(value)[0] is None and hasattr(value, "__wrapped__"):
            waiting.append(value.__wrapped__)  # What maps or compiles it.
        else:
            waiting += of(value)
