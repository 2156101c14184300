"""Have emitted code run in several real processes that jax makes one of, each with its own rows."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from jax_pmap.inputs.load import load
from jax_pmap.model import Backend, Check, Evidence, Plan, RefusalError, Request, Say, quiet, refused
from jax_pmap.planning.search import Observed
from jax_pmap.proof.answers import check_of
from jax_pmap.proof.failures import failure
from jax_pmap.proof.requests import comparison_of, emitted_of
from jax_pmap.reading.target import Target
from jax_pmap.session import Session
from jax_pmap.worker import protocol
from jax_pmap.worker.protocol import Member, Problem

#: Devices of each process, where no mesh says how many there are.
DEVICES = 2
#: Chained calls.
STEPS = 2


def run_in_processes(
    start: Callable[[int, Member], Session],
    target: Target,
    plan: Plan,
    observed: Observed,
    request: Request,
    code: str,
    evidence: Evidence,
    say: Say,
) -> Check:
    """The run of `code` in ``request.processes`` processes, over gloo, on the example inputs.

    Args:
        start: makes the worker that is a member, with so many devices of its own.
        target: the function.
        plan: what the code was made from.
        observed: its roles and variants.
        request: the question, with what was assumed of its inputs.
        code: the emitted file.
        evidence: what was shown in one process.
        say: told in a line what is going on.

    Raises:
        RefusalError: JP045 where a result differs, JP064 where the processes could not be compared, and what
            the end of a worker is refused with; the other processes are ended.
    """
    number = request.processes
    devices = math.prod(axis.size for axis in plan.mesh) // number if plan.mesh else DEVICES
    say(f"running in {number} processes of {devices} devices")
    changed = sum(len(each.leaves) for each in plan.arguments if each.name in plan.mutated)
    comparison = comparison_of(plan, observed, observed.variants[0], request.backend is Backend.JIT)
    asked = protocol.ProveInProcesses(
        dataclasses.replace(comparison, steps=STEPS, derived=evidence.derived),
        emitted_of(target, plan, code),
        (*(leaf.axis for leaf in plan.outputs), *[None] * changed),
        plan.multiple_of,
    )

    def prepare(session: Session) -> None:
        load(session, target, request, quiet)
        session.ask(protocol.Precision(comparison.roles.statics), "tracing the function")

    def run(session: Session) -> Sequence[protocol.Check]:
        which = session.member.index + 1 if session.member is not None else 0
        checks = session.ask(asked, f"running process {which} of {number}").checks
        _compared(checks, number, target)
        return checks

    with contextlib.ExitStack() as stack:
        address = f"127.0.0.1:{free_port()}"
        sessions = [
            stack.enter_context(start(devices, Member(address, number, index))) for index in range(number)
        ]
        # A process waits half a minute for another one in its first collective: all of them begin together.
        for work in (prepare, run):
            with ThreadPoolExecutor(number) as pool:
                members = {pool.submit(work, session): index for index, session in enumerate(sessions)}
                failed: dict[int, Exception] = {}
                for each in as_completed(members):
                    try:
                        checks = each.result()
                    except Exception as error:
                        failed[members[each]] = error
                        if _waited(error):
                            continue  # Another one says why.
                        # The others wait for it in a collective, and would until their time is over.
                        for session in sessions:
                            session.close()
                        break
            if failed:
                index = min(failed, key=lambda index: _waited(failed[index]))
                raise _refused(failed[index], index + 1, target, request) from None
        assert checks is not None
    return dataclasses.replace(check_of(checks[-1]), processes=number)


def _compared(checks: Sequence[protocol.Check], number: int, target: Target) -> None:
    """Refuse what one process found to differ.

    Raises:
        RefusalError: JP045.
    """
    for check in checks:
        if check.failure is not None:
            found = failure(check, check.failure, target.facts.span)
            reason = found.reason.replace(" devices", f" devices in {number} processes", 1)
            hint = (
                "Look for what the function does otherwise in another process (`jax.process_index`, files, "
                "random numbers without a key); if there is nothing, please report it with the function"
            )
            raise RefusalError(dataclasses.replace(found, reason=reason, hint=hint))


def _waited(error: Exception) -> bool:
    """Whether a process failed for another one, with which it has a collective in common."""
    said = error.refusal.reason if isinstance(error, RefusalError) else str(error)
    return bool(re.search(r"\bgloo\b|connection (?:closed|reset) by peer", said, re.IGNORECASE))


def _refused(error: Exception, which: int, target: Target, request: Request) -> Exception:
    """What to raise for a process that failed."""
    said = f"process {which} of {request.processes}"
    if isinstance(error, RefusalError):
        return RefusalError(dataclasses.replace(error.refusal, reason=f"{said}: {error.refusal.reason}"))
    if isinstance(error, Problem) and error.kind in ("transport", "inputs"):
        hint = "Give example inputs as arrays, with a larger batch"
        if error.kind == "transport":
            hint = (
                "Another jaxlib may be right: the collectives between processes on CPU (gloo) are wrong here "
                "by themselves, and show nothing of the code. Leave --processes out to prove it in one"
            )
        return refused("JP064", f"{said} compared nothing: {error.message}", hint, target.facts.span)
    return error


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
