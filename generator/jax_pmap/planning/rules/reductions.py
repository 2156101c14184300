"""Reductions over the batch axis: mean, sum, max, min."""

from __future__ import annotations

from jax_pmap.planning.rules.call import Call, plain
from jax_pmap.planning.values import Value, partial, sharded
from jax_pmap.reading.resolve import UNKNOWN

OPS = {
    "mean": "pmean",
    "average": "pmean",
    "sum": "psum",
    "count_nonzero": "psum",
    "max": "pmax",
    "amax": "pmax",
    "min": "pmin",
    "amin": "pmin",
}
#: Reductions no single collective completes.
COUPLED = {
    "median",
    "std",
    "var",
    "prod",
    "any",
    "all",
    "argmax",
    "argmin",
    "quantile",
    "percentile",
    "nanmean",
    "nansum",
    "nanstd",
    "nanvar",
    "nanmedian",
    "ptp",
    "linalg.norm",
    "cumsum",
    "cumprod",
    "sort",
    "argsort",
}
_OTHER_MODULES = {
    "jax.nn.logsumexp",
    "jax.scipy.special.logsumexp",
    "jax.nn.softmax",
    "jax.nn.log_softmax",
    "jax.nn.standardize",
    "optax.global_norm",
}
#: These run along the last axis when no axis is given, so not over the batch.
_LAST_AXIS = {
    "jax.nn.softmax",
    "jax.nn.log_softmax",
    "jax.nn.standardize",
    "jax.numpy.sort",
    "jax.numpy.argsort",
    "numpy.sort",
    "numpy.argsort",
}
_KEEP_SHAPE = {"cumsum", "cumprod", "sort", "argsort"}


def rule(call: Call) -> Value | None:
    """A reduction that takes in the batch axis is partial; along other axes it keeps the batch."""
    name = plain(call.name)
    if not call.args or (name not in OPS and name not in COUPLED and call.name not in _OTHER_MODULES):
        return None
    value = call.args[0]
    if value.kind != "sharded":
        return None
    axes = call.axes()
    if axes is UNKNOWN:
        call.walker.note(call.node, f"the axis of `{call.text}` is computed; taken not to be the batch axis")
        return value
    if axes is None and call.name in _LAST_AXIS:
        axes = (-1,)
    if axes is not None and value.axis not in axes:  # type: ignore[operator]
        kept = [axis for axis in axes if isinstance(axis, int)]  # type: ignore[attr-defined]
        if value.axis == 0 and any(axis < 0 for axis in kept) and name:
            call.walker.note(call.node, f"the last axes `{call.text}` runs over are taken to be features")
        keeps = name in _KEEP_SHAPE or call.name in _LAST_AXIS or "keepdims" in call.keywords
        before = 0 if keeps else sum(0 <= axis < value.axis for axis in kept)
        return sharded(value.axis - before if value.axis >= 0 else value.axis)
    if name not in OPS:
        call.refuse_coupled("runs over the batch, and no collective completes it from shares of the batch")
    if name == "average" or "where" in call.keywords:
        weighted = "weights" in call.keywords or len(call.args) > 2 or "where" in call.keywords
        if weighted and OPS[name] == "pmean":
            call.refuse_coupled("weighs the examples: devices' shares may carry different weight")
    return partial(OPS[name])
