"""The target in the worker: the user's function as written, its example inputs, what is known of it."""

import inspect
import types
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from . import arguments, load
from .arguments import Values
from .call import Call
from .one_device import OneDevice

T = TypeVar("T")


class Target:
    """The user's module, the function as written less its compiling decorators, and its example inputs.

    What is found out about it is kept by `once`, until anything of it is set to something else.
    """

    _found: dict[str, dict[Hashable, Any]]

    def __init__(self) -> None:
        self.module: types.ModuleType = types.ModuleType("none")
        #: The call of it that a run of the user's program came to, when there was one.
        self.call: Call | None = None
        #: What the target's own text calls its module, where it only calls that one's object.
        self.called_by = ""
        self.fn: Callable[..., Any] = lambda: None
        self.signature = inspect.signature(self.fn)
        #: Has the layers that a function calls synchronised.
        self.over_devices: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda fn: fn
        #: Whether collectives stand in its own text.
        self.collectives = False
        self.one_device = OneDevice()
        #: Arguments that the object asked for has bound: by position, and by name.
        self.bound_args: tuple[Any, ...] = ()
        self.bound_kwargs: Values = {}
        self.x64 = False
        #: Argument values by parameter name, one dict for each set of inputs.
        self.data: tuple[Values, ...] = ()
        #: Parameters that the inputs pass by name.
        self.named: tuple[str, ...] = ()
        #: The first of them as they were given: with the arrays of jax that they have.
        self.called: Values | None = None
        #: Whether the caller sees changes in the arguments, and the arguments that were seen to change.
        self.in_place = False
        self.mutated: tuple[str, ...] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set what is known of the target; whatever was found out before holds no more."""
        super().__setattr__(name, value)
        super().__setattr__("_found", {})

    def once(self, question: str, key: Hashable, answer: Callable[[], T], *, last: bool = False) -> T:
        """What `answer` gives, asked for once for each `key`, which is all that it hangs on but the target.

        Args:
            question: its name.
            key: ``("config",)``, where the question is about some static arguments.
            answer: finds the answer; where it raises, it is asked again the next time.
            last: whether the answer for another key is dropped, so that large ones are not gathered.
        """
        known: dict[Hashable, T] = self._found.setdefault(question, {})
        if key not in known:
            made = answer()
            if last:
                known.clear()
            known[key] = made
        return known[key]

    def namespace(self) -> dict[str, Any]:
        """A new namespace in which the target's code means what it means where the user wrote it.

        That of the module, and of a captured function also what the functions around it hold.
        """
        if self.call is not None:
            return self.call.namespace()
        own = {self.called_by: self.module} if self.called_by else {}
        return {**vars(self.module), **own}

    def define(self, source: str, filename: str, name: str, namespace: dict[str, Any] | None = None) -> Any:
        """The function `name` that `source` defines, in `namespace` or a new one of the target's."""
        namespace = self.namespace() if namespace is None else namespace
        if self.call is None:
            return load.define(source, filename, name, namespace)
        return self.call.define(source, filename, name, namespace)

    def reference(self, values: Values) -> Any:
        """The target on the whole batch, on one device, uncompiled.

        With the arguments it changes in place, where there are any: ``(result, (model, optimizer))``.
        """
        return self.one_device.run(lambda: self.with_changes(self.fn, values))

    def with_changes(self, fn: Callable[..., Any], values: Values) -> Any:
        """Call `fn` with `values`, and hand out beside its result what it may change in place."""
        given = arguments.own(values, self.mutated)
        if not self.mutated:
            return arguments.invoke(fn, self.signature, given)
        result = arguments.invoke(fn, self.signature, given)
        return result, tuple(given[name] for name in self.mutated)

    def values(self, overrides: Mapping[str, str], index: int = 0) -> Values:
        """Example inputs, with `overrides` (Python source by parameter) in place of static ones."""
        values = dict(self.data[index])
        for name, source in overrides.items():
            values[name] = eval(source, self.namespace())
        return values


TARGET = Target()
