"""The report as one HTML page that needs nothing else: no network, no script, no other file."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from jax_pmap.emit.decomposed import TOGETHER
from jax_pmap.model import (
    ADDED,
    AROUND,
    ON_DEVICE,
    Argument,
    Backend,
    Check,
    Collective,
    Evidence,
    Fit,
    Generated,
    Leaf,
    Listing,
    MeshAxis,
    Part,
    Placed,
    Plan,
    Refusal,
    Role,
    Span,
    Sync,
    Verified,
)
from jax_pmap.report.console import clean
from jax_pmap.report.markup import Mark, marked_lines
from jax_pmap.report.meshes import along_text, mesh_text, sent_in_a_ring
from jax_pmap.report.refusals import file_lines, place
from jax_pmap.report.text import (
    called_with,
    devices_shown,
    ended,
    evidence_parts,
    short_dtype,
    usual_devices,
)
from jax_pmap.units import first_few, human_bytes
from jax_pmap.worker.protocol import AXIS_ARGUMENTS

#: Devices that are drawn; more are counted.
DRAWN = 8
#: Lines above and below the one that a refusal is about.
NEAR = 4
#: Unchanged lines that are kept around changed ones.
CONTEXT = 4

#: What a collective is on the wire, and what it gives every device; those without a wire stay on the device.
_WIRE = {
    **dict.fromkeys(TOGETHER, ("all-reduce", "it is made of sums, means and maxima over all devices")),
    **dict.fromkeys(AXIS_ARGUMENTS, ("all-reduce", "what is called synchronises over the axis by itself")),
    "psum": ("all-reduce", "every device gets the sum over all devices"),
    "pmean": ("all-reduce", "every device gets the mean over all devices"),
    "pmax": ("all-reduce", "every device gets the maximum over all devices"),
    "pmin": ("all-reduce", "every device gets the minimum over all devices"),
    "var": ("all-reduce", "the variance over the whole batch, as two means over all devices"),
    "std": ("all-reduce", "the deviation over the whole batch, as two means over all devices"),
    "norm": ("all-reduce", "the norm over the whole batch, as a sum over all devices"),
    "trace": ("all-reduce", "every device gets the sum over all devices of what is on the diagonal"),
    **dict.fromkeys(("diag", "diagonal"), ("", "each device reads what its own rows have on the diagonal")),
    "all_gather": ("all-gather", "every device gets the shares of all devices"),
    "gather_parts": ("all-gather", "every device gets the parts of all devices"),
    "psum_scatter": ("reduce-scatter", "every device gets its part of the sum over all devices"),
    "reduce_scatter": ("reduce-scatter", "every device gets its part of the sum over all devices"),
    "ppermute": ("collective-permute", "every device hands its value to another one"),
    "pshuffle": ("collective-permute", "every device hands its value to another one"),
    "all_to_all": ("all-to-all", "every device hands a part of its value to each of the others"),
    "pmean_scatter": ("reduce-scatter", "every device gets its part of the mean over all devices"),
    "fold_in": ("", "the key is folded with the device's index: other numbers on each device"),
    "own_share": ("", "each device goes on with its own part of what all of them have"),
    "divide": ("", "what is as many times too large on each device as there are devices, divided"),
    "own_size": ("", "each device makes as many rows as it has of the others"),
}
_PARTIAL = {
    "psum": "partial: the sum over the devices is the value",
    "pmean": "partial: the mean over the devices is the value",
    "pmax": "partial: the maximum over the devices is the value",
    "pmin": "partial: the minimum over the devices is the value",
}
_WORDS = {
    **_PARTIAL,
    "replicated": "replicated: the same on every device",
    "scaled": "replicated, but for a factor: a power of the number of devices",
    "mapped": "of each example its own, under vmap",
    "grouped": "sharded, in groups",
    "varying": "another on every device",
    "unknown": "not told",
}
#: Of several placements in one value, the first of these colours it.
_COLOURS = (
    ("partial", frozenset(_PARTIAL)),
    ("varying", frozenset({"varying", "unknown", "scaled"})),
    ("sharded", frozenset({"mapped", "grouped"})),
)


# --- what the template is given -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a listing."""

    number: int
    code: Markup
    #: What is bound there or returned, with its placement: (name, class, words).
    values: tuple[tuple[str, str, str], ...] = ()
    #: The collectives that stand behind it.
    syncs: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Function:
    """A function with its collectives in place."""

    title: str
    lines: tuple[Line, ...]
    #: How many collectives stand in it.
    syncs: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the flow: what is communicated, or done without."""

    #: ``"all-reduce"``, ``"all-gather"``, or ``""`` where nothing is sent.
    wire: str
    op: str
    value: str
    what: str
    where: str
    #: Bytes of the result on one device, ``""`` where they are not known.
    bytes: str
    #: Bytes that each device sends.
    sent: str


@dataclass(frozen=True, slots=True)
class Communicated:
    """The collectives of what is drawn."""

    syncs: Sequence[Sync]
    devices: int
    #: Whether they are in the code; the compiler puts them there else.
    written: bool = True
    #: The axes of the devices where there are several, and the one that ``""`` stands for.
    mesh: tuple[MeshAxis, ...] = ()
    axis_name: str = ""
    #: What is said of one besides, by its place and name.
    remarks: Mapping[tuple[Span, str], str] = field(default_factory=dict)

    def shown(self) -> Iterator[Sync]:
        """Those that are drawn: in the global view keys and shares are those of one device."""
        return (sync for sync in self.syncs if self.written or sync.op not in ON_DEVICE)


@dataclass(frozen=True, slots=True)
class Storage:
    """What the devices hold of one argument, or of the result."""

    name: str
    #: ``"batch"``, ``"divided"``, ``"replicated"``, ``"key"``, ``"static"`` or ``"mixed"``.
    role: str
    words: str
    whole: str
    each: str
    #: Bytes of it all, and on one device.
    bytes: int
    bytes_each: int
    leaves: tuple[Storage, ...] = ()
    #: Which part each device has that is drawn, of as many parts as are different; empty where all have all.
    parts: tuple[int, ...] = ()

    @property
    def pieces(self) -> int:
        """How many parts are drawn; 0 where all have all."""
        return max(self.parts, default=-1) + 1

    @property
    def size(self) -> str:
        """Bytes on one device, in words."""
        return human_bytes(self.bytes_each) if self.bytes_each else ""


@dataclass(frozen=True, slots=True)
class Row:
    """A line before beside the line after; None where there is none."""

    kind: str
    left: tuple[int, Markup] | None = None
    right: tuple[int, Markup] | None = None
    #: Of lines that are left out on both sides: how many.
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The lines around the place of a refusal."""

    place: str
    lines: tuple[tuple[int, Markup, bool], ...] = field(default=())


