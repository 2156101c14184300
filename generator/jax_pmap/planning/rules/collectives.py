"""Collectives the body already has: their results are whole."""

from __future__ import annotations

from jax_pmap.planning.rules.call import Call
from jax_pmap.planning.values import ARRAY, VARYING, Value

_WHOLE = {"psum", "pmean", "pmax", "pmin", "all_gather", "axis_size"}


def rule(call: Call) -> Value | None:
    """``jax.lax.psum(x, "batch")`` is replicated; an axis index differs on every device."""
    module, _, op = call.name.rpartition(".")
    if module != "jax.lax":
        return None
    if op in _WHOLE:
        return ARRAY
    return VARYING if op in ("axis_index", "ppermute", "psum_scatter", "all_to_all") else None
