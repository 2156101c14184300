"""The code of a plan, with the proof that it gives what the function gives on one device."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from jax_pmap.emit.constants import check_constants, compiled_at
from jax_pmap.emit.header import with_evidence
from jax_pmap.emit.in_place import NOT_FOLLOWED, Edition, emit_in_place
from jax_pmap.emit.unit import emit
from jax_pmap.inputs.load import Loaded, load
from jax_pmap.inputs.program import read_program
from jax_pmap.model import (
    OWN_SHARE,
    Backend,
    Compiled,
    Devices,
    Evidence,
    Generated,
    Machine,
    Plan,
    Refusal,
    RefusalError,
    Request,
    Say,
    Source,
    refused,
    staged,
)
from jax_pmap.planning.repeats import or_changing
from jax_pmap.planning.roles import LARGEST_COUNT
from jax_pmap.planning.search import Observed
from jax_pmap.problems import error_details
from jax_pmap.proof.machine import by_shapes, compiled_for, compiled_here
from jax_pmap.proof.processes import run_in_processes
from jax_pmap.proof.prove import How, InMultiples, OfForms, OfMoreRows, prove
from jax_pmap.proof.requests import batch_size, imports_file
from jax_pmap.reading.target import Target, read_target
from jax_pmap.session import Session
from jax_pmap.syntax.text import function_text
from jax_pmap.worker import protocol
from jax_pmap.worker.protocol import Problem

#: The first jax with all that code in explicit mode uses.
EXPLICIT = (0, 7, 1)


@dataclass(frozen=True, slots=True)
class Planned:
    """A function that was planned, in the worker in which it was."""

    session: Session
    target: Target
    loaded: Loaded
    observed: Observed
    request: Request
    say: Say
    #: A worker of its own for the request, with so many devices: None for as many as the proof takes.
    start: Callable[[Request, int | None, protocol.Member | None], Session]
    #: The files that were made, each by its plan.
    _made: list[tuple[Plan, str]] = field(default_factory=list)

    def code(self, plan: Plan) -> str:
        """The file for a plan, its proof still to come."""
        known = next((text for each, text in self._made if each == plan), None)
        if known is None:
            known = emit(self.target, plan, self.request, self.loaded.carried)
            self._made.append((plan, known))
        return known

    def prove(self, plan: Plan, code: str, how: How) -> Evidence:
        """The evidence for `code`."""
        return prove(self.session, self.target, plan, self.observed, code, self.say, how)

    @property
    def how(self) -> How:
        """How its code is proved."""
        return How(
            run_code=self.request.run_code,
            global_view=self.request.backend is Backend.JIT,
            remainder=self.request.remainder,
        )

    @property
    def alone(self) -> Request:
        """For a worker of its own, the request with the inputs that were found once."""
        return dataclasses.replace(self.request, args=(*self.loaded.assumed, *self.request.args))


def proved(planned: Planned) -> Generated:
    """The code of the plan and its evidence.

    Raises:
        RefusalError: why there is none.
    """
    request, plan = planned.request, planned.observed.plan
    if request.explicit:
        _check_explicit(planned.session, planned.target, plan)
    if request.in_place:
        _check_edit(planned.session, planned.target, plan, request)
    try:
        evidence, plan = _evidence(planned)
    except Problem as problem:
        raise refused(
            "JP015",
            f"`{planned.target.facts.name}` fails on these inputs: {problem.message}",
            "Give inputs it runs on: --inputs FILE::callable",
            planned.target.facts.span,
            error_details(problem.error),
        ) from None
    except RefusalError as error:
        raise RefusalError(_explained(planned, error.refusal)) from None
    if request.in_place:
        edition = emit_in_place(planned.target, plan, request, evidence)
        evidence = _run_edited(planned, plan, edition, evidence)
        if not edition.followed:
            source = planned.target.source
            note = NOT_FOLLOWED.format(file=source.shown_path, name=source.qualname)
            plan = dataclasses.replace(plan, notes=(*plan.notes, note))
        return Generated(edition.text, plan, request.backend, evidence, planned.target.source)
    code, source = with_evidence(planned.code(plan), evidence), planned.target.source
    if _is_program(request, source) and imports_file(code, source):
        note = (
            f"the emitted file imports `{source.shown_path}`, which is the program itself and cannot import "
            "the emitted file in turn: call it from another file, or change the program where it stands, "
            "with --in-place"
        )
        plan = dataclasses.replace(plan, notes=(*plan.notes, note))
    return Generated(code, plan, request.backend, evidence)


def _is_program(request: Request, source: Source) -> bool:
    """Whether the program of `--run` is the file of the target."""
    if request.run is None:
        return False
    program = read_program(request.run, request.directory).program
    if program.kind == "module":
        return program.what == source.module
    return program.kind == "script" and Path(program.what).resolve() == source.path.resolve()


def _evidence(planned: Planned) -> tuple[Evidence, Plan]:
    """All that a request asks to be shown, and the plan with the rows and forms that it holds for."""
    request = planned.request

    def run(plan: Plan) -> Evidence:
        if request.in_place:
            return _prove_edit(planned, plan)
        return planned.prove(plan, planned.code(plan), planned.how)

    # Device counts come from the code that takes all devices; the chosen ones are run on top.
    evidence, plan = _narrowed(
        lambda plan: run(dataclasses.replace(plan, devices=Devices())), planned.observed.plan, planned.target
    )
    if plan.microbatches > 1 and evidence.memory is not None:
        evidence = dataclasses.replace(evidence, at_once=_at_once(planned, plan, evidence))
    if request.processes > 1:
        evidence = _in_processes(planned, plan, evidence)
    if request.topology is not None:
        evidence = dataclasses.replace(evidence, machine=on_machine(planned, plan))
    if plan.devices.number is not None:
        evidence = _on_chosen(evidence, run, plan)
    if request.run_code and not evidence.checks and request.divided_by_compiler:
        # Last, since the worker may end with it.
        made = on_mesh(planned, plan)
        evidence = dataclasses.replace(
            evidence,
            collectives=made.collectives,
            memory=made.memory,
            notes=(*evidence.notes, *made.notes),
        )
    return evidence, plan


def _explained(planned: Planned, refusal: Refusal) -> Refusal:
    """A refusal with the likeliest reason, where that is another than what the proof saw."""
    target, loaded, plan = planned.target, planned.loaded, planned.observed.plan
    classes = loaded.carried.classes if loaded.carried else ()
    if refusal.code == "JP045" and classes and "another structure" in refusal.reason:
        # The likeliest reason by far, and the only one the user can mend.
        return Refusal(
            "JP008",
            f"`{target.facts.name}` makes values of a class of `{target.source.shown_path}` "
            f"({', '.join(f'`{name}`' for name in classes)}); the emitted file cannot import that, and a "
            "copy of the class would be another one",
            "Move the class to a module of its own, or edit the file itself with --in-place",
            target.facts.span,
            refusal.details,
        )
    source = target.source
    again = f'"{source.path}", line '
    if (
        refusal.code == "JP045"
        and _is_program(planned.request, source)
        and any(again in line and "<module>" in line for each in refusal.details for line in each.split("\n"))
    ):
        return Refusal(
            "JP008",
            f"the emitted file imports `{source.shown_path}`, which is the program itself, and to import it "
            f"beside the program fails: {refusal.details[0].rpartition(chr(10))[2]}",
            f"Edit the file itself, with --in-place; or move what `{target.facts.name}` uses to a module of "
            "its own",
            target.facts.span,
            refusal.details,
        )
    statics = tuple(each.name for each in plan.arguments if each.static)
    return or_changing(planned.session, target, refusal, statics)


def _narrowed(run: Callable[[Plan], Evidence], plan: Plan, target: Target) -> tuple[Evidence, Plan]:
    """The evidence, and the plan with the multiple of rows and the forms that the code is to check.

    Raises:
        RefusalError: JP041 where what is shown equal is no code for the given batch.
    """
    while True:
        if not _takes_given(plan):
            raise RefusalError(_not_for_given(plan, target))
        try:
            return run(plan), plan
        except InMultiples as needed:
            # Few rows are found anew: of multiples.
            multiple = math.lcm(plan.multiple_of, needed.multiple)
            plan = dataclasses.replace(plan, multiple_of=multiple, too_few=())
        except OfForms as only:
            forms = tuple(dict.fromkeys((*plan.forms, *only.forms)))
            plan = dataclasses.replace(plan, forms=forms)
        except OfMoreRows as more:
            plan = dataclasses.replace(plan, too_few=tuple(sorted({*plan.too_few, *more.rows})))


def _takes_given(plan: Plan) -> bool:
    """Whether some devices share the batch of the example as the code is to check it."""
    if plan.made or (plan.multiple_of == 1 and not plan.too_few):
        return True
    batch = batch_size(plan)
    counts = (plan.shares,) if plan.mesh else range(2, LARGEST_COUNT + 1)
    even = (n for n in counts if n is not None and batch % (n * plan.multiple_of) == 0)
    return any(plan.takes(batch, count) for count in even)


def _not_for_given(plan: Plan, target: Target) -> Refusal:
    """Shown equal, and not for the user's own example."""
    only = [f"where each device has a multiple of {plan.multiple_of:,} rows"] if plan.multiple_of > 1 else []
    only += [f"for other batches than {plan.too_few_rows}, on a device or in all"] if plan.too_few else []
    batch = f"the given batch of {batch_size(plan):,}"
    shared = f"no 2 to {LARGEST_COUNT} devices share {batch} so"
    if plan.mesh:
        shared = f"the {plan.shares} devices along `{plan.axis_name}` do not share {batch} so"
    return Refusal(
        "JP041",
        f"`{target.facts.name}` is shown equal only {' and '.join(only)}: its program depends on how many "
        f"rows there are, and {shared}",
        "Give example inputs with a larger batch, say what is divided (--shard NAME), or try --backend jit, "
        "where the compiler keeps the global meaning",
        target.facts.span,
    )