#: What there is to show of a result, where it has nothing of the kind: that part of the page is left out.
_NOTHING: Mapping[str, Any] = {
    "refusal": None,
    "facts": (),
    "functions": (),
    "communicated": False,
    "storage": (),
    "results": None,
    "steps": (),
    "changed": (),
    "layouts": (),
    "assumed": (),
    "evidence": None,
    "compiled": (),
    "mesh": "",
    "rows": (),
    "notes": (),
    "guards": (),
}


def page(
    result: Generated | Fit | Verified | Refusal, *, target: str, command: str, written: str | None = None
) -> str:
    """The report of one run as HTML.

    Args:
        result: what the pipeline answered.
        target: the target as the user typed it.
        command: the command line that makes the same code anywhere.
        written: the file that the code was written to, if it was.
    """
    from jax_pmap.emit.templates import environment
    from jax_pmap.version import VERSION

    given: dict[str, Any] = {**_NOTHING, "version": VERSION, "command": command, "written": written}
    if isinstance(result, Refusal):
        given |= _refused(result, target)
    elif isinstance(result, Generated):
        given |= _generated(result)
    elif isinstance(result, Verified):
        given |= _verified(result)
    else:
        given |= {"verdict": "planned", "right": None}
        form = Backend.JIT if result.compiled is not None else None
        given |= _planned(result.plan, result.listings, usual_devices(result.plan), form)
        if result.compiled is not None:
            given["compiled"] = _made(result.compiled.collectives, result.plan.mesh)
            given["notes"] = [*given["notes"], *map(clean, result.compiled.notes)]
    html = environment(autoescape=True).get_template("report.html.jinja").render(given)
    return html.encode("utf-8", "backslashreplace").decode("utf-8")


