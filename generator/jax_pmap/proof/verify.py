"""The proof alone, of a parallel function that the user wrote.

Every device count gets a worker of its own with just that many devices: meshes and pmapped functions
are made when a module is imported, and the user's is then imported anew for each count.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from jax_pmap.inputs.capture import program_ended
from jax_pmap.inputs.load import Loaded, alias_note, file_of, load
from jax_pmap.inputs.program import read_program
from jax_pmap.locate import as_others_import, local_object, locate_object, object_span
from jax_pmap.model import (
    Check,
    Derivation,
    Evidence,
    Inspected,
    Leaf,
    Refusal,
    RefusalError,
    Request,
    Role,
    Source,
    Span,
    Verified,
    refused,
    staged,
)
from jax_pmap.options import check_run, no_argument
from jax_pmap.planning.as_called import as_called
from jax_pmap.planning.axis import axis_notes
from jax_pmap.planning.no_batch import no_batch
from jax_pmap.planning.plan import chain
from jax_pmap.planning.reference import batch_of, grown_axes, reference_runs, traced
from jax_pmap.planning.roles import RoleFinder, Roles
from jax_pmap.planning.search import CANDIDATES, LOOKED_AT
from jax_pmap.problems import error_details, error_line, error_span, first_line, shown_file
from jax_pmap.proof.answers import check_of, read_collectives, read_derivation
from jax_pmap.proof.causes import likeliest_cause, output_name
from jax_pmap.proof.failures import disagreeing, otherwise
from jax_pmap.proof.inspection import inspected
from jax_pmap.proof.layouts import Layouts, layout_words, read_convert, read_layout, with_axis
from jax_pmap.proof.notes import adequacy, not_tried, rounding_alone
from jax_pmap.proof.prove import COUNTS, STEPS
from jax_pmap.proof.reference import Reference, locate_reference, object_of, runs_in
from jax_pmap.proof.requests import steps_into
from jax_pmap.reading.target import Target, read_target
from jax_pmap.session import Session
from jax_pmap.threads import at_once
from jax_pmap.worker import protocol
from jax_pmap.worker.protocol import Call, Comparison, Layout, Problem, unless

T = TypeVar("T")
#: The batch axis of what is split, by argument and index of its array.
LeafAxes = Mapping[str, Mapping[int, int]]
#: Device counts of the run where equality is derived for all of them.
SECOND = (3, 8)
#: Constants up to which several times as many rounds are tried.
MOST_TIMES = 16
#: The inputs that need no mention; see `Question.described`.
GIVEN = "the given inputs"
#: How to say in which way a function is called.
LAYOUTS = "--layout drop-in|stacked|batch, or --layout NAME=devices,…"
#: In what jax says where arrays do not lie on an explicit mesh as a `shard_map` wants them.
LIES_OTHERWISE = "does not match the specs of the input"
#: Problems for which it is not traced.
NOT_TRACED = (*protocol.NOT_FOUND, *protocol.NOT_TAKEN)
NO_DERIVATION = protocol.Derivation(0, counts=(), batch=0, multiple=1, asked=0, run=None)
#: How a call can end, the better the later.
ENDS = ("raises", "form", "value", "equal")
#: The score of `_choose` for results that are equal, and what each device count adds on which they are.
SURE, EVERY_COUNT = 300, 10
#: What to do where a parallel function differs only on some inputs; see `Failure.on`.
MENDED_BY = {
    protocol.REFILLED: (
        "Keep no array by which object it was made of: that may have other numbers in the next call, and "
        "where it is gone, another may have its `id`"
    ),
    protocol.REORDERED: (
        "What jax returns has its keys sorted, and what it is given need not: go through dicts with "
        "`jax.tree.map`, or by their keys"
    ),
    protocol.SEVERAL: "Mend what `{}` does with several, or have it raise for these",
    protocol.LONGER: "Mend what `{}` does with these, or have it raise for them",
}


@dataclass(slots=True)
class Run:
    """One device count: its worker, how calls ended there, and what was compared."""

    devices: int
    session: Session
    tried: Sequence[Call] = ()
    #: Why nothing was compared on this count, as a note.
    skipped: str | None = None
    #: Whether that is for a batch of fewer rows than there are devices.
    short: bool = False
    #: Whether the worker has the reference and its inputs.
    loaded: bool = False
    #: Rows of the batch that the calls were made with.
    batch: int = 0
    #: The problem that kept the parallel function from being there at all.
    problem: Problem | None = None
    checks: Sequence[protocol.Check] = ()
    #: Whether random numbers were drawn, the same on every share.
    equal_draws: bool = False
    #: What the runs came upon, a sentence each.
    notes: list[str] = dataclasses.field(default_factory=list)
    #: Places of branches that went one way on all inputs, and have other collectives the other way.
    exchanges: Sequence[str] = ()
    #: Places where results are made that are given as those of all devices, and are of each's own.
    own: Sequence[str] = ()

    def calls(self, layout: Layout) -> list[Call]:
        """The calls in `layout`."""
        return [each for each in self.tried if each.layout == layout]

    def failure(self) -> protocol.Failure | None:
        """How the last run failed."""
        return self.checks[-1].failure if self.checks else None

    def ends(self, layout: Layout) -> int:
        """How well a call in `layout` ended, -1 where there was none."""
        return max((ENDS.index(each.ends) for each in self.calls(layout)), default=-1)


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
        proof = _Verification(target, source, made, layouts, reference, request, runs, start, say)
        proof.inspect, proof.program = inspect, program
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
        made: protocol.Made | None,
        layouts: Layouts,
        reference: Reference,
        request: Request,
        runs: list[Run],
        start: Callable[[int], Session],
        say: Callable[[str], None],
    ) -> None:
        self.target, self.source, self.request = target, source, request
        self.layout, self.convert = layouts.parallel, layouts.convert
        #: All device counts, and those that are looked at.
        self.every, self.runs, self.say = runs, runs, say
        #: Starts a worker with so many devices.
        self.start = start
        self.name = source.qualname
        #: What is called, as the workers know it.
        self.object = object_of(source, made)
        self.reference = reference
        #: Arguments that the reference changes in place.
        self.mutated: list[str] = []
        #: Arguments of the reference that it does not take.
        self.left_out: tuple[str, ...] = ()
        #: Arguments that look like data, and are not said to be whole.
        self.data: tuple[str, ...] = ()
        #: Arguments with arrays that are more than a number.
        self.arrays: tuple[str, ...] = ()
        #: Arguments of which something is split in the calls that were tried last.
        self.divided: tuple[str, ...] = ()
        #: Whether to look into its source.
        self.inspect = False
        #: The program that makes it, as typed.
        self.program = ""
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
        self.mutated = [each.name for each in whole.mutated]
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
                found = self._search(finder, _again(known, candidates), loaded, whole)
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
            raise RefusalError(self._not_called())
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

    def _search(
        self, finder: RoleFinder, candidates: Iterable[Roles], loaded: Loaded, whole: protocol.Traced
    ) -> tuple[int, Comparison, Layout] | None:
        """How well the best way to call ends (see `_choose`), the question with its roles, and its layout.

        None where no way runs on some of the counts that are looked at, and others are left.
        """
        best: tuple[int, Comparison, Layout] | None = None
        ended: list[tuple[int, Roles, Layout]] = []
        tried = 0
        said = {text.partition("[")[0] for text in self.request.replicate}
        self.data = tuple(name for name in finder.likely_data() if name not in said)
        self.arrays = tuple(dict.fromkeys(leaf.argument for leaf in finder.leaves if leaf.shape))
        copied: list[str] = []
        uncalled: RefusalError | None = None
        for roles in candidates:
            if tried >= CANDIDATES:
                break
            too_small = batch_of(roles, loaded) < self.every[0].devices
            if too_small and tried:
                continue  # What the others came to says more.
            if any(finder.leaves_data_whole(roles, before) for _, before, _ in ended):
                continue  # All of the batch on every device, and nothing would be asked.
            tried += not too_small
            question = self._question(roles, loaded, whole)
            parallel = self.reference.mapped or self.reference.layout is not None or whole.mapped
            if parallel:
                try:
                    called = self._how_the_reference(roles, loaded)
                except RefusalError as refusal:
                    uncalled = uncalled or refusal
                    continue
                question = dataclasses.replace(question, reference=called)
            layouts = self._layouts(roles, loaded)
            if layouts is not None and not _shares(layouts[0], roles):
                # Each device would get a copy of everything, and nothing would be asked.
                copied = [name for name, leaves in roles.axes.items() if leaves]
                continue
            self.divided = tuple(name for name, leaves in roles.axes.items() if leaves)
            self.say(f"planning: finding out how `{self.name}` is called")
            self._each(lambda run: self._try(run, roles, loaded, question, layouts))  # noqa: B023
            chosen, score = self._choose()
            if chosen is not None:
                ended.append((score, roles, chosen))
            if chosen is not None and (best is None or score > best[0]):
                best = score, question, chosen
                kept = [(list(run.tried), run.skipped, run.problem) for run in self.runs]
            # A batch that is too small for some count may be no batch at all.
            if best is not None and best[0] >= SURE + EVERY_COUNT * len(self.runs):
                break
        if best is None and uncalled is not None:
            raise uncalled
        if best is None and self.runs is self.every:
            if not finder.found:
                session, replicated = self.runs[-1].session, finder.request.replicate
                raise no_batch(session, self.target, loaded, finder.trace_error, replicated)
            if copied and not any(run.tried for run in self.runs):
                names = " and ".join(f"`{name}`" for name in copied)
                raise refused(
                    "JP018",
                    f"`--layout {self.layout}` gives no device axis to what is split, which is {names}",
                    f"Give it one: --layout {copied[0]}=devices,…; or say what is split: --shard NAME",
                    self.target.facts.span,
                )
            raise RefusalError(self._not_called())
        if best is not None:
            self._hold_shares(ended, best[0], loaded, finder)
            for run, (calls, skipped, problem) in zip(self.runs, kept, strict=True):
                run.tried, run.skipped, run.problem = calls, skipped, problem
            best = (*best[:2], self._with_parts(best[1].roles.axes, best[2], loaded))
        return best

    def _with_parts(self, axes: LeafAxes, layout: Layout, loaded: Loaded) -> Layout:
        """The layout, with parts in place of copies of a second batch, where these give other results.

        On every device, all unlabelled rows beside a part of the labelled ones say nothing of parts of both.
        Nobody makes copies for a function that takes other arrays as they are, but of what is in one argument
        with the batch, where everything has a device axis.

        Raises:
            RefusalError: JP018, where all that is not the batch is given as copies.
        """
        split = {name for name, leaves in axes.items() if leaves}
        for other in self._tried_layouts():
            apart = [name for name, form in layout.items() if form != other[name]]
            parts = all((layout[name], other[name]) == ("devices", "parts") for name in apart)
            if not apart or not parts or max(run.ends(other) for run in self.runs) != ENDS.index("value"):
                continue
            if "whole" not in {layout[name] for name in self.arrays} or not split.isdisjoint(apart):
                forms = ",".join(f"{name}={form}" for name, form in with_axis(other))
                paths = [path for name in apart for path in _other_arrays(name, axes, loaded)]
                names = " and ".join(f"`{path}`" for path in paths)
                raise refused(
                    "JP018",
                    f"what is split is not clear: given {names} in parts, `{self.name}` gives other results "
                    "than the reference, and given all of it on every device, the same",
                    f"Say how your program gives it: --layout {forms} for parts, or "
                    + " ".join(f"--replicate {quoted(path)}" for path in paths),
                    self.target.facts.span,
                )
            return other
        return layout

    def _hold_shares(
        self,
        ended: Sequence[tuple[int, Roles, Layout]],
        best: int,
        loaded: Loaded,
        finder: RoleFinder,
    ) -> None:
        """Refuse to take copies of an array for shares of it, where only copies give the reference's results.

        Either may be how the function is called: an array may be as long as the batch by chance. Parameters
        may be divided by chance, too, and are then no answer for what looks more like data.
        """
        chosen = next(index for index, (score, _, _) in enumerate(ended) if score == best)
        _, roles, layout = ended[chosen]
        leaves = {argument["name"]: argument["leaves"] for argument in loaded.described}
        for score, others, _ in ended[:chosen]:
            copied = [
                (name, index)
                for name, split in others.axes.items()
                for index in split
                if index not in roles.axes.get(name, {}) and layout[name] != "whole"
            ]
            asked = batch_of(others, loaded) == batch_of(roles, loaded) or finder.likelier(others, roles)
            if score >= ENDS.index("value") * 100 and copied and asked:
                paths = [leaves[name][index]["path"] for name, index in copied]
                raise refused(
                    "JP018",
                    f"what is split is not clear: given `{paths[0]}` in shares, `{self.name}` gives other "
                    "results than the reference, and given all of it on every device, the same",
                    f'Say how your program gives it: --shard "{paths[0]}", or --replicate "{paths[0]}"',
                    self.target.facts.span,
                )

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

    def _question(self, roles: Roles, loaded: Loaded, whole: protocol.Traced) -> Comparison:
        """What every request of the proof says of the reference."""
        lead, facts = self.runs[-1].session, self.target.facts
        axes = grown_axes(lead, roles, batch_of(roles, loaded), whole)
        outputs = [
            Leaf(
                "result" + leaf["path"],
                Role.REPLICATED if axis is None else Role.BATCH,
                axis,
                tuple(leaf["shape"]),
                leaf["dtype"],
            )
            for leaf, axis in zip(whole.out, axes, strict=True)
        ]
        pairs = chain(loaded.described, roles, whole.tree, outputs, facts.returned_names, self.mutated)
        return Comparison(
            roles.request(),
            chain=tuple((argument, steps_into(where)) for argument, where in pairs),
            steps=STEPS if pairs else 2,
            global_view=False,
            donated=(*facts.donated_parameters, *self.request.donate),
        )

    # --- the layout -----------------------------------------------------------------------

    def _how_the_reference(self, roles: Roles, loaded: Loaded) -> protocol.Called | None:
        """How the reference is called, where it runs on several devices itself; see `Reference.found`."""
        if self.reference.source is None:
            return None
        self.say(f"finding out how `{self.reference.source.qualname}` is called")
        layouts = self._read_layouts(self.reference.layout, roles, loaded, "against-layout")
        size = batch_of(roles, loaded)

        def ask(run: Run, layouts: tuple[Layout, ...] | None) -> tuple[int, Sequence[Call]]:
            return run.devices, self.reference.calls(run.session, run.devices, roles.request(), layouts)

        able = [run for run in self.runs if size >= run.devices]
        found = dict(at_once(lambda run: ask(run, layouts), able))
        layout = self.reference.chosen(found)
        if layout is not None and layouts is None:
            others = [run for run in able if not any(runs_in(each, layout) for each in found[run.devices])]
            found |= at_once(lambda run: ask(run, (layout,)), others)
        return self.reference.found(found, layout)

    def _layouts(self, roles: Roles, loaded: Loaded) -> tuple[Layout, ...] | None:
        """The layout that was asked for, None to try them all."""
        return self._read_layouts(self.layout, roles, loaded)

    def _read_layouts(
        self, typed: str | None, roles: Roles, loaded: Loaded, option: str = "layout"
    ) -> tuple[Layout, ...] | None:
        if typed is None:
            return None
        batch = {name for name, leaves in roles.axes.items() if leaves}
        arrays = {a["name"]: bool(a["leaves"]) and a["name"] not in roles.statics for a in loaded.described}
        return (read_layout(typed, arrays, batch, option),)

    def _try(
        self,
        run: Run,
        roles: Roles,
        loaded: Loaded,
        question: Comparison,
        layouts: tuple[Layout, ...] | None,
    ) -> None:
        run.tried, run.skipped, run.problem = (), self.reference.unable.get(run.devices), None
        run.short = False
        size = batch_of(roles, loaded)
        if run.skipped is not None:
            return
        if size < run.devices:
            run.skipped = f"not on {run.devices} devices: the batch of the inputs is {size}"
            run.short = True
            return
        try:
            # What the next call gets back is state, whatever its name, and no second batch.
            state = {name for name, _ in question.chain}
            unsaid = self.layout in (None, "stacked")
            data = tuple(name for name in self.data if name not in state) if unsaid else ()
            asked = protocol.TryLayouts(question, self.object, run.devices, layouts, data)
            answer = run.session.ask(asked, f"calling `{self.name}` on {run.devices} devices")
        except Problem as problem:
            if problem.kind not in protocol.NOT_FOUND:
                raise
            run.problem = problem
            return
        if answer.skipped is not None:
            run.skipped = not_tried(answer.skipped)
        else:
            run.tried, run.batch = answer.tried, answer.batch
            self.left_out = answer.left_out
            if layouts is not None and "=" in (self.layout or ""):
                self._honoured(layouts[0], run.tried[0].layout)

    def _honoured(self, asked: Mapping[str, str], called: Mapping[str, str]) -> None:
        """Refuse a layout that was asked for by argument and is not the one of the call."""
        lost = next((name for name, form in asked.items() if called[name] != form), None)
        if lost is not None:
            raise refused(
                "JP018",
                f"`--layout` says how `{lost}` is given, and `{self.name}` does not take it",
                f"Leave `{lost}` out of --layout",
                object_span(self.source),
            )

    def _choose(self) -> tuple[Layout | None, int]:
        """The layout that ends best on most device counts, and how well.

        Of some that end alike the one whose results come nearest to the reference's, then the earliest.
        """
        natural = self._natural()
        if natural is not None:
            return natural, SURE + EVERY_COUNT * len(self.runs)
        best: tuple[int, tuple[float, ...], Layout] | None = None
        for layout in self._tried_layouts():
            ends = [other.ends(layout) for other in self.runs]
            score = (
                max(ends) * 100 + sum(EVERY_COUNT for end in ends if end == max(ends)) + sum(map(bool, ends))
            )
            off = [each.off for run in self.runs for each in run.calls(layout) if each.off]
            far: tuple[float, ...] = min(off, default=())
            if max(ends) > 0 and (best is None or score > best[0] or (score == best[0] and far < best[1])):
                best = score, far, layout
        if best is None and self.layout is not None and any(run.tried for run in self.runs):
            # The way of calling was asked for: that it fails is the answer.
            return next(run.tried[0].layout for run in self.runs if run.tried), 1
        return (None, 0) if best is None else (best[2], best[0])

    def _tried_layouts(self) -> list[Layout]:
        """Every way of calling that was tried on some device count."""
        found: list[Layout] = []
        for run in self.runs:
            found += [each.layout for each in run.tried if each.layout not in found]
        return found

    def _natural(self) -> Layout | None:
        """The call as the reference is called, where it runs and gives something else.

        That answers the question: another way of calling under which the results would agree is a hint, and
        no reason to take that one. Where it runs on some device counts alone, it has to run on all of their
        devices and with several rows on each: a function that wants an axis of devices takes another axis
        for it where that is as long, or shorter.
        """
        if self.layout is not None:
            return None
        called = [
            (run, run.tried[0])
            for run in self.runs
            if run.tried and set(run.tried[0].layout.values()) == {"whole"}
        ]
        if any(each.ends == "raises" for _, each in called):
            called = [
                (run, each) for run, each in called if run.batch > run.devices and each.on == run.devices
            ]
        return next((each.layout for _, each in called if each.ends in ("value", "form")), None)

    def _not_called(self) -> Refusal:
        """Why there was nothing to compare."""
        problems = [(run, run.problem) for run in self.runs if run.problem is not None]
        tried = [each for run in self.runs for each in run.tried]
        directory = self.request.directory
        if problems and not tried:
            run, problem = problems[0]
            if problem.kind == "program":
                at = object_span(self.source)
                return program_ended(problem, run.session, self.program, self.source, at, makes=True).refusal
            if problem.kind == "import":
                return Refusal(
                    "JP008",
                    f"`{self.source.shown_path}` cannot be imported: {problem.message}",
                    f"Make the file importable: `python -c 'import {self.source.module}'` must work",
                    error_span(problem.error, directory, self.source),
                    error_details(problem.error),
                )
            return Refusal(
                "JP002",
                f"`{self.source.shown_path}`: {problem.message}",
                f"Functions in it: {', '.join(f'`{name}`' for name in problem.known[:8])}"
                if problem.known
                else "Name a function, or a variable that holds one: FILE::NAME",
            )
        if not tried:
            return Refusal(
                "JP041",
                f"`{self.name}` was run on no device count: "
                + "; ".join(run.skipped for run in self.runs if run.skipped),
                "Give example inputs with a batch of 24, or another multiple of 2, 3, 4 and 8",
                self.target.facts.span,
            )
        errors: dict[str, protocol.Raised] = {}
        for each in tried:
            if each.error is not None:
                errors.setdefault(layout_words(each.layout), each.error)
        shown = [f"{words}: {error_line(error)}" for words, error in list(errors.items())[:4]]
        first = next(iter(errors.values()))
        hint = "Give it inputs it takes"
        if any(LIES_OTHERWISE in each.message for each in errors.values()):
            hint = (
                "Its mesh has axes of explicit mode, which `jax.make_mesh` makes by default, and arrays have "
                "to lie as `in_specs` say. Verify a function that puts them there: `def placed(*args): "
                f"return {self.name}(*jax.device_put(args, shardings))`, with a `NamedSharding(mesh, spec)` "
                "for each argument; or make the mesh with `axis_types=(jax.sharding.AxisType.Auto,)`, one "
                "for each axis"
            )
        else:
            if self.divided and not self.request.shard:
                split = " and ".join(f"`{name}`" for name in self.divided)
                hint += f", or say what is split, which is taken to be {split}: --shard NAME"
            if self.layout is None:
                hint += f"; or how it is called: {LAYOUTS}"
        return Refusal(
            "JP021",
            f"`{self.name}` fails in every way of calling it that was tried",
            hint,
            error_span(first, directory, self.source),
            ("\n".join(shown),),
        )

    # --- the verdict ----------------------------------------------------------------------

    def _called(self, layout: Layout) -> protocol.Called:
        """The parallel function, called in `layout` as it was tried."""
        calls = [each for run in self.runs for each in run.calls(layout)]
        named = next((each for each in calls if each.ends != "raises"), calls[0]).named
        return protocol.Called(self.object, layout, named)

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
            refusal = self._failure(failed, able, layout)
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
            said = self._failure([run], [*able, run], layout)
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
            if name not in question.roles.statics or argument["none"] or name in self.left_out:
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
                raise RefusalError(self._failure([run], [run], layout, f"{name}={value}"))

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
        given = [each["name"] for each in loaded.described if each["name"] in self.left_out]
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
                why = first_line(run.problem.message) or f"`{self.program}` ends without it"
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

    def _failure(self, failed: list[Run], able: list[Run], layout: Layout, mode: str = "") -> Refusal:
        """What the first difference says to the user, on the count with the clearest cause.

        `mode` is a constant that another one was put in the place of, such as ``train=False``.
        """
        run, check, failure = failed[0], failed[0].checks[-1], failed[0].checks[-1].failure
        assert failure is not None
        where = f"on {run.devices} devices" + (f", call {failure.step + 1}" if failure.step else "")
        where += f" with a batch of {check.batch}" if check.resized or check.uneven else ""
        where += f" with `{mode}`" if mode else ""
        # What failed was not compared.
        code, verb, details = "JP045", "differs", tuple[str, ...]()
        if failure.error is not None:
            code, verb, details = "JP021", "fails", error_details(failure.error)
        elif failure.what == "value":
            details = (f"parallel:  {failure.got}", f"reference: {failure.want}")
        reason = self._said(check, failure, where)
        if failure.what == "value":
            differing, size = failure.differing
            reason += (
                f". {differing} of its {size} elements differ{'s' * (differing == 1)}"
                if differing < size
                else ""
            )
            reason += self._repeated()
        own = self.reference.parallel and failure.what == "shape"
        if own and failure.want == with_devices(failure.got, run.devices):
            reason += f": each device of `{self.reference.name}` has one of its own there, and they differ"
        if (on := failure.on) and on != GIVEN and failure.what not in ("draws", "keys"):
            reason += f". It shows on {on}"
        if failure.defaults:
            reason += f". It was called without what the inputs leave out: {failure.defaults}"
        others = [str(other.devices) for other in failed if other is not run]
        equal = [str(count) for count in sorted(other.devices for other in able if other not in failed)]
        if others:
            reason += f". It {verb} on {_listed(others)} devices too"
        # Some runs are made on one count alone.
        if equal and not check.alone:
            reason += f". It is equal on {_listed(equal)} devices"
        return Refusal(code, reason, self._way_out(failure, run, layout), object_span(self.source), details)

    def _said(self, check: protocol.Check, failure: protocol.Failure, where: str) -> str:
        """What is wrong, in a clause."""
        name = self.name
        output = f"`{output_name(self.target.parsed.definition, failure.path, self.mutated)}`"
        cause = likeliest_cause(failure, check.precision, check.devices)
        if failure.error is not None:
            return f"`{name}` fails {where}: {error_line(failure.error)}"
        if failure.what == "changed":
            return (
                f"`{name}` changes its argument `{failure.argument}` in place, which the reference leaves as "
                "it is: a caller that uses it again gets something else"
            )
        if failure.what == "deleted":
            return (
                f"`{name}` takes the arrays of `{failure.argument}` with it (`donate_argnums`), which the "
                "reference leaves to its caller: one that uses them again gets an error"
            )
        if failure.what in ("draws", "keys"):
            return f"the random numbers of `{name}` are wrong: {where} {failure.why}"
        if failure.what == "replicas":
            said = f"{output} is not the same on every device: {where} {failure.why}"
            return said + (f"; {cause}" if cause else "")
        if failure.what != "value":
            found = f"{failure.got}, the reference's is {failure.want}"
            return f"{output} has another {failure.what} {where}: {found}"
        if cause and cause.startswith("it is "):
            said = f"{output} is {_on(cause.removeprefix('it is '), where)}"
        else:
            said = f"{output} differs {where}{f': {cause}' if cause else ''}"
        if math.isfinite(failure.off):
            said += f" (error {failure.off:.1e} of its size, bound {failure.tolerance:.1e})"
        return said

    def _way_out(self, failure: protocol.Failure, run: Run, layout: Layout) -> str:
        """What to do about a failure."""
        if failure.what == "keys":
            hint = (
                "Draw for examples and for all devices with keys of their own: `jax.random.split` gives both"
            )
        elif failure.what == "deleted":
            hint = (
                "Take it out of `donate_argnums`, or donate it in the reference too; where callers give it "
                f"up, say so: --donate {failure.argument}"
            )
        elif failure.cause == "kept" and self.mutated and (at := re.match(r"\[1\]\[(\d+)\]", failure.path)):
            hint = (
                f"The reference changes `{self.mutated[int(at[1])]}` in place, as it is called. Where no "
                "caller relies on that, verify against `jax.jit` of it, which does not"
            )
        elif failure.on in MENDED_BY:
            hint = MENDED_BY[failure.on].format(self.name)
        elif (check := run.checks[-1]).resized or check.uneven:
            rows, left = divmod(check.batch, run.devices)
            share = "" if left else f" ({rows} row{'s' if rows > 1 else ''} on each device)"
            hint = (
                f"Mend what `{self.name}` does with a batch of {check.batch}{share}, or have it raise for "
                "batches that it is not meant for"
            )
        else:
            hint = self._called_otherwise(run, layout)
        if self.reference.parallel:
            hint += f". The reference was called {layout_words(self.reference.called)}: --against-layout"
        return hint

    def _repeated(self) -> str:
        """What to say of sums over devices of what is whole on every device already; ``""``."""
        own = sorted({each.line for each in self.answer.repeated if Path(each.file) == self.source.path})
        if not own:
            return ""
        lines = f"line{'s' if len(own) > 1 else ''} {' and '.join(map(str, own))}"
        said = (
            f". The collective of {lines} is taken of what is the same on every device already: a psum "
            "multiplies it by the number of devices, a pmean changes nothing"
        )
        if self.answer.summed:
            said += (
                ". shard_map with check_vma=True, its default, has summed the gradients of replicated "
                "parameters by then: average the loss inside the differentiated function, or divide by the "
                "number of devices"
            )
        return said

    def _called_otherwise(self, run: Run, layout: Layout) -> str:
        """How the function was called, and how else it could be."""
        equal_as = next(
            (each.layout for each in run.tried if each.ends == "equal" and each.layout != layout),
            None,
        )
        if equal_as is not None:
            return (
                f"`{self.name}` was called {layout_words(layout)}; called {layout_words(equal_as)} it gives "
                "the reference's results. If that is how your program calls it, say so with --layout"
            )
        said = f"`{self.name}` was called {layout_words(layout)}"
        return said if self.layout is not None else f"{said}; another way of calling it: {LAYOUTS}"


def _again(known: list[Roles], candidates: Iterator[Roles]) -> Iterator[Roles]:
    """The candidates that are `known`, then the others, which are kept there."""
    yield from known
    for roles in candidates:
        known.append(roles)
        yield roles


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


def _other_arrays(name: str, axes: LeafAxes, loaded: Loaded) -> list[str]:
    """What of an argument is in rows beside those that are split: paths of its arrays, or all of it."""
    split = axes.get(name, {})
    leaves = next(argument["leaves"] for argument in loaded.described if argument["name"] == name)
    own = [leaf["path"] for index, leaf in enumerate(leaves) if index not in split and leaf["shape"]]
    return own if split else [name]


def quoted(path: str) -> str:
    """A path as it is typed in a shell."""
    return f'"{path}"' if "[" in path else path


def _shares(layout: Layout, roles: Roles) -> bool:
    """Whether a call in `layout` gives devices shares of what is split, or nothing a device axis at all."""
    split = {name for name, leaves in roles.axes.items() if leaves}
    with_axis = {name for name, form in layout.items() if form != "whole"}
    return not with_axis or bool(split & with_axis)


def with_devices(shape: str, devices: int) -> str:
    """A shape as text, ``"(8,)"``, with an axis of devices in front: ``"(2, 8)"``."""
    return str((devices, *ast.literal_eval(shape)))


def _listed(words: Sequence[str]) -> str:
    """``"3, 4 and 8"``."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _on(cause: str, where: str) -> str:
    """`cause` with the device count behind its first clause."""
    clause = re.search(r"[:,] ", cause)
    end = clause.start() if clause else len(cause)
    return f"{cause[:end]} {where}{cause[end:]}"