def _at_once(planned: Planned, plan: Plan, evidence: Evidence) -> protocol.Memory | None:
    """The memory that the code takes without microbatches, on as many rows; None where it cannot be told."""
    most = max(evidence.checks, key=lambda check: check.devices)
    plain = dataclasses.replace(plan, microbatches=1, devices=Devices())
    try:
        found = planned.prove(plain, planned.code(plain), How(counts=(most.devices,), derived=True))
    except RefusalError:  # It does not fit, say, or is slower than the time there is.
        return None
    alike = any(check.batch == most.batch for check in found.checks)
    return found.memory if alike else None


def _in_processes(planned: Planned, plan: Plan, evidence: Evidence) -> Evidence:
    """`evidence` with that of the emitted code in several processes, each a worker of its own."""
    check = run_in_processes(
        functools.partial(planned.start, planned.request),
        planned.target,
        plan,
        planned.observed,
        planned.alone,
        planned.code(plan),
        evidence,
        planned.say,
    )
    return dataclasses.replace(evidence, checks=(*evidence.checks, check))


def on_mesh(planned: Planned, plan: Plan) -> Compiled:
    """What the emitted code becomes on as many simulated devices as its mesh has.

    Where that takes too long, the worker has ended.
    """
    planned.say(f"compiling: for a mesh of {', '.join(f'{axis.name}={axis.size}' for axis in plan.mesh)}")
    session, target, observed = planned.session, planned.target, planned.observed
    return compiled_here(session, target, plan, observed, planned.code(plan))