def _refused(refusal: Refusal, target: str) -> dict[str, Any]:
    import jax_pmap.diagnostics as diagnostics

    diagnostic = diagnostics.find(refusal.code)
    found = {} if refusal.found is None else _verified(refusal.found)
    return {
        **found,
        "target": clean(target),
        "verdict": f"{'not equal' if found else 'refused'}: {refusal.code}",
        "right": False,
        "refusal": refusal,
        "title": diagnostic.title if diagnostic else "",
        "excerpt": None if found.get("functions") else _excerpt(refusal.span),
        "details": [clean(text) for text in refusal.details],
    }


def _generated(result: Generated) -> dict[str, Any]:
    plan, evidence = result.plan, result.evidence
    return {
        "verdict": "proved equal" if evidence.proved else "not equal",
        "right": evidence.proved,
        **_planned(plan, result.listings, devices_shown(result), result.backend),
        **_witnesses(evidence, plan.mesh),
        "rows": list(_side_by_side(*_before_and_after(result))),
        "before": result.edited.shown_path if result.edited else clean(plan.target),
        "notes": [*map(clean, (*plan.notes, *evidence.notes))],
    }


def _planned(
    plan: Plan, listings: Sequence[Listing], devices: int, backend: Backend | None
) -> dict[str, Any]:
    """What is shown of a plan, and of code that is made from it in the form of `backend`."""
    drawn = Communicated(plan.syncs, devices, backend is not Backend.JIT, plan.mesh, plan.axis_name)
    storage = [_argument_storage(argument, devices, plan.mesh) for argument in plan.arguments]
    target, *others = listings
    target = dataclasses.replace(target, values=(*_parameters(plan, target), *target.values))
    form = [Markup("{}").format(str(backend))] if backend else []
    return {
        "target": clean(plan.target),
        "facts": [
            *form,
            Markup("mesh <code>{}</code>").format(mesh_text(plan.mesh))
            if plan.mesh
            else Markup("axis <code>{}</code>").format(plan.axis_name),
        ],
        "mesh": mesh_text(plan.mesh),
        "storage": storage,
        "results": _result_storage(plan, devices),
        "total": human_bytes(sum(each.bytes for each in storage)),
        "total_each": human_bytes(sum(each.bytes_each for each in storage)),
        "changed": [f"`{name}`" for name in plan.mutated],
        **_in_place(drawn, (target, *others)),
        "notes": [*map(clean, plan.notes)],
        "guards": [(place(guard.span), clean(guard.condition)) for guard in plan.guards],
        "assumed": plan.assumed_inputs,
    }


def _verified(result: Verified) -> dict[str, Any]:
    evidence = result.evidence
    given: dict[str, Any] = {
        "target": clean(result.parallel),
        "verdict": "proved equal" if evidence.proved else "not equal",
        "right": evidence.proved,
        "facts": [Markup("against <code>{}</code>").format(clean(result.against))],
        **_witnesses(evidence),
        "layouts": called_with(result),
        "notes": [*map(clean, evidence.notes)],
        "assumed": result.assumed_inputs,
    }
    if result.inspected is None:
        return given
    devices = max((check.devices for check in evidence.checks), default=DRAWN)
    rows = result.inspected.communication
    axes = dict.fromkeys(axis for row in rows for axis in row.sync.along)
    mesh = tuple(MeshAxis(axis, 0) for axis in axes) if len(axes) > 1 else ()
    remarks = {
        (row.sync.span, row.sync.op): _remark(row.sync.op, row.given, row.differentiating) for row in rows
    }
    drawn = Communicated([row.sync for row in rows], devices, mesh=mesh, remarks=remarks)
    traced = any(listing.values for listing in result.inspected.listings)
    # Of what a compiler divides nothing is known but what it made of it.
    return given | _in_place(drawn, result.inspected.listings) | {"communicated": traced}


def _remark(op: str, given: Sequence[str], differentiating: bool) -> str:
    """What is said of a collective that the user wrote: what it is taken of, and what that leads to."""
    words = " and ".join(dict.fromkeys(_placement(kind) for kind in given))
    said = f"what it is given is {words}"
    if op == "psum" and set(given) == {"replicated"}:
        said += ", so that the sum is it times the number of devices"
    if differentiating:
        said += "; it is a part of the derivative"
    return said


