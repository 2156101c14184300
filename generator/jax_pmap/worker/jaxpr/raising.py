"""Branches that end in an error: what checks of values at run time are traced to, as Equinox' `error_if`."""

import dis
import inspect
from typing import Any

from .versions import opened

#: Primitives that call Python; what they give is of no use to the compiler before they have returned.
CALLS = frozenset({"pure_callback", "io_callback"})
#: Primitives that give the numbers that they are given, at other places.
MOVES = frozenset({"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "copy"})
#: Kinds of functions whose call does not run them.
_LATER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def never_returns(function: Any) -> bool:
    """Whether a Python function ends by an exception alone: no statement of its code returns.

    >>> def fails(x):
    ...     raise ValueError(x)
    >>> never_returns(fails), never_returns(lambda x: x)
    (True, False)
    """
    code = getattr(function, "__code__", None)
    if not inspect.isfunction(function) or code is None or code.co_flags & _LATER:
        return False
    return not any(each.opname.startswith("RETURN_") for each in dis.get_instructions(code))


def raises(branch: Any) -> bool:
    """Whether a jaxpr, closed or not, has no results: for each, a callback raises before.

    Only what a callback gives counts, moved or not, or one that is called with that: of what is computed from
    it otherwise the compiler may find that it does not depend on it, and drop the call.
    """
    jaxpr, _ = opened(branch)
    raised: set[Any] = set()

    def is_raised(value: Any) -> bool:
        return not hasattr(value, "val") and value in raised

    for equation in jaxpr.eqns:
        ends = any(map(is_raised, equation.invars))
        if equation.primitive.name in CALLS:
            called = equation.params["callback"]
            ends = ends or never_returns(getattr(called, "callback_func", called))
        elif equation.primitive.name not in MOVES:
            continue
        if ends:
            raised.update(equation.outvars)
    return bool(jaxpr.outvars) and all(map(is_raised, jaxpr.outvars))
