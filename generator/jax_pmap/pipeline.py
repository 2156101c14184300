"""The way of the data: locate → read → inputs → observe → plan → render → prove.

Each stage is a function of frozen values; this module only puts them in a row. Nothing here
prints, and nothing writes to the user's files.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from jax_pmap.locate import locate
from jax_pmap.model import (
    Backend,
    Devices,
    Evidence,
    Generated,
    Machine,
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
    from jax_pmap.emit.in_place import Edition
    from jax_pmap.inputs.load import Loaded
    from jax_pmap.planning.search import Observed
    from jax_pmap.proof.prove import How
    from jax_pmap.reading.target import Target
    from jax_pmap.session import Session

T = TypeVar("T")
#: Refusals of what cannot be looked into: a variable, a decorator, a method of an object of the module's.
CLOSED = frozenset({"JP004", "JP042", "JP050"})
#: Simulated devices the worker has: as many as the largest count of the proof.
SIMULATED = 8
#: Statements from which on a function counts as large.
LARGE = 60


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
    return answered(lambda: _make_plan(request, say))


def verify(
    parallel: str,
    request: Request,
    layout: str | None = None,
    say: Say = quiet,
    *,
    against_layout: str | None = None,
    convert: str | None = None,
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
    """

    def start(devices: int) -> Session:
        highest = max((i + 1 for i in request.devices.ids), default=0)
        return _session(request, max(devices, highest))

    def work() -> Verified:
        from jax_pmap.proof.layouts import Layouts
        from jax_pmap.proof.verify import verify

        return verify(parallel, Layouts(layout, against_layout, convert), request, start, say)

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


def _make_plan(request: Request, say: Say) -> Plan:
    request = _called(request)
    with _session(request) as session:
        target = _read(request, session)
        # The stages import what they need only now, while the worker imports jax.
        from jax_pmap.inputs.load import load
        from jax_pmap.planning.search import find_plan

        session.compile_as(by_length(target))
        loaded = load(session, target, request, staged("loading", say))
        return find_plan(session, target, loaded, request, staged("planning", say)).plan


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
        from jax_pmap.inputs.load import load
        from jax_pmap.inputs.whole import called_whole
        from jax_pmap.planning.search import find_plan

        if kept is None:
            session.compile_as(by_length(target))
        saved = _saved_plan(request, target)
        edited = request.instead and request.instead[1]

        def plan(target: Target) -> tuple[Target, Loaded, Observed]:
            loaded = load(session, target, request, staged("loading", say), edited)

            def find(start: Plan | None) -> Observed:
                return find_plan(session, target, loaded, request, staged("planning", say), start)

            observed = find(saved)
            if request.accumulate > 1:
                from jax_pmap.planning.microbatches import in_microbatches

                observed = in_microbatches(target, observed, request.accumulate, find)
            return target, loaded, observed

        refusal = None if request.in_place else _unreachable(target)
        if refusal is None:
            target, loaded, observed = plan(target)
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
        made = _proved(session, target, loaded, observed, request, say)
        return dataclasses.replace(made, files=files, listings=observed.listings)


def _called(request: Request) -> Request:
    """`request`, with the program that calls a method with its `--inputs`."""
    if request.inputs is None:
        return request
    from jax_pmap.inputs.called import with_call

    return with_call(request)


def _read(request: Request, session: Session) -> Target:
    """The target, or a function that calls it where it cannot be opened."""
    from jax_pmap.reading.target import read_target

    try:
        return read_target(locate(request.target, request.directory, request.instead), request)
    except RefusalError as error:
        if error.refusal.code not in CLOSED:
            raise
        from jax_pmap.inputs.whole import called_whole

        found = called_whole(session, request)
        if found is None:
            raise
        return found


def _unreachable(target: Target) -> Refusal | None:
    """Why the target cannot have a file of its own, if it cannot."""
    from jax_pmap.emit.unit import check_reachable

    try:
        check_reachable(target)
    except RefusalError as error:
        return error.refusal
    return None