def _in_place(drawn: Communicated, listings: Sequence[Listing]) -> dict[str, Any]:
    """Functions with their collectives, and the flow of these."""
    return {
        "devices": drawn.devices,
        "drawn": min(drawn.devices, DRAWN),
        "communicated": True,
        "steps": [_step(drawn, together) for together in _in_order(drawn, listings)],
        "functions": _functions(drawn, listings),
    }


def _witnesses(evidence: Evidence, mesh: tuple[MeshAxis, ...] = ()) -> dict[str, Any]:
    return {
        "evidence": evidence,
        "parts": evidence_parts(evidence),
        "ended": ended(evidence.derivation) if evidence.derivation and not evidence.derived else "",
        "checks": [(check, _fraction(check), _shown(check)) for check in evidence.checks],
        "compiled": _made(evidence.collectives, mesh),
    }


def _made(rows: Sequence[Collective] | None, mesh: tuple[MeshAxis, ...]) -> list[tuple[Any, ...]]:
    """Collectives of a compiled program: kind and axes of a mesh; in one call times, bytes, what is sent."""
    return [
        (
            row.kind,
            along_text(row, mesh) if mesh else "",
            row.times or row.count,
            human_bytes(row.moved or row.bytes),
            human_bytes(sent_in_a_ring(row, mesh)) if mesh else "",
        )
        for row in sorted(rows or (), key=lambda row: (row.axes, row.kind))
    ]


# --- who holds what -------------------------------------------------------------------------


def _argument_storage(argument: Argument, devices: int, mesh: tuple[MeshAxis, ...]) -> Storage:
    if argument.static:
        return Storage(
            argument.name, "static", "compile-time constant", ", ".join(argument.proved_values), "", 0, 0
        )
    leaves = [_leaf_storage(leaf, devices, argument.name, mesh) for leaf in argument.leaves]
    return _storage(argument.name + (" (donated)" if argument.donated else ""), leaves, devices)


def _result_storage(plan: Plan, devices: int) -> Storage | None:
    leaves = [_leaf_storage(leaf, devices, "", plan.mesh) for leaf in plan.outputs]
    return _storage("result", leaves, devices) if leaves else None


def _storage(name: str, leaves: Sequence[Storage], devices: int) -> Storage:
    roles = {leaf.role for leaf in leaves if leaf.role != "static"}
    role = "replicated"
    if "batch" in roles or "divided" in roles:
        role = roles.pop() if len(roles) == 1 else "mixed"
    elif roles == {"key"}:
        role = "key"
    ways = {leaf.parts for leaf in leaves if leaf.role != "static"}
    if role == "divided" and len(ways) > 1:
        role = "mixed"
    words = {
        "batch": "split over the devices",
        "divided": "divided over the mesh",
        "mixed": "in part split, in part a copy on every device"
        if () in ways
        else "divided over the mesh in several ways",
        "key": "random keys",
        "replicated": "a copy on every device" + (", random keys among it" if "key" in roles else ""),
    }
    alone = len(leaves) == 1
    return Storage(
        name,
        role,
        leaves[0].words if alone else words[role] if leaves else "no arrays",
        leaves[0].whole if alone else f"{len(leaves)} leaves" if leaves else "",
        leaves[0].each if alone else "",
        sum(leaf.bytes for leaf in leaves),
        sum(leaf.bytes_each for leaf in leaves),
        () if alone else tuple(leaves),
        ways.pop() if len(ways) == 1 else tuple(range(min(devices, DRAWN))) if role == "mixed" else (),
    )


