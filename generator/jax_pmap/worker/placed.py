"""Say what each value of a tapped function is, whole and on shards, by its placement and its meaning."""

import contextlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from .arguments import LeafAxes, Packed, Values
from .exceptions import attempted
from .jaxpr.symbolic import Numbers, are_polynomials, has_polynomials
from .jaxpr.trace import leaf_names, of_its_own
from .jaxpr.versions import named_axes, primitive_name
from .jaxpr.walk import equations
from .marks import is_no_mark
from .observe import Recorder, split_axis
from .placements.derive import input_terms
from .placements.equation import Value
from .placements.interpreter import Apart, Interpreter
from .placements.lattice import (
    Dealt,
    Extreme,
    Loose,
    Mixed,
    Offset,
    OwnKey,
    Partial,
    Placement,
    Replicated,
    Rounds,
    Row,
    Running,
    Sharded,
    Spread,
    Unknown,
)
from .placements.terms import Term, Terms

Event = dict[str, Any]
Idle = dict[int, bool]
REPLICATED, VARYING = "replicated", "varying"
#: Where devices have parts of parameters: a derivative by one, as many times too large as there are devices.
SCALED = "scaled"
#: Inside a function that `jax.vmap` maps over the examples: of each example its own.
MAPPED = "mapped"
#: Divided into groups, or over the rounds of a loop: what is done to each group by itself couples it.
GROUPED_KIND = "grouped"
#: With a part of a sum over the devices added to each row: whole where it is only summed up later.
OFFSET = "offset"
#: How many other counts of devices are traced where the function goes another way on the first of them.
OTHERS = 3
#: Placements of such values.
GROUPED = (Dealt, Loose, Mixed, Rounds, Row, Running)


@dataclass(frozen=True)
class Program:
    """Tapped code traced from shapes.

    Attributes:
        jaxpr: in which values are marked.
        events: what the code wrote down, in the order of the trace.
        constants: arrays that are known while tracing, by the number of the value.
        reached: the branches that were entered.
        others: methods that objects have in place of one that has a copy: its scope, and their name.
    """

    jaxpr: Any
    events: tuple[Event, ...]
    constants: Mapping[int, Any]
    reached: frozenset[int]
    others: frozenset[tuple[int, str]]

    @staticmethod
    def of(
        tapped: Callable[[], Callable[[Values], Any]],
        recorder: Recorder,
        packed: Packed,
        leaves: Sequence[Any],
        axes: "Mapping[str, int] | None" = None,
        wrap: Callable[[Callable[[], Any]], Any] = lambda body: body(),
    ) -> "Program":
        """Trace tapped code.

        Args:
            tapped: makes what runs it on values, anew: jax keeps what it traced by the function.
            recorder: what it writes to.
            packed: the values that are taken apart.
            leaves: the shapes that they are traced with.
            axes: mesh axes that are bound, with the number of devices along each.
            wrap: runs what it is given with the axes bound that the original needs, each to one device.
        """
        call = tapped()

        def run(given: Sequence[Any]) -> list[Any]:
            def body() -> list[Any]:
                recorder.reset()
                call(packed.unpack(given))
                return []

            return list(wrap(body))

        environment = list((axes or {}).items()) or None
        jaxpr = of_its_own(jax.make_jaxpr(run, axis_env=environment)(list(leaves)))
        recorder.marked.clear()
        return Program(
            jaxpr,
            tuple(recorder.events),
            dict(recorder.constants),
            frozenset(recorder.reached),
            frozenset(recorder.others),
        )

    def has_polynomials(self) -> bool:
        """Whether all sizes that it was traced with, or that Python has, are polynomials in a symbol."""
        leaves = [leaf for event in self.events for leaf in event["leaves"]]
        sizes = [size for leaf in leaves for size in (*leaf.get("shape", ()), leaf.get("value"))]
        return are_polynomials(sizes) and has_polynomials(self.jaxpr)

    def with_numbers(self, numbers: Numbers) -> "Program":
        """It as it would be traced for numbers that take the place of symbols."""

        def leaf(given: Event) -> Event:
            sizes: Event = {name: numbers.of(given[name]) for name in ("shape", "value") if name in given}
            return {**given, **sizes}

        events = ({**event, "leaves": [*map(leaf, event["leaves"])]} for event in self.events)
        return replace(self, jaxpr=numbers.program(self.jaxpr), events=tuple(events))


