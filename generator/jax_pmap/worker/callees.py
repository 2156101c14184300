"""What calls run that no name in the source leads to: functions that values hold, methods of objects."""

import dataclasses
import dis
import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from . import prove
from .arguments import Packed, invoke
from .around import furnish
from .functions import codes, enclosed, guarded, in_place_of, located, named, of_equinox, of_member, unwrapped
from .observe import RECORDER
from .origins import is_users, is_users_object
from .protocol import AXIS_ARGUMENTS, Callee, FindCallees, encode
from .target import ANSWERS, current

#: The attribute of a function by which it is known where it stands in the tapped source.
SCOPE = "__jax_pmap_scope__"

#: What jax calls the functions that compute derivatives of one that they are given.
DERIVATIVES = frozenset({"grad_f", "grad_f_aux", "value_and_grad_f"})
#: Methods that set attributes of an object as it is made.
MAKING = frozenset({"__init__", "__new__", "__post_init__", "__setattr__", "__delattr__", "__setstate__"})


class Callees:
    """What tapped code calls in place of the recorder, to say what is called."""

    def __init__(self) -> None:
        #: By the number that an expression was asked under, what it stood for, each thing once.
        self.found: dict[int, list[Callee]] = {}

    def known(self, scope: int, function: Any) -> Any:
        """Have a function be known by its scope in the source."""
        raw = unwrapped(function)[0]
        if raw is not None:
            setattr(raw, SCOPE, scope)
        return function

    def guarded(self, _: int, owner: type, name: str, copy: Any) -> Callable[..., Any]:
        """The copy of a method, that of its class for objects of others."""
        return guarded(copy, owner, name, lambda receiver: getattr(receiver, name))

    def in_place_of(self, _: int, given: Any, module: str, name: str, copy: Any) -> Any:
        """The copy of a function of a module that a value holds, or the value where it holds another."""
        return in_place_of(given, named(module, name), copy) or given

    def callee(self, number: int, value: Any) -> Any:
        """Note what `value` runs, and hand it on."""
        found = object_called(value) or described(value)
        self._note(number, dataclasses.replace(found, kept=attributes_kept(value)), value)
        return value

    def method(self, number: int, head: Any, name: str) -> Any:
        """Note what ``head.name`` runs, and hand it on."""
        value = getattr(head, name)
        found = method_of(head, name, value) or object_called(value) or described(value)
        self._note(number, dataclasses.replace(found, kept=attributes_kept(head)), value)
        return value

    def _note(self, number: int, found: Callee, value: Any) -> None:
        seen = self.found.setdefault(number, [])
        found = dataclasses.replace(found, axis=axis_of(value))
        if found not in seen:
            seen.append(found)


def axis_of(value: Any) -> str:
    """The parameter under which a function of a library takes the name of a mapped axis, or ``""``.

    What binds an axis, as ``vmap`` does, has one too; jax's own synchronise over no axis unasked.
    """
    if (getattr(value, "__module__", None) or "jax").partition(".")[0] in ("jax", "jaxlib"):
        return ""
    try:
        parameters = inspect.signature(value).parameters
    except (TypeError, ValueError):
        return ""
    optional = (name for name in AXIS_ARGUMENTS if name in parameters and parameters[name].default is None)
    return "" if "in_axes" in parameters else next(optional, "")


def attributes_kept(value: Any) -> tuple[str, ...] | None:
    """The attributes of an object of a library that none of its methods sets; None of any other value."""
    if isinstance(value, types.FunctionType):
        return None if is_users(value.__code__.co_filename) else ()
    if isinstance(value, types.ModuleType | type) or is_users_object(value):
        return None
    for each in type(value).__mro__[:-1]:
        for name, member in vars(each).items():
            raw = of_member(member)
            if raw is not None and name not in MAKING and any(map(_sets, codes(raw.__code__))):
                return None
    return tuple(getattr(value, "__dict__", ()))


@functools.cache
def _sets(code: types.CodeType) -> bool:
    """Whether code sets, or deletes, an attribute of anything: methods are called often, and read once."""
    changes = {"STORE_ATTR", "DELETE_ATTR"}
    return not {"setattr", "__setattr__"}.isdisjoint(code.co_names) or any(
        each.opname in changes for each in dis.get_instructions(code)
    )