def _leaf_storage(leaf: Leaf, devices: int, name: str, mesh: tuple[MeshAxis, ...]) -> Storage:
    path = clean(leaf.path.removeprefix(name) or leaf.path)
    if mesh and leaf.spec and leaf.role is not Role.STATIC:
        axes = [axis for names in leaf.spec for axis in names]
        split = f"split along axis {leaf.axis}, over" if leaf.role is Role.BATCH else "divided over"
        return Storage(
            path,
            "batch" if leaf.role is Role.BATCH else "divided",
            f"{split} {' and '.join(axes)}",
            _shape(leaf.dtype, leaf.shape),
            _shape(leaf.dtype, leaf.per_device(devices, mesh)),
            leaf.bytes(),
            leaf.bytes(devices, mesh),
            parts=_parts(axes, mesh),
        )
    words = {
        Role.BATCH: f"split along axis {leaf.axis}",
        Role.REPLICATED: "a copy on every device",
        Role.KEY: "random key",
        Role.STATIC: "compile-time constant",
    }[leaf.role]
    divides = leaf.axis is None or leaf.shape[leaf.axis] % devices == 0
    drawn = min(devices, DRAWN)
    return Storage(
        path,
        str(leaf.role),
        words,
        clean(leaf.value) if leaf.value else _shape(leaf.dtype, leaf.shape),
        "" if leaf.axis is None else _shape(leaf.dtype, leaf.per_device(devices)) if divides else "?",
        leaf.bytes(),
        leaf.bytes(devices),
        parts=tuple(range(drawn)) if leaf.role is Role.BATCH else (),
    )


def _parts(axes: Sequence[str], mesh: Sequence[MeshAxis]) -> tuple[int, ...]:
    """Which part of an array that these axes divide each of the first devices of a mesh has."""
    found = []
    for device in range(min(math.prod(axis.size for axis in mesh), DRAWN)):
        place, rest = 0, device
        at = {}
        for axis in reversed(mesh):
            rest, at[axis.name] = divmod(rest, axis.size)
        for axis in mesh:
            place = place * axis.size + at[axis.name] if axis.name in axes else place
        found.append(place)
    order = sorted(set(found))
    return tuple(order.index(place) for place in found)


def _shape(dtype: str, shape: Sequence[int]) -> str:
    return f"{short_dtype(dtype) or 'number'}[{','.join(map(str, shape))}]"


# --- the flow of communication --------------------------------------------------------------


def _in_order(drawn: Communicated, listings: Sequence[Listing]) -> list[list[Sync]]:
    """Collectives in the order in which they were met, those of one kind at one place together."""
    met: dict[Span, int] = {}
    for number, value in enumerate(value for each in _traced(listings) for value in each.values):
        met.setdefault(value.bound_by or value.span, number)
    groups: dict[tuple[str, tuple[str, ...], Span, str], list[Sync]] = {}
    for sync in drawn.shown():
        groups.setdefault((sync.op, sync.along, sync.span, sync.where), []).append(sync)
    return sorted(groups.values(), key=lambda each: met.get(each[0].span, -1))


def _traced(listings: Sequence[Listing]) -> Iterator[Listing]:
    """Functions that are called come before what calls them: their values are computed first."""
    return reversed(listings)


def _step(drawn: Communicated, syncs: Sequence[Sync]) -> Step:
    first, devices, written = syncs[0], drawn.devices, drawn.written
    wire, what = _wire(first.op)
    if len(drawn.mesh) > 1 and written:
        along = [name or drawn.axis_name for name in first.along]
        devices = math.prod(axis.size or 1 for axis in drawn.mesh if axis.name in along)
        what += f", along {' and '.join(along)}"
    if remark := drawn.remarks.get((first.span, first.op)):
        what += f"; {remark}"
    size = sum(sync.bytes for sync in syncs)
    # Each device of a ring sends its share of a sum once around, and of the result once more.
    rounds = (2 if wire == "all-reduce" else 1) * (devices - 1) / devices
    names = [sync.value + path for sync in syncs for path in sync.paths]
    shown = first_few(names)
    if first.where == AROUND:
        what = "its keys are folded with the device's index: other numbers on each device"
    if first.where == ADDED:
        what = "what is added to it is summed over all devices"
    return Step(
        wire,
        first.op if written else wire or first.op,
        clean(shown),
        what if written else f"{what}; the compiler inserts it",
        place(first.span),
        human_bytes(size) if size and wire else "",
        # Over a mesh a compiler sends what it finds best, which is told of its program.
        human_bytes(round(size * rounds)) if size and wire and rounds and (written or not drawn.mesh) else "",
    )


def _wire(op: str) -> tuple[str, str]:
    """What a collective is on the wire, and what it gives every device."""
    return _WIRE.get(op, ("communication", "devices exchange what they have"))


