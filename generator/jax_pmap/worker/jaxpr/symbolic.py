"""Programs that are traced once for all sizes: with a symbol for the rows, in whose place numbers come."""

import itertools
import math
import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import jax
import jaxlib
import numpy as np
from jax.export import is_symbolic_dim
from jax.extend.core import Literal

from ..protocol import Problem
from .coincidences import program_of, same
from .versions import bind, inner_jaxpr, is_polynomial, monomials, opened, static_slices, variable
from .walk import PLAIN, control, equations

T = TypeVar("T")

#: The number of devices in such traces, in place of any other. It is exact in floats of 16 bits, and nobody
#: writes it down.
DEVICES = 239 << 8
#: Methods by which code may ask for a number: those that answer for most, with the answer for one that is
#: equal, those that raise where they do not know, and those that say what it is.
EQUAL = {"__eq__": True, "__ne__": False}
RAISING = ("__lt__", "__le__", "__gt__", "__ge__", "__int__")
TEXT = ("__hash__", "__str__", "__repr__", "__format__")
#: Where the code of jax lies, and that of its operations and of ours.
JAX, SOURCES = (os.path.join(os.path.dirname(str(jax.__file__)), *parts, "") for parts in ((), ("_src",)))
OPERATIONS = (
    *(os.path.join(SOURCES, part, "") for part in ("lax", "export", "interpreters", "random")),
    os.path.join(os.path.dirname(str(jaxlib.__file__)), ""),
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ""),
)
#: Up to which number the divisors of another one are looked for.
MOST_TRIED = 100_000
#: Sizes that one trace may make of symbols. To compare those of a strided convolution along such an axis, jax
#: makes others, and many times as many with each layer.
MOST_MADE = 20_000
#: Operations that Python may do with numbers.
ARITHMETIC = frozenset({"convert_element_type", "add", "sub", "mul", "div", "neg", "pow", "integer_pow"})


class TooLongError(Exception):
    """Symbols take too long to compare."""


def rows() -> Any:
    """A size that stands for any number of rows."""
    return jax.export.symbolic_shape("rows")[0]


def traced(trace: Callable[[], T]) -> "T | None":
    """What `trace` gives, which traces functions of arrays with such sizes.

    None where Python code needs the number, and raises.
    """
    try:
        with static_slices():
            return trace()
    except Problem:
        raise
    except BaseException:
        return None


@dataclass(frozen=True)
class Answered(Generic[T]):
    """What a trace gives with sizes that are symbols, where code may ask what these are.

    Attributes:
        made: what it gives; None where it raises.
        is_asked: whether code asks, and may go another way for some number.
        rows: numbers of rows for which an answer would have been another one.
    """

    made: "T | None"
    is_asked: bool
    rows: frozenset[int]


def traced_unasked(trace: Callable[[], T]) -> Answered[T]:
    """What `traced` gives, with whether code compares a size with a number, looks it up or prints it.

    It goes on then, with the answer that is right for most numbers. Others ask for the user's code: NumPy in
    ``np.array_equal``, jax in ``jnp.array_equal``, what Python writes to compare dataclasses. Where the
    operations of jax ask, they raise, or it is the same program.
    """
    kind = type(rows())
    found, is_asked = set[int](), False
    steps = itertools.count()

    def init(symbol: Any, *given: Any, **named: Any) -> None:
        if next(steps) > MOST_MADE:
            raise TooLongError
        made_by(symbol, *given, **named)

    def note(symbol: Any, numbers: "frozenset[int] | None" = None) -> None:
        nonlocal is_asked
        file = _asker()
        # What jax keeps of other traces is compared by chance.
        if file.startswith(OPERATIONS) or os.path.join(os.path.dirname(file), "") == SOURCES:
            return
        if numbers is None:
            is_asked = is_asked or not file.startswith(JAX)
            return
        found.update(numbers)
        # An axis of one element is broadcast, which is the same.
        is_asked = is_asked or bool(numbers - {1} if file.startswith(JAX) else numbers)

    def equality(method: Callable[..., Any], equal: bool) -> Callable[..., Any]:
        def asking(symbol: Any, other: Any) -> Any:
            answer = method(symbol, other)
            if answer is not equal:
                note(symbol, _where_equal(symbol, other))
            return answer

        return asking

    def raising(method: Callable[..., Any]) -> Callable[..., Any]:
        def asking(symbol: Any, *other: Any) -> Any:
            try:
                return method(symbol, *other)
            except Exception:  # What called it may go on.
                note(symbol)
                raise

        return asking

    def text(method: Callable[..., Any]) -> Callable[..., Any]:
        def asking(symbol: Any, *other: Any) -> Any:
            note(symbol)
            return method(symbol, *other)

        return asking

    def is_true(symbol: Any) -> bool:
        note(symbol, _where_equal(symbol, 0))
        return True

    made_by = kind.__init__
    before = {name: getattr(kind, name) for name in (*EQUAL, *RAISING, *TEXT)}
    try:
        for name, method in before.items():
            asking = raising(method) if name in RAISING else text(method)
            setattr(kind, name, equality(method, EQUAL[name]) if name in EQUAL else asking)
        kind.__bool__ = is_true
        kind.__init__ = init
        made = traced(trace)
    finally:
        for name, method in before.items():
            setattr(kind, name, method)
        del kind.__bool__
        kind.__init__ = made_by
    return Answered(made, is_asked, frozenset(found))


