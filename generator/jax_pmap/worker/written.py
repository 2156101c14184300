"""Whether the name of a function still leads to the ``def`` that was read, once its module is imported."""

import functools
import os
import types
from typing import Any

from .functions import located
from .protocol import Definition, Problem, Written

#: Packages with objects that compile a function.
COMPILING = frozenset({"jax", "jaxlib", "equinox", "flax"})


def check_is_written(value: Any, definition: Definition, written: Written) -> None:
    """Refuse a function whose name the module, or who imports it, has given to another one.

    ``loss = capped(loss)`` below the ``def``, ``globals()["loss"] = …`` or an import that takes its place: a
    caller gets that one. What the decorators of the ``def`` put around it is known from reading.

    Args:
        value: what the module has by the name; anything that cannot be called, as the result of a call, is
            not meant by somebody who asks for a function.
        definition: the ``def`` that was read.
        written: where it begins, and what may be around it.

    Raises:
        Problem: ``"another"``, a call by that name runs another function, or more than this one.
    """
    found, around = value, 0
    while callable(found) and not isinstance(found, type) and around < 64:
        if is_definition(found, definition, written):
            if around > written.decorators:
                break
            return
        inner = found.func if isinstance(found, functools.partial) else getattr(found, "__wrapped__", None)
        if inner is None:
            if isinstance(found, types.FunctionType) and around >= written.decorators:
                break
            return  # What the objects of a library hold is not known, nor what decorators return.
        around += not compiles(found)
        found = inner
    else:
        return
    raise Problem("another", described(value))


def is_definition(value: Any, definition: Definition, written: Written) -> bool:
    """Whether a function is the one that a ``def`` has made."""
    if not isinstance(value, types.FunctionType) or value.__code__.co_name != definition.name:
        return False
    code = value.__code__
    there = written.first <= code.co_firstlineno <= definition.line
    return there and os.path.realpath(code.co_filename) == os.path.realpath(definition.path)


def compiles(value: Any) -> bool:
    """Whether an object only compiles what it holds: ``PjitFunction``, ``_JitWrapper``, ``JitWrapped``."""
    kind = type(value)
    # A class of the user's may be called `Jittered`.
    return kind.__module__.partition(".")[0] in COMPILING and "jit" in kind.__name__.lower()


def uncompiled(value: Any) -> Any:
    """What an object compiles, where it does nothing else; any other object itself."""
    while compiles(value) and hasattr(value, "__wrapped__"):
        value = value.__wrapped__
    return value


def described(value: Any) -> str:
    """A function by its name and place, another object by its type."""
    value = uncompiled(value)
    if not isinstance(value, types.FunctionType):
        return f"a `{type(value).__name__}`"
    # `functools.wraps` gives a function the name of another; from Python 3.11 on its code has its own.
    place, code = located("function", value), value.__code__
    name = getattr(code, "co_qualname", code.co_name)
    return f"`{name}` ({os.path.basename(place.path)}:{place.line})"
