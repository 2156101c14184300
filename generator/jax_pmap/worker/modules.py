"""Methods of the user's modules that a library runs, and copies of them in their place while they are traced.

Flax Linen and Haiku wrap the methods of modules, and let them be intercepted. What runs is known by the plain
function behind the wrapper.
"""

import contextlib
import dataclasses
import functools
import inspect
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from .functions import located, named
from .layers import OURS
from .origins import is_users
from .protocol import Callee, ModuleMethod
from .rebound.uses import MAKING

#: Libraries with `intercept_methods`.
LIBRARIES = ("flax.linen", "haiku")

Interceptor = Callable[[Callable[..., Any], Any, Any, Any], Any]


@contextlib.contextmanager
def intercepted(interceptor: Callable[[str], Interceptor]) -> Iterator[None]:
    """While this holds, methods of modules go through what `interceptor` gives for their library."""
    with contextlib.ExitStack() as stack:
        for library in LIBRARIES:
            # What is not imported is not used, and importing it here could fail.
            intercept = getattr(sys.modules.get(library), "intercept_methods", None)
            if intercept is not None:
                stack.enter_context(intercept(interceptor(library)))
        yield


def behind(context: Any) -> Any:
    """The plain function that a library is about to run on a module."""
    return getattr(context.orig_method, "func", None)


def with_copies(fn: Callable[..., Any], copies: Mapping[Any, Any]) -> Callable[..., Any]:
    """`fn` in which copies run in place of the methods that they are of.

    What jax keeps of a compiled function that is called on the way goes by the function and by shapes alone:
    with the methods it would be that of the copies, and with other copies that of these.
    """
    if not copies:
        return fn

    def copied(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        copy = copies.get(behind(context))
        return call(*args, **kwargs) if copy is None else copy(context.module, *args, **kwargs)

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        jax.clear_caches()
        try:
            with intercepted(lambda _: copied):
                return fn(*args, **kwargs)
        finally:
            jax.clear_caches()

    return run


def find(run: Callable[[], Any]) -> list[ModuleMethod]:
    """The methods of the user's modules that run while `run` is traced, each way to one once."""
    if not any(library in sys.modules for library in LIBRARIES):
        return []
    rows: dict[ModuleMethod, None] = {}

    def noting(library: str) -> Interceptor:
        def noted(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
            raw = behind(context)
            if inspect.isfunction(raw) and raw.__name__ not in MAKING and is_users(raw.__code__.co_filename):
                frames = tuple(
                    (frame.filename, frame.lineno or 0, frame.name)
                    for frame in traceback.extract_stack()
                    if not frame.filename.startswith(OURS)
                )
                rows[ModuleMethod(library, method(raw, context.module), frames)] = None
            return call(*args, **kwargs)

        return noted

    # A function that was compiled before is not run again.
    jax.clear_caches()
    with intercepted(noting):
        run()
    return list(rows)


def method(raw: types.FunctionType, module: Any) -> Callee:
    """A method that runs on a module, by the class that defines it."""
    found = located("method", raw)
    for each in type(module).__mro__:
        attribute = vars(each).get(raw.__name__)
        if attribute is not None and inspect.unwrap(attribute) is raw:
            same = named(each.__module__, each.__qualname__) is each
            return dataclasses.replace(found, owner=each.__qualname__, module=each.__module__, named=same)
    return found
