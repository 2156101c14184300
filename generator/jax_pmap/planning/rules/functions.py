"""Functions the file defines: their bodies are read too."""

from __future__ import annotations

from jax_pmap.planning.rules.call import Call
from jax_pmap.planning.values import Value


def rule(call: Call) -> Value | None:
    """A call of a function of this file gives what its body returns."""
    if call.function.function is None:
        return None
    arguments = call.whole_arguments()
    names = [keyword.arg or "" for keyword in call.node.keywords]
    keywords = dict(zip(names, arguments[len(call.args) :], strict=True))
    result = call.walker.invoke(call.function, arguments[: len(call.args)], keywords)
    if result.kind == "varying":
        call.refuse_coupled("is neither a mean nor a sum over the batch; reading alone cannot split it")
    return result