def _asker() -> str:
    """The file of the code that asks a size something: not that which Python or jax writes to compare."""
    frame = sys._getframe(2)
    while frame.f_back is not None and _compares(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename


def _compares(file: str) -> bool:
    """Whether code compares for others: Python wrote it, or it is jax's for all its functions, or this."""
    return file.startswith("<") or file in (os.path.join(SOURCES, "core.py"), os.path.abspath(__file__))


def _where_equal(size: Any, other: Any) -> "frozenset[int] | None":
    """The numbers of rows for which a size is another one; None where that is not known."""
    if other is None or isinstance(other, str):
        return frozenset()
    try:
        difference = size - (other if is_symbolic_dim(other) else int(other) if other == int(other) else 0.5)
        terms = monomials(difference)
    except Exception:
        return None
    powers = {sum(power): times for power, times in terms}
    least = min(powers)
    last = abs(powers[least])
    # A root that is a whole number divides the last coefficient.
    if last > MOST_TRIED**2:
        return None
    low = [number for number in range(1, math.isqrt(last) + 1) if last % number == 0]
    tried = {*low, *(last // number for number in low)}
    return frozenset(n for n in tried if not sum(times * n**power for power, times in powers.items()))


def are_polynomials(sizes: Iterable[Any]) -> bool:
    """Whether those of some sizes that have the symbol are polynomials in it."""
    return all(is_polynomial(size) for size in sizes if is_symbolic_dim(size))


def has_polynomials(jaxpr: Any) -> bool:
    """Whether all sizes in a program are polynomials in the rows, and reshaped arrays keep their elements.

    jax lets a reshape of an array with a symbol have any size.
    """
    for equation in equations(jaxpr):
        if equation.primitive.name == "reshape":
            before, after = (math.prod(each[0].aval.shape) for each in (equation.invars, equation.outvars))
            if before != after:
                return False
        dims = [d for v in equation.outvars for d in getattr(v.aval, "shape", ())]
        dims += [equation.params["dim"]] if equation.primitive.name == "dim_as_value" else []
        if not are_polynomials(dims):
            return False
    return True


def is_exact(jaxpr: Any) -> bool:
    """Whether no size in a program becomes a number of few bits, which many rows are too many for."""
    sizes = set()
    for equation in equations(jaxpr):
        if equation.primitive.name == "dim_as_value":
            sizes.update(equation.outvars)
        narrowed = any(is_narrow(out.aval.dtype) for out in equation.outvars if hasattr(out.aval, "dtype"))
        if narrowed and not sizes.isdisjoint(v for v in equation.invars if not isinstance(v, Literal)):
            return False
    return True


def is_narrow(dtype: Any) -> bool:
    """Whether numbers of a dtype count no further than a few thousand."""
    number = jax.dtypes.issubdtype(dtype, np.integer) or jax.dtypes.issubdtype(dtype, np.floating)
    return bool(number) and np.dtype(dtype).itemsize <= 2


class Numbers:
    """Numbers that take the place of the symbol for the rows, and of `DEVICES`.

    A size that is a polynomial in them is what it is for these:

        >>> Numbers(rows=8, devices=3).number(DEVICES * rows() + 1)
        25
    """

    def __init__(self, rows: int, devices: int = DEVICES, *, folds: bool = True) -> None:
        self.rows, self.devices, self.folds = rows, devices, folds
        #: What shapes are for these numbers.
        self._shapes: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        #: Jaxprs with numbers in them, by the identity of those they were made of, which are kept for it.
        self._made: dict[int, tuple[Any, Any]] = {}

    def number(self, size: Any) -> Any:
        """A size, or a number that may be one of devices."""
        if type(size) is not int and is_symbolic_dim(size):
            return sum(
                self.number(times) * math.prod(self.rows**power for power in powers)
                for powers, times in monomials(size)
            )
        if size and size % DEVICES == 0:
            return self.number(size // DEVICES) * self.devices
        return size

    def of(self, value: Any) -> Any:
        """A value of Python with numbers in it: a parameter of an operation, with the jaxprs in it.

        It is the same object where there are none.
        """
        kind = type(value)
        if kind is int or (kind not in PLAIN and is_symbolic_dim(value)):
            return self.number(value)
        if kind in PLAIN:
            return value
        if isinstance(value, (tuple, list)):
            made = [self.of(each) for each in value]
            if all(map(operator.is_, made, value)):
                return value
            return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
        if hasattr(getattr(value, "jaxpr", value), "eqns"):
            return self.program(value)
        return value

    def program(self, jaxpr: Any) -> Any:
        """A jaxpr, closed or not, as it would be traced for these numbers.

        Arithmetic with nothing but numbers is done, as Python does it where it has them; without `folds` that
        with sizes alone. A factor over the number of devices is rounded by it.
        """
        if id(jaxpr) not in self._made:
            self._made[id(jaxpr)] = self._program(jaxpr), jaxpr
        return self._made[id(jaxpr)][0]

    def _program(self, jaxpr: Any) -> Any:
        body, _ = opened(jaxpr)
        known: dict[Any, Any] = {}

        def made(variables: Sequence[Any]) -> list[Any]:
            found = []
            for each in variables:
                shape = getattr(each.aval, "shape", ())
                new = self._shapes.get(shape)
                if new is None:
                    new = self._shapes[shape] = tuple(map(self.number, shape))
                if new != shape:
                    known[each] = variable(each.aval.update(shape=new))
                found.append(known.get(each, each))
            return found

        def read(operand: Any) -> Any:
            return self._literal(operand) if isinstance(operand, Literal) else known.get(operand, operand)

        outer = made(body.constvars), made(body.invars)
        rows = []
        for equation in body.eqns:
            if equation.primitive.name == "dim_as_value":
                (out,) = equation.outvars
                number = self.number(equation.params["dim"])
                known[out] = Literal(np.asarray(number, out.aval.dtype)[()], out.aval)
                continue
            operands = [read(each) for each in equation.invars]
            sized = any(not isinstance(each, Literal) for each in equation.invars)
            arithmetic = equation.primitive.name in ARITHMETIC and (sized or self.folds)
            if arithmetic and all(isinstance(each, Literal) for each in operands):
                (out,) = equation.outvars
                (number,) = bind(equation, [each.val for each in operands])
                known[out] = Literal(np.asarray(number)[()], out.aval)
                continue
            if (same_as := _unchanged(equation)) is not None:
                known[equation.outvars[0]] = operands[same_as]
                continue
            params = {name: self.of(value) for name, value in equation.params.items()}
            rows.append(_with(equation, operands, made(equation.outvars), params))
        new = body.replace(
            constvars=outer[0], invars=outer[1], eqns=rows, outvars=[read(each) for each in body.outvars]
        )
        return jaxpr.replace(jaxpr=new) if hasattr(jaxpr, "consts") else new

    def _literal(self, literal: Any) -> Any:
        number = np.asarray(literal.val)
        if number.ndim or not jax.dtypes.issubdtype(number.dtype, np.number):
            return literal
        value = complex(number)
        if not np.isfinite(value) or value != int(value.real):
            return literal
        made = self.number(int(value.real))
        return literal if made == value else Literal(np.asarray(made, number.dtype)[()], literal.aval)


def _unchanged(equation: Any) -> int | None:
    """Which operand an operation on integers gives back as it is: that of ``i * 1`` and of ``i + 0``.

    ``jnp.arange(n)`` has both where `n` is a symbol, and neither where it is a number.
    """
    neutral = {"mul": 1, "add": 0}.get(equation.primitive.name)
    if neutral is None:
        return None
    (out,), sides = equation.outvars, equation.invars
    if not np.issubdtype(out.aval.dtype, np.integer):
        return None
    for at, other in ((0, sides[1]), (1, sides[0])):
        constant = isinstance(other, Literal) and np.ndim(other.val) == 0 and other.val == neutral
        if constant and sides[at].aval == out.aval:
            return at
    return None


def _with(equation: Any, operands: list[Any], results: list[Any], params: Mapping[str, Any]) -> Any:
    """An equation with other parts; itself where these are its own."""
    before = (*equation.invars, *equation.outvars, *equation.params.values())
    if all(map(operator.is_, (*operands, *results, *params.values()), before)):
        return equation
    return equation.replace(invars=operands, outvars=results, params=params)


def written_out(closed: Any) -> Any:
    """A program with the operations of what it calls in place of the calls.

    What a compiled function hands on of a size is a result of its own where the size is a symbol, and a
    number in its text where it is none.
    """
    outer, values = opened(closed)
    rows: list[Any] = []
    constants = dict(zip(outer.constvars, values, strict=True))

    def add(body: Any, known: dict[Any, Any]) -> list[Any]:
        def read(operand: Any) -> Any:
            return operand if isinstance(operand, Literal) else known[operand]

        for equation in body.eqns:
            operands = [read(each) for each in equation.invars]
            if control(equation) == "jit":
                inner, own = opened(inner_jaxpr(equation.params))
                fresh = {each: variable(each.aval) for each in inner.constvars}
                constants.update(zip(fresh.values(), own, strict=True))
                results = add(inner, {**fresh, **dict(zip(inner.invars, operands, strict=True))})
            else:
                results = [variable(each.aval) for each in equation.outvars]
                params = {name: _written_out(value) for name, value in equation.params.items()}
                rows.append(equation.replace(invars=operands, outvars=results, params=params))
            known.update(zip(equation.outvars, results, strict=True))
        return [read(each) for each in body.outvars]

    outvars = add(outer, {each: each for each in (*outer.constvars, *outer.invars)})
    body = outer.replace(constvars=[*constants], eqns=rows, outvars=outvars)
    return closed.replace(jaxpr=body, consts=[*constants.values()])


def _written_out(value: Any) -> Any:
    """A parameter of an operation, with the programs in it as `used` and `written_out` make them."""
    if type(value) is tuple:
        return tuple(map(_written_out, value))
    return used(written_out(value)) if isinstance(value, jax.extend.core.ClosedJaxpr) else value


def used(closed: Any) -> Any:
    """A program without operations that give nothing which is used."""
    body, constants = opened(closed)
    wanted, kept = {each for each in body.outvars if not isinstance(each, Literal)}, []
    for equation in reversed(body.eqns):
        if equation.effects or not wanted.isdisjoint(equation.outvars):
            kept.append(equation)
            wanted.update(each for each in equation.invars if not isinstance(each, Literal))
    known = {v: each for v, each in zip(body.constvars, constants, strict=True) if v in wanted}
    return closed.replace(jaxpr=body.replace(constvars=[*known], eqns=kept[::-1]), consts=[*known.values()])


def is_at(jaxpr: Any, rows: int, other: Any, devices: int = 1) -> bool:
    """Whether a program is another one, without symbols, for so many rows, and one device or so many.

    What was traced until it was seen to need an axis, and then again, is used once.
    """
    one, two = (used(written_out(each)) for each in (jaxpr, other))
    programs = Numbers(rows, devices).program(one), Numbers(rows).program(two)
    return same(*(program_of(each, rows) for each in programs))