class Whole:
    """The tapped original on the whole batch, with the meanings of its values."""

    def __init__(self, program: Program, packed: Packed) -> None:
        self.program = program
        self.terms = Terms()
        self.inputs = input_terms(self.terms, program.jaxpr, leaf_names(packed))
        plain = Interpreter(self.terms, {}, 1, supposes=True)
        plain.run([program.jaxpr], [plain.replicated(term) for term in self.inputs])
        self.values = values_of(plain, [program])
        self.zeros = plain.zeros


def is_another(whole: Program, share: Program) -> bool:
    """Whether a share is traced to other operations than the whole batch.

    Not where the share has collectives, which the whole has none of, nor where the whole has many more
    operations: it goes through its rows one by one then.
    """
    if any(named_axes(equation.params) for equation in equations(share.jaxpr)):
        return False
    one, other = (
        [primitive_name(equation) for equation in equations(each.jaxpr) if is_no_mark(equation)]
        for each in (whole, share)
    )
    return one != other and len(one) <= 2 * len(other)


def values_of(walk: Interpreter, programs: Sequence[Program]) -> dict[int, tuple[Value, tuple[int, ...]]]:
    """Every value that was met, by its number, with the axes that `vmap` had put into it."""
    constants = {
        index: (walk.known([program.constants[index] for program in programs]), ())
        for index in programs[0].constants
        if all(index in program.constants for program in programs)
    }
    return constants | walk.marks


def events_of_some(
    whole: Whole,
    first: Program,
    count: int,
    share: Callable[[int], Program],
    counts: Sequence[int],
    *question: Any,
) -> tuple[list[Event], Idle, bool]:
    """`placed_events` on `count` devices and another number of them, on which the function goes the same way.

    `first` is the trace on a share of `count`. Where it goes another way on the first `OTHERS` of the
    `counts`, that trace alone has to do behind the operation where they part, and its numbers count as those
    of the whole batch: enough to look for collectives. Also whether that was so.
    """
    parting: list[Event] | None = None
    for other in [each for each in counts if each != count][:OTHERS]:
        if (second := attempted(share, other)) is None:
            continue  # The user's function may not take shares of that size.
        with contextlib.suppress(Apart):
            events, idle, parted = placed_events(whole, [first, second], [count, other], *question)
            if not any(parted):
                return events, idle, False
            if parting is None:
                parting = [event if not lost else {} for event, lost in zip(events, parted, strict=True)]
    events, idle, _ = placed_events(whole, [first], [count], *question)
    if parting is not None and len(parting) == len(events):
        events = [known or event for known, event in zip(parting, events, strict=True)]
    return events, idle, True


def compare_forms(whole: Sequence[Event], events: Sequence[Event], count: int) -> list[Event]:
    """What can be said of `events`, those of a trace on shares that did not come to its end.

    That is kinds of Python numbers, and of arrays along which axis they have the shape of a share, or whether
    they have that of the whole.
    """
    at: dict[int, list[Event]] = {}
    for event in whole:
        at.setdefault(event["point"], []).append(event)
    out = []
    for event in events:
        seen = at.get(event["point"], [])
        if event.get("before") or not seen or len(seen[0]["leaves"]) != len(event["leaves"]):
            continue
        leaves = []
        for left, right in zip(seen[0]["leaves"], event["leaves"], strict=True):
            form = {key: left[key] for key in ("shape", "dtype") if key in left}
            if "value" in left and "value" in right:
                kind = number_kind(left["value"], [right["value"]], [count])
                leaves.append({**right, "shape": [], "dtype": "", "kind": kind, "number": True})
            elif "index" in left and "index" in right:
                shapes = left["shape"], right["shape"]
                known = {"split": split_axis(*shapes, count), "whole": shapes[0] == shapes[1]}
                leaves.append({**right, **form, "kind": "unknown", **known})
        if len(leaves) == len(event["leaves"]):
            out.append({"point": event["point"], "occurrence": 0, "leaves": leaves})
    return out