def on_machine(planned: Planned, plan: Plan) -> Machine:
    """What the emitted code becomes on the machine of the request.

    It is compiled in a worker of its own; without the compiler, shapes say what they can.

    Raises:
        RefusalError: JP023 where there is no such machine, or one of another size.
    """

    def start() -> Session:
        started = planned.start(planned.request, None, None)
        # The flags by which programs of the proof are compiled quickly make others of them.
        started.optimized = True
        return started

    target, observed, request = planned.target, planned.observed, planned.alone
    if not planned.session.versions.compiles_for_tpu:
        return by_shapes(planned.session, target, plan, observed, str(request.topology))
    code = planned.code(dataclasses.replace(plan, devices=Devices()))
    return compiled_for(start, target, plan, observed, request, code, planned.say)


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


def _prove_edit(planned: Planned, plan: Plan) -> Evidence:
    """The proof of what an edit adds to the file, run where the function was defined."""
    edition = emit_in_place(planned.target, plan, planned.request, None)
    how = dataclasses.replace(planned.how, in_place=protocol.InPlace(program=False, owner=edition.owner))
    return planned.prove(plan, edition.definitions, how)


def _run_edited(planned: Planned, plan: Plan, edition: Edition, evidence: Evidence) -> Evidence:
    """The edited file itself, loaded or run as a program in a fresh process, and its function compared."""
    session, target, statics = planned.session, planned.target, planned.observed.roles.statics
    # Looking for shapes once more could find others, and leave what was traced on the way.
    request = dataclasses.replace(planned.request, args=(*planned.request.args, *planned.loaded.assumed))
    edited = read_target(dataclasses.replace(target.source, text=edition.text), request)
    session.restart()
    try:
        load(session, edited, request, staged("loading", planned.say), edition.text, target)
        original = function_text(target.parsed)
        definition = protocol.Definition(
            original.text, str(target.source.path), original.line, target.facts.name
        )
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
    how = dataclasses.replace(planned.how, in_place=protocol.InPlace(program=True, owner=""))
    most = max(evidence.checks, key=lambda check: check.devices, default=None)
    if most is None:
        # A run takes more than there is: the file is derived too, but for chosen devices, as before.
        how = dataclasses.replace(how, run_code=False, derived=plan.devices.number is not None)
    else:
        rows = most.batch if evidence.derived else None
        how = dataclasses.replace(how, counts=(most.devices,), derived=evidence.derived, rows=rows)
    found = planned.prove(plan, "", how)
    return dataclasses.replace(evidence, checks=(*evidence.checks, *found.checks))