def by_length(target: Target) -> tuple[str, ...]:
    """How to compile the function where its length tells; see `worker/compiling.py`."""
    long = sum(isinstance(node, ast.stmt) for node in ast.walk(target.parsed.definition)) > LARGE
    return ("unfused",) if long else ()


def _session(request: Request, devices: int | None = None, member: protocol.Member | None = None) -> Session:
    """A worker, with `devices` devices or as many as the proof of emitted code takes."""
    from jax_pmap.interpreter import interpreter_of
    from jax_pmap.session import Session

    python, environment = interpreter_of(request)
    if devices is None:
        highest = max((i + 1 for i in request.devices.ids), default=request.devices.count or 0)
        devices = max(SIMULATED, highest, math.prod(axis.size for axis in request.mesh))
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


def _proved(
    session: Session, target: Target, loaded: Loaded, observed: Observed, request: Request, say: Say
) -> Generated:
    from jax_pmap.emit.unit import emit
    from jax_pmap.planning.repeats import or_changing
    from jax_pmap.proof.prove import How, prove

    plan, facts, how = observed.plan, target.facts, _how(request)
    if request.explicit:
        _check_explicit(session, target, plan)
    if request.in_place:
        _check_edit(session, target, plan, request)

    def run(plan: Plan) -> Evidence:
        if request.in_place:
            return _prove_edit(session, target, plan, observed, request, say)
        code = emit(target, plan, request, None, loaded.carried)
        return prove(session, target, plan, observed, code, say, how)

    def run_plain(plan: Plan, devices: int) -> Evidence:
        code = emit(target, plan, request, None, loaded.carried)
        return prove(session, target, plan, observed, code, say, How(counts=(devices,), derived=True))

    try:
        # Device counts come from the code that takes all devices; the chosen ones are run on top.
        evidence, plan = _in_multiples(lambda plan: run(dataclasses.replace(plan, devices=Devices())), plan)
        if plan.microbatches > 1 and evidence.memory is not None:
            evidence = dataclasses.replace(evidence, at_once=_at_once(evidence, run_plain, plan))
        if request.processes > 1:
            evidence = _in_processes(session, target, loaded, observed, plan, request, evidence, say)
        if request.topology is not None:
            machine = _compiled_for(target, loaded, observed, plan, request, say)
            evidence = dataclasses.replace(evidence, machine=machine)
        if plan.devices.number is not None:
            evidence = _on_chosen(evidence, run, plan)
    except Problem as problem:
        raise refused(
            "JP015",
            f"`{facts.name}` fails on these inputs: {problem.message}",
            "Give inputs it runs on: --inputs FILE::callable",
            facts.span,
            error_details(problem.error),
        ) from None
    except RefusalError as error:
        if error.refusal.code == "JP045" and any(sync.like or any(sync.along) for sync in plan.syncs):
            raise refused(
                "JP046",
                "in shard_map code each device goes on with its own part of what is divided as soon as the "
                f"gradients are scattered, and that is not the same: {error.refusal.reason}",
                "Use --backend jit, where the compiler works out what else devices have to send each other, "
                "for the norm of all gradients say",
                facts.span,
                (*(note for note in plan.notes if note.startswith("along `")), *error.refusal.details),
            ) from None
        classes = loaded.carried.classes if loaded.carried else ()
        if error.refusal.code == "JP045" and classes and "another structure" in error.refusal.reason:
            # The likeliest reason by far, and the only one the user can mend.
            raise refused(
                "JP008",
                f"`{facts.name}` makes values of a class of `{target.source.shown_path}` "
                f"({', '.join(f'`{name}`' for name in classes)}); the emitted file cannot import that, and a "
                "copy of the class would be another one",
                "Move the class to a module of its own, or edit the file itself with --in-place",
                facts.span,
                error.refusal.details,
            ) from None
        statics = tuple(each.name for each in plan.arguments if each.static)
        raise RefusalError(or_changing(session, target, error.refusal, statics)) from None
    if request.in_place:
        from jax_pmap.emit.in_place import emit_in_place

        edition = emit_in_place(target, plan, request, evidence)
        # Looking for shapes once more could find others, and leave what was traced on the way.
        same = dataclasses.replace(request, args=(*request.args, *loaded.assumed))
        evidence = _run_edited(session, target, plan, observed, same, say, edition, evidence)
        return Generated(edition.text, plan, request.backend, evidence, target.source)
    code = emit(target, plan, request, evidence, loaded.carried)
    return Generated(code, plan, request.backend, evidence)


