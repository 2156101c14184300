"""The number of examples: a device sees its own share of it."""

from __future__ import annotations

from jax_pmap.planning.rules.call import Call, plain
from jax_pmap.planning.values import REPLICATED, SIZE, Value

_NUMBERS = {"float", "int", "jax.numpy.float32", "jax.numpy.float64", "jax.numpy.int32"}


def rule(call: Call) -> Value | None:
    """``len(x)``, ``jnp.shape(x)``, ``jnp.size(x)`` and ``float(n)``."""
    if not call.args:
        return None
    first = call.args[0]
    if call.name in ("len", "jax.numpy.size", "numpy.size") and first.kind == "sharded":
        return SIZE
    if plain(call.name) == "shape" and first.kind == "sharded":
        return Value("sharded", first.axis, form="shape")
    if call.name in _NUMBERS and first.is_size:
        return first
    return REPLICATED if call.name in ("len", "isinstance", "range", "print", "hasattr") else None
