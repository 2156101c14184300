"""Gradients: as the loss averages or adds over the batch, so does its gradient."""

from __future__ import annotations

import ast

from jax_pmap.planning.rules.call import Call
from jax_pmap.planning.values import REPLICATED, Value, partial
from jax_pmap.reading.calls import gradient_of


def rule(call: Call) -> Value | None:
    """``jax.value_and_grad(loss)(params, batch)``, at once or through a name."""
    gradient = call.function.gradient or gradient_of(call.walker.resolver, call.node.func)
    if gradient is None:
        return None
    arguments = call.whole_arguments()[: len(call.args)]
    if isinstance(gradient.function, ast.FunctionDef | ast.AsyncFunctionDef):
        function, name = (
            Value(function=gradient.function, around=call.function.around),
            gradient.function.name,
        )
    else:
        function, name = call.walker.value(gradient.function), ast.unparse(gradient.function)

    if function.function is not None:
        result = call.walker.invoke(function, arguments, call.keywords)
    else:
        result = REPLICATED
        if any(value.kind == "sharded" for value in call.every):
            result = partial("pmean")
            call.walker.note(
                call.node, f"`{name}` is defined elsewhere; it is assumed to average over the batch"
            )
        if gradient.has_aux:
            result = Value(items=(result, result))
    loss, aux = result, REPLICATED
    if gradient.has_aux and result.items is not None and len(result.items) == 2:
        loss, aux = result.items
    if loss.kind in ("varying", "sharded") or loss.op in ("pmax", "pmin"):
        call.refuse_coupled(
            f"differentiates `{name}`, whose value is neither a mean nor a sum over the batch: no collective "
            "after it gives the gradient of one device"
        )
    of = (
        arguments
        if gradient.argnums is None
        else [arguments[n] for n in gradient.argnums if n < len(arguments)]
    )
    grads = []
    for value in of:
        if value.kind == "sharded" and loss.op == "pmean":
            call.refuse_coupled(
                "takes the gradient of a mean by batch data: every device's share is too large"
            )
        grads.append(value if value.kind == "sharded" else loss)
    several = gradient.argnums is not None and len(gradient.argnums) > 1
    grad = Value(items=tuple(grads)) if several else (grads[0] if grads else loss)
    if not gradient.with_value:
        return Value(items=(grad, aux)) if gradient.has_aux else grad
    return Value(items=(Value(items=(loss, aux)) if gradient.has_aux else loss, grad))
