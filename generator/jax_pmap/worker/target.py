"""The target in the worker: the user's function as written, its example inputs, what is known of it."""

import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax

from . import arguments, load, placed, prove, proving, strengthen
from .arguments import LeafAxes, Packed, Values
from .call import Call
from .leaves import dtype_of, shape_of
from .one_device import OneDevice
from .server import Answer


class Target:
    """The user's module, the function as written less its compiling decorators, and its example inputs."""

    def __init__(self) -> None:
        self.module: types.ModuleType = types.ModuleType("none")
        #: The call of it that a run of the user's program came to, when there was one.
        self.call: Call | None = None
        self.fn: Callable[..., Any] = lambda: None
        self.signature = inspect.signature(self.fn)
        #: Whether collectives stand in its own text.
        self.collectives = False
        self.one_device = OneDevice()
        #: Arguments that the object asked for has bound: by position, and by name.
        self.bound_args: tuple[Any, ...] = ()
        self.bound_kwargs: Values = {}
        self.x64 = False
        #: Argument values by parameter name, one dict for each set of inputs.
        self.data: list[Values] = []
        #: Parameters that the inputs pass by name.
        self.named: tuple[str, ...] = ()
        #: The tapped original with the meanings of its values, of the last question.
        self.placed: dict[str, placed.Whole] = {}
        self.eps: dict[str, float] = {}
        #: Whether it is known if the function runs in float64.
        self.widened = False
        #: The same by output.
        self.rounding: dict[str, prove.Rounding] = {}
        #: Whether the function draws random numbers.
        self.draws = False
        #: Runs of the reference that the last proof used.
        self.trials: dict[str, proving.Trials] = {}
        #: The reference compiled, and inputs on which its decisions go other ways, by roles and overrides.
        self.jitted: dict[str, Callable[[Values], Any]] = {}
        self.found: dict[str, strengthen.Found] = {}
        #: Whether the caller sees changes in the arguments, and the arguments that were seen to change.
        self.in_place = False
        self.mutated: tuple[str, ...] = ()

    def namespace(self) -> dict[str, Any]:
        """A new namespace in which the target's code means what it means where the user wrote it.

        That of the module, and of a captured function also what the functions around it hold.
        """
        return dict(vars(self.module)) if self.call is None else self.call.namespace()

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
        if not self.mutated:
            return arguments.invoke(fn, self.signature, values)
        given = {
            name: arguments.fresh(value) if name in self.mutated else value for name, value in values.items()
        }
        result = arguments.invoke(fn, self.signature, given)
        return result, tuple(given[name] for name in self.mutated)

    def compiled(self, statics: Sequence[str]) -> Callable[[Values], Any]:
        """`reference`, compiled once for each shape of its values."""
        cache: dict[Any, Any] = {}

        def run(values: Values) -> Any:
            packed = Packed(values, statics)
            shapes = tuple((shape_of(x), dtype_of(x)) for x in packed.leaves)
            key = packed.key, shapes, bool(jax.config.jax_enable_x64)
            if key not in cache:
                made: list[Callable[[Sequence[Any]], Any]] = []

                def body(leaves: Sequence[Any]) -> list[Any]:
                    arrays, again = arguments.held_apart(self.reference(packed.unpack(leaves)))
                    made.append(again)
                    return arrays

                cache[key] = jax.jit(body), made
            compiled, made = cache[key]
            arrays = compiled(packed.leaves)
            return made[-1](arrays)

        return run

    def values(self, overrides: dict[str, str], index: int = 0) -> Values:
        """Example inputs, with `overrides` (Python source by parameter) in place of static ones."""
        values = dict(self.data[index])
        for name, source in overrides.items():
            values[name] = eval(source, self.namespace())
        return values


TARGET = Target()


def leaf_axes(request: Answer) -> LeafAxes:
    """``{"batch": {"0": 0}}`` as JSON has it, with int keys."""
    return {
        name: {int(i): axis for i, axis in leaves.items()} for name, leaves in request.get("axes", {}).items()
    }
