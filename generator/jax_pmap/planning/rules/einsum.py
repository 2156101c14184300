"""Products: einsum by its letters, dot and matmul by their operands."""

from __future__ import annotations

from jax_pmap.planning.rules.call import Call, plain
from jax_pmap.planning.values import Value, partial, sharded


def rule(call: Call) -> Value | None:
    """The batch letter is kept, or summed over; `dot` and `matmul` follow ``@``."""
    name = plain(call.name)
    if name in ("dot", "matmul", "vdot", "inner") and len(call.args) == 2:
        return product(call, call.args[0], call.args[1])
    if name != "einsum" or not call.args:
        return None
    letters = call.option("subscripts", 0)
    operands = call.args[1:]
    if not isinstance(letters, str) or "." in letters or "->" not in letters:
        return None
    inputs, _, output = letters.replace(" ", "").partition("->")
    batch = set()
    for term, value in zip(inputs.split(","), operands, strict=False):
        if value.kind == "sharded" and -1 <= value.axis < len(term):
            batch.add(term[value.axis])
    if not batch:
        return None
    if len(batch) > 1:
        call.refuse_coupled("pairs every example with every other")
    letter = batch.pop()
    return sharded(output.index(letter)) if letter in output else partial("psum")


def product(call: Call, left: Value, right: Value) -> Value | None:
    """Kind of ``left @ right``; None where neither is sharded.

    The last axis of the left and the first of the right (of a matrix) are summed over.
    """
    if left.kind == "sharded" and right.kind == "sharded":
        if left.axis == -1 and right.axis == 0:
            return partial("psum")
        if left.axis == 0 and right.axis == -1:
            call.refuse_coupled("pairs every example with every other")
        call.walker.note(
            call.node, "the product of two values of the batch is taken to be made example by example"
        )
        return left
    if left.kind == "sharded" and right.kind == "replicated":
        return left
    if right.kind == "sharded" and left.kind == "replicated":
        if right.axis == 0:
            call.walker.note(call.node, "the product is taken to be made example by example")
        return right
    return None
