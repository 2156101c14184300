"""Where names lead in loaded modules: the objects that code reads and changes."""

import dis
import inspect
import itertools
import types
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from ..origins import is_users, is_users_object
from .files import Given
from .uses import ALL, LOCALS, Use

#: What has no method to call for anything but what it returns, or for a change of what is in it.
CONTAINERS = (dict, list, set, bytearray, deque, np.ndarray)
#: What has others in it, and no keys for them.
COLLECTIONS = (list, tuple, set, deque)
#: Parts of a container that are looked at: more are data, as a replay buffer's transitions.
MANY_PARTS = 1_000
#: What nothing can be changed in.
FIXED = (bool, int, float, complex, str, bytes, tuple, frozenset, types.FunctionType, type(None))
_NOTHING = object()
#: What each change of an attribute is to code that reads all of them.
ONE = "__dict__[…]"
#: What holds a value, by its id (a module's namespace, an object), and the name it has there; ``""`` for all
#: that is in an object.
Place = tuple[int, str]
#: In the place of that id: whichever module defines the function that a name of ``F.<locals>.name`` is in.
ANY_MODULE = 0


@dataclass(frozen=True)
class Spaces:
    """What names stand for, by file."""

    modules: dict[str, dict[str, Any]]
    #: What the target has from functions around, as ``F.<locals>.name``.
    enclosed: dict[str, dict[str, Any]]


def values_of(use: Use, spaces: Spaces) -> list[Any]:
    """What a global variable holds, and its attributes, as far as they are plain ones.

    So does a variable of a function around, where it is one of the target's.
    """
    path, values = use.scope.path, list[Any]()
    space = spaces.enclosed.get(path, {}) if use.is_free else spaces.modules[path]
    for name in (use.root, *use.attributes):
        if name not in space:
            break
        values.append(space[name])
        space = getattr(values[-1], "__dict__", {})
    return values


def places_of(use: Use, spaces: Spaces, objects: Sequence[Any]) -> list[Place]:
    """What a read comes by, or what a change changes; `objects` are those that locals may stand for."""
    space = spaces.modules[use.scope.path]
    if use.changes and use.attributes[-1:] == (ALL,):
        return [(_holder(value), name) for value in _owners(use, spaces, objects) for name in (ALL, ONE)]
    if not use.is_global:
        if not use.attributes:
            return []
        name = use.attributes[0]
        found = [value for value in objects if not use.is_own or _is_of(value, space, use)]
        if use.in_doubt:
            found = [
                each for each in found if isinstance(getattr(each, "__dict__", {}).get(name), CONTAINERS)
            ]
        if use.inside:
            found = [each for each in found if not _is_fixed(_followed(each, use.attributes))]
        places = [place for value in found for place in _on_the_way(value, use)]
        # What a property returns is found by no name.
        followed = found and all(_leads_on(value, use) for value in found if _has(value, name))
        return places if followed else [*places, *_of_unknown(use, objects)]
    values, names = values_of(use, spaces), (use.root, *use.attributes)
    holders = [id(space), *map(_holder, values)]
    named = [*zip(holders, names, strict=False)]
    content = [(id(values[-1]), "")] if values else []
    if not use.changes:
        below = (place for holder, name in named[1:] for place in _of_attribute(use, holder, name))
        return [*named[:1], *below, *content]
    if use.in_doubt and not (len(values) == len(names) and isinstance(values[-1], CONTAINERS)):
        return []
    if use.inside and use.is_free:
        return named
    if use.inside:
        return content if len(values) == len(names) and not _is_fixed(values[-1]) else []
    if len(named) < len(names):
        return _of_unknown(use, objects)
    return named if len(names) == 1 else _of_attribute(use, *named[-1])


def kept_parameters(function: types.FunctionType) -> set[str]:
    """The parameters to which a function gives no other value."""
    code = function.__code__
    stored = [each.argval for each in dis.get_instructions(code) if each.opname.startswith("STORE_")]
    names = {name for each in stored for name in (each if isinstance(each, tuple) else (each,))}
    return {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]} - names


def may_lead_to(value: Any, use: Use) -> bool:
    """Whether an object has what a function asks of a local of its own."""
    for name, is_method in use.scope.asked.get(use.root, ()):
        own = getattr(value, "__dict__", {}).get(name, _NOTHING)
        if not (_has(value, name) if own is _NOTHING else callable(own) or not is_method):
            return False
    return True


def _of_unknown(use: Use, objects: Sequence[Any]) -> list[Place]:
    """What a change ``a.b.rate = …`` changes where nothing that is known has a `b`: it may be any object."""
    if not use.changes or use.inside or len(use.attributes) < 2:
        return []
    name = use.attributes[-1]
    return [place for each in objects if _has(each, name) for place in _of_attribute(use, id(each), name)]


def _on_the_way(value: Any, use: Use) -> Iterator[Place]:
    """The places of the attributes of a use, the first of which is that of a value."""
    for name in use.attributes:
        if not _has(value, name):
            return
        if use.changes and not use.inside and name == use.attributes[-1] and _is_computed(value, name):
            return
        for holder in _lookup(value, name, use):
            yield from _of_attribute(use, id(holder), name)
        value = getattr(value, "__dict__", {}).get(name)


def _followed(value: Any, attributes: Iterable[str]) -> Any:
    """What plain attributes of a value lead to, or the property that one of them is."""
    for name in attributes:
        value = inspect.getattr_static(value, name, _NOTHING)
    return value


