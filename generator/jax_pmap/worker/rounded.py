"""A function run with every rounding inside it moved, to measure how far roundings lead.

Where numbers are drawn, a run in another precision draws others and measures nothing, and inputs moved by a
rounding say nothing of those that the function makes itself: of sums, products and exponentials, many times
over in a deep network. Each of their results is moved here by up to one rounding, in the precision it has.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import arguments
from .arguments import Packed, Values
from .decisions import CALLS, bind, inner
from .generator import mixed
from .leaves import dtype_of, shape_of

#: Operations whose results are rounded after more than one step, or that no hardware gives to the last digit.
ROUNDED = frozenset(
    (
        *(
            "dot_general",
            "conv_general_dilated",
            "reduce_sum",
            "reduce_prod",
            "cumsum",
            "cumprod",
            "scatter-add",
        ),
        *("exp", "exp2", "expm1", "log", "log1p", "pow", "tanh", "logistic", "erf", "erf_inv", "erfc"),
        *("sin", "cos", "tan", "sqrt", "rsqrt", "div", "integer_pow"),
    )
)
#: Operations that only move, choose or compare what is rounded already.
EXACT = frozenset(
    (
        *(
            "reshape",
            "transpose",
            "broadcast_in_dim",
            "squeeze",
            "slice",
            "dynamic_slice",
            "concatenate",
            "gather",
        ),
        *(
            "select_n",
            "max",
            "min",
            "neg",
            "abs",
            "sign",
            "copy",
            "reduce_max",
            "reduce_min",
            "rev",
            "pad",
            "iota",
        ),
        *("dynamic_update_slice", "scatter", "split", "stop_gradient", "sort", "clamp"),
    )
)
#: Bytes of a narrow float, every operation on which shows.
NARROW = 2
WORDS = {2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}


def moved(value: Any, number: Any) -> Any:
    """A float array with every element moved by up to one rounding, another way for every `number`."""
    if not jax.dtypes.issubdtype(value.dtype, np.floating) or value.dtype.itemsize not in WORDS:
        return value
    bits = jax.lax.bitcast_convert_type(value, WORDS[value.dtype.itemsize])
    # What an element is decides how it is rounded, as it does in truth; all of its bits count.
    folded = (bits >> (4 * value.dtype.itemsize)).astype(jnp.uint32) ^ bits.astype(jnp.uint32)
    unit = mixed(folded + number).astype(jnp.float32) / np.float32(2**31) - 1
    eps = float(jnp.finfo(value.dtype).eps)
    # Fused, a chain of these would be computed anew for each use, and take minutes to compile.
    return jax.lax.optimization_barrier(value * (1 + eps * unit.astype(value.dtype)).astype(value.dtype))


def is_narrow(value: Any) -> bool:
    """Whether a value is a float of 16 bits or less."""
    return bool(jax.dtypes.issubdtype(value.dtype, np.floating)) and value.dtype.itemsize <= NARROW


def evaluated(jaxpr: Any, constants: Sequence[Any], given: Sequence[Any], number: Any) -> list[Any]:
    """Results of a jaxpr with its roundings moved; inside loops, those of each round's results alone."""
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
    known.update(zip(jaxpr.invars, given, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else known[atom]

    for index, equation in enumerate(jaxpr.eqns):
        values, name = [read(atom) for atom in equation.invars], equation.primitive.name
        number = mixed(number + np.uint32(index + 1))
        held, own = inner(equation.params, CALLS[name]) if name in CALLS else (None, ())
        if held is not None and len(held.invars) == len(values):
            results = evaluated(held, own, values, number)
        else:
            results = bind(equation, values)
            every = name in ROUNDED or name in ("scan", "while", "cond")
            results = [
                moved(each, number) if every or (name not in EXACT and is_narrow(each)) else each
                for each in results
            ]
        known.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


class Rounded:
    """A function of values, compiled with its roundings moved."""

    def __init__(self, function: Callable[[Values], Any], statics: Sequence[str]) -> None:
        self.function, self.statics = function, statics
        self._made: dict[Any, Any] = {}

    def __call__(self, values: Values, number: int, key: Any) -> Any:
        """The result on `values`, rounded in way `number`; `key` is what else the function depends on."""
        packed = Packed(values, self.statics)
        shapes = tuple((shape_of(x), dtype_of(x)) for x in packed.leaves)
        key = key, packed.key, shapes, bool(jax.config.jax_enable_x64)
        if key not in self._made:
            made: list[Callable[[Sequence[Any]], Any]] = []

            def whole(leaves: Sequence[Any]) -> list[Any]:
                arrays, again = arguments.held_apart(self.function(packed.unpack(leaves)))
                made.append(again)
                return arrays

            def body(leaves: Sequence[Any], number: Any) -> list[Any]:
                closed = jax.make_jaxpr(whole)(leaves)
                return evaluated(closed.jaxpr, closed.consts, jax.tree.leaves(leaves), number)

            self._made[key] = jax.jit(body), made
        compiled, made = self._made[key]
        arrays = compiled(packed.leaves, np.uint32(number))
        return made[-1](arrays)