# --- the functions, with their collectives ----------------------------------------------------


def _functions(drawn: Communicated, listings: Sequence[Listing]) -> list[Function]:
    """The target, then what it calls: first the functions with collectives in them."""
    made = [_function(drawn, listing) for listing in listings]
    return [*made[:1], *sorted(made[1:], key=lambda each: not each.syncs)]


def _parameters(plan: Plan, target: Listing) -> Iterator[Placed]:
    """The parameters of the target, as far as they hold arrays, where its first lines name them."""
    arguments = {argument.name: argument for argument in plan.arguments}
    definition = ast.parse(target.text).body[0]
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    lines = target.text.split("\n")
    for node in ast.walk(definition.args):
        if not isinstance(node, ast.arg) or node.arg not in arguments:
            continue
        groups: dict[str, list[Leaf]] = {}
        for leaf in arguments[node.arg].leaves:
            if leaf.role is not Role.STATIC:
                kind = "replicated" if leaf.axis is None else f"sharded {leaf.axis}"
                groups.setdefault(kind, []).append(leaf)
        # The parser counts columns in bytes.
        start = len(lines[node.lineno - 1].encode()[: node.col_offset].decode()) + target.indent
        line = target.line + node.lineno - 1
        span = Span(target.file, line, start, line, start + len(node.arg))
        parts = tuple(
            Part(kind, len(each), *((each[0].shape, each[0].dtype) if len(each) == 1 else (None, "")))
            for kind, each in groups.items()
        )
        if parts:
            yield Placed(span, parts, span)


def _function(drawn: Communicated, listing: Listing) -> Function:
    last = listing.line + listing.text.rstrip("\n").count("\n")
    here = [
        sync
        for sync in drawn.shown()
        if sync.span.file == listing.file and listing.line <= sync.span.line <= last
    ]
    wrapped = {sync.span: sync for sync in here if sync.where == "wrap"}
    marks = [_mark(listing, value, wrapped.get(value.span)) for value in listing.values]
    seen = {value.span for value in listing.values}
    marks += [
        _marked(listing, span, "sync", f"{sync.op}: {_wire(sync.op)[1]}")
        for span, sync in wrapped.items()
        if span not in seen
    ]
    steps: dict[int, list[Step]] = {}
    for together in _in_order(drawn, (listing,)):
        if together[0] in here:
            span = together[0].span
            steps.setdefault(span.end_line or span.line, []).append(_step(drawn, together))
    values: dict[int, list[tuple[str, str, str]]] = {}
    source = listing.text.split("\n")
    for value in listing.values:
        name = _named(listing, source, value)
        if name:
            values.setdefault(value.span.end_line, []).append((name, _colour(value), _inlay(value)))
    lines = tuple(
        Line(number, code, tuple(dict.fromkeys(values.get(number, ()))), tuple(steps.get(number, ())))
        for number, code in enumerate(marked_lines(listing.text, marks), start=listing.line)
    )
    return Function(clean(listing.function), lines, sum(len(each) for each in steps.values()))


def _named(listing: Listing, source: Sequence[str], value: Placed) -> str:
    """What the margin calls a value: the name that is bound, or ``return``; ``""`` for any other."""
    line = source[value.span.line - listing.line]
    start, end = value.span.column - listing.indent, value.span.end_column - listing.indent
    if value.bound_by is not None:
        return line[start:end]
    is_whole = value.span.end_line > value.span.line or not line[end:].strip(" ,)#")
    return "return" if line[:start].strip() == "return" and is_whole else ""


def _mark(listing: Listing, value: Placed, sync: Sync | None) -> Mark:
    tip = "; ".join(_part(part) for part in value.parts)
    if sync is not None:
        tip = f"{sync.op}: {_wire(sync.op)[1]}. Behind it {tip}"
    classes = f"v {_colour(value)}" + (" sync" if sync is not None else "")
    return _marked(listing, value.span, classes, tip)


def _marked(listing: Listing, span: Span, classes: str, tip: str) -> Mark:
    return Mark(
        span.line - listing.line,
        span.column - listing.indent,
        span.end_line - listing.line,
        span.end_column - listing.indent,
        classes,
        tip,
    )


