"""Functions whose gradients a caller may not take from outside of code with collectives.

Differentiated from outside, a device is handed a part of the gradient by what is whole. As long as all that
is made of it is linear in it, the parts add up. A rule of the user's own need not be.
"""

from typing import Any

import jax

from .exceptions import attempted
from .jaxpr.versions import bind
from .jaxpr.walk import equations
from .placements.equation import Value
from .placements.interpreter import Interpreter
from .placements.lattice import WHOLE, Replicated
from .placements.terms import Terms

#: Of no devices in particular: a number times a power of their count tells what is linear in it.
COUNTS = (2, 4)


def not_linear(jaxpr: Any) -> tuple[str, ...]:
    """Functions in a program with a gradient of their own that is not shown to be linear, each once.

    >>> clipped = jax.custom_vjp(lambda x: x)
    >>> clipped.defvjp(lambda x: (x, None), lambda _, g: (jax.numpy.clip(g, -1, 1),))
    >>> not_linear(jax.make_jaxpr(clipped)(1.0))
    ('<lambda>',)
    """
    found: dict[str, None] = {}
    for each in equations(jaxpr):
        name = each.primitive.name
        if name.startswith("custom_vjp_call") and not attempted(_is_linear, each):
            body = each.params.get("call_jaxpr") or each.params["fun_jaxpr"]
            found[str(body.jaxpr.debug_info.func_src_info).split(" at ")[0]] = None
        elif name == "custom_linear_solve":
            products = each.params["jaxprs"]
            # One that is symmetric is its own transpose.
            found |= {} if products.matvec is products.vecmat else {name: None}
    return tuple(found)


def _is_linear(equation: Any) -> bool:
    """Whether the gradient by what a function takes is linear in that by what it gives."""
    given, made = ([v.aval for v in side] for side in (equation.invars, equation.outvars))

    def gradient(given: Any, made: Any) -> Any:
        floats = [i for i, each in enumerate(given) if jax.numpy.issubdtype(each.dtype, jax.numpy.inexact)]

        def function(*own: Any) -> Any:
            return bind(equation, [own[floats.index(i)] if i in floats else x for i, x in enumerate(given)])

        return jax.vjp(function, *(given[i] for i in floats))[1](made)

    traced = jax.make_jaxpr(gradient)(given, made)
    terms = Terms()
    inputs = [
        Value(
            terms.make("input", (index,), (), aval.shape, str(aval.dtype)),
            (WHOLE if index < len(given) else Replicated(1),),
        )
        for index, aval in enumerate(traced.in_avals)
    ]
    out = Interpreter(terms, {"devices": COUNTS}, len(COUNTS)).follow([traced] * len(COUNTS), inputs)
    return all(value.places == (Replicated(1),) or terms.is_zero(value.term) for value in out)
