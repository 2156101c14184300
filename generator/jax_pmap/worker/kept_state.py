"""What calls of a function leave behind for the next one: counters, buffers, flags of the user's own.

What is derived from one trace is then no statement about the calls that follow.
"""

import itertools
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from .functions import codes, enclosed, unwrapped
from .origins import is_users, is_users_object

#: Values that are looked into, at most.
MOST = 20_000
#: Values that say what they are by themselves.
PLAIN = (bool, int, float, complex, str, bytes, type(None))
HOLDERS = (dict, list, tuple, set, frozenset, deque)
#: Calls after which all is made that is made once.
CALLS = 3
#: Elements up to which an array is compared number by number.
MOST_NUMBERS = 4096


def left_by_calls(function: Any, call: Callable[[], Any]) -> str:
    """What every call changes of what the user's function reaches, as ``"CALLS"``; ``""`` for nothing.

    What only a first call makes, as a compiled function that is kept, does not count.

    Args:
        function: is the user's.
        call: calls it, or traces it anew.

    Raises:
        Exception: what the call raises.
    """
    left, before = "", _reached(function)
    for _ in range(CALLS):
        call()
        after = _reached(function)
        changed = (name for name in after if name in before and before[name][0] != after[name][0])
        left, before = next(changed, ""), after
        if not left:
            return ""
    return left


def _reached(function: Any) -> dict[str, tuple[Any, Any]]:
    """What tells the values from others that a function reaches, by how it does; and the values.

    These are kept: what is made as it is asked for must not be taken for another by its place in memory.
    """
    found: dict[str, tuple[Any, Any]] = {}
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", function)]
    while waiting and len(seen) < MOST:
        name, value = waiting.pop()
        found[name] = _said(value), value
        if id(value) not in seen:
            seen.add(id(value))
            for part, each in _parts(value):
                waiting.append((name + part if part.startswith("[") else f"{name}.{part}".lstrip("."), each))
    return found


def _said(value: Any) -> Any:
    """What tells a value from another, besides what it holds."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, (itertools.count, itertools.cycle)):
        return repr(value)
    if isinstance(value, types.GeneratorType):
        return value.gi_frame and value.gi_frame.f_lasti
    if isinstance(value, np.ndarray) and value.size <= MOST_NUMBERS and value.dtype != object:
        return value.tobytes()
    if isinstance(value, jax.Array):
        return id(value)
    return len(value) if isinstance(value, HOLDERS) else None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value holds, by the name that it has there; nothing of objects that are not the user's."""
    raw, args, kwargs = unwrapped(value)
    if raw is not None:
        yield from ((f"[{at}]", each) for at, each in enumerate((*args, *kwargs.values())))
        yield from enclosed(raw).items()
        if is_users(raw.__code__.co_filename):
            yield from ((f"[{at}]", each) for at, each in enumerate(raw.__defaults__ or ()))
            names = {name for code in codes(raw.__code__) for name in code.co_names}
            yield from ((name, raw.__globals__[name]) for name in sorted(names & raw.__globals__.keys()))
    elif hasattr(value, "__wrapped__"):
        yield "__wrapped__", value.__wrapped__
    elif isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in list(value.items()))
    elif isinstance(value, HOLDERS):
        yield from ((f"[{at}]", part) for at, part in enumerate(list(value)))
    elif is_users_object(value):
        yield from list(getattr(value, "__dict__", {}).items())
        if not isinstance(value, type):
            yield "__class__", type(value)
