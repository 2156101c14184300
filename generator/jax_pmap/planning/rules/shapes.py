"""Operations that make, move or merge axes."""

from __future__ import annotations

from jax_pmap.planning.rules.call import Call, plain
from jax_pmap.planning.values import SIZE, Value, flat, sharded

_MAKERS = {"zeros", "ones", "full", "empty", "broadcast_to", "reshape", "ravel", "tile", "repeat"}


def rule(call: Call) -> Value | None:
    """Follows the batch axis through reshape, transpose, stack and their relatives."""
    name = plain(call.name)
    leaves = [leaf for value in call.every for leaf in flat(value)]
    local = [leaf for leaf in leaves if leaf.kind == "sharded" or leaf.is_size]
    if not name or not local:
        return None
    first = call.args[0] if call.args else SIZE
    if name in ("arange", "linspace"):
        call.walker.note(call.node, f"`{call.text}` counts the examples of each device from 0")
        return sharded()
    if name in ("eye", "identity", "diag", "tril", "triu", "roll", "flip", "unique", "nonzero", "histogram"):
        call.refuse_coupled("relates examples of the batch to one another")
    if name in _MAKERS:
        if first.kind == "sharded" and first.form != "shape" and first.axis != 0:
            call.walker.note(call.node, f"after `{call.text}` the batch is taken to be the first axis")
        return sharded()
    if name in ("transpose", "swapaxes", "moveaxis") and first.kind == "sharded":
        return _moved(call, name, first)
    if name == "expand_dims" and first.kind == "sharded":
        axis = call.option("axis", 1)
        return sharded(first.axis + 1 if isinstance(axis, int) and 0 <= axis <= first.axis else first.axis)
    if name in ("stack", "concatenate", "concat", "hstack", "vstack"):
        return _joined(call, name, local[0])
    return None


def _moved(call: Call, name: str, value: Value) -> Value:
    order = call.option("axes", 1)
    if name == "transpose" and order is None:
        return sharded(-1 if value.axis == 0 else 0)
    if name == "transpose" and isinstance(order, int):
        order = tuple(call.option("", position) for position in range(1, len(call.args)))
    if name == "transpose" and isinstance(order, tuple) and value.axis in order:
        return sharded(order.index(value.axis))
    source, target = call.option("source", 1), call.option("destination", 2)
    if isinstance(source, int) and isinstance(target, int):
        if source == value.axis:
            return sharded(target)
        if name == "swapaxes" and target == value.axis:
            return sharded(source)
        if value.axis not in (source, target) and name == "swapaxes":
            return value
    call.walker.note(call.node, f"after `{call.text}` the batch is taken to be axis {value.axis}")
    return value


def _joined(call: Call, name: str, value: Value) -> Value:
    axis = call.option("axis", 1)
    axis = 0 if axis is None else axis
    if name == "stack":
        return sharded(value.axis + 1 if isinstance(axis, int) and 0 <= axis <= value.axis else value.axis)
    if name == "vstack" or (name in ("concatenate", "concat") and axis == value.axis):
        call.walker.note(call.node, f"`{call.text}` joins along the batch: every device joins its own share")
    return sharded(value.axis)
