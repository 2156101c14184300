"""Operations outside `jax.numpy` that mix the examples of a batch."""

from __future__ import annotations

from jax_pmap.planning.rules.call import Call
from jax_pmap.planning.values import Value

_ALONG_FIRST = {
    "jax.lax.cumsum",
    "jax.lax.cummax",
    "jax.lax.cumlogsumexp",
    "jax.lax.associative_scan",
    "jax.ops.segment_sum",
}


def rule(call: Call) -> Value | None:
    """Scans along axis 0, and segment sums."""
    if call.name in _ALONG_FIRST and any(value.kind == "sharded" and value.axis == 0 for value in call.args):
        axis = call.option("axis", 1)
        if axis in (None, 0):
            call.refuse_coupled("runs along the batch")
    return None
