"""The numbers in a program: which of them depend on the size of its batch, and how."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.export import is_symbolic_dim
from jax.extend.core import Literal

from ..leaves import is_key
from .versions import NO_MEANING, opened, size_at
from .walk import UNSEEN, constants_in, equations, programs_in

#: Numbers of an array in a program that are compared one by one.
MOST_NUMBERS = 4096


@dataclass(frozen=True)
class Program:
    """What a function is traced to for some number of rows."""

    rows: int
    #: Of its operations, in order: the name, the dtypes of results, and parameters that are no numbers.
    operations: tuple[str, ...]
    #: Numbers that stand in it, whole ones among its parameters, and the sizes of its arrays.
    numbers: np.ndarray
    #: Arrays that stand in it: what was computed while it was traced, of the size of the batch perhaps.
    constants: tuple[np.ndarray, ...]
    #: How far those are rounded that stand in it as floats of few bits, by their places in `numbers`.
    rounded: dict[int, float] = field(default_factory=dict)

    @property
    def calls_out(self) -> bool:
        """Whether it calls what jax does not see, which may do anything for another number of rows."""
        return any(words.split()[0] in UNSEEN for words in self.operations)


def program_of(traced: Any, rows: int, *, spread: bool = True) -> Program:
    """What a function is for some number of rows, of its jaxpr, in which a symbol may stand for these.

    Without `spread`, less what repeats an array along axes of one element, of which one row needs none.
    """
    operations: list[str] = []
    numbers: list[float] = []
    constants = list(constants_in(traced))
    rounded: dict[int, float] = {}
    #: What shapes and dtypes add, of which there are few.
    of_shapes: dict[Any, tuple[list[str], list[float]]] = {}
    of_dtypes: dict[Any, str] = {}

    def add(words: list[str], variables: Iterable[Any]) -> None:
        for variable in variables:
            shape, dtype = getattr(variable.aval, "shape", ()), getattr(variable.aval, "dtype", "")
            if shape not in of_shapes:
                of_shapes[shape] = [], []
                _split(shape, *of_shapes[shape], rows)
            more = of_shapes[shape]
            words += more[0]
            numbers.extend(more[1])
            if dtype not in of_dtypes:
                of_dtypes[dtype] = str(dtype)
            words.append(of_dtypes[dtype])
            if not isinstance(variable, Literal) or variable.aval.dtype == jax.dtypes.float0:
                continue
            if np.ndim(variable.val) == 0:
                if (
                    jax.dtypes.issubdtype(variable.aval.dtype, np.floating)
                    and variable.aval.dtype.itemsize < 4
                ):
                    rounded[len(numbers)] = float(jax.numpy.finfo(variable.aval.dtype).eps)
                numbers.append(float(np.real(np.asarray(variable.val, np.complex128))))
            else:
                constants.append(variable.val)
        operations.append(" ".join(words))

    for equation in equations(traced):
        if not spread and spreads(equation):
            continue
        words = [equation.primitive.name]
        for name, value in equation.params.items():
            if name not in NO_MEANING:
                _split(value, words, numbers, rows)
        add(words, (*equation.invars, *equation.outvars))
    for jaxpr in programs_in(traced):
        add(["returned"], opened(jaxpr)[0].outvars)
    arrays = tuple(
        np.asarray(each) for each in constants if not is_key(each) and each.dtype != jax.dtypes.float0
    )
    return Program(rows, tuple(operations), np.asarray(numbers, np.float64), arrays, rounded)


def spreads(equation: Any) -> bool:
    """Whether an equation repeats an array along axes of one element, and does nothing else to it."""
    if equation.primitive.name != "broadcast_in_dim":
        return False
    rank = len(equation.outvars[0].aval.shape)
    return tuple(equation.params["broadcast_dimensions"]) == tuple(range(rank)) and rank > 0


def _split(value: Any, words: list[str], numbers: list[float], rows: int) -> None:
    """Add what a parameter says, or a shape, to the words or to the numbers; programs are no part of it."""
    if isinstance(value, tuple):
        for each in value:
            _split(each, words, numbers, rows)
    elif isinstance(value, (bool, str, np.dtype, enum.Enum)):
        words.append(str(value))
    elif isinstance(value, (int, float, np.integer)):
        numbers.append(float(value))
    elif is_symbolic_dim(value):
        numbers.append(float(size_at(value, rows)))


def coincidences(program: Program) -> list[int]:
    """Which numbers in a program are equal to each other, to 0 or to 1: the first of these, for each.

    Where they are for one size of the batch and not for another, the one may hide what the other shows.
    ``x[24:]`` of 24 rows is nothing, and ``pad(x, 0, len(x) - 24)`` is ``x``.
    """
    _, first, which = np.unique([0, 1, *program.numbers], return_index=True, return_inverse=True)
    return [int(each) for each in first[which]]


def same(one: Program, other: Program) -> bool:
    """Whether two programs make the same operations with the same numbers, but for rounding."""
    return (
        one.operations == other.operations
        and [each.shape for each in one.constants] == [each.shape for each in other.constants]
        and one.numbers.shape == other.numbers.shape
        and np.allclose(one.numbers, other.numbers, rtol=1e-6, atol=0, equal_nan=True)
    )


def alike(few: Program, more: Program, many: Program) -> bool:
    """Whether programs differ only by numbers in proportion to the rows, or to a power of them.

    One that is 0 in some of them, and not in all, tells nothing there of what is done with it. Of arrays that
    grow with the rows the least, the largest and the mean number count.
    """
    three = (few, more, many)
    if any(each.operations != few.operations for each in three):
        return False
    if any(len(each.numbers) != len(few.numbers) for each in three):
        return False
    if any(len(each.constants) != len(few.constants) for each in three):
        return False
    rows = [each.numbers for each in three]
    for arrays in zip(*(each.constants for each in three), strict=True):
        same = len({each.shape for each in arrays}) == 1 and arrays[0].size <= MOST_NUMBERS
        for at, array in enumerate(arrays):
            rows[at] = np.append(rows[at], array.ravel() if same else _summary(array))
    x, y, z = rows
    if not (np.array_equal(x == 0, y == 0) and np.array_equal(x == 0, z == 0)):
        return False
    unit = np.zeros(len(x))
    unit[list(few.rounded)] = list(few.rounded.values())
    times = (many.rows - few.rows) / (more.rows - few.rows)
    powers = np.log(many.rows / few.rows) / np.log(more.rows / few.rows)

    def straight(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        off = 1e-9 + unit * np.max(np.abs([a, times * b, c]), axis=0)
        grows = np.abs(c - a - times * (b - a)) <= off + 1e-5 * np.abs(times * (b - a))
        return np.asarray(grows | ((a == b) & (b == c)) | (np.isnan(a) & np.isnan(c)))

    with np.errstate(all="ignore"):
        # Of one sign: `len(x) ** 0.5`, and what is divided by it.
        power = np.isclose(np.log(z / x), powers * np.log(y / x), rtol=1e-5, atol=1e-9)
        return bool(np.all(straight(x, y, z) | straight(1 / x, 1 / y, 1 / z) | power))


def _summary(array: np.ndarray) -> list[float]:
    """The least, the largest and the mean number of an array."""
    if not array.size:
        return [0.0, 0.0, 0.0]
    wide = np.asarray(np.real(array), np.float64)
    return [float(wide.min()), float(wide.max()), float(wide.mean())]
