"""What `flow` knows of a value in a mapped function: what it is made of, not what it is."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from jax_pmap.checking.module import Module
from jax_pmap.worker.scopes import Function

_NONE: frozenset[str] = frozenset()


@dataclass(eq=False, slots=True)
class Gradient:
    """One gradient that is taken, and what becomes of it."""

    #: The call that takes it.
    call: ast.Call
    #: Which element it is of the pair that the call returns; None where it is all of it.
    index: int | None = None
    #: Arguments, split over the devices, that its loss is computed from.
    shares: frozenset[str] = _NONE
    #: Arguments of the mapped function, the same on all devices, that it is taken of as they are.
    of: frozenset[str] = _NONE
    #: The value of the loss; None where its function is not one of this module.
    loss: Array | None = None
    #: Whether no collective was called in the loss.
    local: bool = False
    #: Names of the collectives that took it, or what was made of it.
    synced: set[str] = field(default_factory=set)
    #: Where it was used to change parameters: calls, and subtractions.
    updates: list[ast.expr] = field(default_factory=list)
    #: Whether it was divided, perhaps by the number of devices.
    divided: bool = False
    #: Whether it went to a function that cannot be read.
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Array:
    """An array, a tree of arrays, or anything else that is no function."""

    #: Arguments of the mapped function, split over the devices, that it is computed from.
    shares: frozenset[str] = _NONE
    #: Arguments, split over the devices, whose shape it is computed from.
    shapes: frozenset[str] = _NONE
    #: Arguments that are the same on all devices and that it is, or is a part of.
    whole: frozenset[str] = _NONE
    #: The key that it is or was split from, where that is the same on all devices.
    key: str = ""
    #: The name of the mask it is.
    mask: str = ""
    #: Masks that it was multiplied with.
    masked: frozenset[str] = _NONE
    #: Whether it is the sum of all elements of something.
    total: bool = False
    #: The division that makes it the mean of this share under a mask.
    ratio: ast.expr | None = None
    #: The `psum` or `pmean` whose result it is.
    reduced: ast.Call | None = None
    #: Whether the number of devices is in it.
    counted: bool = False
    #: Gradients it holds.
    gradients: frozenset[Gradient] = frozenset()
    #: Whether it is such a gradient itself, or a part of it.
    is_gradient: bool = False
    #: Whether a function of another module made it, which may have reduced it over the devices.
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal."""

    value: object


@dataclass(frozen=True, slots=True)
class Items:
    """A tuple or list, element by element."""

    items: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Same:
    """A sequence of unknown length whose elements are alike."""

    element: Value


@dataclass(frozen=True, slots=True)
class Fields:
    """A dictionary with literal keys."""

    items: tuple[tuple[object, Value], ...]


@dataclass(slots=True)
class Environment:
    """Names of a function that is running."""

    names: dict[str, Value]
    outer: Environment | None = None

    def get(self, name: str) -> Value | None:
        """The value of `name` here or around."""
        if name in self.names:
            return self.names[name]
        return self.outer.get(name) if self.outer is not None else None


@dataclass(frozen=True, eq=False, slots=True)
class Closure:
    """A function of this module, where it was defined."""

    node: Function
    environment: Environment | None = None
    #: Leading arguments that are bound and not known, such as `self`.
    bound: int = 0


@dataclass(frozen=True, slots=True)
class Named:
    """Something of another module."""

    name: str


@dataclass(frozen=True, eq=False, slots=True)
class Partial:
    """A function with arguments collected."""

    function: Value
    args: tuple[Value, ...]
    keywords: dict[str, Value]


@dataclass(frozen=True, eq=False, slots=True)
class GradientOf:
    """``jax.grad(function)`` and its kin."""

    function: Value
    with_value: bool
    has_aux: bool
    #: Positions it differentiates by, None where they are computed.
    argnums: tuple[int, ...] | None
    is_tuple: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Batched:
    """``jax.vmap(function)``: what it sums, it sums for each example."""

    function: Value


@dataclass(frozen=True, eq=False, slots=True)
class Method:
    """A method of a value that is no function of this module: ``x.sum``."""

    owner: Value
    name: str


@dataclass(frozen=True, eq=False, slots=True)
class Either:
    """One of several functions."""

    functions: tuple[Value, ...]


Value: TypeAlias = (
    "Array | Constant | Items | Same | Fields "
    "| Closure | Named | Partial | GradientOf | Batched | Method | Either"
)
UNKNOWN = Array()


@dataclass(frozen=True, slots=True)
class Reduction:
    """A `psum` or `pmean`, or another collective, with what it was given."""

    call: ast.Call
    #: ``"pmean"``.
    name: str
    #: The literal it is called with, None where that cannot be told.
    axis: object
    value: Value