def placed_events(
    whole: Whole,
    shares: Sequence[Program],
    counts: Sequence[int],
    axis_name: str,
    packed: Packed,
    axes: LeafAxes,
    minibatches: int,
    results: Sequence[int],
    parameters: bool,
) -> tuple[list[Event], Idle, list[bool]]:
    """Kinds of every leaf of every event, in the order of the trace, and `idle_collectives`.

    And whether an event lies behind an operation at which the traces part, and nothing is known of it.

    An event is ``{"point", "occurrence", "leaves": [{"path", "category", "kind", "shape", "dtype"}]}``. A
    point that is passed a different number of times on a share than on the whole batch (a loop over rows)
    has ``"unaligned"``, and a leaf ``"together"`` that is a split argument put together again: its number. A
    mean that something is added to which is whole, as ``w - 0.1 * grads``, is ``"updated"``; what is whole,
    with a part of a sum over the devices added, as ``total + losses.sum()``, is ``"incremented"``.

    Raises:
        Apart: the shares are traced to other programs for other counts of devices.
    """
    walk = Interpreter(whole.terms, {axis_name: tuple(counts)}, len(counts), supposes=True)
    given = [
        Value(term, (Replicated() if axis is None else Sharded(axis, outer=minibatches),))
        for term, axis in zip(whole.inputs, packed.axes(axes), strict=True)
    ]
    walk.follow([each.jaxpr for each in shares], given)
    divided = {v.term: index for index, v in enumerate(given) if isinstance(v.places[0], Sharded)}
    whole_inputs = {value.term for value in given} - divided.keys()
    if len({len(each.events) for each in shares}) > 1:
        raise Apart("it goes another way on other numbers of devices")
    found = values_of(walk, shares)
    # Zeros that a round loses are placed as a loop starts with them.
    starts = {index: value for index, value in walk.zeros.items() if is_lost(found[index][0])}
    by_point: dict[int, list[Event]] = {}
    for event in whole.program.events:
        if is_live(event, whole.values):
            by_point.setdefault(event["point"], []).append(event)
    idle = idle_collectives([each.events for each in shares], by_point, found, walk.not_whole)
    rows = [
        row
        for row in zip(*(each.events for each in shares), strict=True)
        if is_live(row[0], found) and not row[0].get("before")
    ]
    times: dict[int, int] = {}
    for row in rows:
        times[row[0]["point"]] = times.get(row[0]["point"], 0) + 1
    seen: dict[int, int] = {}
    out: list[Event] = []
    zeros: list[tuple[int, Event]] = []
    for row in rows:
        event, point = row[0], row[0]["point"]
        occurrence = seen.get(point, 0)
        seen[point] = occurrence + 1
        others = by_point.get(point, [])
        answer: Event = {"point": point, "occurrence": occurrence, "acts": bool(event.get("acts"))}
        if len(others) != times[point] or len({len(e["leaves"]) for e in (others[occurrence], *row)}) > 1:
            answer.update(unaligned=True, leaves=[])
        else:
            leaves = zip(others[occurrence]["leaves"], *(each["leaves"] for each in row), strict=True)
            answer["leaves"] = []
            for left, *right in leaves:
                number = right[0].get("index")
                sides = whole.values, found
                if number in starts and left.get("index") in whole.zeros:
                    sides = whole.zeros, starts
                leaf = leaf_kind(left, right, *sides, counts, point in results, parameters)
                answer["leaves"] += [leaf] if leaf is not None else []
                if leaf is None or number not in found:
                    continue
                if found[number][0].term in walk.increments:
                    leaf["incremented"] = True
                if walk.is_zero(found[number][0]):
                    zeros.append((point, leaf))
                if leaf["kind"] == "pmean" and adds(whole.terms, found[number][0].term, whole_inputs):
                    leaf["updated"] = True
                if leaf["kind"] == REPLICATED and found[number][0].term in divided:
                    leaf["together"] = divided[found[number][0].term]
            for leaf in answer["leaves"] if point in results else ():
                # No caller could put it together.
                leaf["kind"] = VARYING if leaf["kind"] in (MAPPED, GROUPED_KIND, OFFSET) else leaf["kind"]
            if point in results or len({leaf["kind"] for leaf in answer["leaves"]}) > 1:
                answer["tree"] = event.get("tree")
        out.append(answer)
    take_kinds(zeros, out)
    numbers = [{leaf["index"] for leaf in row[0]["leaves"] if "index" in leaf} for row in rows]
    return out, idle, [not walk.cut.isdisjoint(each) for each in numbers]


