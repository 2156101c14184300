"""Show a parallel program equal to its reference by the placements and the meanings of their results."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

from .. import protocol
from ..jaxpr.frames import frames
from ..jaxpr.versions import opened, primitive_name
from ..jaxpr.walk import equations, walk
from ..protocol import Ending, Multiple, Place, Shown
from .added import Added
from .equation import Condition, Value
from .interpreter import Apart, Interpreter
from .lattice import WHOLE, Replicated, Sharded, Unknown, shown
from .terms import Term, Terms

#: Why nothing is claimed of what says itself how it is divided.
DIVIDES_ITSELF = "it says itself how it is divided over devices, with code that jax runs when it compiles"


def mesh_axes(jaxprs: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """The mesh axes that programs map over, with the size of each in each program."""
    tables: list[dict[str, int]] = []
    for jaxpr in jaxprs:
        table: dict[str, int] = {}
        for equation in equations(jaxpr):
            name = primitive_name(equation)
            sizes = {}
            if name == "shard_map":
                sizes = dict(equation.params["mesh"].shape)
            elif name == "xla_pmap":
                sizes = {equation.params["axis_name"]: equation.params["axis_size"]}
            for axis, size in sizes.items():
                if table.setdefault(axis, size) != size:
                    raise Apart(
                        f"two meshes in it have an axis `{axis}`, of {table[axis]} and of {size} devices"
                    )
        tables.append(table)
    names = dict.fromkeys(name for table in tables for name in table)
    return {
        name: tuple(table.get(name, 1) for table in tables)
        for name in names
        if any(table.get(name, 1) > 1 for table in tables)
    }


def input_terms(terms: Terms, jaxpr: Any, names: Sequence[str]) -> list[Term]:
    """A term for each input of a program, by its name."""
    return [
        terms.make("input", (index, name), (), tuple(v.aval.shape), str(v.aval.dtype))
        for index, (name, v) in enumerate(zip(names, opened(jaxpr)[0].invars, strict=True))
    ]


def derive(reference: Any, parallel: Sequence[Any], names: Sequence[str]) -> Shown:
    """Hold a program, traced for several device counts, against its reference.

    Args:
        reference: the jaxpr of the reference on the whole batch.
        parallel: jaxprs of the parallel program as its caller calls it, for different counts of devices.
        names: what the inputs are called, for messages.

    Returns:
        Which results are equal for all inputs: of those the program holds, on every device, the whole value,
        and it has the meaning that the reference's result has.
    """
    return derivation_of(Terms(), [reference], parallel, names)


def derive_from_parallel(reference: Sequence[Any], parallel: Sequence[Any], names: Sequence[str]) -> Shown:
    """`derive` against a reference that is mapped over devices itself, traced for the same counts of them.

    Both are followed relative to the whole batch, each with its own mesh: where their results are whole on
    every device and have one meaning, they are equal. Numbers that every device draws with a key of its own
    are equal in distribution alone, so nothing is claimed of two functions that draw such.
    """
    own = next((path for jaxpr in (*reference, *parallel) if (path := divides_itself(jaxpr))), ())
    if own:
        return Shown(0, (ended(Apart(DIVIDES_ITSELF, own)),))
    try:
        mapped = [bool(mesh_axes(jaxprs)) for jaxprs in (reference, parallel)]
    except Apart as apart:
        return Shown(0, (Ending(0, str(apart)),))
    if all(mapped):
        found = derivation_of(Terms(), reference, parallel, names)
    elif mapped[0]:
        # The compiler has the meaning of the whole: it is a program of one device.
        every = [turned(derive(each, reference, names)) for each in parallel]
        found = next((each for each in every if not each.complete), every[0])
    else:
        every = [derive(each, parallel, names) for each in reference]
        found = next((each for each in every if not each.complete), every[0])
    if found.complete and found.draws:
        why = "numbers are drawn with keys of the devices' own, which is followed in distribution alone"
        return replace(found, endings=(Ending(0, why),))
    return found


def turned(found: Shown) -> Shown:
    """What was shown of two programs, with the sides of the terms exchanged."""
    return replace(
        found, endings=tuple(replace(each, terms=(each.terms[1], each.terms[0])) for each in found.endings)
    )


def divides_itself(jaxpr: Any) -> tuple[Any, ...]:
    """The first operation that says itself how the compiler is to divide it, and those around it; or none.

    What it is divided into is a function of its own, which is no part of the program: `custom_partitioning`.
    Where everything around is divided by hand, it is not asked for.
    """
    for rows in walk(jaxpr):
        path = tuple(row[0] for row in reversed(rows))
        if path[0].primitive.name == "custom_partitioning" and not any(map(_all_by_hand, path)):
            return path
    return ()


def _all_by_hand(equation: Any) -> bool:
    """Whether an equation maps a function over all axes of a mesh."""
    if primitive_name(equation) == "xla_pmap":
        return True
    if primitive_name(equation) != "shard_map":
        return False
    every = set(equation.params["mesh"].axis_names)
    by_hand = every - set(equation.params.get("auto", ()))  # Before jax 0.7.
    return every <= set(equation.params.get("newly_manual_axes", by_hand))


def derivation_of(
    terms: Terms, reference: Sequence[Any], parallel: Sequence[Any], names: Sequence[str]
) -> Shown:
    """What is shown of two programs, each in its traces: of a reference of one device there is one."""
    own = next((path for jaxpr in parallel if (path := divides_itself(jaxpr))), ())
    if own:
        return Shown(0, (ended(Apart(DIVIDES_ITSELF, own)),))
    given = input_terms(terms, reference[0], names)
    try:
        first = walker(terms, reference)
        wanted = first.run(reference, [first.replicated(term) for term in given])
    except Apart as apart:
        return Shown(0, (Ending(0, f"of the reference: {apart}"),))
    for index, value in enumerate(wanted):
        lost = compared(terms, index, value, value.term)
        if lost is not None:
            return Shown(first.operations, (replace(lost, why=f"of the reference: {lost.why}"),))
    try:
        walk = walker(terms, parallel)
    except Apart as apart:
        return Shown(0, (Ending(0, str(apart)),))
    if not walk.axes and len(parallel) > 1:
        # The compiler has the meaning of the whole: each trace is a program of one device by itself.
        every = [derivation_of(Terms(), reference, [each], names) for each in parallel]
        return replace(next((found for found in every if not found.complete), every[0]), axes=0)
    endings: Sequence[Ending] = ()
    for microbatches in (False, True):
        if microbatches and not (endings and walk.could_be_microbatches):
            break
        walk = walker(terms, parallel)
        walk.microbatches = microbatches
        try:
            found = walk.follow(parallel, [walk.replicated(term) for term in given])
        except Apart as apart:
            return Shown(walk.operations, (ended(apart),), unmet=multiples(walk.unmet))
        if len(found) != len(wanted):
            return Shown(walk.operations, (Ending(0, "it has another number of results"),))
        endings = [
            ending
            for index, (one, other) in enumerate(zip(found, wanted, strict=True))
            if (ending := compared(terms, index, one, other.term)) is not None
        ]
    return Shown(
        walk.operations,
        tuple(endings),
        first.own_draws or walk.own_draws,
        tuple(place for path in walk.repeated for place in places_of(path)[:1]),
        tuple(sorted({*first.measured, *walk.measured})),
        multiples({**first.conditions, **walk.conditions}),
        multiples({**first.unmet, **walk.unmet}),
        walk.minibatches,
        len(walk.axes),
    )


def counted(
    programs: Sequence[Any],
    counts: Sequence[int],
    names: Sequence[str],
    axes: "Sequence[int | None]",
    zeros: Collection[str],
) -> "Ending | None":
    """Where rows that are added to a batch are seen to count in a function; None where they do not count.

    Args:
        programs: the function traced for batches of some sizes.
        counts: how many times as large each of these is with the rows that are added.
        names: what its inputs are called.
        axes: along which axis of each input the batch lies; None of others.
        zeros: names of the inputs that are zero in added rows. In the others these repeat the last one.
    """
    terms = Terms()
    walk = Interpreter(terms, {"rows": tuple(counts)}, len(programs))
    given: list[Value] = []
    for name, axis, variable in zip(names, axes, opened(programs[0])[0].invars, strict=True):
        shape = list(variable.aval.shape)
        if axis is not None:
            shape[axis] *= counts[0]
        term = terms.make("input", (len(given), name), (), tuple(shape), str(variable.aval.dtype))
        given.append(Value(term, (WHOLE if axis is None else Sharded(axis),)))
    walk.added = Added(terms, [value.term for name, value in zip(names, given, strict=True) if name in zeros])
    try:
        found = walk.run(programs, given)
    except Apart as apart:
        return ended(apart)
    for index, value in enumerate(found):
        [place] = value.places
        if isinstance(place, Unknown):
            return ending_of(index, place)
        if not isinstance(place, (Replicated, Sharded)) or place.power:
            made = terms.made_by.get(value.term)
            why = f"rows that are added to the batch count in a result ({shown(place)})"
            return Ending(index, why, primitive_name(made[0]) if made else "", places_of(made))
    return None


def walker(terms: Terms, jaxprs: Sequence[Any]) -> Interpreter:
    """What walks through the traces of a program for several device counts.

    Raises:
        Apart: two meshes in it are not of one kind, or their sizes tell nothing.
    """
    walk = Interpreter(terms, mesh_axes(jaxprs), len(jaxprs))
    fixed = next((name for name, seen in walk.seen.items() if len(seen) < 2), None)
    if fixed is not None:
        raise Apart(f"the size of mesh axis `{fixed}` does not change by itself with the number of devices")
    return walk


def multiples(conditions: Iterable[Condition]) -> tuple[Multiple, ...]:
    """Conditions with their places in the source."""
    return tuple(
        Multiple(each.multiple, each.length, primitive_name(each.path[0]), places_of(each.path), each.axis)
        for each in conditions
    )


def same_meaning(one: Any, other: Any, names: Sequence[str]) -> bool:
    """Whether two programs of one device, closed jaxprs with the same inputs, mean the same."""
    terms = Terms()
    given = input_terms(terms, one, names)
    plain = Interpreter(terms, {}, 1)
    found = [plain.run([each], [plain.replicated(term) for term in given]) for each in (one, other)]
    return [value.term for value in found[0]] == [value.term for value in found[1]]


def compared(terms: Terms, index: int, value: Value, wanted: Term) -> "Ending | None":
    """Why a value is not shown to be `wanted`, whole on every device; None where it is."""
    lost = next((place for place in value.places if isinstance(place, Unknown)), None)
    if lost is not None:
        return ending_of(index, lost)
    apart = next((place for place in value.places if place != WHOLE), None)
    if apart is not None:
        return Ending(index, f"what comes out is not whole on every device ({shown(apart)})", "", ())
    if value.term == wanted:
        return None
    one, other = terms.parting(value.term, wanted)
    made = terms.made_by.get(one, terms.made_by.get(other))
    name = primitive_name(made[0]) if made else ""
    places = places_of(made)
    texts = terms.text(one), terms.text(other)
    return Ending(
        index, "it computes something else, or the same in a way that is not recognised", name, places, texts
    )


def ended(apart: Apart) -> Ending:
    """An ending of all results of a program."""
    name = primitive_name(apart.path[0]) if apart.path else ""
    return Ending(0, str(apart), name, places_of(apart.path))


def ending_of(index: int, lost: Unknown) -> Ending:
    """An ending at the equation where the relation was lost."""
    if not lost.equations:
        return Ending(index, lost.reason)
    return Ending(index, lost.reason, primitive_name(lost.equations[0]), places_of(lost.equations))


def places_of(equations: "Sequence[Any] | None") -> tuple[Place, ...]:
    """The user's expressions that led to the first of some equations, the innermost of them."""
    return tuple(place for equation in equations or () for place in frames(equation))[:8]


def describe(found: Shown, **more: Any) -> protocol.Derivation:
    """A derivation as it is answered, with what `more` there is to say."""
    return protocol.Derivation(**{each.name: getattr(found, each.name) for each in fields(found)}, **more)