def _is_fixed(value: Any) -> bool:
    """Whether nothing can be changed in a value: ``x /= 2`` of a function that is given it makes another."""
    if isinstance(value, (tuple, frozenset)):
        return all(map(_is_fixed, value))
    return isinstance(value, (*FIXED, jax.Array))


def _leads_on(value: Any, use: Use) -> bool:
    """Whether the attributes of a use, but for the last, are plain ones of a value and of what they hold."""
    for name in use.attributes[:-1]:
        if name not in getattr(value, "__dict__", {}):
            return False
        value = vars(value)[name]
    return True


def objects_in(objects: Iterable[Any]) -> list[Any]:
    """The user's objects that some objects hold in attributes and containers, and what those hold."""
    found: list[Any] = []
    seen = {id(value) for value in objects}
    waiting = [*objects]
    while waiting:
        value = waiting.pop()
        parts = [*getattr(value, "__dict__", {}).values()]
        if isinstance(value, dict):
            parts += itertools.islice(value.values(), MANY_PARTS)
        elif isinstance(value, COLLECTIONS):
            parts += itertools.islice(value, MANY_PARTS)
        for each in parts:
            own = is_users_object(each)
            if id(each) not in seen and (own or isinstance(each, (dict, *COLLECTIONS))):
                seen.add(id(each))
                waiting.append(each)
                found += [each] if own else []
    return found


def _lookup(value: Any, name: str, use: Use) -> list[Any]:
    """What may hold an attribute of a value: itself, and where it is read, the classes that it has it of."""
    if use.changes or name in getattr(value, "__dict__", {}):
        return [value]
    classes = (value if isinstance(value, type) else type(value)).__mro__
    return [value, *(each for each in classes if name in vars(each))]


def _is_computed(value: Any, name: str) -> bool:
    """Whether an attribute cannot be set: a property without a setter, as the `value` of an enum's member."""
    found = inspect.getattr_static(type(value), name, None)
    return isinstance(found, (property, types.DynamicClassAttribute)) and found.fset is None


def _of_attribute(use: Use, holder: int, name: str) -> list[Place]:
    """The places of an attribute, those among them by which it is met where all attributes are meant."""
    if use.changes:
        return [(holder, name), (holder, ONE)]
    return [(holder, name), (holder, ONE if name == ALL else ALL)]


def _holder(value: Any) -> int:
    """The id of what has the attributes of a value: of a module, its namespace."""
    return id(vars(value) if isinstance(value, types.ModuleType) else value)


def _owners(use: Use, spaces: Spaces, objects: Sequence[Any]) -> list[Any]:
    """The objects of which a change of any attribute is one."""
    owner = replace(use, attributes=use.attributes[:-1])
    if owner.is_own:
        found = [value for value in objects if _is_of(value, spaces.modules[use.scope.path], use)]
        for name in owner.attributes:
            found = [vars(each)[name] for each in found if name in getattr(each, "__dict__", {})]
        return found
    if not (owner.is_global or owner.is_free):
        return []  # Where it is a parameter, what is given for it changes.
    values = values_of(owner, spaces)
    return values[-1:] if len(values) == 1 + len(owner.attributes) else []


class HandedOn:
    """What is given to functions and classes, by the name that it has there and by what it is."""

    def __init__(self, given: Iterable[Given], spaces: Spaces) -> None:
        self._spaces = spaces
        self._by_name: dict[tuple[str, str, str], list[Given]] = {}
        self._by_value: dict[int, list[Given]] = {}
        for each in given:
            self._by_name.setdefault((each.path, each.function, each.variable), []).append(each)
            value = spaces.modules[each.path].get(each.variable)
            if value is not None:
                self._by_value.setdefault(id(value), []).append(each)

    def of(self, change: Use) -> Iterable[Given]:
        """Where the value in which something changes is given to another function or class."""
        if not (change.inside or change.attributes):
            return ()  # They keep what the variable had.
        if not change.is_global or change.is_free:
            name = change.root.rpartition(LOCALS)[2]
            return self._by_name.get((change.scope.path, change.scope.function, name), ())
        # A global may have another name where it is given.
        values = values_of(change, self._spaces)[-1:] if change.inside else []
        changed = [value for value in values if not _is_fixed(value)]
        return [each for value in changed for each in self._by_value.get(id(value), ())]


def kept_elsewhere(change: Use, given: HandedOn, objects: Sequence[Any]) -> Iterator[Place]:
    """Where functions and objects keep what changes by a name that their makers were given."""
    for each in given.of(change):
        yield ANY_MODULE, f"{each.maker}{LOCALS}{each.parameter}"
        made = [value for value in objects if type(value).__name__ == each.maker]
        yield from ((id(value), name) for value in made for name in getattr(value, "__dict__", ()))


def _is_of(value: Any, space: dict[str, Any], use: Use) -> bool:
    own = space.get(use.scope.owner)
    of = value if isinstance(value, type) else type(value)
    if isinstance(own, type):
        return issubclass(of, own)
    # A function makes that class, or the program has not come to it yet.
    return any(each.__name__ == use.scope.owner for each in of.__mro__)


def _has(value: Any, name: str) -> bool:
    """Whether an object may have an attribute: it has it, or its class makes some when they are asked for.

    A local that has one which no object of the user's has is none of these: Flax's ``mean.value``. Nor has a
    class what its objects have each for itself, as fields of a named tuple.
    """
    found = inspect.getattr_static(value, name, _NOTHING)
    if found is not _NOTHING:
        return not (isinstance(value, type) and inspect.isdatadescriptor(found))
    makes = inspect.getattr_static(type(value), "__getattr__", None)
    return inspect.isfunction(makes) and is_users(makes.__code__.co_filename)
