"""The target in the worker: the user's function as written, its example inputs, what is known of it."""

import inspect
import math
import types
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from . import arguments, load
from .arguments import LeafAxes, MadeInside, Values
from .call import Call
from .one_device import OneDevice
from .protocol import Roles

T = TypeVar("T")
#: How many answers are kept of each question that a plan asks anew when it is begun anew.
ANSWERS = 8


def nothing() -> None:
    """Stands for the function until one is loaded."""


@dataclass(frozen=True, eq=False)
class Target:
    """The user's module, the function as written less its compiling decorators, and its example inputs.

    What is found out about it is kept by `once`. A request that changes something makes another target of
    it, of which nothing has been found out.
    """

    module: types.ModuleType = field(default_factory=lambda: types.ModuleType("none"))
    #: The call of it that a run of the user's program came to, when there was one.
    call: Call | None = None
    #: What the target's own text calls its module, where it only calls that one's object.
    called_by: str = ""
    fn: Callable[..., Any] = nothing
    signature: inspect.Signature = field(default_factory=inspect.Signature)
    #: Has the layers that a function calls synchronised.
    over_devices: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda fn: fn
    #: Whether collectives stand in its own text.
    collectives: bool = False
    one_device: OneDevice = field(default_factory=OneDevice)
    #: The axis that its batch is going to be mapped over, and whether it may be no other.
    axis: str = ""
    axis_given: bool = True
    #: Arguments that the object asked for has bound: by position, and by name.
    bound_args: tuple[Any, ...] = ()
    bound_kwargs: Values = field(default_factory=dict)
    x64: bool = False
    #: Argument values by parameter name, one dict for each set of inputs.
    data: tuple[Values, ...] = ()
    #: Parameters that the inputs pass by name.
    named: tuple[str, ...] = ()
    #: The first of them as they were given: with the arrays of jax that they have.
    called: Values | None = None
    #: The function of the user's that made them; None where a program or specs did.
    maker: "Callable[..., Any] | None" = None
    #: Whether the caller sees changes in the arguments, and the arguments that were seen to change.
    in_place: bool = False
    mutated: tuple[str, ...] = ()
    #: Trees that it has in another form than its own text; see `renaming`.
    renaming: Any = None
    #: What it was before it was given more rows.
    of_fewer_rows: "Target | None" = None
    _found: dict[str, dict[Hashable, Any]] = field(default_factory=dict, init=False)

    def once(
        self,
        question: str,
        key: Hashable,
        answer: Callable[[], T],
        *,
        most: "int | None" = None,
        weigh: Callable[[T], int] = lambda _: 1,
    ) -> T:
        """What `answer` gives, asked for once for each `key`, which is all that it hangs on but the target.

        Args:
            question: its name.
            key: ``("config",)``, where the question is about some static arguments.
            answer: finds the answer; where it raises, it is asked again the next time.
            most: for how many keys, the latest, answers are kept: large ones are not gathered.
            weigh: how many each of them counts as.
        """
        known: dict[Hashable, T] = self._found.setdefault(question, {})
        if key not in known:
            known[key] = answer()
            left = math.inf if most is None else most
            for old in reversed([*known]):
                left -= weigh(known[old])
                if left < 0 and old != key:
                    del known[old]
        return known[key]

    def known(self, question: str) -> tuple[Any, ...]:
        """The answers to a question that have been found."""
        return tuple(self._found.get(question, {}).values())

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
        given = self.own(values)
        if not self.mutated:
            return arguments.invoke(fn, self.signature, given)
        result = arguments.invoke(fn, self.signature, given)
        return result, tuple(given[name] for name in self.mutated)

    def own(self, values: Values) -> Values:
        """`values` with containers of their own: it may take labels out of a batch, and run again.

        Inside a map over one device a variable of NNX belongs to the trace that it was made in, too.
        """
        return arguments.own(values, values)

    def values(self, overrides: Mapping[str, str], index: int = 0) -> Values:
        """Example inputs, with `overrides` (Python source by parameter) in place of static ones."""
        values = dict(self.data[index])
        for name, source in overrides.items():
            values[name] = eval(source, self.namespace())
        return values


_LATEST = [Target()]


def current() -> Target:
    """The target, as the last request that changed it has left it."""
    return _LATEST[0]


def become(target: Target) -> Target:
    """Have `target` be the one that requests are about from now on."""
    _LATEST[0] = target
    return target


def leaf_axes(roles: Roles) -> LeafAxes:
    """The batch axes of `roles`, with the rows that are made inside."""
    return MadeInside(roles.axes, roles.made) if roles.made else roles.axes
