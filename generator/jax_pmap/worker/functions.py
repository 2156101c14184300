"""The plain functions behind what is called in their place."""

import contextlib
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from .protocol import Callee

#: What compiles a function, and leaves its arguments and its results as they are.
COMPILED = frozenset({"PjitFunction", "_JitWrapper"})


def unwrapped(
    value: Any, *, all_the_way: bool = False
) -> tuple[types.FunctionType | None, tuple[Any, ...], dict[str, Any]]:
    """The plain function behind bound methods, partials and what compiles, and the arguments bound to it.

    And, `all_the_way`, behind decorators, that may do something of their own.
    """
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    for _ in range(64):
        if isinstance(value, functools.partial) or of_equinox(value, "Partial"):
            args, kwargs, value = (*value.args, *args), {**value.keywords, **kwargs}, value.func
        elif isinstance(value, types.MethodType) or of_equinox(value, "BoundMethod"):
            args, value = (value.__self__, *args), value.__func__
        elif isinstance(value, types.FunctionType) and "__wrapped__" not in vars(value):
            return value, args, kwargs
        elif hasattr(value, "__wrapped__") and (all_the_way or type(value).__name__ in COMPILED):
            value = value.__wrapped__
        else:
            return None, (), {}
    return None, (), {}


def of_member(value: Any) -> types.FunctionType | None:
    """The plain function behind what a class holds under a name: a property, a static method, a wrapper."""
    inner = (getattr(value, name, None) for name in ("fget", "func", "__func__", "__wrapped__"))
    return unwrapped(next((each for each in inner if each is not None), value))[0]


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object, and those of what is defined in it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from codes(each)


def enclosed(function: types.FunctionType) -> dict[str, Any]:
    """The variables of functions around that a function uses, with their values; empty ones are left out."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def of_equinox(value: Any, name: str) -> bool:
    """Whether a value is of Equinox's own class of this name."""
    return type(value).__name__ == name and type(value).__module__.startswith("equinox.")


def named(module: str, qualname: str) -> Any:
    """What a dotted name means in an imported module, or None."""
    value: Any = sys.modules.get(module)
    for part in qualname.split("."):
        value = getattr(value, part, None)
    return value


def in_place_of(given: Any, original: Any, copy: Any) -> Any:
    """`copy` where `given` is `original`, alone or with arguments or its object bound to it; else None."""
    if isinstance(given, functools.partial):
        inner = in_place_of(given.func, original, copy)
        return None if inner is None else functools.partial(inner, *given.args, **given.keywords)
    if hasattr(given, "__func__"):
        inner = in_place_of(given.__func__, getattr(original, "__func__", original), copy)
        return None if inner is None else functools.partial(inner, given.__self__)
    return copy if given is original and original is not None else None


def guarded(
    copy: Callable[..., Any], owner: type, name: str, other: Callable[[Any], Callable[..., Any]]
) -> Callable[..., Any]:
    """A copy of the method `name` of `owner` for objects that have it; for others what `other` gives.

    A class method is that of a class. What Python calls by itself, as ``__call__``, it looks up in the class.
    """

    def method(receiver: Any, *args: Any, **kwargs: Any) -> Any:
        of_class = isinstance(receiver, type)
        its_class = receiver if of_class else type(receiver)
        own = () if of_class or name.startswith("__") else getattr(receiver, "__dict__", ())
        same = inspect.getattr_static(its_class, name, None) is inspect.getattr_static(owner, name)
        if same and name not in own:
            return copy(receiver, *args, **kwargs)
        return other(receiver)(*args, **kwargs)

    return method


def located(kind: str, raw: types.FunctionType) -> Callee:
    """Where a function stands: file, line, dotted name, and its scope where that is known."""
    code = raw.__code__
    return Callee(
        kind,
        path=inspect.getsourcefile(code) or code.co_filename,
        line=code.co_firstlineno,
        name=code.co_name,
        qualname=raw.__qualname__,
        module=raw.__module__,
    )
