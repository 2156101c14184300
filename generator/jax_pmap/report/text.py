"""The report for people: tables of a plan, and the evidence.

Everything is laid out for the width of the console and carries no escape codes when it is plain.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from rich.cells import cell_len

from jax_pmap.emit.decomposed import TOGETHER
from jax_pmap.model import (
    ADDED,
    AROUND,
    DIVIDE,
    ON_DEVICE,
    Argument,
    Backend,
    Compiled,
    Derivation,
    Evidence,
    Generated,
    Leaf,
    Machine,
    MeshAxis,
    Plan,
    Role,
    Verified,
)
from jax_pmap.report.console import Cell, Console, clean, print_prose
from jax_pmap.report.layout import Column, clip, natural_width, print_table
from jax_pmap.report.meshes import collective_text, mesh_text, print_machine, print_mesh, print_sent
from jax_pmap.report.refusals import place
from jax_pmap.units import human_bytes
from jax_pmap.worker.protocol import AXIS_ARGUMENTS

#: Leaf rows of one argument; the rest is counted.
MAX_LEAF_ROWS = 8
_SHORT_DTYPES = {"float": "f", "int": "i", "uint": "u", "complex": "c", "bfloat": "bf"}
#: What the compiler has to do where the code holds no collective of that name.
_KINDS = {"psum": "sum", "pmean": "mean", "pmax": "max", "pmin": "min", "all_gather": "gather"}
_KINDS |= {each: each for each in (*TOGETHER, *AXIS_ARGUMENTS)}


# --- plans and generated code -------------------------------------------------------------


def print_plan(
    plan: Plan, console: Console, machine: Machine | None = None, compiled: Compiled | None = None
) -> None:
    """Print the tables of `plan`: arguments with roles and shapes, syncs, outputs, assumptions.

    With what its code is on a `machine` that is not there, and as it was `compiled` for simulated devices.
    """
    # What is compiled for a mesh is code into which the compiler puts the collectives.
    _print_plan(plan, console, usual_devices(plan), Backend.JIT if compiled is not None else None)
    if plan.mesh:
        console.print()
        print_mesh(plan, compiled.memory if compiled is not None else None, console)
    if compiled is not None:
        console.print()
        if compiled.collectives is not None:
            print_sent(plan, compiled.collectives, console)
        for note in compiled.notes:
            print_prose(console, note, indent="  ", style="yellow")
    if machine is not None:
        console.print()
        sent = compiled is not None and compiled.collectives is not None
        print_machine(plan, machine, console, sent=sent)


def print_generated(generated: Generated, console: Console) -> None:
    """Print the plan behind `generated` and the evidence for it."""
    _print_plan(generated.plan, console, devices_shown(generated), generated.backend)
    plan, evidence = generated.plan, generated.evidence
    sent = plan.mesh and evidence.collectives is not None
    if plan.mesh:
        console.print()
        print_mesh(plan, evidence.memory, console)
    if plan.mesh and evidence.collectives is not None:
        console.print()
        print_sent(plan, evidence.collectives, console)
    if evidence.machine is not None:
        console.print()
        print_machine(plan, evidence.machine, console, sent=bool(sent))
    console.print()
    _print_evidence(evidence, console, sent=bool(sent))


def devices_shown(generated: Generated) -> int:
    """How many devices to show shares for: those that were chosen, or the most that it ran on."""
    ran = max((check.devices for check in generated.evidence.checks), default=0)
    return generated.plan.devices.number or ran or usual_devices(generated.plan)


def print_verified(verified: Verified, console: Console) -> None:
    """Print how the parallel function was called, and the evidence."""
    for i, line in enumerate(
        _joined([clean(verified.parallel), f"against {clean(verified.against)}"], console.width)
    ):
        name = clean(verified.parallel) if i == 0 else ""
        console.print((name, "bold"), (line.removeprefix(name), "dim"))
    _print_layouts(verified, console)
    if verified.assumed_inputs:
        console.print()
        console.print(("  assumed inputs (these options change them)", "dim"))
        for spec in verified.assumed_inputs:
            print_prose(console, f" --arg {shlex.quote(spec)}", indent=" ")
    console.print()
    _print_evidence(verified.evidence, console)


#: How an argument is passed that is not passed as one device takes it.
_FORMS = {
    "devices": "every array has a device axis",
    "batch": "what is split has a device axis",
    "inner": "what is split has a device axis right before the batch's",
    "parts": "its own rows have a device axis",
    "keys": "a key for each device, each another one",
}
_COPIES = "a copy for every device"


def called_with(verified: Verified) -> list[list[str]]:
    """How both functions were called: a row of headings, and one for each argument.

    Without arguments that have a form of their own there is one row, with a sentence.
    """
    own, other = dict(verified.layout), verified.against_layout
    if not own and not other:
        return [
            ["called as the reference is" if other is None else "both are called with the same arguments"]
        ]
    rows = [["argument", "called with", *(["the reference with"] if other is not None else [])]]
    for name in dict.fromkeys([*own, *dict(other or ())]):
        forms = [own.get(name), dict(other).get(name)] if other is not None else [own[name]]
        said = [_FORMS[form] if form else "as one device takes it" for form in forms]
        if name not in verified.split:
            said = [_COPIES if form == "devices" else each for form, each in zip(forms, said, strict=True)]
        rows.append([clean(name), *said])
    return rows


def _print_layouts(verified: Verified, console: Console) -> None:
    """Print how both functions were called."""
    first, *rows = called_with(verified)
    if not rows:
        console.print((f"  {first[0]}", "dim"))
        return
    columns = [Column(heading, wraps=bool(index)) for index, heading in enumerate(first)]
    console.print()
    print_table(columns, [[(cell, "") for cell in row] for row in rows], console)


def _print_evidence(evidence: Evidence, console: Console, *, sent: bool = False) -> None:
    """Print the evidence; what is `sent` has a table of its own."""
    told = dataclasses.replace(evidence, collectives=None) if sent else evidence
    for line in _joined(evidence_parts(told), console.width):
        console.print((line, "green" if evidence.proved else "red"))
    for note in notes_of(evidence):
        print_prose(console, note, indent="  ", style="yellow")


def ended(derivation: Derivation) -> str:
    """Where a derivation ended, and what that leaves."""
    at = f" at `{derivation.primitive}`" if derivation.primitive else ""
    where = f" ({place(derivation.span)})" if derivation.span else ""
    parts = ""
    if any(derivation.terms):
        parts = f": `{derivation.terms[0]}`, where the original has `{derivation.terms[1]}`"
    return (
        f"not derived for all inputs, but tried on some: after {derivation.operations:,} operations the "
        f"derivation ended{at}{where}: {clean(derivation.reason)}{clean(parts)}"
    )


def notes_of(evidence: Evidence) -> tuple[str, ...]:
    """What there is to say of a proof in which nothing is wrong, a sentence each."""
    derivation = evidence.derivation
    early = [ended(derivation)] if derivation is not None and not evidence.derived else []
    return (*early, *map(clean, evidence.notes))


def _joined(parts: Sequence[str], width: int) -> list[str]:
    """`parts` with dots between them, in lines of at most `width`: only a part longer than that is broken."""
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]} · {part}" if lines else part
        if cell_len(longer) <= width:
            lines[-1:] = [longer]
            continue
        indent = "  " if lines else ""
        broken = textwrap.wrap(part, max(width - 2, 20), break_long_words=False, break_on_hyphens=False)
        lines += [indent + broken[0], *(f"  {rest}" for rest in broken[1:])]
    return lines


def evidence_parts(evidence: Evidence) -> list[str]:
    """The evidence in a few words each: what is derived, device counts, steps, the largest error, jax."""
    counts = evidence.counts
    parts = [f"proved on {counts}" if evidence.proved else f"NOT EQUAL on {counts}"]
    if evidence.derivation is not None and evidence.derived:
        operations = f"{evidence.derivation.operations:,} operations"
        if evidence.derivation.measured:
            operations += f", of which measured: {', '.join(evidence.derivation.measured)}"
        run = f"run on {counts}" if counts else "not run"
        parts = [f"derived for {evidence.derivation.extent} ({operations})", run]
        multiple = evidence.derivation.multiple
        if multiple > 1:
            lines = dict.fromkeys(map(place, evidence.derivation.multiple_for))
            why = f" ({', '.join(lines)})" if lines else ""
            parts.insert(1, f"each device takes a multiple of {multiple} rows{why}, which the code checks")
    steps = max((check.steps for check in evidence.checks), default=0)
    if steps > 1:
        parts.append(f"{steps} chained steps")
    for precision in sorted({check.precision for check in evidence.checks}, key=lambda p: p != "float64"):
        worst = evidence.worst(precision)
        name = "own dtypes" if precision == "as given" else precision
        parts.append(f"{name} error {worst.error:.2g} (bound {worst.tolerance:.2g})")
    if evidence.equal_draws:
        parts.append("equal for equal draws: numbers drawn for examples are others than on one device")
    if evidence.collectives:
        shown = [*map(collective_text, evidence.collectives)]
        if any(row.axes for row in evidence.collectives):
            parts += [f"compiled to {shown[0]}", *shown[1:]]
        else:
            parts.append(f"compiled to {' + '.join(shown)}")
    if evidence.memory is not None and evidence.at_once is not None:
        sizes = human_bytes(evidence.memory.total), human_bytes(evidence.at_once.total)
        parts.append(f"{sizes[0]} on a device, {sizes[1]} without microbatches")
    if evidence.replicas_identical:
        parts.append("replicas bit-identical")
    parts.append(f"jax {evidence.jax_version}")
    return parts


def usual_devices(plan: Plan) -> int:
    """The device count to show shares for: the plan's own, or the most of 8, 4, 3, 2 that fits."""
    if plan.mesh:
        return math.prod(axis.size for axis in plan.mesh)
    if plan.devices.number:
        return plan.devices.number
    seen = [leaf for argument in plan.arguments for leaf in argument.leaves]
    sizes = [leaf.shape[leaf.axis] for leaf in seen if leaf.axis is not None]
    return next((n for n in (8, 4, 3, 2) if all(size % n == 0 for size in sizes)), 2)