def described(value: Any) -> Callee:
    """What a function is and where it stands."""
    raw, args, kwargs = unwrapped(value)
    if raw is None:
        of = differentiated(value)
        if of is not None:
            return dataclasses.replace(located("function", of), scope=vars(of).get(SCOPE))
        inner = getattr(value, "__wrapped__", None)
        path = getattr(getattr(inner, "__code__", None), "co_filename", "")
        return Callee("other", type(value).__name__, getattr(inner, "__qualname__", ""), path)
    owner, found = (named(raw.__module__, n) for n in (raw.__qualname__.rpartition(".")[0], raw.__qualname__))
    return dataclasses.replace(
        located("function", raw),
        scope=vars(raw).get(SCOPE),
        as_written=isinstance(owner, type) and _is_as_defined(owner, raw.__name__),
        named=not args and not kwargs and found is value,
        importable=innermost(found) is innermost(value),
        bound=bool(args or kwargs),
        alone=inspect.unwrap(value) is raw,
    )


def differentiated(value: Any) -> types.FunctionType | None:
    """The plain function that `jax.grad` or `jax.value_and_grad` made a value of; None for anything else."""
    if not isinstance(value, types.FunctionType) or not hasattr(value, "__wrapped__"):
        return None
    # What shortens tracebacks is around it, and says that it wraps what was differentiated.
    computes = any(
        isinstance(each, types.FunctionType)
        and each.__code__.co_name in DERIVATIVES
        and Path(each.__code__.co_filename).parts[-3:] == ("jax", "_src", "api.py")
        for each in (value, *enclosed(value).values())
    )
    return unwrapped(value.__wrapped__)[0] if computes else None


def innermost(value: Any) -> Any:
    """What `value` binds arguments or an object to, where it does nothing else."""
    while isinstance(value, functools.partial | types.MethodType) or of_equinox(value, "BoundMethod"):
        value = value.func if isinstance(value, functools.partial) else value.__func__
    return value


def object_called(value: Any) -> Callee | None:
    """What ``value(…)`` runs where that is `__call__` of a class of the user's; None for anything else.

    Python looks it up in the class, so that an object has no other one.
    """
    if not callable(value) or isinstance(value, type | types.FunctionType | types.MethodType):
        return None
    found = method_of(value, "__call__", value.__call__)
    return dataclasses.replace(found, frozen=True) if found is not None and is_users(found.path) else None


def method_of(head: Any, name: str, value: Any) -> Callee | None:
    """What method of its class ``head.name`` is; None for anything else that an object has by that name."""
    raw, args, kwargs = unwrapped(value)
    own = type(head)
    if raw is None or kwargs or len(args) != 1 or args[0] is not head or isinstance(head, type):
        return None
    for each in own.__mro__:
        if name in vars(each):
            defining = each
            break
    else:
        return None
    if unwrapped(getattr(defining, name, None))[0] is not raw:
        return None  # An object may have another one than its class.
    parameters = getattr(own, "__dataclass_params__", None)
    return dataclasses.replace(
        located("method", raw),
        scope=vars(raw).get(SCOPE),
        type=own.__qualname__,
        owner=defining.__qualname__,
        frozen=isinstance(head, tuple) or bool(parameters and parameters.frozen),
        as_written=name not in getattr(head, "__dict__", ()) and _is_as_defined(defining, name),
        module=defining.__module__,
        named=named(defining.__module__, defining.__qualname__) is defining,
    )


def _is_as_defined(owner: type, name: str) -> bool:
    """Whether what a class has by a name is a function that its text defines by that, at most compiled."""
    function = inspect.getattr_static(owner, name, None)
    if type(function).__name__ == "PjitFunction":
        function = function.__wrapped__
    return (
        isinstance(function, types.FunctionType)
        and function.__module__ == owner.__module__
        and function.__qualname__ == f"{owner.__qualname__}.{name}"
        and function.__code__.co_name == name
    )


def find_callees(request: FindCallees) -> Mapping[int, tuple[Callee, ...]]:
    """Trace the target on the whole batch, its callees tapped, and describe them.

    One that is never reached is not among them. Each assignment of roles that is tried asks the same.
    """
    return current().once("callees", encode(request), lambda: _found(request), most=ANSWERS)


def _found(request: FindCallees) -> Mapping[int, tuple[Callee, ...]]:
    target = current()
    packed = Packed(target.values(request.overrides), request.statics)
    taps = Callees()
    scope = {**target.namespace(), RECORDER: taps}
    furnished = furnish(scope, request.tapped.around, {RECORDER: taps})
    fn: Callable[..., Any] = furnished(
        target.define(request.tapped.code, "<jax-pmap>", request.tapped.name, scope)
    )

    def run(leaves: Sequence[Any]) -> list[Any]:
        def body() -> list[Any]:
            invoke(fn, target.signature, packed.unpack(leaves))
            return []

        return list(target.one_device.run(body))

    with prove.x64(target.x64):
        jax.make_jaxpr(run)(packed.leaves)
    return {number: tuple(found) for number, found in sorted(taps.found.items())}
