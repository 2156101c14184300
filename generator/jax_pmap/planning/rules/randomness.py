"""Random numbers: with the same key every device draws the same ones."""

from __future__ import annotations

from jax_pmap.planning.rules.call import Call
from jax_pmap.planning.values import ARRAY, Value, flat


def rule(call: Call) -> Value | None:
    """Draws of a fixed shape are replicated; draws per example are refused."""
    if call.name.startswith("jax.random."):
        leaves = [leaf for value in call.every for leaf in flat(value)]
        if any(leaf.kind == "sharded" or leaf.is_size for leaf in leaves):
            keyed = [leaf for leaf in flat(call.args[0]) if leaf.kind == "sharded"] if call.args else []
            if not keyed:
                call.walker.refuse(
                    "JP051",
                    call.node,
                    f"`{call.text}` draws for every example from one key: each device would draw the same.",
                    "Give every example its own key: split outside, pass keys as data, draw in `jax.vmap`.",
                )
        return (
            Value("sharded", form="key")
            if any(leaf.kind == "sharded" for leaf in leaves)
            else (
                Value(form="key") if call.name.endswith((".split", ".key", ".PRNGKey", ".fold_in")) else ARRAY
            )
        )
    return None
