"""Programs that are traced once for all sizes: with a symbol for the rows, in whose place numbers come."""

import math
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.export import is_symbolic_dim
from jax.extend.core import Literal

from ..neighbours import INSTALLED
from ..protocol import Problem
from .coincidences import program_of, same
from .versions import bind, monomials, opened, variable
from .walk import equations

T = TypeVar("T")

#: The number of devices in such traces, in place of any other. It is exact in floats of 16 bits, and nobody
#: writes it down.
DEVICES = 239 << 8
#: Methods by which code may ask for a number, and get an answer.
ASKED = ("__eq__", "__hash__", "__str__", "__repr__", "__format__")
#: Operations that Python may do with numbers.
ARITHMETIC = frozenset({"convert_element_type", "add", "sub", "mul", "div", "neg", "pow", "integer_pow"})


def rows() -> Any:
    """A size that stands for any number of rows."""
    return jax.export.symbolic_shape("rows")[0]


def traced(trace: Callable[[], T]) -> "T | None":
    """What `trace` gives, which traces functions of arrays with such sizes.

    None where Python code needs the number, and raises.
    """
    try:
        return trace()
    except Problem:
        raise
    except BaseException:
        return None


def traced_unasked(trace: Callable[[], T]) -> "T | None":
    """What `traced` gives, unless code of the user's compares a size with a number, looks it up or prints it.

    It would go on then, and be one program for all sizes that it does not ask for.
    """
    kind, asked = type(rows()), set[str]()
    before = {name: getattr(kind, name) for name in ASKED}

    def noted(method: Callable[..., Any]) -> Callable[..., Any]:
        def asking(symbol: Any, *other: Any) -> Any:
            asked.add(sys._getframe(1).f_code.co_filename)
            return method(symbol, *other)

        return asking

    try:
        for name, method in before.items():
            setattr(kind, name, noted(method))
        made = traced(trace)
    finally:
        for name, method in before.items():
            setattr(kind, name, method)
    is_ours = all(INSTALLED.search(file) or "jax_pmap" in file for file in asked)
    return made if is_ours else None


def is_polynomial(size: Any) -> bool:
    """Whether a size, if it has the symbol, is a polynomial in it: not ``floordiv(rows, 2)``."""
    return not is_symbolic_dim(size) or "(" not in str(size)


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
        if not all(map(is_polynomial, dims)):
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

    def __init__(self, rows: int, devices: int = DEVICES) -> None:
        self.rows, self.devices = rows, devices
        #: Jaxprs with numbers in them, by the identity of those they were made of, which are kept for it.
        self._made: dict[int, tuple[Any, Any]] = {}

    def number(self, size: Any) -> Any:
        """A size, or a number that may be one of devices."""
        if is_symbolic_dim(size):
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
        if type(value) is int or is_symbolic_dim(value):
            return self.number(value)
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

        Arithmetic with nothing but numbers is done, as Python does it where it has them.
        """
        if id(jaxpr) not in self._made:
            self._made[id(jaxpr)] = self._program(jaxpr), jaxpr
        return self._made[id(jaxpr)][0]

    def _program(self, jaxpr: Any) -> Any:
        body, _ = opened(jaxpr)
        known: dict[Any, Any] = {}

        def made(variables: Sequence[Any]) -> list[Any]:
            for each in variables:
                shape = getattr(each.aval, "shape", ())
                new = tuple(map(self.number, shape))
                if new != shape:
                    known[each] = variable(each.aval.update(shape=new))
            return [known.get(each, each) for each in variables]

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
            if equation.primitive.name in ARITHMETIC and all(isinstance(each, Literal) for each in operands):
                (out,) = equation.outvars
                (number,) = bind(equation, [each.val for each in operands])
                known[out] = Literal(np.asarray(number)[()], out.aval)
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


def _with(equation: Any, operands: list[Any], results: list[Any], params: Mapping[str, Any]) -> Any:
    """An equation with other parts; itself where these are its own."""
    before = (*equation.invars, *equation.outvars, *equation.params.values())
    if all(map(operator.is_, (*operands, *results, *params.values()), before)):
        return equation
    return equation.replace(invars=operands, outvars=results, params=params)


def is_at(jaxpr: Any, rows: int, other: Any) -> bool:
    """Whether a program is another one, without symbols, for so many rows, and one device."""
    programs = Numbers(rows, 1).program(jaxpr), Numbers(rows).program(other)
    return same(*(program_of(each, rows) for each in programs))
