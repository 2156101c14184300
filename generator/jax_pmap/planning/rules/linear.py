"""Calls that hand on what they are given, so that a collective may come after them as well."""

from __future__ import annotations

from jax_pmap.planning.rules.call import Call, plain
from jax_pmap.planning.values import Value

_SAME = {"asarray", "array", "astype", "float32", "float64", "float16", "bfloat16", "squeeze", "real", "copy"}
_OTHERS = {"jax.lax.stop_gradient", "jax.lax.convert_element_type", "jax.device_put", "jax.block_until_ready"}


def rule(call: Call) -> Value | None:
    """Conversions keep the kind."""
    if call.args and (plain(call.name) in _SAME or call.name in _OTHERS):
        return call.args[0]
    return None