def take_kinds(zeros: Sequence[tuple[int, Event]], events: Sequence[Event]) -> None:
    """Give leaves that are zero the kinds of what else passes their points: zeros are a sum of zeros too.

    A solver that starts with zeros asks the same function for its product with these, and with others later.
    """
    reduced = {
        (event["point"], leaf["path"]): leaf["kind"]
        for event in events
        for leaf in event["leaves"]
        if leaf["kind"] in ("psum", "pmean")
    }
    for point, leaf in zeros:
        if leaf["kind"] == REPLICATED:
            leaf["kind"] = reduced.get((point, leaf["path"]), REPLICATED)


def idle_collectives(
    shares: Sequence[Sequence[Event]],
    whole: Mapping[int, Sequence[Event]],
    found: Mapping[int, Any],
    not_whole: Set[int],
) -> Idle:
    """Of the points with collectives, whether what they are taken of is whole already, each time and in full.

    A point is left out that only values pass which nothing uses. A number of Python is whole where it is that
    of the `whole` batch at the same point.
    """
    idle: Idle = {}
    for row in zip(*shares, strict=True):
        leaves, point = row[0]["leaves"], row[0]["point"]
        arrays = [leaf["index"] for leaf in leaves if leaf.get("index") in found]
        numbers = [at for at, leaf in enumerate(leaves) if "value" in leaf]
        if row[0].get("before") and leaves and len(leaves) == len(arrays) + len(numbers):
            known = whole.get(point, ())
            same = all(is_same_number(at, row, known) for at in numbers)
            idle[point] = idle.get(point, True) and same and not_whole.isdisjoint(arrays)
    return idle


def is_same_number(at: int, row: Sequence[Event], whole: Sequence[Event]) -> bool:
    """Whether a leaf is one and the same number of Python on shares and each time on the whole batch."""
    values = [event["leaves"][at].get("value") for event in (*row, *whole) if len(event["leaves"]) > at]
    same = all(type(each) is type(values[0]) and each == values[0] for each in values)
    return same and len(values) == len(row) + len(whole) > len(row)


def is_live(event: Event, values: Mapping[int, Any]) -> bool:
    """Whether an event stands for something: a pass of jax may trace a body again, and drop what it had."""
    arrays = [leaf["index"] for leaf in event["leaves"] if "index" in leaf]
    return not arrays or any(index in values for index in arrays)


#: Operations whose result has the elements of their operand.
SAME_ELEMENTS = frozenset({"transpose", "reshape", "squeeze", "expand_dims", "convert_element_type"})


def adds(terms: Terms, term: Term, among: Set[Term]) -> bool:
    """Whether a term is a sum with one of some terms, or a multiple of one, among what is added up."""

    def moved(term: Term) -> Term:
        """What a term is, but for a factor, its dtype and the order of its elements."""
        base = terms.factor(term)[1]
        return moved(terms[base].operands[0]) if terms[base].op in SAME_ELEMENTS else base

    node = terms[moved(term)]
    return node.op == "sum" and any(moved(each) in among for each in node.operands)


def is_lost(value: Value) -> bool:
    """Whether no relation is claimed of a value."""
    return isinstance(value.places[0], Unknown)