def _colour(value: Placed) -> str:
    kinds = {part.placement for part in value.parts}
    for name, of in _COLOURS:
        if kinds & of:
            return name
    return "sharded" if any(kind.startswith("sharded") for kind in kinds) else "replicated"


def _inlay(value: Placed) -> str:
    kinds = dict.fromkeys(
        _WORDS.get(part.placement, part.placement).partition(":")[0] for part in value.parts
    )
    return ", ".join(re.sub(r"^sharded (\d+)$", r"sharded, axis \1", kind) for kind in kinds)


def _part(part: Part) -> str:
    """One part of a value in words."""
    words = _placement(part.placement)
    if part.shape is None:
        return f"{words} ({part.leaves} arrays)"
    if not part.dtype:
        return f"{words} (a number)"
    return f"{words} ({_shape(part.dtype, part.shape)} of the whole batch)"


def _placement(kind: str) -> str:
    """A placement in words."""
    return _WORDS.get(kind) or re.sub(r"^sharded ", "sharded along axis ", kind)


# --- the witnesses --------------------------------------------------------------------------


def _fraction(check: Check) -> float:
    """The part of its bound that an error takes, on a scale of powers of ten: 0 is a millionth or less."""
    if not check.error:
        return 0.0
    if not check.tolerance or not math.isfinite(check.error / check.tolerance):
        return 1.0
    return min(max(1 + math.log10(check.error / check.tolerance) / 6, 0.0), 1.0)


def _shown(check: Check) -> tuple[str, str, bool]:
    return f"{check.error:.2g}", f"{check.tolerance:.2g}", check.error <= check.tolerance


# --- before and after -----------------------------------------------------------------------


def _before_and_after(result: Generated) -> tuple[str, int, str]:
    """The text before, the number of its first line, and the text after."""
    if result.edited is not None:
        return result.edited.file_text, 1, result.code
    listing = result.listings[0]
    return listing.text, listing.line, result.code


def _side_by_side(before: str, first: int, after: str) -> Iterator[Row]:
    old, new = before.rstrip("\n").split("\n"), after.rstrip("\n").split("\n")
    left, right = marked_lines(before.rstrip("\n")), marked_lines(after.rstrip("\n"))
    matched = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    for kind, i, i_end, j, j_end in matched:
        rows = max(i_end - i, j_end - j)
        # Changed lines stand beside what comes before unchanged ones, but at the end of the text.
        above = 0 if j_end == len(new) else rows
        a_first, b_first = (above - (end - start) if above else 0 for start, end in ((i, i_end), (j, j_end)))
        pairs = []
        for step in range(rows):
            a, b = i + step - a_first, j + step - b_first
            pairs.append(
                Row(
                    "same" if kind == "equal" else "changed",
                    (first + a, left[a]) if i <= a < i_end else None,
                    (1 + b, right[b]) if j <= b < j_end else None,
                )
            )
        yield from _shortened(pairs) if kind == "equal" else pairs


def _shortened(rows: Sequence[Row]) -> Iterator[Row]:
    if len(rows) <= 2 * CONTEXT + 1:
        yield from rows
        return
    yield from rows[:CONTEXT]
    yield Row("skipped", skipped=len(rows) - 2 * CONTEXT)
    yield from rows[-CONTEXT:]


# --- refusals -------------------------------------------------------------------------------


def _excerpt(span: Span | None) -> Excerpt | None:
    if span is None:
        return None
    lines = file_lines(span.file) or []
    if not 0 < span.line <= len(lines):
        return Excerpt(place(span))
    from jax_pmap.report.refusals import file_and_line

    shown = file_and_line(span)[1]
    first = max(span.line - 1 - NEAR, 0)
    last = min(max(span.end_line, span.line) + NEAR, len(lines))
    end_line = span.end_line or span.line
    end = span.end_column or len(lines[span.line - 1])
    mark = Mark(span.line - 1 - first, span.column, end_line - 1 - first, end, "wrong")
    marked = marked_lines("\n".join(lines[first:last]), [mark])
    return Excerpt(
        place(span),
        tuple(
            (number - span.line + shown, code, span.line <= number <= end_line)
            for number, code in enumerate(marked, start=first + 1)
        ),
    )