def _how(request: Request) -> How:
    """How the code of a request is proved."""
    from jax_pmap.proof.prove import How

    return How(
        run_code=request.run_code,
        global_view=request.backend is Backend.JIT,
        remainder=request.remainder,
    )


def _in_multiples(run: Callable[[Plan], Evidence], plan: Plan) -> tuple[Evidence, Plan]:
    """The evidence, and the plan with the rows on a device that it needs a multiple of."""
    from jax_pmap.proof.prove import InMultiples

    while True:
        try:
            return run(plan), plan
        except InMultiples as needed:
            plan = dataclasses.replace(plan, multiple_of=math.lcm(plan.multiple_of, needed.multiple))


def _at_once(evidence: Evidence, run: Callable[[Plan, int], Evidence], plan: Plan) -> protocol.Memory | None:
    """The memory that the code takes without microbatches, on as many rows; None where it cannot be told."""
    most = max(evidence.checks, key=lambda check: check.devices)
    try:
        found = run(dataclasses.replace(plan, microbatches=1, devices=Devices()), most.devices)
    except RefusalError:  # It does not fit, say, or is slower than the time there is.
        return None
    alike = any(check.batch == most.batch for check in found.checks)
    return found.memory if alike else None


def _in_processes(
    session: Session,
    target: Target,
    loaded: Loaded,
    observed: Observed,
    plan: Plan,
    request: Request,
    evidence: Evidence,
    say: Say,
) -> Evidence:
    """`evidence` with that of the emitted code in several processes, each a worker of its own."""
    from jax_pmap.proof.processes import run_in_processes

    def start(devices: int, member: protocol.Member) -> Session:
        started = _session(request, devices, member)
        started.compiled_as = session.compiled_as
        return started

    given, code = _given(target, loaded, plan, request)
    check = run_in_processes(start, target, plan, observed, given, code, evidence, say)
    return dataclasses.replace(evidence, checks=(*evidence.checks, check))


def _given(target: Target, loaded: Loaded, plan: Plan, request: Request) -> tuple[Request, str]:
    """For a worker of its own, the request with the inputs that were found once, and the code of a plan."""
    from jax_pmap.emit.unit import emit

    found = dataclasses.replace(request, args=(*loaded.assumed, *request.args))
    return found, emit(target, plan, request, None, loaded.carried)


def _compiled_for(
    target: Target, loaded: Loaded, observed: Observed, plan: Plan, request: Request, say: Say
) -> Machine:
    """What the emitted code becomes on the machine of the request, compiled in a worker of its own."""
    from jax_pmap.proof.machine import compiled_for

    def start() -> Session:
        started = _session(request)
        # The flags by which programs of the proof are compiled quickly make others of them.
        started.compiled_as = frozenset({"plain"})
        return started

    given, code = _given(target, loaded, dataclasses.replace(plan, devices=Devices()), request)
    return compiled_for(start, target, plan, observed, given, code, say)


def _on_chosen(evidence: Evidence, run: Callable[[Plan], Evidence], plan: Plan) -> Evidence:
    """`evidence` with that of the devices the plan chooses; no run where the rest was not run either."""
    if not evidence.checks:
        return dataclasses.replace(
            evidence,
            notes=(*evidence.notes, "the choice of devices was not run: it is taken as it is written"),
        )
    return dataclasses.replace(evidence, checks=(*evidence.checks, *run(plan).checks))


def _jax_version(session: Session) -> tuple[int, ...]:
    """The user's jax, to be compared: ``(0, 10, 2)``, also of a release candidate of it."""
    return tuple(map(int, re.findall(r"\d+", session.versions.jax)[:3]))