def _print_plan(plan: Plan, console: Console, devices: int, backend: Backend | None) -> None:
    """Print a plan; `backend` is the form of the code that was made from it, None where there is none."""
    target = clean(plan.target)
    parts = [str(backend)] if backend else []
    for i, line in enumerate(
        _joined([target, *parts, f'axis "{plan.axis_name}"', _devices_text(plan)], console.width)
    ):
        name = target if i == 0 else ""
        console.print((name, "bold"), (line.removeprefix(name), "dim"))
    console.print()
    _print_arguments(plan, console, devices)
    if plan.syncs:
        console.print()
        _print_syncs(plan, console, backend)
    # A leading blank keeps a line whole: these are copied or read as code.
    for heading, lines in (
        (
            "assumed inputs (these options change them)",
            [f" --arg {shlex.quote(spec)}" for spec in plan.assumed_inputs],
        ),
        ("notes", plan.notes),
        (
            "not reached by the example inputs: the code raises there",
            [f" {place(guard.span)}  {guard.condition}" for guard in plan.guards],
        ),
    ):
        if lines:
            console.print()
            console.print((f"  {heading}", "dim"))
            for line in lines:
                print_prose(console, line, indent=" " if line.startswith(" ") else "  ")


def _devices_text(plan: Plan) -> str:
    if plan.microbatches > 1:
        return f"{_devices_text(dataclasses.replace(plan, microbatches=1))}, {plan.microbatches} microbatches"
    if plan.mesh:
        return f"mesh {mesh_text(plan.mesh)}"
    if plan.devices.ids:
        return f"devices {', '.join(map(str, plan.devices.ids))}"
    if plan.devices.count:
        return f"first {plan.devices.count} devices"
    return "all devices"


