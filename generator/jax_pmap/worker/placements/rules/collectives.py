"""Collectives: they move between placements."""

from collections.abc import Sequence
from typing import Any

from ...jaxpr.versions import named_axes
from ..equation import Equation, Result, Same, Stuck, rule
from ..lattice import (
    Blocks,
    Copies,
    Extreme,
    Index,
    Partial,
    Placement,
    Replicated,
    Sharded,
    Spread,
    scaled,
)
from .elementwise import describe, linear

#: Collectives that put parts in a row, or take them out of one.
ORDERED = frozenset({"all_gather", "reduce_scatter", "all_to_all"})


def elsewhere(eq: Equation) -> bool:
    """Whether a collective goes over other mesh axes than the one that is looked at."""
    if eq.params.get("axis_index_groups") is not None:
        raise Stuck("a collective over groups of devices has no rule")
    names = named_axes(eq.params)
    if eq.name in ORDERED and len(names) > 1:
        # Parts of parts lie in the order of the mesh's axes.
        places = [eq.mesh.index(name) for name in names if name in eq.mesh]
        if places != sorted(places) or not eq.params.get("tiled"):
            raise Stuck(
                "a collective over several mesh axes in another order than that of the mesh has no rule"
            )
    return eq.axis not in names


def alone(eq: Equation, x: Placement, axis: int) -> None:
    """Raise `Stuck` where two mesh axes divide one axis of an array: their order is not followed."""
    if len(named_axes(eq.params)) > 1:
        raise Stuck("a collective over several mesh axes that moves examples has no rule")
    others = list(eq.operands[0].places)
    others.remove(x)
    if eq.axis not in named_axes(eq.params):
        others = [x]
    if any(isinstance(place, Sharded) and place.axis == axis for place in others):
        raise Stuck("an axis that one mesh axis divides is divided by another")


@rule("psum")
def psum(eq: Equation, *places: Placement, **_: Any) -> Result:
    """A partial sum becomes whole; what is whole becomes N times too large."""
    if elsewhere(eq):
        return tuple(
            same(linear(eq, place)) if not isinstance(place, Extreme) else stuck(place) for place in places
        )
    found: list[Placement | Same] = []
    for i, place in enumerate(places):
        if isinstance(place, Partial):
            found.append(Same(Replicated(place.power), i))
        elif isinstance(place, Spread):
            found.append(Same(Sharded(place.axis, place.power), i))
        elif isinstance(place, Replicated):
            found.append(Same(Replicated(place.power - 1), i))
        elif isinstance(place, Sharded):
            raise Stuck("rows of different examples are summed over the devices")
        else:
            raise Stuck(describe(place))
    return tuple(found)


def same(result: Result) -> Placement:
    """The placement of a rule with one result."""
    assert not isinstance(result, tuple)
    return result.place if isinstance(result, Same) else result


def stuck(place: Placement) -> Any:
    """Raise `Stuck` for what cannot be used as if it were whole."""
    raise Stuck(describe(place))


@rule("pmax", "pmin")
def pmax(eq: Equation, *places: Placement, **_: Any) -> Result:
    """This device's maximum becomes that of all."""
    op = eq.name[1:]
    found: list[Placement | Same] = []
    for i, place in enumerate(places):
        if elsewhere(eq):
            if not isinstance(place, (Replicated, Sharded)):
                raise Stuck(describe(place))
            found.append(Same(place, i))
        elif isinstance(place, Extreme) and place.op == op:
            found.append(Same(Replicated(), i))
        elif isinstance(place, Replicated):
            found.append(Same(place, i))
        else:
            raise Stuck(f"the {op}imum over the devices is taken of what is no {op}imum on each")
    return tuple(found)


@rule("all_gather")
def all_gather(eq: Equation, x: Placement, *, all_gather_dimension: int, tiled: bool, **_: Any) -> Result:
    """What is sharded becomes whole; copies are stacked."""
    alone(eq, x, all_gather_dimension)
    if elsewhere(eq):
        # Where both axes divide one axis of the array, the order in which they do so would count.
        if (
            isinstance(x, (Replicated, Partial))
            or (isinstance(x, Sharded) and x.axis != all_gather_dimension)
        ) and tiled:
            return Same(x)
        raise Stuck("gathering over one mesh axis what is divided over another has no rule")
    if isinstance(x, Sharded) and x.outer == 1:
        if tiled and x.axis == all_gather_dimension:
            return Same(Replicated(x.power))
        if not tiled and x.axis == all_gather_dimension:
            return Same(Blocks(x.axis, x.power))
    if isinstance(x, Replicated) and not tiled:
        return Same(Copies(all_gather_dimension, x.power))
    raise Stuck("what is gathered is not divided over the devices along that axis")


@rule("reduce_scatter")
def reduce_scatter(eq: Equation, x: Placement, *, scatter_dimension: int, tiled: bool, **_: Any) -> Result:
    """A partial sum becomes this device's part of the whole sum."""
    alone(eq, x, scatter_dimension)
    if elsewhere(eq):
        if tiled and isinstance(x, (Replicated, Partial, Sharded)):
            return Same(x)
    elif tiled:
        if isinstance(x, Partial):
            return Same(Sharded(scatter_dimension, x.power))
        if isinstance(x, Replicated):
            return Same(Sharded(scatter_dimension, x.power - 1))
    raise Stuck("what is scattered is no part of a sum")


@rule("all_to_all")
def all_to_all(
    eq: Equation, x: Placement, *, split_axis: int, concat_axis: int, tiled: bool, **_: Any
) -> Result:
    """What is sharded along one axis becomes sharded along another."""
    alone(eq, x, split_axis)
    if not elsewhere(eq) and tiled and isinstance(x, Sharded) and x.outer == 1:
        if x.axis == concat_axis != split_axis:
            return Same(scaled(Sharded(split_axis), x.power))
    raise Stuck("what is exchanged is not divided over the devices along that axis")


@rule("axis_index")
def axis_index(eq: Equation, *, axis_name: Any, **_: Any) -> Result:
    """The device's index along a mesh axis; the same on all devices along the others."""
    names: Sequence[Any] = axis_name if isinstance(axis_name, tuple) else (axis_name,)
    if len(names) > 1:
        raise Stuck("an index over several mesh axes has no rule")
    return Index() if eq.axis in names else Replicated()


@rule("ppermute", "pgather", "ragged_all_to_all")
def permute(eq: Equation, *places: Placement, **_: Any) -> Result:
    """Values of another device: no relation is known."""
    raise Stuck("values of one device go to another")
