"""Mapped functions: what a device has of an argument, and what all of them give back."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..jaxpr.versions import inner_jaxpr, opened, shard_map_specs
from .equation import DIVIDED_AGAIN, Value
from .interpreter import Interpreter, control
from .lattice import Blocks, Copies, OwnKey, OwnKeys, Replicated, Sharded, Unknown
from .terms import Shape


@control("shard_map")
def shard_map(walk: Interpreter, equations: Sequence[Any], operands: Sequence[Value]) -> list[Value]:
    """Into the mapped function with its specs, and out of it with those of its results."""
    inward, outward = shard_map_specs(equations[0].params)
    before = dict(walk.bound)
    walk.bound.update(dict(equations[0].params["mesh"].shape))
    manual = set(equations[0].params.get("newly_manual_axes", equations[0].params["mesh"].axis_names))
    if any(walk.bound[name] > 1 and name not in walk.axes for name in manual):
        walk.bound = before
        return walk.lost(equations[0], "it is mapped over devices itself")
    inside = [_enter(walk, value, spec, equations[0]) for value, spec in zip(operands, inward, strict=True)]
    out = walk.run([inner_jaxpr(e.params) for e in equations], inside)
    shapes = [[tuple(v.aval.shape) for v in opened(inner_jaxpr(e.params))[0].outvars] for e in equations]
    walk.bound = before
    mapped = manual & set(walk.axes)
    return [
        _leave(walk, value, spec, mapped, [s[i] for s in shapes], equations[0])
        for i, (value, spec) in enumerate(zip(out, outward, strict=True))
    ]


def _enter(walk: Interpreter, value: Value, spec: Mapping[str, int], equation: Any) -> Value:
    """A value as a device has it in a mapped function, by the axes that its spec divides."""
    if not _in_order(walk, spec):
        return walk.unknown("mesh axes divide one axis in another order than that of the mesh", equation)
    places, term = list(value.places), value.term
    for at, name in enumerate(walk.axes):
        place = places[at]
        if name not in spec:
            if isinstance(place, (Blocks, Copies, OwnKeys)):
                places[at] = Unknown(
                    "what is stacked for the devices is given whole to each", walk.path(equation)
                )
            continue
        axis = spec[name]
        if value.sliced and not isinstance(place, Unknown):
            places[at] = Unknown(DIVIDED_AGAIN, walk.path(equation))
        elif isinstance(place, Replicated):
            places[at] = Sharded(axis, place.power)
        elif isinstance(place, (Blocks, Copies, OwnKeys)) and place.axis == axis:
            shape = walk.terms[term].shape
            if shape is None:
                places[at] = Unknown("its size is not known", walk.path(equation))
                continue
            if isinstance(place, Blocks):
                places[at] = Sharded(axis + 1, place.power)
            else:
                places[at] = OwnKey() if isinstance(place, OwnKeys) else Replicated(place.power)
            size = (*shape[:axis], 1, *shape[axis:])
            term = walk.terms.apply("reshape", (), (term,), size, walk.terms[term].dtype)
        elif not isinstance(place, Unknown):
            places[at] = Unknown("a mapped function divides what is divided already", walk.path(equation))
    return Value(term, tuple(places), value.sliced, None if spec else value.numbers)


def _in_order(walk: Interpreter, spec: Mapping[str, int]) -> bool:
    """Whether mesh axes that divide one axis of an array do so in the order of the mesh."""
    rows = [(axis, list(walk.axes).index(name)) for name, axis in spec.items() if name in walk.axes]
    return all(
        one < other for i, (dim, one) in enumerate(rows) for axis, other in rows[i + 1 :] if axis == dim
    )


def _leave(
    walk: Interpreter,
    value: Value,
    spec: Mapping[str, int],
    mapped: set[str],
    shapes: Sequence[Shape],
    equation: Any,
) -> Value:
    """What a mapped function gives back, joined as its spec says."""
    if not _in_order(walk, spec):
        return walk.unknown("mesh axes divide one axis in another order than that of the mesh", equation)
    places, term = list(value.places), value.term
    for at, name in enumerate(walk.axes):
        place = places[at]
        if name not in mapped or isinstance(place, Unknown):
            continue
        if name not in spec:
            if not isinstance(place, Replicated):
                places[at] = Unknown(
                    "a result is taken from one device that is not the same, or not whole, on each",
                    walk.path(equation),
                )
            continue
        axis = spec[name]
        if isinstance(place, Sharded) and place.axis == axis and place.outer == 1:
            places[at] = Replicated(place.power)
            continue
        shape = walk.terms[term].shape
        stacked = shape is not None and axis < len(shape) and all(s[axis] == 1 for s in shapes)
        if stacked and isinstance(place, (Replicated, Sharded)) and getattr(place, "outer", 1) == 1:
            assert shape is not None
            if isinstance(place, Sharded) and place.axis == axis + 1:
                places[at] = Blocks(axis, place.power)
            elif isinstance(place, Replicated):
                places[at] = Copies(axis, place.power)
            else:
                places[at] = Unknown(
                    "results are stacked along an axis that is not that of the examples",
                    walk.path(equation),
                )
            size = (*shape[:axis], *shape[axis + 1 :])
            term = walk.terms.apply("reshape", (), (term,), size, walk.terms[term].dtype)
        else:
            places[at] = Unknown(
                "results of the devices are joined that are no shares of one", walk.path(equation)
            )
    return Value(term, tuple(places))


@control("xla_pmap")
def xla_pmap(walk: Interpreter, equations: Sequence[Any], operands: Sequence[Value]) -> list[Value]:
    """A pmap as it was before jax 0.8: the mapped axis is taken off, and put in."""
    params = equations[0].params
    name = params["axis_name"]
    if name not in walk.axes and params["axis_size"] > 1:
        return walk.lost(equations[0], "it is mapped over devices itself")
    before = dict(walk.bound)
    walk.bound[name] = params["axis_size"]
    inside = [
        _unstacked(walk, value, axis, name, equations[0])
        for value, axis in zip(operands, params["in_axes"], strict=True)
    ]
    out = walk.run([inner_jaxpr(e.params) for e in equations], inside)
    walk.bound = before
    return [
        _stacked(walk, value, axis, name, equations[0])
        for value, axis in zip(out, params["out_axes"], strict=True)
    ]


def _unstacked(walk: Interpreter, value: Value, axis: "int | None", name: str, equation: Any) -> Value:
    places = list(value.places)
    for at, own in enumerate(walk.axes):
        place = places[at]
        if own != name or isinstance(place, Unknown):
            continue
        if axis is None:
            if not isinstance(place, Replicated):
                places[at] = Unknown(
                    "what is stacked for the devices is given whole to each", walk.path(equation)
                )
        elif isinstance(place, Blocks) and place.axis == axis:
            places[at] = Sharded(axis, place.power)
        elif isinstance(place, Copies) and place.axis == axis:
            places[at] = Replicated(place.power)
        elif isinstance(place, OwnKeys) and place.axis == axis:
            places[at] = OwnKey()
        else:
            places[at] = Unknown(
                "a mapped function divides what is not stacked for the devices", walk.path(equation)
            )
    return Value(value.term, tuple(places))


def _stacked(walk: Interpreter, value: Value, axis: "int | None", name: str, equation: Any) -> Value:
    places = list(value.places)
    for at, own in enumerate(walk.axes):
        place = places[at]
        if own != name or isinstance(place, Unknown):
            continue
        if isinstance(place, Replicated):
            places[at] = place if axis is None else Copies(axis, place.power)
        elif isinstance(place, Sharded) and axis == place.axis and place.outer == 1:
            places[at] = Blocks(axis, place.power)
        else:
            places[at] = Unknown(
                "a result is taken from one device that is not the same, or not whole, on each",
                walk.path(equation),
            )
    return Value(value.term, tuple(places))
