"""Every other call: elementwise where the library is known, else an assumption that is told."""

from __future__ import annotations

import re

from jax_pmap.planning.rules.call import Call
from jax_pmap.planning.values import REPLICATED, VARYING, Value, flat, partial, sharded

#: Modules whose functions work example by example, once the rules above have had their say.
_PER_EXAMPLE = ("jax.numpy.", "numpy.", "jax.nn.", "jax.lax.", "jax.scipy.", "jax.image.", "math.")
_OPTAX = re.compile(
    r"optax\.(losses\.)?(.*loss.*|.*entropy.*|.*error.*|cosine_similarity|.*_divergence.*)", re.ASCII
)
_AVERAGES = re.compile(r"(.*[._])?(compute_)?(loss|accuracy|mse|mae|metric)s?(_fn|_function)?", re.ASCII)
_BUILTINS = {"tuple", "list", "dict", "abs", "zip", "enumerate", "reversed", "sorted", "getattr"}
_CONTAINER_METHODS = (".get", ".items", ".values", ".keys", "._replace")


def rule(call: Call) -> Value:
    """Replicated in, replicated out; batch data in, one result per example out."""
    leaves = [leaf for value in (*call.whole_arguments(), call.function) for leaf in flat(value)]
    if any(leaf.kind == "varying" for leaf in leaves):
        return VARYING
    batch = [leaf for leaf in leaves if leaf.kind == "sharded"]
    if not batch:
        return REPLICATED
    if any(leaf.form == "key" and leaf.kind == "replicated" for leaf in leaves):
        call.walker.refuse(
            "JP051",
            call.node,
            f"`{call.text}` gets a random key beside batch data: numbers it draws for the examples would be "
            "the same on every device.",
            "Give every example its own key and map over examples, or give example inputs: then it is tried.",
        )
    axes = {leaf.axis for leaf in batch}
    known = call.name.startswith(_PER_EXAMPLE) or call.name in _BUILTINS or _OPTAX.fullmatch(call.name)
    if len(axes) > 1 and known:
        call.refuse_coupled("pairs examples along different axes of the batch")
    if not known and _AVERAGES.fullmatch(call.name or call.text):
        call.walker.note(
            call.node, f"`{call.text}` is defined elsewhere; it is assumed to average over the batch"
        )
        return partial("pmean")
    if not known and call.function.kind == "sharded" and call.text.endswith(_CONTAINER_METHODS):
        return Value("sharded", batch[0].axis)
    if not known:
        call.walker.note(call.node, f"`{call.text}` is assumed to treat every example alone")
        return Value("sharded", batch[0].axis)
    return sharded(batch[0].axis)
