"""Whether two traces of a function, of other leaves of it, are the same operations on the same values."""

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from .arguments import same_constant
from .jaxpr.forward import Forward
from .jaxpr.versions import bind, opened
from .jaxpr.walk import equations

#: Parameters of operations that are compared as they print.
PLAIN = (bool, int, float, str, tuple, type(None), np.dtype)
#: Operations on integers in which Python and jax agree, as long as 32 bits hold the result.
COUNTING = {"add": operator.add, "sub": operator.sub}
#: Operations that only move elements, as NumPy does them: to these it is the same what they are, and in how
#: many bits.
MOVES: dict[str, Callable[[np.ndarray, Mapping[str, Any]], np.ndarray]] = {
    "reshape": lambda x, how: x.reshape(how["new_sizes"]),
    "rev": lambda x, how: np.flip(x, how["dimensions"]),
    "slice": lambda x, how: x[
        tuple(map(slice, how["start_indices"], how["limit_indices"], how["strides"] or (None,) * x.ndim))
    ],
    "squeeze": lambda x, how: np.squeeze(x, tuple(how["dimensions"])),
    "transpose": lambda x, how: np.transpose(x, how["permutation"]),
}
#: Operations of which NumPy makes the very numbers that XLA makes. Each operation of jax is compiled first.
EXACT: dict[str, Callable[..., np.ndarray]] = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative},
    **{"max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or, "not": np.invert},
    **{"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal},
    **{"eq": np.equal, "ne": np.not_equal},
}
#: Elements up to which what is known is computed.
MOST_ELEMENTS = 1 << 20
#: Operations that may go round for long.
LOOPS = frozenset({"scan", "while"})


class Known(Forward[np.ndarray]):
    """Computes what a program makes of numbers that are known, compiling as little as it can."""

    enters = frozenset({"jit"})

    def constant(self, value: Any) -> np.ndarray:
        """It, as NumPy's array."""
        return np.asarray(value)

    def operation(self, equation: Any, facts: list[np.ndarray]) -> list[np.ndarray]:
        """What NumPy makes of them where that is what jax makes of them; else what jax does."""
        own = [each.astype(v.aval.dtype) for each, v in zip(facts, equation.invars, strict=True)]
        name, move = equation.primitive.name, MOVES.get(equation.primitive.name)
        if move is not None:
            return [move(own[0], equation.params)]
        if name == "convert_element_type" and own[0].dtype.kind != "f":
            return [own[0].astype(equation.outvars[0].aval.dtype)]
        if name == "select_n" and own[0].dtype == bool:
            return [np.where(own[0], own[2], own[1])]
        if name in EXACT:
            with np.errstate(all="ignore"):
                return [np.asarray(EXACT[name](*own))]
        return [*map(np.asarray, bind(equation, own))]


class Same:
    """Compares a trace of all leaves with one in which some leaves are what they are.

    What is a variable of the first may be the literal, or the constant, in the second that the leaf is.

    Args:
        leaves: what the inputs of the first trace stand for, by their variables.
        inputs: the variables of the second trace for some of these leaves, by those of the first.
        computes: whether what the first computes of these leaves alone may be what the second computes of
            constants, if that is the very value. Then they are the same for these leaves, maybe no others.
    """

    def __init__(
        self, leaves: Mapping[Any, Any], inputs: Mapping[Any, Any], *, computes: bool = False
    ) -> None:
        self.leaves, self.known, self.computes = dict(leaves), dict(inputs), computes
        self.constants: dict[Any, Any] = {}

    def operations(self, one: Any, other: Any) -> bool:
        """Whether both run the same operations; variables of their inputs are known to be the same.

        Those of the first that count on from what a leaf is, as ``step + 1``, are Python's in the second, and
        those that move its elements, as ``tokens[:, 1:]``, may be NumPy's.
        """
        (one, one_constants), (other, other_constants) = opened(one), opened(other)
        self.leaves.update(zip(one.constvars, one_constants, strict=False))
        self.constants.update(zip(other.constvars, other_constants, strict=False))
        at = 0
        for equation in one.eqns:
            if self._counted(equation):
                continue
            while not (at < len(other.eqns) and self._equations(equation, other.eqns[at])):
                if self._moved(equation) or self._computed(equation, self.leaves):
                    break
                if at == len(other.eqns) or not self._computed(other.eqns[at], self.constants):
                    return False
                at += 1
            else:
                at += 1
        return all(self._computed(each, self.constants) for each in other.eqns[at:])

    def results(self, some: Sequence[Any], others: Sequence[Any]) -> bool:
        """Whether leaves of two results are the same: variables of the traces, or what they are."""

        def same(one: Any, other: Any) -> bool:
            if hasattr(one, "aval") and hasattr(other, "aval"):
                return self._atoms(one, other)
            if hasattr(one, "aval"):
                return one in self.leaves and _equal(self.leaves[one], other, one)
            return not hasattr(other, "aval") and same_constant(one, other)

        return len(some) == len(others) and all(map(same, some, others))

    def _counted(self, equation: Any) -> bool:
        """Whether an operation counts on from Python's integers; what it gives is then known too."""
        count = COUNTING.get(equation.primitive.name)
        if count is None:
            return False
        (out,) = equation.outvars
        if out.aval.shape or out.aval.dtype.kind != "i":
            return False
        known = [int(v.val) if hasattr(v, "val") else self.leaves.get(v) for v in equation.invars]
        if any(type(each) is not int for each in known):
            return False
        made, room = count(*known), np.iinfo(out.aval.dtype)
        if not room.min <= made <= room.max:
            return False
        self.leaves[out] = made
        return True

    def _moved(self, equation: Any) -> bool:
        """Whether an operation moves the elements of a leaf; where they are is then known too."""
        move, of = MOVES.get(equation.primitive.name), equation.invars[0] if equation.invars else None
        leaf = None if move is None or hasattr(of, "val") else self.leaves.get(of)
        if move is None or not isinstance(leaf, np.ndarray):
            return False
        self.leaves[equation.outvars[0]] = move(leaf, equation.params)
        return True

    def _computed(self, equation: Any, values: dict[Any, Any]) -> bool:
        """Whether an operation is of what is known alone, and no long one; what it gives is then known too.

        Args:
            equation: the operation.
            values: what is known in its trace, by variables.
        """
        atoms = [*equation.invars, *equation.outvars]
        if not self.computes or equation.effects or sum(v.aval.size for v in atoms) > MOST_ELEMENTS:
            return False
        given = [v.val if hasattr(v, "val") else values.get(v) for v in equation.invars]
        if not all(map(_is_number, given)):
            return False
        inner = [each for value in equation.params.values() for each in _jaxprs_in(value)]
        if any(e.primitive.name in LOOPS for e in (equation, *itertools.chain(*map(equations, inner)))):
            return False
        made = Known().equation(equation, [*map(np.asarray, given)])
        values.update(zip(equation.outvars, made, strict=True))
        return True

    def _equations(self, one: Any, other: Any) -> bool:
        if one.primitive.name != other.primitive.name or not self._all(one.invars, other.invars):
            return False
        forms = [
            [(getattr(v.aval, "shape", ()), getattr(v.aval, "dtype", None)) for v in each.outvars]
            for each in (one, other)
        ]
        if forms[0] != forms[1] or one.params.keys() != other.params.keys():
            return False
        for name, value in one.params.items():
            own, its = _jaxprs_in(value), _jaxprs_in(other.params[name])
            if not own and isinstance(value, PLAIN) and str(value) != str(other.params[name]):
                return False
            if len(own) != len(its) or not all(map(self._inner, own, its)):
                return False
        self.known.update(zip(one.outvars, other.outvars, strict=True))
        return True

    def _inner(self, one: Any, other: Any) -> bool:
        (first, _), (second, _) = opened(one), opened(other)
        if len(first.invars) != len(second.invars) or len(first.constvars) != len(second.constvars):
            return False
        self.known.update(zip(first.invars, second.invars, strict=True))
        return self.operations(one, other) and self._all(first.outvars, second.outvars)

    def _all(self, some: Sequence[Any], others: Sequence[Any]) -> bool:
        return len(some) == len(others) and all(map(self._atoms, some, others))

    def _atoms(self, one: Any, other: Any) -> bool:
        if hasattr(one, "val"):
            value = one.val
        elif one in self.known:
            return self.known[one] is other
        elif one in self.leaves:
            value = self.leaves[one]
        else:
            return False
        if hasattr(other, "val"):
            return _equal(value, other.val, other)
        return other in self.constants and _equal(value, self.constants[other], other)


def _is_number(value: Any) -> bool:
    """Whether a value is a number, or an array of some."""
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return not isinstance(value, jax.core.Tracer) and np.dtype(value.dtype).kind in "biuf"
    return isinstance(value, (int, float))


def _jaxprs_in(value: Any) -> list[Any]:
    """The jaxprs of a parameter, closed where they are."""
    every = value if isinstance(value, (tuple, list)) else (value,)
    return [each for each in every if hasattr(getattr(each, "jaxpr", each), "eqns")]


def _equal(one: Any, other: Any, variable: Any) -> bool:
    """Whether two values are the same once jax takes them as the dtype that the variable has."""
    if one is other:
        return True
    if isinstance(one, jax.core.Tracer) or isinstance(other, jax.core.Tracer):
        return False  # The function put it into an object when it was traced before.
    dtype = variable.aval.dtype
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key) or np.shape(one) != np.shape(other):
        return False
    if dtype == jax.dtypes.float0:
        return True  # Nothing is in it.
    left, right = (np.asarray(each).astype(dtype) for each in (one, other))
    kinds = {np.asarray(one).dtype.kind, np.asarray(other).dtype.kind}
    floats = np.dtype(dtype).kind in "fcV"
    return len(kinds) == 1 and bool(np.array_equal(left, right, equal_nan=floats))
