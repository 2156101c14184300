"""Parameters of equations as what can be hashed and compared."""

import math
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..functions import codes, enclosed

#: Types of most parameters.
PLAIN = frozenset({int, bool, str})


def freeze(value: Any) -> Any:
    """A parameter of an equation as something that can be hashed and compared."""
    if value is None or value.__class__ in PLAIN:
        return value
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return tuple(freeze(each) for each in value)
    if isinstance(value, dict):
        return tuple(sorted((str(key), freeze(each)) for key, each in value.items()))
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return (str(value.dtype), freeze(np.asarray(jax.random.key_data(value))))
    if isinstance(value, jax.Array):
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, (float, np.floating)) and value != value:
        return "nan"  # Not equal to itself.
    if isinstance(value, (float, np.floating)) and value == 0 and math.copysign(1, value) < 0:
        return "-0.0"  # Equal to 0.0.
    body = getattr(value, "jaxpr", value)
    if hasattr(body, "eqns") and hasattr(body, "invars"):
        return freeze_jaxpr(body, getattr(value, "consts", ()))
    if isinstance(value, types.FunctionType):
        return freeze_function(value)
    if hasattr(value, "callback_func"):
        return ("callback", freeze(value.callback_func), str(getattr(value, "in_tree", "")))
    if callable(value) and not isinstance(value, type) and "__eq__" not in _names(type(value)):
        return Kept(value)
    try:
        hash(value)
    except TypeError:
        return Kept(value)
    return value


def _names(kind: type) -> set[str]:
    """What a class defines, with those it is made of, beyond what every object has."""
    return {name for base in kind.__mro__[:-1] for name in vars(base)}


def freeze_function(function: types.FunctionType) -> Any:
    """A function of Python as something that is the same for all with its code and what that refers to."""
    own = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    own += enclosed(function).values()
    names = function.__globals__
    used = {name for code in codes(function.__code__) for name in code.co_names}
    free = [names[name] for name in sorted(used & names.keys())]
    return ("function", function.__code__, tuple(Kept(each) for each in (*own, *free)))


def freeze_jaxpr(body: Any, consts: Sequence[Any]) -> Any:
    """A jaxpr as something that is the same for all that compute the same in the same steps."""
    numbers: dict[Any, int] = {}

    def numbered(variable: Any) -> int:
        return numbers.setdefault(variable, len(numbers))

    def read(variable: Any) -> Any:
        if hasattr(variable, "val"):
            return ("literal", str(variable.aval), freeze(np.asarray(variable.val)))
        return numbered(variable)

    head = tuple((numbered(v), str(v.aval)) for v in (*body.constvars, *body.invars))
    steps = tuple(
        (
            each.primitive,  # Itself: one of the user's may have the name of another.
            tuple(read(v) for v in each.invars),
            tuple((numbered(v), str(v.aval)) for v in each.outvars),
            freeze(dict(each.params)),
        )
        for each in body.eqns
    )
    return ("jaxpr", freeze(tuple(consts)), head, steps, tuple(read(v) for v in body.outvars))


@dataclass(frozen=True, slots=True)
class Kept:
    """An object that a term refers to by identity, kept so that its id is not given to another."""

    object: Any

    def __hash__(self) -> int:
        """By identity."""
        return id(self.object)

    def __eq__(self, other: object) -> bool:
        """By identity."""
        return isinstance(other, Kept) and other.object is self.object