@dataclass(frozen=True, slots=True)
class Draw:
    """Numbers of the shape of a device's share that are drawn from a key which all devices have."""

    call: ast.Call
    key: str


@dataclass(slots=True)
class Events:
    """What happens when a mapped function runs, in the order of its calls."""

    gradients: list[Gradient] = field(default_factory=list)
    reductions: list[Reduction] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    #: What it returns.
    result: Value = UNKNOWN


class Evaluation(Protocol):
    """An evaluation of a mapped function that is under way."""

    #: The axis that it is mapped over; None where that is not known, or is one of several.
    axis: str | None
    events: Events

    def call(
        self, function: Value, args: tuple[Value, ...], keywords: dict[str, Value], node: ast.Call
    ) -> Value:
        """The result of `function`, called at `node`."""


def name_of(module: Module, made: Gradient) -> str | None:
    """The name that a gradient is given where it is taken; None where it is given none."""
    statement = module.parents.get(made.call)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    if made.index is not None:
        if not isinstance(target, ast.Tuple) or len(target.elts) != 2:
            return None
        target = target.elts[made.index]
    return target.id if isinstance(target, ast.Name) else None


def leaves(value: Value) -> Iterator[Array]:
    """The arrays in a value, those that a partial has collected among them."""
    if isinstance(value, Array):
        yield value
    elif isinstance(value, Items):
        for each in value.items:
            yield from leaves(each)
    elif isinstance(value, Same):
        yield from leaves(value.element)
    elif isinstance(value, Fields):
        for _, each in value.items:
            yield from leaves(each)
    elif isinstance(value, Partial):
        for each in (*value.args, *value.keywords.values()):
            yield from leaves(each)
    elif isinstance(value, Method):
        yield from leaves(value.owner)


def mixed(values: Iterable[Value]) -> Array:
    """What is computed from `values` by an operation that nothing more is known of."""
    arrays = [array for value in values for array in leaves(value)]
    return Array(
        shares=frozenset().union(*(array.shares for array in arrays)),
        shapes=frozenset().union(*(array.shapes for array in arrays)),
        masked=frozenset().union(*(array.masked for array in arrays)),
        counted=any(array.counted for array in arrays),
        gradients=frozenset().union(*(array.gradients for array in arrays)),
    )


def joined(first: Value, second: Value) -> Value:
    """What holds of a value that is one of the two."""
    if first is second or first == second:
        return first
    if isinstance(first, Items) and isinstance(second, Items) and len(first.items) == len(second.items):
        return Items(tuple(joined(a, b) for a, b in zip(first.items, second.items, strict=True)))
    if _is_function(first) and _is_function(second):
        return Either((first, second))
    if isinstance(first, Array) and isinstance(second, Array):
        return replace(
            mixed((first, second)),
            whole=first.whole if first.whole == second.whole else _NONE,
            key=first.key if first.key == second.key else "",
            mask=first.mask if first.mask == second.mask else "",
            total=first.total and second.total,
            ratio=first.ratio if first.ratio is second.ratio else None,
            reduced=first.reduced if first.reduced is second.reduced else None,
            is_gradient=first.is_gradient and second.is_gradient,
        )
    return mixed((first, second))


def _is_function(value: Value) -> bool:
    return isinstance(value, Closure | Partial | GradientOf | Batched | Either)


def stacked(value: Value) -> Value:
    """What a function gives for one example, for all of them."""
    if isinstance(value, Array):
        return replace(value, total=False, ratio=None, reduced=None, is_gradient=False)
    if isinstance(value, Items):
        return Items(tuple(stacked(each) for each in value.items))
    if isinstance(value, Same):
        return Same(stacked(value.element))
    if isinstance(value, Fields):
        return Fields(tuple((key, stacked(each)) for key, each in value.items))
    return value


def part(value: Value, key: object) -> Value:
    """``value[key]``, with a literal key; without one (UNKNOWN), any part."""
    if isinstance(value, Items) and isinstance(key, int) and -len(value.items) <= key < len(value.items):
        return value.items[key]
    if isinstance(value, Fields):
        for name, item in value.items:
            if name == key:
                return item
    if isinstance(value, Same):
        return value.element
    if isinstance(value, Array):
        return replace(value, total=False, ratio=None, reduced=None)
    return mixed((value,))


def unpacked(value: Value, count: int) -> list[Value]:
    """The `count` parts that ``a, b = value`` gives names to."""
    if isinstance(value, Items) and len(value.items) == count:
        return list(value.items)
    return [part(value, index) for index in range(count)]
