"""The placements of the values of a parallel program, by the expressions that make them."""

import contextlib
import math
from collections.abc import Sequence
from typing import Any

from .jaxpr.frames import frames
from .jaxpr.trace import Traced
from .jaxpr.versions import named_axes, primitive_name
from .placements.derive import input_terms, walker
from .placements.interpreter import COLLECTIVES, Apart
from .placements.lattice import Copies, Extreme, Partial, Placement, Positions, Replicated, Sharded, Unknown
from .placements.terms import Terms
from .protocol import ListedCollective, ListedPart, ListedValue, Listing, Place


def listing(programs: Sequence[Traced], names: Sequence[str]) -> Listing:
    """What a program computes in each of its expressions, and its collectives.

    Args:
        programs: the program, traced on several numbers of devices.
        names: what its inputs are called.

    Returns:
        Nothing of a program that is divided by the compiler: to its mind each device has the whole.
    """
    jaxprs = [program.jaxpr for program in programs]
    terms = Terms()
    try:
        walk = walker(terms, jaxprs)
    except Apart:
        return Listing()
    if not walk.axes:
        return Listing()
    walk.listed = []
    # Where it ends early, what comes before is shown.
    with contextlib.suppress(Apart):
        walk.run(jaxprs, [walk.replicated(term) for term in input_terms(terms, jaxprs[0], names)])
    values: dict[tuple[Place, ...], tuple[str, dict[ListedPart, None]]] = {}
    collectives: list[ListedCollective] = []
    for path, operands, results in walk.listed:
        equation, name = path[0], primitive_name(path[0])
        places = tuple(frames(equation))
        if not places:
            continue
        differentiating = any("transpose(" in str(each.source_info.name_stack) for each in path)
        if name in COLLECTIVES and name != "axis_index":
            given = tuple(dict.fromkeys(kind_of(operand.places) for operand in operands))
            axes = tuple(str(axis) for axis in named_axes(equation.params))
            size = sum(map(_bytes, equation.outvars))
            collectives.append(ListedCollective(name, places, axes, given, size, differentiating))
        if not differentiating:
            parts = [
                ListedPart(kind_of(value.places), terms[value.term].shape, str(getattr(v.aval, "dtype", "")))
                for value, v in zip(results, equation.outvars, strict=True)
            ]
            # The last operation of an expression makes its value: of a tree, one for each leaf.
            last, known = values.get(places, ("", {}))
            values[places] = name, {**(known if last == name else {}), **dict.fromkeys(parts)}
    found = (ListedValue(places, tuple(parts)) for places, (_, parts) in values.items())
    return Listing(tuple(found), tuple(collectives))


def _bytes(variable: Any) -> int:
    size: int = math.prod(variable.aval.shape) * variable.aval.dtype.itemsize
    return size


def kind_of(places: Sequence[Placement]) -> str:
    """The kind of a value as `model.Part` has it; along several axes that of the first it is not whole on."""
    kinds = [_kind(place) for place in places]
    return next((kind for kind in kinds if kind != "replicated"), "replicated")


def _kind(place: Placement) -> str:
    power = getattr(place, "power", 0)
    if isinstance(place, Unknown):
        return "unknown"
    if isinstance(place, (Replicated, Copies)):
        return "scaled" if power else "replicated"
    if isinstance(place, (Sharded, Positions)):
        return f"sharded {place.axis}"
    if isinstance(place, Extreme):
        return f"p{place.op}"
    if isinstance(place, Partial):
        return "psum" if power == 0 else "pmean" if power == -1 else "varying"
    return "varying"