#: The first jax with all that code in explicit mode uses.
EXPLICIT = (0, 7, 1)


def _check_explicit(session: Session, target: Target, plan: Plan) -> None:
    """Refuse explicit mode under a jax that is too old for it, and for a batch that is made inside.

    Raises:
        RefusalError: JP046.
    """
    if _jax_version(session) < EXPLICIT:
        needed, version = ".".join(map(str, EXPLICIT)), session.versions.jax
        raise refused(
            "JP046",
            f"`--explicit` needs jax {needed} or newer, and this is jax {version}",
            "Leave out --explicit, or install a newer jax",
            target.facts.span,
        )
    from jax_pmap.emit.weave import OWN_SHARE

    made = next((sync for sync in plan.syncs if sync.op == OWN_SHARE), None)
    if made is not None:
        raise refused(
            "JP046",
            f"`{made.value}` is whole on every device and divided where it is made, and explicit mode has no "
            "safe way to divide it",
            "Leave out --explicit, and the compiler divides it",
            made.span,
        )


def _check_edit(session: Session, target: Target, plan: Plan, request: Request) -> None:
    """Refuse an edit that the program around the function would not get on with.

    Raises:
        RefusalError: JP050 for what changes after the first call, JP046 for a pmap inside a jit where
            that jax cannot run it.
    """
    from jax_pmap.emit.constants import check_constants, compiled_at

    check_constants(target, plan)
    lines = compiled_at(target) if request.backend is Backend.PMAP else []
    if lines and _jax_version(session) < (0, 8):
        raise refused(
            "JP046",
            f"line {lines[0]} compiles `{target.facts.name}` with jit, and jax "
            f"{session.versions.jax} does not run the drop-in of a pmap inside jit",
            f"Use --backend shard_map, or call `{target.facts.name}` there without jit",
            target.facts.span,
        )


def _prove_edit(
    session: Session, target: Target, plan: Plan, observed: Observed, request: Request, say: Say
) -> Evidence:
    """The proof of what an edit adds to the file, run where the function was defined."""
    from jax_pmap.emit.in_place import emit_in_place
    from jax_pmap.proof.prove import prove

    edition = emit_in_place(target, plan, request, None)
    how = dataclasses.replace(_how(request), in_place=protocol.InPlace(program=False, owner=edition.owner))
    return prove(session, target, plan, observed, edition.definitions, say, how)


def _run_edited(
    session: Session,
    target: Target,
    plan: Plan,
    observed: Observed,
    request: Request,
    say: Say,
    edition: Edition,
    evidence: Evidence,
) -> Evidence:
    """The edited file itself, loaded or run as a program in a fresh process, and its function compared."""
    from jax_pmap.inputs.load import load
    from jax_pmap.proof.prove import prove
    from jax_pmap.reading.target import read_target
    from jax_pmap.syntax.text import function_text

    edited = read_target(dataclasses.replace(target.source, text=edition.text), request)
    session.restart()
    try:
        load(session, edited, request, staged("loading", say), edition.text)
        original = function_text(target.parsed)
        definition = protocol.Definition(
            original.text, str(target.source.path), original.line, target.facts.name
        )
        statics = observed.roles.statics
        session.ask(protocol.SetReference(definition, tuple(edition.enclosed)), "defining the original")
        session.ask(protocol.Trace(protocol.Roles({}, statics)), "tracing the function")
        session.ask(protocol.Precision(statics), "tracing the function")
    except Problem as problem:
        raise refused(
            "JP045",
            f"the edited `{target.source.shown_path}` does not run: {problem.message}",
            "This is a mistake of jax-pmap; please report it with the file",
            target.facts.span,
            error_details(problem.error),
        ) from None
    how = dataclasses.replace(
        _how(request),
        counts=(max((check.devices for check in evidence.checks), default=SIMULATED),),
        derived=evidence.derived,
        in_place=protocol.InPlace(program=True, owner=""),
    )
    found = prove(session, target, plan, observed, "", say, how)
    return dataclasses.replace(evidence, checks=(*evidence.checks, *found.checks))
