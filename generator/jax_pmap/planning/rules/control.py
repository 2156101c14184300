"""`jax.lax` control flow and function transformations."""

from __future__ import annotations

import ast

from jax_pmap.planning.rules.call import Call
from jax_pmap.planning.values import REPLICATED, Value, flat, join, sharded


def rule(call: Call) -> Value | None:
    """``vmap(f)(x)``, `tree.map`, `cond`, `scan`, `fori_loop`."""
    walker = call.walker
    inner = call.node.func
    if isinstance(inner, ast.Call):
        made, calls = walker.resolver.transformed(inner)
        if made in ("jax.vmap", "equinox.filter_vmap"):
            return _vmapped(call, calls)
    if call.name == "jax.tree.map" and len(call.args) > 1:
        return walker.invoke(call.args[0], call.args[1:], {})
    if call.name == "jax.lax.cond" and len(call.args) > 2:
        return join([walker.invoke(branch, call.args[3:], {}) for branch in call.args[1:3]])
    if call.name == "jax.lax.fori_loop" and len(call.args) == 4:
        start = call.args[3]
        once = walker.invoke(call.args[2], (REPLICATED, start), {})
        return join([start, once])
    if call.name == "jax.lax.scan" and len(call.args) >= 2:
        return _scanned(call)
    return None


def _vmapped(call: Call, calls: tuple[ast.Call, ...]) -> Value | None:
    leaves = [leaf for value in call.whole_arguments() for leaf in flat(value)]
    batch = [leaf for leaf in leaves if leaf.kind == "sharded"]
    if not batch:
        return None
    options = {keyword.arg: keyword.value for made in calls for keyword in made.keywords}
    axes = call.walker.resolver.literal(options["in_axes"]) if "in_axes" in options else 0
    for number, value in enumerate(call.args):
        axis = axes[number] if isinstance(axes, tuple) and number < len(axes) else axes
        if axis is None and any(leaf.kind == "sharded" for leaf in flat(value)):
            call.refuse_coupled("gives every mapped call the whole batch")
    out = call.walker.resolver.literal(options["out_axes"]) if "out_axes" in options else 0
    return sharded(out if isinstance(out, int) else 0)


def _scanned(call: Call) -> Value:
    start, rows = call.args[1], call.args[2] if len(call.args) > 2 else REPLICATED
    if any(leaf.kind == "sharded" and leaf.axis == 0 for leaf in flat(rows)):
        call.refuse_coupled("steps through the examples of the batch one after the other")
    # Scanned over its first axis, a batch axis 1 becomes 0 inside.
    row = join([Value("sharded", leaf.axis - 1) if leaf.kind == "sharded" else leaf for leaf in flat(rows)])
    result = call.walker.invoke(call.args[0], (start, row), {})
    if result.items is None or len(result.items) != 2:
        return Value(items=(result, result))
    carry, each = result.items
    stacked = sharded(each.axis + 1) if each.kind == "sharded" else each
    return Value(items=(join([start, carry]), stacked))