def leaf_kind(
    left: Event,
    rows: Sequence[Event],
    wanted: Mapping[int, tuple[Value, tuple[int, ...]]],
    found: Mapping[int, tuple[Value, tuple[int, ...]]],
    counts: Sequence[int],
    returned: bool,
    parameters: bool,
) -> Event | None:
    """Kind of one leaf: `left` from the whole batch, `rows` from the shares for each count of devices.

    None for an array that nothing uses.
    """
    right = rows[0]
    answer: Event = {
        "path": right["path"],
        "category": right["category"],
        "shape": left.get("shape", []),
        "dtype": left.get("dtype", ""),
    }
    if "index" in left and "index" in right:
        if left["index"] not in wanted or right["index"] not in found:
            return None
        value, mapped = found[right["index"]]
        one, place = wanted[left["index"]][0], value.places[0]
        if parameters and isinstance(place, Sharded) and place.power == -1 and value.term == one.term:
            return {**answer, "kind": SCALED}
        return {**answer, **kind_of(value, one, mapped, left, right, counts[0], returned)}
    if "value" in left and all("value" in row for row in rows):
        kind = number_kind(left["value"], [row["value"] for row in rows], counts)
        return {**answer, "kind": kind, "number": True, "value": left["value"]}
    if "index" not in left and "index" not in right:
        return {**answer, "kind": REPLICATED}
    # It is a number of Python here, and an array there.
    return {**answer, "kind": VARYING}


def kind_of(
    value: Value,
    wanted: Value,
    mapped: Sequence[int],
    left: Event,
    right: Event,
    count: int,
    returned: bool,
) -> Event:
    """The kind of an array by its placement.

    A share may have rows of several groups, as of two batches joined one behind the other, but where it is
    `returned`: no caller could put that together.
    """
    place: Placement | None = value.places[0]
    split = split_axis(left["shape"], right["shape"], count)
    if is_lost(value) or value.term != wanted.term:
        return {"kind": VARYING, "split": split}
    for axis in reversed(mapped):
        if isinstance(place, Sharded):
            behind = place.axis > axis
            place = None if place.axis == axis else replace(place, axis=place.axis - behind)
    if place is None:
        return {"kind": MAPPED}
    if isinstance(place, Spread) and place.power in (0, -1):
        # Made whole, it is what each of the device's rows has of it.
        return {"kind": "pmean" if place.power else "psum"}
    if isinstance(place, (Spread, Offset)):
        return {"kind": OFFSET, "split": split}
    if isinstance(place, GROUPED):
        return {"kind": GROUPED_KIND, "split": split}
    kind = VARYING
    if isinstance(place, OwnKey):
        kind = REPLICATED
    elif isinstance(place, Extreme):
        kind = f"p{place.op}"
    elif isinstance(place, Replicated):
        kind = {0: REPLICATED, 1: "psum"}.get(int(place.power) if place.power in (0, 1) else -9, VARYING)
    elif isinstance(place, Partial):
        kind = {0: "psum", -1: "pmean"}.get(int(place.power) if place.power in (0, -1) else -9, VARYING)
    elif isinstance(place, Sharded) and not place.power and (place.outer == 1 or not returned):
        kind = f"sharded {place.axis}"
    if kind == VARYING and isinstance(place, Sharded) and (place.power, place.outer) == (-1, 1):
        return {"kind": kind, "split": split, "times": int(place.axis)}
    if kind == VARYING:
        return {"kind": kind, "split": split}
    joined = place.outer if isinstance(place, Sharded) else 1
    return {"kind": kind, "joined": joined} if joined > 1 else {"kind": kind}


def number_kind(whole: Any, parts: Sequence[Any], counts: Sequence[int]) -> str:
    """The kind of a number of Python, by what it is on shares of several sizes."""
    if all(part == whole and type(part) is type(whole) for part in parts):
        return REPLICATED
    if isinstance(whole, bool):
        return VARYING
    if all(
        np.isclose(part * count, whole, rtol=1e-12, atol=0) for part, count in zip(parts, counts, strict=True)
    ):
        return "psum"
    return VARYING