def _print_arguments(plan: Plan, console: Console, devices: int) -> None:
    """The widest layout that fits: with reasons, then reasons below, then shapes above each other."""
    room = max(console.width // 2 - 8, 20)
    share = functools.partial(_share, devices=devices, mesh=plan.mesh)
    rows = [row for argument in plan.arguments for row in _argument_rows(argument, share, room)]
    rows += _output_rows(plan, share, room)
    reasons = [(argument.name, argument.why) for argument in plan.arguments if argument.why]
    medium = _argument_table(rows, devices, why=False, stacked=False)
    spare = console.width - 2 - natural_width(*medium)
    if reasons and spare >= 2 + min(36, max(cell_len(why) for _, why in reasons)):
        print_table(*_argument_table(rows, devices, why=True, stacked=False), console)
        return
    narrow = _argument_table(rows, devices, why=False, stacked=True)
    print_table(*(medium if spare >= 0 else narrow), console)
    if reasons:
        console.print()
        cells = [[(name, ""), (clean(why), "dim")] for name, why in reasons]
        print_table([Column("why"), Column("", wraps=True)], cells, console)


#: name, role, shape on the whole batch, shape of one share, why
_Row = tuple[str, str, str, str, str]
#: What is shown of one device's share of an array.
_Share: TypeAlias = Callable[[Leaf], str]


def _argument_rows(argument: Argument, share: _Share, room: int) -> Iterator[_Row]:
    leaves = argument.leaves
    name = argument.name + (" (donated)" if argument.donated else "")
    if argument.static:
        values = ", ".join(argument.proved_values)
        yield name, "static", clip(clean(values), 24), "", argument.why
        return
    axes = {leaf.axis for leaf in leaves if leaf.role is not Role.STATIC}
    role = _on_mesh(leaves) or argument.role
    if role == Role.BATCH:
        role = f"batch axis {axes.pop()}" if len(axes) == 1 else "mixed"
    if len(leaves) == 1:
        yield name, role, _shape(leaves[0]), share(leaves[0]), argument.why
    elif not leaves:
        yield name, role, ", ".join(argument.proved_values), "", argument.why
    elif role == "mixed" or (argument.role == Role.BATCH and len(leaves) <= MAX_LEAF_ROWS):
        yield name, role, "", "", argument.why
        yield from _leaf_rows(argument.name, leaves, share, room)
    else:
        yield name, role, f"{len(leaves)} leaves", "", argument.why


def _on_mesh(leaves: Sequence[Leaf]) -> str:
    """The role of arrays that hold no batch and are divided over a mesh; ``""`` for others."""
    divided = any(leaf.spec for leaf in leaves) and all(leaf.axis is None for leaf in leaves)
    return "on the mesh" if divided else ""


def _leaf_rows(name: str, leaves: Sequence[Leaf], share: _Share, room: int) -> Iterator[_Row]:
    """At most `MAX_LEAF_ROWS` leaves, among them one of each role, and a count of the rest."""
    first_of_role = {(leaf.role, leaf.axis): i for i, leaf in reversed(list(enumerate(leaves)))}
    shown = set(sorted(first_of_role.values())[:MAX_LEAF_ROWS])
    for i in range(len(leaves)):
        if len(shown) >= MAX_LEAF_ROWS:
            break
        shown.add(i)
    for i in sorted(shown):
        leaf = leaves[i]
        path = leaf.path.removeprefix(name) or leaf.path
        role = f"batch axis {leaf.axis}" if leaf.role is Role.BATCH else str(leaf.role)
        yield "  " + _middle(clean(path), room), role, _shape(leaf), share(leaf), ""
    rest = [leaf for i, leaf in enumerate(leaves) if i not in shown]
    if rest:
        yield f"  … {len(rest)} more {'leaf' if len(rest) == 1 else 'leaves'}", _roles_of(rest), "", "", ""


def _roles_of(leaves: Sequence[Leaf]) -> str:
    roles = dict.fromkeys(str(leaf.role) for leaf in leaves)
    return ", ".join(roles)


def _output_rows(plan: Plan, share: _Share, room: int) -> Iterator[_Row]:
    leaves = plan.outputs
    if not leaves:
        return
    roles = {(leaf.role, leaf.axis) for leaf in leaves if leaf.role is not Role.STATIC}
    if len(leaves) == 1:
        leaf = leaves[0]
        role = f"batch axis {leaf.axis}" if leaf.role is Role.BATCH else str(leaf.role)
        yield "→ result", role, _shape(leaf), share(leaf), ""
    elif len(roles) == 1 and all(role is not Role.BATCH for role, _ in roles):
        yield "→ result", _on_mesh(leaves) or str(next(iter(roles))[0]), f"{len(leaves)} leaves", "", ""
    else:
        root = leaves[0].path.partition("[")[0].partition(".")[0]
        yield "→ result", "mixed" if len(roles) > 1 else f"batch axis {leaves[0].axis}", "", "", ""
        yield from _leaf_rows(root, leaves, share, room)


def _argument_table(
    rows: Sequence[_Row], devices: int, *, why: bool, stacked: bool
) -> tuple[list[Column], list[list[Cell]]]:
    shapes = [f"whole batch\n→ each of {devices}"] if stacked else ["whole batch", f"on each of {devices}"]
    columns = [Column(heading) for heading in ("argument", "role", *shapes)]
    if why:
        columns.append(Column("why", wraps=True))
    table: list[list[Cell]] = []
    for name, role, shape, share, reason in rows:
        cells = [(name, ""), (role, _role_style(role))]
        if stacked:
            cells.append((f"{shape}\n→ {share}" if share and share != shape else shape, ""))
        else:
            cells += [(shape, ""), (share, "")]
        if why:
            cells.append((clean(reason), "dim"))
        table.append(cells)
    return columns, table


def _role_style(role: str) -> str:
    word = role.partition(" ")[0]
    return {"batch": "cyan", "static": "magenta", "key": "yellow", "mixed": "dim"}.get(word, "")


def _print_syncs(plan: Plan, console: Console, backend: Backend | None) -> None:
    written = backend is not Backend.JIT
    if not written:
        console.print(("  needed; the compiler inserts them", "dim"))
    several = written and any(name for sync in plan.syncs for name in sync.along)
    columns = [
        Column("sync" if written else "kind"),
        Column("value", wraps=True),
        *([Column("along")] if several else []),
        Column("where"),
        Column("bytes", right=True),
    ]
    rows: list[list[Cell]] = []
    for sync in plan.syncs:
        if sync.op in ON_DEVICE and not written:
            continue  # In the global view every value and every draw is the one of a single device.
        # What is divided is so in all of its parts.
        paths = [path for path in sync.paths if path and sync.op != "own_share"]
        value = ", ".join(sync.value + path for path in paths[:3]) if paths else sync.value
        if len(paths) > 3:
            value += f", … {len(paths) - 3} more"
        if sync.op == "fold_in":
            keys = "its keys" if sync.where == AROUND else "key"
            value += f": {keys} folded with the device's index"
        elif sync.where == ADDED:
            value += ": what is added to it"
        elif sync.op == DIVIDE:
            value += ": by the number of devices"
        elif sync.op in ("own_share", "own_size"):
            value += ": the device's part"
        op = sync.op if written else _KINDS[sync.op]
        size = human_bytes(sync.bytes) if sync.bytes else ""
        along: list[Cell] = [(", ".join(plan.along(sync)), "")] if several else []
        rows.append([(op, "green"), (clean(value), ""), *along, (place(sync.span), ""), (size, "")])
    print_table(columns, rows, console)


def short_dtype(dtype: str) -> str:
    """``"float32"`` as ``"f32"``, the way shapes are written in ``--arg``; other names as they are."""
    match = re.fullmatch(r"(float|int|uint|complex|bfloat)(\d+)", dtype)
    return f"{_SHORT_DTYPES[match[1]]}{match[2]}" if match else dtype


def _shape(leaf: Leaf, shape: tuple[int, ...] | None = None) -> str:
    sizes = ",".join(map(str, leaf.shape if shape is None else shape))
    return f"{short_dtype(leaf.dtype)}[{sizes}]"


def _share(leaf: Leaf, devices: int, mesh: tuple[MeshAxis, ...]) -> str:
    """The share of one device; ``"?"`` where the example batch does not divide."""
    if mesh:
        return _shape(leaf, leaf.per_device(devices, mesh))
    if leaf.axis is None:
        return _shape(leaf)
    if leaf.shape[leaf.axis] % devices:
        return "?"
    return _shape(leaf, leaf.per_device(devices))


def _middle(text: str, width: int) -> str:
    """`text` with its middle left out where it is longer than `width`."""
    if cell_len(text) <= width:
        return text
    head = width // 3  # the end of a path tells leaves apart
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"
