"""Say what each value of a tapped function is, whole and on shards, by its placement and its meaning."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from . import kinds
from .arguments import LeafAxes, Packed, Values
from .jaxpr.trace import leaf_names
from .observe import split_axis
from .placements.derive import input_terms, places_of
from .placements.equation import Value
from .placements.interpreter import Interpreter
from .placements.lattice import (
    Extreme,
    OwnKey,
    Partial,
    Replicated,
    Sharded,
    Unknown,
)
from .placements.terms import Terms

Event = dict[str, Any]


class Unsure(Exception):
    """Values are known on devices and are not recognised as those of the whole batch: numbers must tell."""


class Program:
    """Tapped code traced from shapes: its jaxpr, and the events whose arrays are its results.

    Args:
        call: runs the tapped code on values; the recorder is reset before.
        recorder: what the tapped code writes to.
        packed: the values that are taken apart.
        leaves: the shapes that they are traced with.
        axes: mesh axes that are bound, with the number of devices along each.
        wrap: runs what it is given with the axes bound that the original needs, each to one device.
    """

    def __init__(
        self,
        call: Callable[[Values], Any],
        recorder: Any,
        packed: Packed,
        leaves: Sequence[Any],
        axes: "Mapping[str, int] | None" = None,
        wrap: Callable[[Callable[[], Any]], Any] = lambda body: body(),
    ) -> None:
        def run(given: Sequence[Any]) -> list[Any]:
            def body() -> list[Any]:
                recorder.reset()
                call(packed.unpack(given))
                return list(recorder.arrays)

            return list(wrap(body))

        environment = list((axes or {}).items()) or None
        self.jaxpr = jax.make_jaxpr(run, axis_env=environment)(list(leaves))
        self.events: list[Event] = list(recorder.events)
        self.reached = set(recorder.reached)


class Whole:
    """The tapped original on the whole batch, with the meanings of its values."""

    def __init__(self, program: Program, packed: Packed) -> None:
        self.program = program
        self.terms = Terms()
        self.inputs = input_terms(self.terms, program.jaxpr, leaf_names(packed))
        plain = Interpreter(self.terms, {}, 1)
        self.values = plain.run([program.jaxpr], [plain.replicated(term) for term in self.inputs])


def placed_events(
    whole: Whole,
    shares: Sequence[Program],
    counts: Sequence[int],
    axis_name: str,
    packed: Packed,
    axes: LeafAxes,
    results: Sequence[int],
) -> list[Event]:
    """Kinds of every leaf of every event, as `observe.compare` gives them, without running anything.

    Raises:
        Unsure: numbers must tell.
        Apart: the shares are traced to other programs for other counts of devices.
    """
    walk = Interpreter(whole.terms, {axis_name: tuple(counts)}, len(counts))
    given = [
        Value(term, (Replicated() if axis is None else Sharded(axis),))
        for term, axis in zip(whole.inputs, packed.axes(axes), strict=True)
    ]
    found = walk.run([each.jaxpr for each in shares], given)
    by_point: dict[int, list[Event]] = {}
    times: dict[int, int] = {}
    for event in whole.program.events:
        by_point.setdefault(event["point"], []).append(event)
    for event in shares[0].events:
        times[event["point"]] = times.get(event["point"], 0) + 1
    seen: dict[int, int] = {}
    out: list[Event] = []
    for index, event in enumerate(shares[0].events):
        point = event["point"]
        occurrence = seen.get(point, 0)
        seen[point] = occurrence + 1
        others = by_point.get(point, [])
        answer: Event = {"point": point, "occurrence": occurrence}
        if len(others) != times[point] or len(others[occurrence]["leaves"]) != len(event["leaves"]):
            answer.update(unaligned=True, leaves=[])
        else:
            again = [each.events[index] for each in shares]
            answer["leaves"] = [
                leaf_kind(left, rows, whole.values, found, counts)
                for left, *rows in zip(
                    others[occurrence]["leaves"], *(each["leaves"] for each in again), strict=True
                )
            ]
            if point in results or len({leaf["kind"] for leaf in answer["leaves"]}) > 1:
                answer["tree"] = event.get("tree")
        out.append(answer)
    return out


def leaf_kind(
    left: Event, rows: Sequence[Event], wanted: Sequence[Value], found: Sequence[Value], counts: Sequence[int]
) -> Event:
    """Kind of one leaf: `left` from the whole batch, `rows` from the shares for each count of devices."""
    right = rows[0]
    answer: Event = {
        "path": right["path"],
        "category": right["category"],
        "shape": left.get("shape", []),
        "dtype": left.get("dtype", ""),
    }
    if "index" in left and "index" in right:
        value = found[right["index"]]
        answer.update(kind_of(value, wanted[left["index"]], left, right, counts[0]))
    elif "value" in left and all("value" in row for row in rows):
        answer["kind"] = number_kind(left["value"], [row["value"] for row in rows], counts)
        answer["number"] = True
    elif "index" not in left and "index" not in right:
        answer["kind"] = kinds.REPLICATED
    else:
        raise Unsure("a value is a number of Python here, and an array there")
    return answer


def kind_of(value: Value, wanted: Value, left: Event, right: Event, count: int) -> Event:
    """The kind of an array by its placement.

    Raises:
        Unsure: it is known on the devices, and is not the whole batch's value as far as terms tell.
    """
    (place,) = value.places
    if isinstance(place, Unknown):
        split = split_axis(left["shape"], right["shape"], count)
        places = [
            [p.file, p.line, p.column, p.end_line, p.end_column] for p in places_of(place.equations)[:6]
        ]
        return {"kind": kinds.VARYING, "split": split, "why": place.reason, "places": places}
    if value.term != wanted.term:
        raise Unsure("a value is not recognised as that of the whole batch")
    kind = kinds.VARYING
    if isinstance(place, OwnKey):
        kind = kinds.REPLICATED
    elif isinstance(place, Extreme):
        kind = f"p{place.op}"
    elif isinstance(place, Replicated):
        kind = {0: kinds.REPLICATED, 1: "psum"}.get(
            int(place.power) if place.power in (0, 1) else -9, kinds.VARYING
        )
    elif isinstance(place, Partial):
        kind = {0: "psum", -1: "pmean"}.get(int(place.power) if place.power in (0, -1) else -9, kinds.VARYING)
    elif isinstance(place, Sharded) and not place.power and place.outer == 1:
        kind = f"sharded {place.axis}"
    return (
        {"kind": kind, "split": split_axis(left["shape"], right["shape"], count)}
        if kind == kinds.VARYING
        else {"kind": kind}
    )


def number_kind(whole: Any, parts: Sequence[Any], counts: Sequence[int]) -> str:
    """The kind of a number of Python, by what it is on shares of several sizes."""
    if all(part == whole and type(part) is type(whole) for part in parts):
        return kinds.REPLICATED
    if isinstance(whole, bool):
        return kinds.VARYING
    if all(
        np.isclose(part * count, whole, rtol=1e-12, atol=0) for part, count in zip(parts, counts, strict=True)
    ):
        return "psum"
    return kinds.VARYING
