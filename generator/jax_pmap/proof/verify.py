"""The proof alone, of a parallel function that the user wrote.

Every device count gets a worker of its own with just that many devices: meshes and pmapped functions
are made when a module is imported, and the user's is then imported anew for each count.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from jax_pmap.inputs.load import Loaded, alias_note, file_of, load
from jax_pmap.inputs.program import read_program
from jax_pmap.locate import as_others_import, local_object, locate_object, object_span
from jax_pmap.model import (
    Check,
    Derivation,
    Evidence,
    Inspected,
    Refusal,
    RefusalError,
    Request,
    Source,
    Span,
    Verified,
    refused,
    staged,
)
from jax_pmap.options import check_run, no_argument
from jax_pmap.planning.as_called import as_called
from jax_pmap.planning.axis import axis_notes
from jax_pmap.planning.reference import reference_runs, traced
from jax_pmap.planning.roles import RoleFinder, Roles
from jax_pmap.planning.search import LOOKED_AT
from jax_pmap.problems import error_details, error_line, error_span, first_line, shown_file
from jax_pmap.proof.answers import check_of, read_collectives, read_derivation
from jax_pmap.proof.calling import EVERY_COUNT, SURE, Calling, again
from jax_pmap.proof.failures import disagreeing, otherwise
from jax_pmap.proof.inspection import inspected
from jax_pmap.proof.layouts import Layouts, layout_words, read_convert, with_axis
from jax_pmap.proof.notes import adequacy, rounding_alone
from jax_pmap.proof.prove import COUNTS
from jax_pmap.proof.reference import Reference, locate_reference, object_of
from jax_pmap.proof.runs import ENDS, Run
from jax_pmap.proof.unequal import Unequal
from jax_pmap.reading.target import Target, read_target
from jax_pmap.session import Session
from jax_pmap.threads import at_once
from jax_pmap.worker import protocol
from jax_pmap.worker.protocol import Comparison, Layout, Problem, unless

T = TypeVar("T")
#: Device counts of the run where equality is derived for all of them.
SECOND = (3, 8)
#: Constants up to which several times as many rounds are tried.
MOST_TIMES = 16
#: Problems for which it is not traced.
NOT_TRACED = (*protocol.NOT_FOUND, *protocol.NOT_TAKEN)
NO_DERIVATION = protocol.Derivation(0, counts=(), batch=0, multiple=1, asked=0, run=None)


def verify(
    parallel: str,
    layouts: Layouts,
    request: Request,
    start: Callable[[int], Session],
    say: Callable[[str], None],
    *,
    inspect: bool = False,
) -> Verified:
    """Hold `parallel` against the reference that `request` names.

    Args:
        parallel: ``FILE::NAME``, ``module:NAME`` or a bare name; any callable.
        layouts: how the two are called.
        request: the reference, its inputs and roles.
        start: starts a worker with so many devices.
        say: told in a line what is going on.
        inspect: whether to tell the placements and the collectives in its source, too.

    Raises:
        RefusalError: JP045 with the first difference, and what was found; JP021 where no way to call it was
            found; what the other stages raise.
    """
    source = as_others_import(locate_object(parallel, request.directory), request)
    made, program = _made(source, request), request.run or ""
    if made is None:
        check_run(request.run, request.inputs, request.args)
    elif request.inputs is not None or request.args:
        # The program makes the parallel function alone.
        request = dataclasses.replace(request, run=None)
    wanted = request.devices.number
    counts = COUNTS if wanted is None else (wanted,)
    with contextlib.ExitStack() as stack:
        sessions: list[Session] = []

        def lead() -> Session:
            if not sessions:
                sessions.extend(stack.enter_context(start(count)) for count in counts)
            return sessions[-1]

        located, unknown = locate_reference(request, lead)
        target = read_target(located, request, mapped=True)
        receiver = target.facts.receiver
        layouts.hold([each.name for each in target.facts.parameters if each.name != receiver])
        lead()
        runs = [Run(count, session) for count, session in zip(counts, sessions, strict=True)]
        reference = Reference(target, request, layouts.reference, unknown)
        called, layout = object_of(source, made), layouts.parallel
        calling = Calling(target, source, called, program, layout, reference, request, runs, say)
        proof = _Verification(target, source, calling, layouts, reference, request, runs, start, say)
        proof.inspect = inspect
        return proof.run()


def _made(source: Source, request: Request) -> protocol.Made | None:
    """How a program makes the parallel function; None where importing its file does.

    Raises:
        RefusalError: JP002, a function makes it, and no program that calls that is named.
    """
    local = local_object(source)
    if local is None:
        return None
    if request.run is None:
        raise refused(
            "JP002",
            f"`{source.qualname}` is made when `{local.function}` runs, which importing the file does not",
            "Name the program that does: --run 'python train.py'. Or have a function that runs nothing make "
            f"it, and call that at the top of the file: `{source.qualname.rpartition('.')[2]} = make_step()`",
            local.span,
        )
    program = read_program(request.run, request.directory).program
    return protocol.Made(program, local.span.line, local.span.column, local.expression)


class _Verification:
    """One question, with its workers."""

    def __init__(
        self,
        target: Target,
        source: Source,
        calling: Calling,
        layouts: Layouts,
        reference: Reference,
        request: Request,
        runs: list[Run],
        start: Callable[[int], Session],
        say: Callable[[str], None],
    ) -> None:
        self.target, self.source, self.request = target, source, request
        self.layout, self.convert = layouts.parallel, layouts.convert
        #: What finds out how it is called.
        self.calling = calling
        #: All device counts, and those that are looked at.
        self.every, self.runs, self.say = runs, runs, say
        #: Starts a worker with so many devices.
        self.start = start
        self.name = source.qualname
        self.reference = reference
        #: Whether to look into its source.
        self.inspect = False
        #: Device counts that are not run, as equality is derived for them.
        self.left: frozenset[int] = frozenset()
        #: What was derived, by question and layout.
        self.derived: dict[str, Derivation | None] = {}
        #: The last of it, with what else there is to say.
        self.answer = NO_DERIVATION
        #: What there is to say of the sizes for which it is not derived equal, a sentence each.
        self.beyond: list[str] = []

    def run(self) -> Verified:
        """Find the roles and the layout, compare on every count, give the verdict."""
        lead = self.runs[-1].session
        loaded = self._load(lead, self.request, staged("loading", self.say))
        finder = self._roles_of(loaded)
        whole = reference_runs(lead, self.target, finder)
        called = as_called(lead, self.target, finder, self.request, whole)
        if called.changed:
            whole = reference_runs(lead, self.target, finder)
        if self.convert is not None:
            loaded, statics = self._renamed(lead, loaded, self.convert), finder.statics
            finder = self._roles_of(loaded)
            finder.statics = statics
            whole = reference_runs(lead, self.target, finder)
        loaded = dataclasses.replace(loaded, notes=(*loaded.notes, *called.notes))
        self.calling.mutated = [each.name for each in whole.mutated]
        notes = axis_notes(self.target, whole.axes, lead.directory)
        loaded = dataclasses.replace(loaded, notes=(*loaded.notes, *notes))
        # Where equality is derived, two counts are run: the others are not even called.
        few = [run for run in self.every if run.devices in SECOND]
        all_asked = self.request.devices.number is None and len(few) == len(SECOND)
        known: list[Roles] = []
        candidates = itertools.islice(finder.candidates(), LOOKED_AT)
        for runs in (few, self.every) if all_asked and few != self.every else (self.every,):
            self.runs = runs
            self._load_others(loaded, finder.statics, whole)
            try:
                found = self.calling.search(runs, finder, again(known, candidates), loaded, whole)
            except RefusalError:
                if runs is self.every:
                    raise
                continue  # On other counts it may run.
            if found is None or (found[0] < SURE + EVERY_COUNT * len(runs) and runs is not self.every):
                continue
            _, question, chosen = found
            self.say("deriving: the placement of every value")
            derivation = self._derivation(question, chosen)
            if runs is self.every or (derivation is not None and derivation.complete):
                break
        else:
            raise RefusalError(self.calling.not_called())
        if question.reference is not None:
            # It is the object by that name, and not what that is made of.
            others = tuple(note for note in loaded.notes if note not in alias_note(self.target))
            loaded = dataclasses.replace(loaded, notes=others)
        return self._verdict(chosen, question, derivation, loaded, whole)

    def _load(self, session: Session, request: Request, say: Callable[[str], None]) -> Loaded:
        """The reference and its inputs in a worker, with arrays where these are shapes.

        Raises:
            RefusalError: JP013 where those would be large; what `load` raises.
        """
        loaded = load(session, self.target, request, say)
        shapes = [argument["name"] for argument in loaded.described if argument["abstract"]]
        if not shapes:
            return loaded
        described = session.ask(protocol.DrawInputs(), "making arrays").arguments
        if any(argument["abstract"] for argument in described):
            raise refused(
                "JP013",
                f"`{shapes[0]}` is given by its shapes alone, which are large, and `{self.name}` has to be "
                "called",
                "Give shapes of a smaller model, or arrays: --inputs FILE::callable; `gen` takes these",
                self.target.facts.span,
            )
        note = f"shapes alone are given, of `{'`, `'.join(shapes)}`: the runs are on numbers drawn for them"
        return dataclasses.replace(loaded, described=described, notes=(*loaded.notes, note))

    def _renamed(self, session: Session, loaded: Loaded, text: str) -> Loaded:
        """The reference with its trees in the form that the parallel function has them.

        Raises:
            RefusalError: JP007 for an argument it does not have, JP018 for what does not only move arrays.
        """
        name, made = read_convert(text)
        known = [argument["name"] for argument in loaded.described]
        if name and name not in known:
            raise no_argument("convert", name, known, "the reference", self.target.facts.span)
        asked = protocol.Rename(
            made, str(self.request.directory), file_of(made, self.request.directory), name
        )
        try:
            answer = session.ask(asked, f"calling `{made}`")
        except Problem as problem:
            if problem.kind not in ("import", "inputs"):
                raise
            raise refused(
                "JP018",
                f"--convert {text}: {problem.message}",
                "Write a function of one tree of the reference that returns that of the parallel function, "
                "with the same arrays in other places: --convert NAME=FILE::FUNC",
                error_span(problem.error, self.request.directory),
                error_details(problem.error),
            ) from None
        note = f"`{answer.argument}` of the reference is given to `{self.name}` as `{made}` makes it"
        return dataclasses.replace(loaded, described=answer.arguments, notes=(*loaded.notes, note))

    def _roles_of(self, loaded: Loaded) -> RoleFinder:
        """What finds the roles of the inputs."""
        lead, target = self.runs[-1].session, self.target
        return RoleFinder(lead, target.facts, self.request, loaded.described, most=True)

    def _load_others(self, loaded: Loaded, statics: tuple[str, ...], whole: protocol.Traced) -> None:
        """Load the reference with the same inputs in every worker, and measure its rounding."""
        self._each(lambda run: self._prepare(run, loaded, statics, whole))

    def _prepare(self, run: Run, loaded: Loaded, statics: tuple[str, ...], whole: protocol.Traced) -> None:
        """Load the reference in one worker, if it has not."""
        if run.loaded:
            return
        if run is not self.every[-1]:
            # What was found out once need not be searched again.
            given = dataclasses.replace(self.request, args=(*loaded.assumed, *self.request.args))
            others = self._load(run.session, given, lambda _: None)
            if self.convert is not None:
                self._renamed(run.session, others, self.convert)
            if whole.mutated:
                traced(run.session, self.target, statics)
        run.session.ask(protocol.Precision(statics), "tracing the function")
        run.loaded = True

    def _each(self, work: Callable[[Run], T]) -> list[T]:
        """Do `work` for every device count, as many at once as there are processors."""
        return at_once(work, self.runs)

    def _unequal(self) -> Unequal:
        """What to say of a difference."""
        return Unequal(
            self.source, self.target, self.reference, self.layout, self.calling.mutated, self.answer
        )

    def _called(self, layout: Layout) -> protocol.Called:
        """The parallel function, called in `layout` as it was tried."""
        calls = [each for run in self.runs for each in run.calls(layout)]
        named = next((each for each in calls if each.ends != "raises"), calls[0]).named
        return protocol.Called(self.calling.object, layout, named)

    def _verdict(
        self,
        layout: Layout,
        question: Comparison,
        derivation: Derivation | None,
        loaded: Loaded,
        whole: protocol.Traced,
    ) -> Verified:
        asked = self.layout is not None
        able = [run for run in self.runs if run.ends(layout) > 0 or (asked and run.tried)]
        if any(run.ends(layout) > 0 for run in able):
            able = [run for run in able if run.ends(layout) > 0]
        if derivation is not None and derivation.complete and len(able) > len(SECOND):
            second = [run for run in able if run.devices in SECOND] or able
            self.left = frozenset(run.devices for run in able if run not in second)
            able = second
        self.say(f"running: on {', '.join(str(run.devices) for run in able)} devices")

        derived = derivation is not None and derivation.complete
        # Rows that go together draw together.
        roles = dataclasses.replace(question.roles, minibatches=self.answer.minibatches)
        compared, called = dataclasses.replace(question, roles=roles, derived=derived), self._called(layout)

        def prove(run: Run) -> None:
            if run not in able:
                return
            asked = protocol.ProveParallel(
                compared,
                called,
                run.devices,
                with_given=run is able[-1],
                unshown=self.answer.unshown,
                remainder=self.request.remainder,
            )
            answer = run.session.ask(asked, f"proving on {run.devices} devices")
            run.checks, run.equal_draws = answer.checks, answer.equal_draws
            run.notes = [*answer.notes, *adequacy(answer, self.source.root)]
            run.exchanges, run.own = answer.adequacy.exchanges, answer.adequacy.own

        self._each(prove)
        failed = [run for run in able if run.failure() is not None]
        if failed:
            refusal = self._unequal().failure(failed, able, layout)
            # Of a batch that is not shared evenly nothing is derived, nor of what becomes of arguments.
            contradicted = any(
                run.checks[-1].batch % run.devices == 0
                and (failure := run.failure()) is not None
                and failure.what not in ("changed", "deleted", "keys")
                and failure.on not in (*protocol.WAYS, protocol.LONGER)
                and not failure.on.endswith(protocol.NOT_REFUSED)
                for run in failed
            )
            if derived and contradicted and refusal.code == "JP045":
                resized = all(run.checks[-1].resized for run in failed)
                refusal = otherwise(refusal) if resized else disagreeing(refusal)
            found = self._found(layout, question, derivation, able, loaded, loaded.notes)
            raise RefusalError(dataclasses.replace(refusal, found=found))
        self._hold_branches(able)
        able = [*self._run_elsewhere(compared, called, able, derivation, loaded, whole), *able]
        modes = self._modes(able[-1], question, layout, loaded)
        notes = (*self._notes(layout, able, loaded), *modes)
        files = able[-1].session.ask(protocol.LoadedFiles(), "listing what was imported")
        found = self._found(layout, question, derivation, able, loaded, notes)
        return dataclasses.replace(found, files=files)

    def _hold_branches(self, able: Sequence[Run]) -> None:
        """Refuse what no inputs of the proof take to a branch in which devices exchange something else.

        A mean that is left out in each eighth round of a loop shows in no loop of four. So it is where all
        compute the mean, and some rounds do not take it.

        Raises:
            RefusalError: JP045, with the branch.
        """
        branch = (
            "on all inputs of the proof this branch goes one way, and the other way has other collectives",
            "Give --inputs on which it goes both ways, such as more rounds of a loop or another step; or "
            "have devices exchange the same whichever way it goes",
        )
        own = (
            "this is taken from one device as if it were that of all, and what each device has of its own "
            "goes into it without a collective; it happens to be the same on all inputs of the proof",
            "Reduce it over the devices where it is used (psum, pmean, pmax), or give it an axis of devices "
            "in out_specs or out_axes",
        )
        for run in able:
            for (said, hint), places in ((branch, run.exchanges), (own, run.own)):
                for place in places:
                    file, _, line = place.rpartition(":")
                    at = Span(shown_file(file, self.request.directory), int(line))
                    raise refused("JP045", f"`{self.name}` is not shown equal: {said}", hint, at)

    def _run_elsewhere(
        self,
        question: Comparison,
        called: protocol.Called,
        able: Sequence[Run],
        derivation: Derivation | None,
        loaded: Loaded,
        whole: protocol.Traced,
    ) -> list[Run]:
        """The runs on device counts on which it is not derived, where it is on the usual ones.

        And those on some besides, where it is derived on none, and Python makes another program for each.

        A run on fewer devices than a limit in the code says nothing of more. On those on which it raises,
        whoever calls it is told.

        Raises:
            RefusalError: JP045, where it differs, or cannot be run.
        """
        found: list[Run] = []
        # Where there are more devices than rows, as a pipeline may have, nothing was run.
        short = [run for run in self.runs if run.skipped is not None and run.short]
        few = [run.devices for run in short if derivation is not None and not derivation.complete]
        for count in (*few, *self.answer.elsewhere, *self.answer.beside):
            if count not in few and any(run.devices == count for run in self.every):
                continue
            if count > protocol.MOST_DEVICES:
                beyond = Run(count, self.runs[-1].session)
                raise RefusalError(self._differs_elsewhere(beyond, able, called.layout, derivation))
            self.say(f"running: on {count} devices, where it works in another way")
            with self.start(count) as session:
                run = Run(count, session)
                self._prepare(run, loaded, question.roles.statics, whole)
                asked = protocol.ProveParallel(question, called, count, with_given=False, elsewhere=True)
                answer = session.ask(asked, f"proving on {count} devices")
            run.checks, run.equal_draws = answer.checks, answer.equal_draws
            if (failure := run.failure()) is None and run.checks:
                found.append(run)
                for each in short:
                    each.skipped = None if each.devices == count else each.skipped
            elif count in few and (failure is None or failure.error is not None):
                pass  # That it is not run there is said, and why.
            elif failure is None and count in self.answer.beside:
                self.beyond.append(f"not on {count} devices: `{self.name}` is too large to be run there")
            elif failure is not None and failure.error is not None:
                self.beyond.append(
                    f"not on {count} devices: `{self.name}` does not run there ({error_line(failure.error)})"
                )
            else:
                raise RefusalError(self._differs_elsewhere(run, [*found, *able], called.layout, derivation))
        return found

    def _differs_elsewhere(
        self, run: Run, able: Sequence[Run], layout: Layout, derivation: Derivation | None
    ) -> Refusal:
        """What to say of a count on which it works in another way, and differs or could not be run."""
        most = max(each.devices for each in self.every)
        way_out = "Have it raise on so many devices, or mend what it does there"
        if run.devices > most:
            way_out += f"; --devices {most} proves it for {most} devices alone"
        assert derivation is not None
        unshown = f"`{self.name}` is not shown equal on {run.devices} devices, and too large to be run there"
        said = Refusal("JP045", unshown, way_out)
        if run.checks:
            said = self._unequal().failure([run], [*able, run], layout)
            said = dataclasses.replace(said, hint=f"{way_out}. {said.hint}")
        reason, span = said.reason, object_span(self.source)
        if not derivation.complete:
            at = f" at `{derivation.primitive}`" if derivation.primitive else ""
            reason, span = f"{reason}. The derivation ended{at}: {derivation.reason}", derivation.span or span
        return dataclasses.replace(said, reason=reason, span=span)

    def _found(
        self,
        layout: Layout,
        question: Comparison,
        derivation: Derivation | None,
        able: Sequence[Run],
        loaded: Loaded,
        notes: Sequence[str],
    ) -> Verified:
        """What was compared, and how; of checks that failed those of values."""
        return Verified(
            parallel=f"{self.source.shown_path}::{self.source.qualname}",
            against=self._against(question),
            layout=with_axis(layout),
            against_layout=with_axis(question.reference.layout) if question.reference is not None else None,
            evidence=Evidence(
                checks=tuple(
                    each
                    for run in sorted(able, key=lambda run: run.devices)
                    for check in run.checks
                    for each in _compared(check)
                ),
                jax_version=self.runs[-1].session.versions.jax,
                python_version=self.runs[-1].session.versions.python,
                replicas_identical=any(check.replicas for run in able for check in run.checks),
                notes=tuple(notes),
                equal_draws=any(run.equal_draws for run in able),
                collectives=next(
                    (
                        read_collectives(check.collectives)
                        for check in able[-1].checks
                        if check.collectives is not None
                    ),
                    None,
                ),
                derivation=derivation,
            ),
            assumed_inputs=loaded.assumed,
            split=tuple(name for name, leaves in question.roles.axes.items() if leaves),
            inspected=self._inspected(question, layout) if self.inspect else None,
        )

    def _inspected(self, question: Comparison, layout: Layout) -> Inspected | None:
        """The source with its placements and collectives; None where it cannot be traced."""
        self.say("tracing: the placements in its source")
        asked = protocol.ListParallel(question, self._called(layout))
        answer = unless(NOT_TRACED, self.runs[-1].session.ask, asked, f"tracing `{self.name}`")
        if answer is None:
            return None
        at = object_span(self.source)
        return inspected(answer, self.source, at.line if at is not None else 1)

    def _against(self, question: Comparison) -> str:
        source = self.target.source
        if question.reference is not None and self.reference.source is not None:
            source = self.reference.source
        return f"{source.shown_path}::{source.qualname}"

    def _derivation(self, question: Comparison, layout: Layout) -> Derivation | None:
        """What is derived of the parallel function on any number of devices; None where one was asked for.

        Keys that the caller makes, one for each device, are no part of the program.
        """
        layouts = [layout, *([question.reference.layout] if question.reference is not None else ())]
        if self.request.devices.number is not None or any("keys" in each.values() for each in layouts):
            return None
        key = repr((question, layout))
        if key not in self.derived:
            self.derived[key] = self._ask_derivation(question, layout)
        return self.derived[key]

    def _ask_derivation(self, question: Comparison, layout: Layout) -> Derivation | None:
        asked = protocol.DeriveParallel(question, self._called(layout))
        answer = unless(NOT_TRACED, self.runs[-1].session.ask, asked, f"deriving `{self.name}`")
        if answer is None:
            return None
        self.answer = answer
        return read_derivation(answer, self.source.root)

    def _modes(self, run: Run, question: Comparison, layout: Layout, loaded: Loaded) -> Iterator[str]:
        """Compare with every other constant that the reference asks about; say which ones only it takes.

        Raises:
            RefusalError: JP045, where the two differ with one.
        """
        for argument in loaded.described:
            name, given = argument["name"], argument["repr"]
            others = [value for asked, value in self.target.facts.compared if asked == name]
            if argument["none"] and "None" in others:
                yield f"`{name}` is None in these inputs; what the two do with another one is not compared"
            if name not in question.roles.statics or argument["none"] or name in self.calling.left_out:
                continue
            unlike = _others(given, others)
            compared = {"True": ["False"], "False": ["True"]}.get(given, list(dict.fromkeys(others)))
            for value in [*compared, *unlike]:
                if value == given:
                    continue
                # Another mode may return something else: what feeds the next call is not known.
                asked = dataclasses.replace(question, overrides={name: value}, chain=(), steps=1)
                answer = run.session.ask(
                    protocol.ProveParallel(asked, self._called(layout), run.devices, with_given=False),
                    f"proving with {name}={value}",
                )
                failure = answer.checks[-1].failure if answer.checks else None
                if failure is None:
                    continue
                if failure.error is not None:
                    yield (
                        f"with `{name}={value}` the reference runs and `{self.name}` fails: "
                        f"{error_line(failure.error)}"
                    )
                    continue
                if not others and given not in ("True", "False"):
                    yield (
                        f"with `{name}={value}` `{self.name}` gives something else than the reference: it is "
                        f"equal for `{name}={given}`, and nothing is said of others"
                    )
                    continue
                run.checks = [dataclasses.replace(answer.checks[-1], alone=True)]
                raise RefusalError(self._unequal().failure([run], [run], layout, f"{name}={value}"))

    def _notes(self, layout: Layout, able: list[Run], loaded: Loaded) -> Iterator[str]:
        yield from loaded.notes
        yield from dict.fromkeys(note for run in able[-1:] for note in run.notes)
        yield from rounding_alone([check for run in able for check in run.checks], self.target)
        for argument in loaded.described:
            keyed = any(leaf["category"] == "key" for leaf in argument["leaves"])
            if layout[argument["name"]] == "keys":
                yield (
                    f"`{argument['name']}` was given as a key for each device, each another one, as "
                    "`jax.random.split(key, devices)` makes them; with copies of one key it is not equal"
                )
            elif keyed and layout[argument["name"]] != "whole" and any(run.equal_draws for run in able):
                yield (
                    f"`{argument['name']}` was given as equal keys; that every device gets another one "
                    "where numbers are drawn for examples is up to whoever calls it"
                )
        given = [each["name"] for each in loaded.described if each["name"] in self.calling.left_out]
        if given:
            names, its = " and ".join(f"`{name}`" for name in given), "values" if len(given) > 1 else "value"
            yield (
                f"`{self.name}` does not take {names}: it is equal for the {its} given to the reference, and "
                "nothing is said of others"
            )
        whole = dict.fromkeys(layout, "whole")
        if layout != whole and any(run.ends(whole) == ENDS.index("value") for run in able):
            yield (
                f"called as the reference is, `{self.name}` runs too and gives other results: this is about "
                f"calls {layout_words(layout)}"
            )
        for run in self.runs:
            if run.skipped is not None:
                yield run.skipped
            elif run.problem is not None:
                why = first_line(run.problem.message) or f"`{self.calling.program}` ends without it"
                yield f"not on {run.devices} devices: {why}"
            elif run.devices not in self.left and run.devices not in {each.devices for each in able}:
                found = run.calls(layout)
                error = found[0].error if found else None
                why = f" ({error_line(error)})" if error is not None else ""
                yield f"not on {run.devices} devices: `{self.name}` does not run there{why}"
        yield from self.beyond
        lay_on = [each.on for run in able for each in run.tried if each.on]
        if lay_on and max(lay_on) == 1:
            yield (
                f"every result of `{self.name}` lies on one device: it is equal, but nothing shows that "
                "it is parallel"
            )


def _others(given: str, others: Sequence[str]) -> list[str]:
    """Constants like `given` that are none of the `others` it is compared with: what is left to `else`.

    Of a number two, of which one is far off: it may be how often something is done. None of a text that is
    compared with nothing, which may be any name, and of what is no text or number.
    """
    try:
        known = [ast.literal_eval(each) for each in (given, *others)]
    except (ValueError, SyntaxError):
        return []
    if others and all(type(each) is str for each in known):
        return [repr("_".join(("no", *map(str, known))))]
    most = max(known) if all(type(each) is int for each in known) else None
    if most is None:
        return []
    return [repr(most + 1), *([repr(4 * most + 1)] if 1 < most <= MOST_TIMES else [])]


def _compared(check: protocol.Check) -> Iterator[Check]:
    """A check as evidence; nothing of one that failed before values were compared."""
    failure = check.failure
    if failure is None:
        yield check_of(check)
    elif failure.what == "value":
        yield dataclasses.replace(check_of(check), error=failure.off, tolerance=failure.tolerance)
