"""A function run with every rounding inside it moved, to measure how far roundings lead.

Where numbers are drawn, a run in another precision draws others and measures nothing, and inputs moved by a
rounding say nothing of those that the function makes itself: of sums, products and exponentials, many times
over in a deep network. Each of their results is moved here by up to one rounding, in the precision it has.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .arguments import Compiled, Values
from .generator import mixed
from .jaxpr.forward import Forward
from .jaxpr.versions import bind, primitive_name, scan_parts

#: Operations whose results are rounded after more than one step, or that no hardware gives to the last digit.
ROUNDED = frozenset(
    (
        *("dot_general", "conv_general_dilated", "reduce_sum", "reduce_prod", "cumsum", "cumprod"),
        *("scatter_add", "exp", "exp2", "expm1", "log", "log1p", "pow", "tanh", "logistic", "erf", "erf_inv"),
        *("erfc", "sin", "cos", "tan", "sqrt", "rsqrt", "div", "integer_pow"),
    )
)
#: Operations that only move, choose or compare what is rounded already.
EXACT = frozenset(
    (
        *("reshape", "transpose", "broadcast_in_dim", "squeeze", "slice", "dynamic_slice", "concatenate"),
        *(
            "gather",
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
        ),
        *("rev", "pad", "iota", "dynamic_update_slice", "scatter", "split", "stop_gradient", "sort", "clamp"),
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


#: The same as one operation, where a program is run operation by operation.
MOVED = jax.jit(moved)


def word_of(path: Sequence[int]) -> int:
    """A 32-bit word for a place in a program, unlike those of other places."""
    return zlib.crc32(repr(tuple(path)).encode())


def is_narrow(value: Any) -> bool:
    """Whether a value is a float of 16 bits or less."""
    return bool(jax.dtypes.issubdtype(value.dtype, np.floating)) and value.dtype.itemsize <= NARROW


class _Moved(Forward[Any]):
    """Runs a program with its roundings moved in way `number`, in every round of a scan another way.

    Of other loops and of branches, those of the results alone.
    """

    enters = frozenset({"jit"})

    def __init__(self, number: Any) -> None:
        super().__init__()
        self.number = number

    def operation(self, equation: Any, values: list[Any]) -> list[Any]:
        name = primitive_name(equation)
        # One step from the number of the way: made from that of the operation before, it would be a chain as
        # long as the program, and XLA computes a scalar chain anew for each of its uses.
        number = self.number + np.uint32(word_of(self.path))
        results = self._scanned(equation.params, values, number) if name == "scan" else bind(equation, values)
        every = name in ROUNDED or name in ("scan", "while", "cond")
        return [
            MOVED(each, number) if every or (name not in EXACT and is_narrow(each)) else each
            for each in results
        ]

    def _scanned(self, params: Mapping[str, Any], values: list[Any], number: Any) -> list[Any]:
        """The results of a scan: its steps make much of a rounding, as Adam does of a gradient near zero."""
        fixed, first, over = scan_parts(params, values)

        def step(carried: tuple[Any, list[Any]], rows: list[Any]) -> tuple[tuple[Any, list[Any]], list[Any]]:
            number, carry = carried
            given = [*fixed, *carry, *rows]
            out = evaluated(params["jaxpr"], given, number)
            return (mixed(number + np.uint32(1)), out[: len(carry)]), out[len(carry) :]

        start = mixed(number), first
        options = {name: params[name] for name in ("length", "reverse", "unroll")}
        (_, carry), rows = jax.lax.scan(step, start, over, **options)
        return [*carry, *rows]


def evaluated(
    jaxpr: Any, given: Sequence[Any], number: Any, constants: Sequence[Any] | None = None
) -> list[Any]:
    """Results of a jaxpr, of its `constants` or others, with its roundings moved in way `number`."""
    return _Moved(jnp.asarray(number, jnp.uint32)).run(jaxpr, given, constants)


def rounded(function: Callable[[Values], Any], statics: Sequence[str]) -> Compiled:
    """A function of values, and of the number of a way, compiled with its roundings moved in that way."""

    def compiling(whole: Callable[[Sequence[Any]], list[Any]]) -> Callable[..., Any]:
        def body(leaves: Sequence[Any], number: Any) -> list[Any]:
            return evaluated(jax.make_jaxpr(whole)(leaves), jax.tree.leaves(leaves), number)

        return jax.jit(body)  # type: ignore[no-any-return]

    return Compiled(function, statics, compiling)
