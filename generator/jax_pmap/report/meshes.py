"""What every device of a mesh holds: the place and the bytes of each array, and the sums."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from jax_pmap.leaf_paths import dotted
from jax_pmap.model import Collective, Leaf, Machine, MeshAxis, Plan, Role, Spec
from jax_pmap.report.console import Cell, Console, clean, print_prose
from jax_pmap.report.layout import Column, print_table
from jax_pmap.units import human_bytes
from jax_pmap.worker.protocol import Memory

#: Rows for the arrays of one argument; the rest is counted.
MAX_ROWS = 6


def mesh_text(mesh: Sequence[MeshAxis]) -> str:
    """``"data=4, model=2"``."""
    return ", ".join(f"{axis.name}={axis.size}" for axis in mesh)


def spec_text(spec: Spec) -> str:
    """``"None, model"``; ``"whole"`` where nothing is divided."""
    if not spec:
        return "whole"
    return ", ".join(
        "None" if not names else names[0] if len(names) == 1 else f"({','.join(names)})" for names in spec
    )


def print_mesh(plan: Plan, memory: Memory | None, console: Console) -> None:
    """Print what each device of the plan's mesh holds of the arguments, and what the program takes."""
    number = math.prod(axis.size for axis in plan.mesh)
    console.print((f"  on a mesh of {mesh_text(plan.mesh)}", "dim"))
    columns = [
        Column("array"),
        Column("lies"),
        Column("whole", right=True),
        Column(f"on each of {number}", right=True),
    ]
    rows: list[list[Cell]] = []
    whole = share = 0
    for argument in plan.arguments:
        leaves = [leaf for leaf in argument.leaves if leaf.role is not Role.STATIC]
        if argument.static or not leaves:
            continue
        sums = sum(map(Leaf.bytes, leaves)), sum(leaf.bytes(number, plan.mesh) for leaf in leaves)
        whole, share = whole + sums[0], share + sums[1]
        one = len(leaves) == 1 or len({leaf.spec for leaf in leaves}) == 1
        lies = spec_text(leaves[0].spec) if one else ""
        rows.append([(argument.name, ""), (lies, "cyan" if lies != "whole" else ""), *_sizes(*sums)])
        if not one:
            rows += _leaf_rows(argument.name, leaves, number, plan.mesh)
    rows.append([("sum", "bold"), ("", ""), *_sizes(whole, share)])
    if memory is not None:
        size = human_bytes(memory.total)
        rows.append([("peak, compiled for CPU", ""), ("", ""), ("", ""), (size, "")])
    print_table(columns, rows, console)


def print_sent(plan: Plan, sent: Sequence[Collective], console: Console) -> None:
    """Print what the devices of the plan's mesh send each other in one call of the compiled program."""
    number = math.prod(axis.size for axis in plan.mesh)
    said = f"sent in one call, as compiled for {number} simulated CPU devices; others may do otherwise"
    print_prose(console, said, indent="  ", style="dim")
    if not sent:
        print_prose(console, "nothing: no device needs anything of another", indent="  ")
        return
    columns = [
        Column("collective"),
        Column("along"),
        Column("times", right=True),
        Column("bytes", right=True),
        Column("each sends", right=True),
    ]
    rows: list[list[Cell]] = []
    sums: dict[str, list[int]] = {}
    for row in sorted(sent, key=lambda row: (row.axes, row.kind)):
        along = along_text(row, plan.mesh)
        own = sent_in_a_ring(row, plan.mesh)
        sums.setdefault(along, []).append(own)
        cells = [str(row.times), human_bytes(row.moved), human_bytes(own)]
        rows.append([(row.kind, "green"), (along, "cyan"), *((cell, "") for cell in cells)])
    for along, each in sums.items():
        if len(each) > 1:
            rows.append([("sum", "bold"), (along, "cyan"), ("", ""), ("", ""), (human_bytes(sum(each)), "")])
    print_table(columns, rows, console)


def along_text(row: Collective, mesh: Sequence[MeshAxis]) -> str:
    """The axes along which a collective goes: ``"data, model"``, where it goes along whole axes."""
    if len(mesh) == 1:
        return mesh[0].name
    return ", ".join(row.axes) or "other groups"


def sent_in_a_ring(row: Collective, mesh: Sequence[MeshAxis]) -> int:
    """The bytes that each device sends for a collective in one call, where devices send around a ring."""
    devices = math.prod(axis.size for axis in mesh if len(mesh) == 1 or not row.axes or axis.name in row.axes)
    share = {
        "all-reduce": 2 * (devices - 1) / devices,
        # The result is one device's part of the sum.
        "reduce-scatter": devices - 1,
        "collective-permute": 1,
    }
    return round(row.moved * share.get(row.kind, (devices - 1) / devices))


