"""Have emitted code compiled for TPUs that are not there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from jax_pmap.inputs.load import load
from jax_pmap.model import Argument, Backend, Machine, Plan, Request, Say, quiet, refused
from jax_pmap.planning.search import Observed
from jax_pmap.problems import WorkerProblem
from jax_pmap.proof.prove import comparison_of, emitted_of, read_collectives, read_memory
from jax_pmap.reading.target import Target
from jax_pmap.session import Session
from jax_pmap.worker import protocol

#: Topologies that are named in a hint.
KNOWN = ("v4:2x2x1", "v5e:2x4", "v5e:16x16", "v5p:2x2x1", "v6e:4x4")
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
        RefusalError: JP023 where there is no compiler for it, no such machine, or one of another size.
    """
    say(f"compiling for {request.topology}")
    jit = request.backend is Backend.JIT
    comparison = comparison_of(plan, observed, observed.variants[0], jit)
    asked = protocol.CompileFor(
        dataclasses.replace(comparison, steps=1, derived=True),
        emitted_of(target, plan, code),
        str(request.topology),
        {each.name: _specs(each, plan) for each in plan.arguments if not each.static},
    )
    with start() as session:
        load(session, target, request, quiet)
        session.ask(protocol.Precision(comparison.roles.statics), "tracing the function")
        try:
            answer = session.ask(asked, f"compiling for {request.topology}")
        except WorkerProblem as problem:
            if problem.kind not in ("libtpu", "topology", "inputs"):
                raise
            hints = {
                "libtpu": f"Install it where your code runs: {session.python} -m pip install 'jax[tpu]'",
                "topology": f"Name a machine as in {', '.join(KNOWN)}; with --mesh, one of as many chips",
                "inputs": "Give example inputs with a larger batch; shapes are enough",
            }
            raise refused(
                "JP023",
                f"`--target {request.topology}`: {problem.message}",
                hints[problem.kind],
                target.facts.span,
            ) from None
    return Machine(
        name=str(request.topology),
        kind=answer.kind,
        devices=answer.devices,
        batch=answer.batch,
        capacity=CAPACITY.get(answer.kind, 0),
        memory=read_memory(answer.memory),
        collectives=read_collectives(answer.collectives) if answer.collectives is not None else None,
        lacks=answer.lacks,
    )


def _specs(argument: Argument, plan: Plan) -> dict[int, tuple[tuple[str, ...], ...]]:
    """How each array of an argument lies, by its place."""
    found: dict[int, tuple[tuple[str, ...], ...]] = {}
    for index, leaf in enumerate(argument.leaves):
        if leaf.spec:
            found[index] = leaf.spec
        elif leaf.axis is not None:
            found[index] = (*((),) * leaf.axis, (plan.axis_name,))
    return found
