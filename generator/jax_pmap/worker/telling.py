"""Sizes of the batch at which a function is another program: what hangs on them in Python shows there.

A rate of ``min(rows / 256, 64)`` is in proportion to the rows up to 16384 of them, and ``rows == 1024`` holds
for one number alone. A trace is of one size, so several are made; for most functions one of them suffices, in
which the rows are a symbol.
"""

import functools
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from .arguments import LeafAxes, Packed, Values
from .budget import size as operations
from .functions import codes, enclosed, unwrapped
from .jaxpr.trace import Traced, abstract_leaves, counts_for
from .jaxpr.walk import equations
from .neighbours import INSTALLED
from .protocol import Problem
from .sizes import Program, alike, coincidences, is_narrow, program_of

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

    symbolic = with_symbol(function, packed, axes)
    if symbolic is not None:
        # Polynomials that are equal for the given size need not be for others, and two never are for many.
        equal = coincidences(symbolic(GENERIC))
        if not size or coincidences(symbolic(size)) == equal:
            return None
        sizes = [step * UNIT * multiple for step in LADDER[1:]]
        return (next((rows for rows in sizes if coincidences(symbolic(rows)) == equal), sizes[0]),)
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


def with_symbol(
    function: Callable[[Values], Any], packed: Packed, axes: LeafAxes
) -> "Callable[[int], Program] | None":
    """A function that is one program for all sizes of the batch, with polynomials in them, for any of these.

    None where it is not. It is traced with a symbol for the size, which has no number: Python code that needs
    one raises. What only compares it with a number, or looks it up, goes on, and is seen to do so.
    """
    from jax import export

    (rows,) = export.symbolic_shape("rows")
    kind, asked = type(rows), []
    before = {name: getattr(kind, name) for name in ("__eq__", "__hash__")}

    def noted(name: str) -> Callable[..., Any]:
        def method(symbol: Any, *other: Any) -> Any:
            file = sys._getframe(1).f_code.co_filename
            if not INSTALLED.search(file) and "jax_pmap" not in file:
                asked.append(name)
            return before[name](symbol, *other)

        return method

    try:
        for name in before:
            setattr(kind, name, noted(name))
        program = Traced.of(function, packed, abstract_leaves(packed, axes, rows))
    except Problem:
        raise
    except BaseException:
        return None
    finally:
        for name, method in before.items():
            setattr(kind, name, method)
        jax.clear_caches()
    if asked or not _is_polynomial(program.jaxpr):
        return None
    return functools.partial(program_of, program.jaxpr)


def _is_polynomial(jaxpr: Any) -> bool:
    """Whether the sizes in a program are polynomials, and none becomes a number of few bits."""
    sizes = set()
    for equation in equations(jaxpr):
        dims = [d for v in equation.outvars for d in getattr(v.aval, "shape", ())]
        if equation.primitive.name == "dim_as_value":
            dims.append(equation.params["dim"])
            sizes.update(equation.outvars)
        if any(not isinstance(dim, int) and "(" in str(dim) for dim in dims):
            return False  # `floordiv(rows, 2)`, `mod`, `max`.
        narrowed = any(is_narrow(out.aval.dtype) for out in equation.outvars if hasattr(out.aval, "dtype"))
        if narrowed and not sizes.isdisjoint(v for v in equation.invars if not hasattr(v, "val")):
            return False
    return True


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