def print_machine(plan: Plan, machine: Machine, console: Console, *, sent: bool = False) -> None:
    """Print what the code becomes on a machine that is not there: memory of a chip, communication.

    Args:
        plan: the plan of the code.
        machine: what it becomes.
        console: where to print.
        sent: whether it is told elsewhere what devices send each other.
    """
    about = f"{machine.name}, {machine.devices} × {machine.kind}, a batch of {machine.batch}"
    how = "compiled for {}; not run there"
    if machine.by_shapes:
        how = "worked out for {} from shapes; not compiled, since there is no libtpu"
    print_prose(console, how.format(about), indent="  ", style="dim")
    room = f" of {human_bytes(machine.capacity)} on a chip" if machine.capacity else " on a chip"
    fits = False
    if machine.memory is None:
        print_prose(console, f"does not fit: {clean(machine.lacks)}", indent="  ", style="red")
    else:
        parts = machine.memory
        taken = parts.arguments + parts.results if machine.by_shapes else parts.total
        fits = not machine.capacity or taken <= machine.capacity
        least = " at least" if machine.by_shapes else ""
        said = (
            f"{'takes' if fits else 'does not fit: it takes'}{least} {human_bytes(taken)}{room}: arguments "
            f"{human_bytes(parts.arguments)}, results {human_bytes(parts.results)}"
        )
        said += _between(machine) if machine.by_shapes else f", temporary {human_bytes(parts.temporary)}"
        print_prose(console, said, indent="  ", style="green" if fits else "red")
    leaves = [leaf for argument in plan.arguments if not argument.static for leaf in argument.leaves]
    sizes = {leaf.path: leaf.bytes(machine.devices, plan.mesh) for leaf in leaves}
    if sizes and not fits:
        path = max(sizes, key=lambda path: sizes[path])
        largest = f"`{clean(dotted(path))}`, {human_bytes(sizes[path])} on a chip"
        print_prose(console, f"the largest array that it is called with is {largest}", indent="  ")
    if machine.collectives and not (machine.by_shapes and sent):
        said = " · ".join(map(collective_text, machine.collectives))
        if machine.by_shapes:
            said = f"planned: {said}"
            divided = any(leaf.spec and leaf.axis is None for leaf in leaves)
            if divided and not any(s.like for s in plan.syncs):
                said += "; what is sent for the arrays that are divided, only a compiler says"
        print_prose(console, said, indent="  ")


def _between(machine: Machine) -> str:
    """What is known of the bytes between arguments and results where nothing was compiled."""
    assert machine.memory is not None
    compiler = "only a compiler says what it takes (pip install 'jax[tpu]')"
    if not machine.memory.temporary:
        return f"; between them, {compiler}"
    said = f"; between them up to {human_bytes(machine.memory.temporary)}, operation by operation"
    if machine.memory.total > machine.capacity:
        said += ", which may not fit"
    return f"{said}: {compiler}"


def collective_text(row: Collective) -> str:
    """``"3 all-reduce (1.2 MB, data)"``; with what that is in one call, where rounds of loops are more."""
    said = ", ".join([human_bytes(row.bytes), *row.axes])
    if row.times > row.count:
        said += f"; {row.times} times a call in loops, {human_bytes(row.moved)}"
    return f"{row.count} {row.kind} ({said})"


def _sizes(whole: int, share: int) -> list[Cell]:
    return [(human_bytes(whole), ""), (human_bytes(share), "")]


def _leaf_rows(
    name: str, leaves: Sequence[Leaf], number: int, mesh: tuple[MeshAxis, ...]
) -> Iterator[list[Cell]]:
    """At most `MAX_ROWS` arrays, the largest of each place first, and a row for the others."""
    ranked = sorted(leaves, key=Leaf.bytes, reverse=True)
    first = {leaf.spec: leaf for leaf in reversed(ranked)}
    shown = sorted(first.values(), key=Leaf.bytes, reverse=True)[:MAX_ROWS]
    shown += [leaf for leaf in ranked if leaf not in shown][: MAX_ROWS - len(shown)]
    for leaf in leaves:
        if leaf in shown:
            path = dotted(leaf.path).removeprefix(f"{name}.")
            lies = spec_text(leaf.spec)
            yield [
                ("  " + clean(path), ""),
                (lies, "cyan" if leaf.spec else ""),
                *_sizes(leaf.bytes(), leaf.bytes(number, mesh)),
            ]
    rest = [leaf for leaf in leaves if leaf not in shown]
    if rest:
        yield [
            (f"  … {len(rest)} more", ""),
            ("", ""),
            *_sizes(sum(map(Leaf.bytes, rest)), sum(leaf.bytes(number, mesh) for leaf in rest)),
        ]
