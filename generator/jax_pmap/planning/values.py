"""What static planning knows of a value: its kind across devices, and the structure the source shows."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from jax_pmap.reading.calls import GradientOf

Kind: TypeAlias = Literal["replicated", "sharded", "partial", "varying"]
#: ``"array"``: surely an array. ``"size"``: one device's number of examples. ``"shape"``: a shape tuple.
Form: TypeAlias = Literal["any", "array", "size", "shape", "key"]


@dataclass(frozen=True, slots=True)
class Value:
    """One value in the body. Shapes and dtypes are unknown: nothing is run."""

    kind: Kind = "replicated"
    #: Batch axis of a sharded value; -1 is the last one, as after ``x.T``.
    axis: int = 0
    #: The collective that makes a partial value whole.
    op: str = ""
    form: Form = "any"
    #: Elements of a tuple, list or dict the source spells out; keys are Python source.
    items: tuple[Value, ...] | None = None
    keys: tuple[str, ...] = ()
    #: A function of the file, with the names around it.
    function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | None = None
    around: dict[str, Value] = field(default_factory=dict, compare=False)
    gradient: GradientOf | None = field(default=None, compare=False)

    @property
    def is_size(self) -> bool:
        """Whether this is one device's number of examples."""
        return self.form == "size"


REPLICATED = Value()
ARRAY = Value(form="array")
SIZE = Value("partial", op="psum", form="size")
VARYING = Value("varying")


def sharded(axis: int = 0) -> Value:
    """An array split along `axis`."""
    return Value("sharded", axis, form="array")


def partial(op: str) -> Value:
    """An array that `op` over the devices makes whole."""
    return Value("partial", op=op, form="array")


def flat(value: Value) -> list[Value]:
    """The value's leaves: itself, or those of its items."""
    if value.items is None:
        return [value]
    return [leaf for item in value.items for leaf in flat(item)]


def join(values: Sequence[Value]) -> Value:
    """One value that stands for any of `values`: of branches, of elements of a container."""
    distinct = list(dict.fromkeys(leafless(value) for value in values))
    if not distinct:
        return REPLICATED
    first = values[0]
    if first.items is not None and all(
        value.items is not None and len(value.items) == len(first.items) and value.keys == first.keys
        for value in values
    ):
        columns = zip(*(value.items or () for value in values), strict=True)
        return replace(first, items=tuple(join(column) for column in columns))
    leaves = list(dict.fromkeys(leafless(leaf) for value in values for leaf in flat(value)))
    kinds = {(leaf.kind, leaf.axis, leaf.op) for leaf in leaves}
    kinds.discard(("replicated", 0, ""))
    if not kinds:
        return REPLICATED
    if len(kinds) > 1:
        return VARYING
    found = next(leaf for leaf in leaves if leaf.kind != "replicated")
    # A partial sum beside a replicated value: psum would multiply the latter.
    if found.kind == "partial" and found.op == "psum" and any(leaf.kind == "replicated" for leaf in leaves):
        return VARYING
    return found


def leafless(value: Value) -> Value:
    """The value without what must not decide equality of kinds."""
    return replace(value, function=None, around={}, gradient=None)
