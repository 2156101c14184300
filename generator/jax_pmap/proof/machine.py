"""Have emitted code compiled and not run: for TPUs that are not there, or for simulated devices.

Without a compiler for TPUs, work out what the code holds there at least.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable

from jax_pmap.emit.decomposed import TOGETHER
from jax_pmap.inputs.load import load
from jax_pmap.model import (
    EXCHANGE,
    GATHERED,
    ON_DEVICE,
    SCATTERED,
    Argument,
    Backend,
    Collective,
    Compiled,
    Machine,
    Plan,
    RefusalError,
    Request,
    Say,
    Span,
    quiet,
    refused,
)
from jax_pmap.planning.search import Observed
from jax_pmap.proof.answers import read_collectives
from jax_pmap.proof.notes import unplanned
from jax_pmap.proof.requests import batch_size, comparison_of, emitted_of
from jax_pmap.reading.target import Target
from jax_pmap.session import Session
from jax_pmap.worker import protocol
from jax_pmap.worker.protocol import Problem

#: Topologies that are named in a hint.
KNOWN = ("v4:2x2x1", "v5e:2x4", "v5e:16x16", "v5p:2x2x1", "v6e:4x4")
#: Kinds of chips as targets name them.
KINDS = {
    "v4": "TPU v4",
    "v5e": "TPU v5 lite",
    "v5p": "TPU v5p",
    "v6e": "TPU v6 lite",
}
#: How values of a plan go from chip to chip, where they are not reduced by all; and what does not leave it.
WIRES = {
    **dict.fromkeys(("all_gather", GATHERED), "all-gather"),
    EXCHANGE: "all-to-all",
    **dict.fromkeys(SCATTERED.values(), "reduce-scatter"),
}
ON_CHIP = frozenset(ON_DEVICE) | {op for op, sent in TOGETHER.items() if not sent}
#: Said where nothing tells what a compiler has devices send.
NOT_TOLD = "what devices send each other is not known"
#: Of the time limit, what compiling for simulated devices may take.
SHARE = 1 / 3
#: Most chips of a machine that nothing is compiled for.
MOST_CHIPS = 4096
#: Bytes of memory of one chip, by its kind.
CAPACITY = {
    "TPU v2": 8 << 30,
    "TPU v3": 16 << 30,
    "TPU v4": 32 << 30,
    "TPU v5 lite": 16 << 30,
    "TPU v5": 95 << 30,
    "TPU v5p": 95 << 30,
    "TPU v6 lite": 32 << 30,
}


def compiled_for(
    start: Callable[[], Session],
    target: Target,
    plan: Plan,
    observed: Observed,
    request: Request,
    code: str,
    say: Say,
) -> Machine:
    """What the compiler makes of `code` for the machine of ``request.topology``.

    Raises:
        RefusalError: JP023 where there is no such machine, or one of another size.
    """
    say(f"compiling: for {request.topology}")
    comparison = _comparison(plan, observed, jit=request.backend is Backend.JIT)
    asked = protocol.CompileFor(
        comparison,
        emitted_of(target, plan, code),
        str(request.topology),
        {each.name: _specs(each, plan) for each in plan.arguments if not each.static},
    )
    with start() as session:
        load(session, target, request, quiet)
        session.ask(protocol.Precision(comparison.roles.statics), "tracing the function")
        try:
            answer = session.ask(asked, f"compiling for {request.topology}")
        except Problem as problem:
            if problem.kind not in ("topology", "inputs"):
                raise
            raise _not_there(
                str(request.topology), problem.message, target.facts.span, small=problem.kind == "inputs"
            ) from None
    return Machine(
        name=str(request.topology),
        kind=answer.kind,
        devices=answer.devices,
        batch=answer.batch,
        capacity=CAPACITY.get(answer.kind, 0),
        memory=answer.memory,
        collectives=read_collectives(answer.collectives) if answer.collectives is not None else None,
        lacks=answer.lacks,
    )


def compiled_here(session: Session, target: Target, plan: Plan, observed: Observed, code: str) -> Compiled:
    """What XLA makes of `code` for as many simulated devices as the mesh has, from the shapes of its inputs.

    A compiler that divides the work decides what is sent, so only it can say. Where it takes too long, or too
    much memory, the worker has ended.
    """
    devices = math.prod(axis.size for axis in plan.mesh)
    if devices > protocol.MOST_DEVICES:
        why = f"{devices} devices are more than the {protocol.MOST_DEVICES} that are simulated"
        return Compiled(None, None, (f"{NOT_TOLD}: {why}",))
    asked = protocol.CompileFor(
        _comparison(plan, observed, jit=True),
        emitted_of(target, plan, code),
        protocol.HERE,
        {each.name: _specs(each, plan) for each in plan.arguments if not each.static},
    )
    limit = session.timeout
    session.timeout = limit * SHARE
    try:
        answer = session.ask(asked, f"compiling for {devices} simulated devices")
    except RefusalError as error:
        why = f"{error.refusal.reason}; --timeout and --memory allow more"
        return Compiled(None, None, (f"{NOT_TOLD}: {why}",))
    except Problem as problem:
        return Compiled(None, None, (f"{NOT_TOLD}: {problem.message}",))
    finally:
        session.timeout = limit
    rows = answer.collectives or ()
    return Compiled(read_collectives(rows), answer.memory, tuple(unplanned(rows, plan, True)))


def by_shapes(session: Session, target: Target, plan: Plan, observed: Observed, name: str) -> Machine:
    """What code takes on a chip of the machine `name`, where there is no compiler for it.

    Raises:
        RefusalError: JP023 for a name that says no machine, one of another size than the mesh, or one of more
            chips than the batch has rows.
    """
    span = target.facts.span
    match = re.fullmatch(r"(\w+):(\d{1,4}(?:x\d{1,4}){1,2})", name)
    kind = KINDS.get(match[1]) if match else None
    if match is None or kind is None:
        raise _not_there(name, "it is not the name of a machine", span)
    chips = math.prod(map(int, match[2].split("x")))
    if not 0 < chips <= MOST_CHIPS:
        raise _not_there(name, f"it has {chips} chips, and there may be {MOST_CHIPS}", span)
    devices = math.prod(axis.size for axis in plan.mesh)
    if plan.mesh and devices != chips:
        axes = ", ".join(f"{axis.name}={axis.size}" for axis in plan.mesh)
        raise _not_there(name, f"it has {chips} chips, and the mesh of {axes} {devices}", span)
    batch, shares = batch_size(plan), plan.shares if plan.mesh else chips
    assert shares is not None
    parts = shares * plan.minibatches
    if batch < parts:
        why = f"a batch of {batch} is too small for the {parts} parts it is divided into"
        raise _not_there(name, why, span, small=True)
    given = [leaf for each in plan.arguments if not each.static for leaf in each.leaves]
    kept = [leaf for each in plan.arguments if each.donated for leaf in each.leaves]
    sizes = [sum(leaf.bytes(chips, plan.mesh) for leaf in rows) for rows in (given, plan.outputs, kept)]
    asked = protocol.Intermediate(
        _comparison(plan, observed, jit=True), rows=batch // shares // plan.microbatches
    )
    temporary = session.ask(asked, "tracing a share")
    memory = protocol.Memory(sizes[0], max(sizes[1] - sizes[2], 0), temporary)
    rows = batch // parts * parts
    return Machine(name, kind, chips, rows, CAPACITY[kind], memory, _planned(plan, chips), by_shapes=True)


def _comparison(plan: Plan, observed: Observed, *, jit: bool) -> protocol.Comparison:
    """The reference and its inputs, of which shapes are used."""
    comparison = comparison_of(plan, observed, observed.variants[0], jit)
    return dataclasses.replace(comparison, steps=1, derived=True)


def _planned(plan: Plan, chips: int) -> tuple[Collective, ...]:
    """The collectives of a plan, each once, with the bytes of their results on a chip."""
    found: dict[tuple[str, tuple[str, ...]], Collective] = {}
    for sync in plan.syncs:
        if not sync.bytes or sync.op in ON_CHIP:
            continue
        kind = WIRES.get(sync.op, "all-reduce")
        size = sync.bytes // (plan.shares or chips) if kind == "reduce-scatter" else sync.bytes
        along = plan.along(sync) if len(plan.mesh) > 1 else ()
        before = found.get((kind, along), Collective(kind, 0, 0, along))
        found[kind, along] = dataclasses.replace(before, count=before.count + 1, bytes=before.bytes + size)
    return tuple(found[key] for key in sorted(found))


def _not_there(name: str, why: str, span: Span, *, small: bool = False) -> RefusalError:
    """The refusal of a machine that the code is not for."""
    hint = f"Name a machine as in {', '.join(KNOWN)}; with --mesh, one of as many chips"
    if small:
        hint = "Give example inputs with a larger batch; shapes are enough"
    return refused("JP023", f"`--target {name}`: {why}", hint, span)


def _specs(argument: Argument, plan: Plan) -> dict[int, tuple[tuple[str, ...], ...]]:
    """How each array of an argument lies, by its place."""
    found: dict[int, tuple[tuple[str, ...], ...]] = {}
    for index, leaf in enumerate(argument.leaves):
        if leaf.spec:
            found[index] = leaf.spec
        elif leaf.axis is not None:
            found[index] = (*((),) * leaf.axis, (plan.axis_name,))
    return found
