"""The way of the data: locate → read → inputs → observe → plan → render → prove.

Each stage is a function of frozen values; this module only puts them in a row. Nothing here
prints, and nothing writes to the user's files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from jax_pmap.locate import as_others_import, locate
from jax_pmap.model import (
    Backend,
    Fit,
    Generated,
    Plan,
    Refusal,
    RefusalError,
    Request,
    Say,
    Unchanged,
    Verified,
    quiet,
    refused,
    staged,
)
from jax_pmap.problems import error_details, error_line, error_span
from jax_pmap.worker import protocol
from jax_pmap.worker.protocol import Problem

if TYPE_CHECKING:
    from jax_pmap.inputs.load import Loaded
    from jax_pmap.planning.search import Observed
    from jax_pmap.proof.emitted import Planned
    from jax_pmap.reading.target import Target
    from jax_pmap.session import Session

T = TypeVar("T")
#: Refusals of what cannot be looked into: a variable, a decorator, a method of an object of the module's.
CLOSED = frozenset({"JP004", "JP042", "JP050"})
#: Simulated devices that a worker has, where no more are asked for: the largest count of the proof.
WORKER_DEVICES = 8


def generate(request: Request, say: Say = quiet, session: Session | None = None) -> Generated | Refusal:
    """The multi-device version of a function, shown equal to it, or why there is none.

    Args:
        request: the question; see `Request`.
        say: told in a line what is going on.
        session: a worker to use and to leave running, as `start` makes it; None to start one and end it.
    """
    return answered(lambda: (_best if request.choose else _generate)(request, say, session))


def parallel_already(request: Request) -> Unchanged | Refusal | None:
    """The target, if it was changed in place before; a refusal where it cannot be read."""

    def look() -> Unchanged | None:
        from jax_pmap.emit.in_place import is_parallel
        from jax_pmap.syntax.parse import parse

        source = locate(request.target, request.directory)
        return (
            Unchanged(f"{source.shown_path}::{source.qualname}")
            if is_parallel(source, parse(source))
            else None
        )

    return answered(look)


def start(request: Request) -> Session:
    """A worker for `generate`, also for several requests one after the other that `start` alike."""
    return _session(request)


def make_plan(request: Request, say: Say = quiet) -> Plan | Refusal:
    """The plan alone: roles, collectives and outputs, observed but not rendered or proved."""

    def work() -> Plan:
        with _planned(request, say) as planned:
            return planned.observed.plan

    return answered(work)


def fit(request: Request, say: Say = quiet) -> Fit | Refusal:
    """The plan with its source, and what its code is on the machine of ``request.topology``, if there is one.

    For a mesh over which the compiler divides the work, with what it has the devices send. Nothing is proved.
    """

    def work() -> Fit:
        from jax_pmap.proof.emitted import on_machine, on_mesh

        with _planned(request, say) as planned:
            plan, listings = planned.observed.plan, planned.observed.listings
            machine = on_machine(planned, plan) if request.topology else None
            told = machine is not None and not machine.by_shapes
            compiled = on_mesh(planned, plan) if request.divided_by_compiler and not told else None
            return Fit(plan, machine, compiled, listings)

    return answered(work)


def verify(
    parallel: str,
    request: Request,
    layout: str | None = None,
    say: Say = quiet,
    *,
    against_layout: str | None = None,
    convert: str | None = None,
    inspect: bool = False,
) -> Verified | Refusal:
    """The proof alone: a parallel function the user wrote, held against its reference.

    Args:
        parallel: ``FILE::NAME``, ``module:NAME`` or a bare name: a function, or a variable that holds one.
        request: the reference as its target, with its inputs and roles.
        layout: how `parallel` is called: ``"drop-in"``, ``"stacked"``, ``"batch"`` or ``"NAME=FORM,…"``;
            None to find out by trying.
        say: told in a line what is going on.
        against_layout: how the reference is called, in the same words, where it is parallel itself.
        convert: ``FILE::FUNC`` or ``NAME=FILE::FUNC``, a function that makes of a tree of the reference that
            of `parallel`: the same arrays in other places.
        inspect: whether to tell the placements and the collectives in its source, too.
    """

    def start(devices: int) -> Session:
        highest = max((i + 1 for i in request.devices.ids), default=0)
        return _session(request, max(devices, highest))

    def work() -> Verified:
        from jax_pmap.proof.layouts import Layouts
        from jax_pmap.proof.verify import verify

        layouts = Layouts(layout, against_layout, convert)
        return verify(parallel, layouts, request, start, say, inspect=inspect)

    return answered(work)


def answered(work: Callable[[], T]) -> T | Refusal:
    """The result of `work`, or the refusal it ended with."""
    try:
        return work()
    except RefusalError as error:
        return error.refusal
    except Problem as problem:
        return _opaque(problem)


def _opaque(problem: Problem) -> Refusal:
    """A function that was traced and fails when it runs, or a leaf that can neither be traced nor hashed.

    Any other problem is a bug of ours.
    """
    error = problem.error
    if problem.kind == "reference" and error is not None:
        return Refusal(
            "JP015",
            f"The function fails on these inputs: {error_line(error)}",
            "Give inputs it runs on, every time it runs: --inputs FILE::callable, or --arg NAME=SPEC",
            error_span(error, Path.cwd()),
            error_details(error),
        )
    if problem.kind == "graph":
        return _graph(problem)
    if problem.kind != "opaque":
        raise problem
    name = problem.name
    return Refusal(
        "JP059",
        f"`{problem.message}` is a {problem.type} among the arrays of `{name}`: no array, and no "
        "constant either, since it cannot be hashed",
        f"Leave it out of `{name}`, or make it hashable (a tuple, a frozen dataclass)",
    )


def _graph(problem: Problem) -> Refusal:
    """Flax NNX objects that jax cannot take apart as a tree."""
    place, other = problem.message, problem.name
    if other:
        return Refusal(
            "JP057",
            f"`{place}` and `{other}` are one {problem.type}; devices get arguments as trees, where "
            f"it becomes two, and `{place}` cannot be assigned to make it one again",
            "Pass a list in place of the tuple, or the objects as arguments of their own",
        )
    return Refusal(
        "JP057",
        f"`{place}` is a {problem.type} of a Flax whose NNX objects are no pytrees",
        "Use flax 0.12 or later, or pass what `nnx.split` gives and merge it inside the function",
    )


@contextlib.contextmanager
def _planned(request: Request, say: Say) -> Iterator[Planned]:
    """The target with its plan, as long as the worker runs that made it."""
    request = _called(request)
    with _session(request) as session:
        target = _read(request, session)
        # The stages import what they need only now, while the worker imports jax.
        from jax_pmap.inputs.load import load, target_as_imported
        from jax_pmap.planning.search import find_plan
        from jax_pmap.proof.emitted import Planned

        try:
            loaded = load(session, target, request, staged("loading", say))
        except RefusalError as error:
            target = _called_by_name(error, session, request)
            loaded = load(session, target, request, staged("loading", say))
        target = target_as_imported(target, session)
        observed = find_plan(session, target, loaded, request, staged("planning", say))
        yield Planned(session, target, loaded, observed, request, say, _session)


def _best(request: Request, say: Say, given: Session | None) -> Generated:
    """The best of the forms that are proved, with a note that says why it was taken.

    Raises:
        RefusalError: that of the form with collectives written out, where no form is proved.
    """
    from jax_pmap.proof.choice import choose

    # A mesh of shard_map code is one that arrays are divided over.
    written_out = not request.mesh or request.spec or request.fsdp
    forms = [Backend.SHARD_MAP, Backend.JIT] if written_out else [Backend.JIT]
    if request.accumulate > 1:
        forms.remove(Backend.JIT)
    made: list[Generated] = []
    refusals: list[RefusalError] = []
    for form in forms:
        command = request.command.replace("--backend auto", f"--backend {form}")
        asked = dataclasses.replace(request, backend=form, choose=False, command=command)
        try:
            made.append(_generate(asked, staged(form, say), given))
        except RefusalError as error:
            refusals.append(error)
    if not made:
        raise refusals[0]
    return choose(made, [error.refusal for error in refusals])


def _generate(request: Request, say: Say, given: Session | None) -> Generated:
    request = _called(request)
    # A program starts in a process that has run nothing else.
    kept = None if request.run is not None else given
    with _session(request) if kept is None else contextlib.nullcontext(kept) as session:
        target = _read(request, session)
        from jax_pmap.inputs.load import load, target_as_imported
        from jax_pmap.inputs.whole import called_whole
        from jax_pmap.planning.search import find_plan

        saved = _saved_plan(request, target)
        edited = request.instead and request.instead[1]

        def plan(target: Target) -> tuple[Target, Loaded, Observed]:
            loaded = load(session, target, request, staged("loading", say), edited)
            target = target_as_imported(target, session)

            def find(start: Plan | None) -> Observed:
                return find_plan(session, target, loaded, request, staged("planning", say), start)

            observed = find(saved)
            if request.accumulate > 1:
                from jax_pmap.planning.microbatches import in_microbatches

                observed = in_microbatches(target, observed, request.accumulate, find)
            return target, loaded, observed

        refusal = None if request.in_place else _unreachable(target)
        if refusal is None:
            try:
                target, loaded, observed = plan(target)
            except RefusalError as error:
                target, loaded, observed = plan(_called_by_name(error, session, request))
        else:
            whole = called_whole(session, request)
            if whole is None:
                raise RefusalError(refusal)
            try:
                target, loaded, observed = plan(whole)
            except RefusalError:
                # It has to be opened, which an edit of the file can do.
                raise RefusalError(refusal) from None
        files = session.ask(protocol.LoadedFiles(), "listing what was imported")
        from jax_pmap.proof.emitted import Planned, proved

        made = proved(Planned(session, target, loaded, observed, request, say, _session))
        return dataclasses.replace(made, files=files, listings=observed.listings)


def _called(request: Request) -> Request:
    """`request`, with the program that calls a method with its `--inputs`."""
    if request.inputs is None:
        return request
    from jax_pmap.inputs.called import with_call

    return with_call(request)


def _read(request: Request, session: Session) -> Target:
    """The target, or a function that calls it where it cannot be opened."""
    from jax_pmap.reading.target import read_target, with_its_class

    try:
        source = as_others_import(locate(request.target, request.directory, request.instead), request)
        return read_target(with_its_class(source, request), request)
    except RefusalError as error:
        if error.refusal.code not in CLOSED:
            raise
        from jax_pmap.inputs.whole import called_whole, opened

        found = opened(session, request) if error.refusal.code == "JP042" else None
        found = found or called_whole(session, request)
        if found is None:
            raise
        return found


def _called_by_name(error: RefusalError, session: Session, request: Request) -> Target:
    """A function that calls the target by its name, where importing its file gives that to another one.

    Raises:
        RefusalError: `error`, where it says anything else, and where there is none.
    """
    from jax_pmap.inputs.whole import called_whole

    found = called_whole(session, request) if error.refusal.code == "JP042" else None
    if found is None:
        raise error
    return found


def _unreachable(target: Target) -> Refusal | None:
    """Why the target cannot have a file of its own, if it cannot."""
    from jax_pmap.emit.unit import check_reachable

    try:
        check_reachable(target)
    except RefusalError as error:
        return error.refusal
    return None


def _session(request: Request, devices: int | None = None, member: protocol.Member | None = None) -> Session:
    """A worker, with `devices` devices or as many as the proof of emitted code takes."""
    from jax_pmap.interpreter import interpreter_of
    from jax_pmap.session import Session

    python, environment = interpreter_of(request)
    if devices is None:
        highest = max((i + 1 for i in request.devices.ids), default=request.devices.count or 0)
        devices = max(WORKER_DEVICES, highest, math.prod(axis.size for axis in request.mesh))
    return Session(python, request.directory, devices, request.timeout, request.memory, environment, member)


def _saved_plan(request: Request, target: Target) -> Plan | None:
    if request.plan is None:
        return None
    from jax_pmap.report.as_json import read_plan
    from jax_pmap.syntax.text import function_text

    plan = read_plan(request.plan)
    if plan.source_hash != function_text(target.parsed).digest:
        raise refused(
            "JP017",
            f"`{request.plan}` was made for another version of `{target.facts.name}`",
            f"Make it again: jax-pmap plan {request.target} --output-format json > {request.plan}",
            target.facts.span,
        )
    if plan.mesh != request.mesh:
        named = ",".join(f"{axis.name}={axis.size}" for axis in plan.mesh)
        raise refused(
            "JP017",
            f"`{request.plan}` was made {f'for --mesh {named}' if named else 'without --mesh'}, unlike what "
            "this command asks for",
            f"Add --mesh {named}, with the --spec and --fsdp it was made with"
            if named
            else "Leave out --mesh",
            target.facts.span,
        )
    return plan
