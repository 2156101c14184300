"""Have the worker run the emitted file beside the reference; turn what it measured into a verdict."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jax_pmap.emit.axes import used_axes
from jax_pmap.emit.remainder import remainder_of
from jax_pmap.model import Backend, Derivation, Evidence, Plan, RefusalError, Say, refused
from jax_pmap.planning.coupling import fails_in_any_map
from jax_pmap.planning.search import Observed
from jax_pmap.proof.answers import check_of, read_collectives, read_derivation
from jax_pmap.proof.ended import NO_RUN, OUT_SHARDING, UNTYPED, in_source, neither, untyped, why_not_run
from jax_pmap.proof.failures import (
    apart_by_size,
    couples_parts,
    disagreeing,
    failure,
    reached_by_some,
    too_few,
    uneven,
    way_out,
)
from jax_pmap.proof.notes import adequacy, not_tried, rounding_alone, unplanned
from jax_pmap.proof.requests import batch_size, comparison_of, emitted_of
from jax_pmap.reading.target import Target
from jax_pmap.session import ROOM, TIME, Session
from jax_pmap.units import first_few
from jax_pmap.worker import protocol

#: Device counts of the proof. Three exposes "dimension 0 happens to equal the count".
COUNTS = (2, 3, 4, 8)
#: What is said of a function that a run cannot have in float64, where rounding would hide less.
IN_ITS_DTYPES = "`{}` does not run in float64: it was compared in its own dtypes alone"
#: Refusals that say that a run took more than it may: of time, and of memory.
LIMITS = ("JP010", "JP011")
#: Begins the note on a run that was left out.
LEFT_OUT = "derived, and not run"
#: Said where the batch suits no odd number of devices.
ON_EVEN = "derived from traces on {} devices: what is cut off on an odd number of them would not show"
#: What code raises where it has an expression that the inputs it was made for do not reach.
UNSEEN = "was not reached by the inputs"
#: Said where the code refuses batches that give a device few rows.
OTHER_WITH_FEW = (
    "with {} on a device the function works in another way, and is not shown equal: "
    "the code refuses such a batch"
)
#: Said where a caller's gradient through the code may be another one.
GRADIENT_OUTSIDE = (
    "a gradient taken from outside of this code, as by `jax.grad`, may be another one than on one device, by "
    "the backward rule of `{}`: take it inside, or use --backend jit"
)
#: Chained calls: what a first step gets wrong in the state, a second one shows.
STEPS = 3


class InMultiples(Exception):
    """The code is equal where each device has a multiple of some number of rows, and is to check that."""

    def __init__(self, multiple: int) -> None:
        super().__init__(multiple)
        self.multiple = multiple


class OfForms(Exception):
    """The code is equal for inputs of some forms alone, and is to check that they are of these."""

    def __init__(self, forms: Sequence[protocol.FixedForm]) -> None:
        super().__init__(forms)
        self.forms = forms


class OfMoreRows(Exception):
    """The code is not shown equal where a device has some few rows, and is to refuse such batches."""

    def __init__(self, rows: Sequence[tuple[int, int]]) -> None:
        super().__init__(rows)
        self.rows = rows


@dataclass(frozen=True, slots=True)
class How:
    """How emitted code is proved."""

    #: Device counts of a run, of those that the batch allows.
    counts: tuple[int, ...] = COUNTS
    #: Whether it is run at all; else it is derived equal alone.
    run_code: bool = True
    #: Whether it is derived by now, and needs a run as second witness.
    derived: bool = False
    #: The rows of that run; None for as many as are given, or as fit.
    rows: int | None = None
    #: Whether it draws the very numbers of one device, as code for jit does, and is compared as it is; other
    #: code is compared for equal draws.
    global_view: bool = False
    #: Unless ``"error"``, batches that the devices do not share evenly are run as well.
    remainder: str = "error"
    #: Of an edit in place, the code is what is new in the file; of an edited program, the function that it
    #: has is run in place of the code.
    in_place: protocol.InPlace | None = None


#: All devices, both witnesses.
DEFAULT = How()


@dataclass(frozen=True, slots=True)
class _Derived:
    """What deriving showed for one set of static arguments."""

    comparison: protocol.Comparison
    #: Whether it came to its end.
    complete: bool
    derivation: Derivation | None = None
    told: protocol.Derivation | None = None
    notes: tuple[str, ...] = ()
    #: From and up to how many rows on a device it is another program, and is to be run.
    few: tuple[tuple[int, int], ...] = ()

    @property
    def affordable(self) -> protocol.Affordable | None:
        """The run that fits, where it is known."""
        return self.told.run if self.told is not None else None


def prove(
    session: Session, target: Target, plan: Plan, observed: Observed, code: str, say: Say, how: How = DEFAULT
) -> Evidence:
    """Derive the emitted `code` equal to the reference, and run both on every device count the batch allows.

    Code that chooses its own devices is run on just those.

    Raises:
        RefusalError: JP045, with the output, the device count, the error and the likeliest cause; JP041
            where the original takes the batch of too few device counts; JP060 where an uneven batch
            gives another result; JP061 where it is neither derived nor run.
        InMultiples: it is equal where shares are multiples of more than ``plan.multiple_of``.
        OfForms: it is equal for inputs of other forms than the given ones only where these are as given.
        OfMoreRows: with some few rows on a device it is another program than with many, and not shown equal.
    """
    proof = _Proof(session, target, plan, code, say, how)
    # All are derived before the first is run: a run may take more time than there is, and end the worker.
    derived = [
        proof.derive(comparison_of(plan, observed, each, how.global_view)) for each in observed.variants
    ]
    answers = list(proof.runs(derived))
    return proof.evidence(derived, answers)


class _Proof:
    """The stages of one proof."""

    def __init__(self, session: Session, target: Target, plan: Plan, code: str, say: Say, how: How) -> None:
        self.session, self.target, self.plan, self.say, self.how = session, target, plan, say, how
        self.code, self.emitted = code, emitted_of(target, plan, code, how.in_place)
        self.batch, self.chosen = batch_size(plan), plan.devices.number
        self.counts = self._counts()
        #: What there is to say of the runs.
        self.notes: dict[str, None] = {}

    def _counts(self) -> tuple[int, ...]:
        """The device counts of a run."""
        if self.plan.mesh:
            return (math.prod(axis.size for axis in self.plan.mesh),)
        if self.chosen is not None:
            return (self.chosen,)
        counts = [count for count in self.how.counts if count <= self.batch]
        return tuple(count for count in counts if self.plan.made % count == 0)

    def derive(self, comparison: protocol.Comparison) -> _Derived:
        """Derive the code, where it takes all devices and is not derived yet."""
        plan, target = self.plan, self.target
        if self.chosen is not None or self.how.derived:
            if not self.how.derived:
                self._hold_padded(comparison)
            return _Derived(comparison, self.how.derived)
        if not self.how.run_code and (few := self._few(comparison)):
            # Code that refuses these is to be derived, once.
            raise OfMoreRows(few)
        self.say("deriving: the placement of every value")
        room, seconds = int(ROOM * self.session.memory), TIME * self.session.timeout
        asked = protocol.Derive(
            comparison, self.emitted, plan.multiple_of, room, seconds, self._zeros(), plan.too_few
        )
        told = self.session.ask(asked, "deriving")
        if told.asked > plan.multiple_of and any(used_axes(each.axes) for each in plan.arguments):
            raise InMultiples(told.asked)
        if set(told.forms) - set(plan.forms):
            raise OfForms(told.forms)
        found = read_derivation(told, target.source.root, plan.multiple_of)
        devices = self.counts[0] if plan.mesh else 0
        found = dataclasses.replace(found, devices=devices, rows_inside=plan.made)
        found = in_source(found, f"{self.emitted.name}_parallel.py", self.code, target)
        why = why_not_run(told) if self.how.run_code else NO_RUN
        if told.unshown:
            why = f"a run has no batch of {told.unshown[0]:,}"
        if not found.complete and any(sync.like or any(sync.along) for sync in plan.syncs):
            # What needs all of an array may show on rare inputs alone: a norm that clips, a gradient that is
            # not finite in the part of one device.
            raise RefusalError(couples_parts(found, plan, target.facts.span))
        if why and not found.complete:
            by_size = bool(told.unshown)
            raise RefusalError(neither(found, why, target, comparison.overrides, by_size=by_size))
        even = found.complete and not plan.mesh and all(count % 2 == 0 for count in told.counts)
        notes = (ON_EVEN.format(" and ".join(map(str, told.counts))),) if even else ()
        notes = (*notes, *_only_as(plan.forms))
        if plan.syncs and not self.how.global_view:
            notes = (*notes, *map(GRADIENT_OUTSIDE.format, told.own_gradients))
        if plan.too_few:
            notes = (*notes, OTHER_WITH_FEW.format(plan.too_few_rows))
        few = self._few(comparison)
        if few and (why or asked.zeros is not None):
            # With few rows in all, added ones make another program of it.
            raise OfMoreRows(few)
        self._hold_padded(comparison)
        return _Derived(comparison, found.complete, found, told, notes, few)

    def _few(self, comparison: protocol.Comparison) -> tuple[tuple[int, int], ...]:
        """Rows on a device with which the function is another program than with many, and the code takes."""
        plan = self.plan
        if self.how.global_view or not any(used_axes(each.axes) for each in plan.arguments):
            return ()
        parts = plan.microbatches
        asked = protocol.TellFew(comparison.roles, comparison.overrides, plan.multiple_of // parts)
        told = self.session.ask(asked, "tracing the function")
        return tuple(
            (first * parts, last * parts)
            for first, last in told
            if not any(low <= first * parts and last * parts <= high for low, high in plan.too_few)
        )

    def _zeros(self) -> tuple[str, ...] | None:
        """The leaves that are zero in rows which are added to uneven batches; None where none are added."""
        backend = Backend.JIT if self.how.global_view else Backend.PMAP
        how = remainder_of(self.plan, self.how.remainder, backend, self.target.facts.span)
        return how.zeros if how is not None and how.mode == "pad" else None

    def _hold_padded(self, comparison: protocol.Comparison) -> None:
        """Refuse code that adds rows where these may make another program of the function."""
        zeros = self._zeros()
        if zeros is None:
            return
        few = max((high for _, high in self.plan.too_few), default=0)
        asked = protocol.TellPadded(comparison, self.plan.multiple_of, zeros, few)
        sizes = self.session.ask(asked, "tracing the function")
        if sizes:
            raise RefusalError(apart_by_size(sizes, self.target))

    def _size(self, derived: _Derived) -> tuple[tuple[int, ...], int | None, str]:
        """The device counts of a run and its rows, None for as many as are given; and what to say of that."""
        affordable, multiple = derived.affordable, self.plan.multiple_of
        if self.how.rows is not None:
            return self.counts, self.how.rows, ""
        if derived.complete and not self.how.run_code:
            return (), None, ""
        if derived.complete and affordable is not None:
            why = affordable.why if affordable.counts else f"{LEFT_OUT}: {affordable.why}"
            return self._taking(affordable.counts, affordable.rows or self.batch), affordable.rows, why
        if multiple > 1 and (derived.told is None or not derived.complete):
            return tuple(count for count in self.counts if count * multiple <= self.batch), None, ""
        return self.counts, None, ""

    def _taking(self, counts: tuple[int, ...], rows: int) -> tuple[int, ...]:
        """As many device counts, of which the code takes a batch of so many `rows`: these if it does."""
        even = (count for count in COUNTS if rows % (count * self.plan.multiple_of) == 0)
        others = (count for count in even if count not in counts)
        return tuple(each for each in (*counts, *others) if self.plan.takes(rows, each))[: len(counts)]

    def runs(self, derived: Sequence[_Derived]) -> Iterator[protocol.Checks | None]:
        """What the runs showed, each with nothing wrong; None where there was none.

        Derived code is run with few rows first: where it is not equal it is to refuse these, and run anew.
        """
        for at, each in enumerate(derived):
            counts, rows, why = self._size(each)
            self.notes |= {why: None}
            if not counts:
                if each.few:
                    raise OfMoreRows(each.few)
                yield None
                continue
            try:
                answer = self._run(each, counts, rows)
            except RefusalError as error:
                if error.refusal.code not in LIMITS or not all(later.complete for later in derived[at:]):
                    raise
                # What it needs was estimated, and the estimate was too low.
                self.notes[f"{LEFT_OUT} to its end: {error.refusal.reason}"] = None
                yield from [None] * (len(derived) - at)
                return
            yield self._read(each, answer)

    def _run(self, derived: _Derived, counts: tuple[int, ...], rows: int | None) -> protocol.Checks:
        """Run the code beside the reference."""
        affordable = derived.affordable if derived.complete else None
        seconds = affordable.seconds if affordable is not None else 0.0
        self.say(f"running: on {', '.join(map(str, counts))} devices{about(seconds)}")
        # What a call leaves behind for the next is seen with the values that were given.
        once = derived.complete and bool(derived.comparison.overrides)
        comparison = dataclasses.replace(
            derived.comparison,
            steps=1 if once else STEPS if self.plan.chain and not derived.complete else 2,
            derived=derived.complete,
            # A run that was cut to fit has no room for more inputs.
            others=(self.how.rows is None if derived.affordable is None else not derived.affordable.why)
            and not once,
            rows=rows,
        )
        while True:
            asked = protocol.Prove(
                comparison,
                self.emitted,
                counts,
                self.chosen is not None,
                self.how.remainder,
                derived.few,
                self.plan.too_few,
                self.plan.multiple_of,
            )
            answer = self.session.ask(asked, "proving")
            if answer.checks or answer.unlike:
                return answer
            failing = min((each.devices for each in answer.skipped), default=0)
            fewer = tuple(count for count in COUNTS if count < failing)
            if derived.told is None or not derived.complete or len(fewer) < 2:
                return answer
            counts = fewer  # Larger shares may suit the function.

    def _read(self, derived: _Derived, answer: protocol.Checks) -> protocol.Checks:
        """The `answer` of a run, in which nothing is wrong."""
        target = self.target
        if answer.unlike and not answer.checks:
            raise OfMoreRows(answer.unlike)
        if not derived.complete and all(check.precision != "float64" for check in answer.checks):
            self.notes[IN_ITS_DTYPES.format(target.facts.name)] = None
        if not answer.checks and not derived.complete:
            raise RefusalError(too_few(answer.skipped, self.batch, target))
        self.notes |= dict.fromkeys(map(not_tried, answer.skipped))
        if derived.complete:
            # What given inputs do not tell, the derivation does.
            shown = dataclasses.replace(answer.adequacy, weak=(), stuck=())
            answer = dataclasses.replace(answer, adequacy=shown)
        self.notes |= dict.fromkeys(adequacy(answer, target.source.root)) if answer.checks else {}
        self.notes |= dict.fromkeys(answer.notes)
        for check in answer.checks:
            if check.failure is not None:
                raise self._failed(derived, check, check.failure)
            if check.collectives is not None:
                self.notes |= dict.fromkeys(unplanned(check.collectives, self.plan, self.how.global_view))
        if answer.unlike:
            raise OfMoreRows(answer.unlike)
        return answer

    def _failed(self, derived: _Derived, check: protocol.Check, found: protocol.Failure) -> RefusalError:
        """What a check that failed says to the user."""
        target, statics = self.target, derived.comparison.overrides
        if check.uneven:
            return RefusalError(uneven(check, found, target, self.how.remainder, derived.derivation, statics))
        if found.error is not None and (found.error.type == UNTYPED or OUT_SHARDING in found.error.message):
            file = f"{self.emitted.name}_parallel.py"
            return untyped(found.error, file, self.code, target, self.session.directory)
        if found.error is not None and not self.how.global_view:
            unmapped = fails_in_any_map(target.facts.name, found.error, target.facts.span)
            if unmapped is not None:
                return RefusalError(unmapped)
        refusal = failure(check, found, target.facts.span, statics)
        if found.error is not None and UNSEEN in found.error.message:
            return RefusalError(reached_by_some(refusal, found.error.message.split(UNSEEN)[0].strip()))
        # Which keys are one is not derived, and nothing of what is around the code.
        known = found.what == "keys" or (found.error is not None and bool(way_out(found.error)))
        return RefusalError(disagreeing(refusal) if derived.complete and not known else refusal)

    def evidence(self, derived: Sequence[_Derived], answers: Sequence[protocol.Checks | None]) -> Evidence:
        """Both witnesses, as evidence."""
        run = [check for answer in answers if answer is not None for check in answer.checks]
        self._hold_uneven(run)
        compiled = next((check for check in reversed(run) if check.collectives is not None), None)
        found = [each.derivation for each in derived if each.derivation is not None]
        # One that ended early speaks for all.
        early = [each for each in found if not each.complete]
        notes = dict.fromkeys(note for each in derived for note in each.notes) | self.notes
        notes.pop("", None)
        notes |= dict.fromkeys(rounding_alone(run, self.target) if run else ())
        if self.how.remainder == "drop":
            notes["of an uneven batch only the first rows are used, as many as the devices share evenly"] = (
                None
            )
        not_run = [each for each, answer in zip(derived, answers, strict=True) if answer is None]
        return Evidence(
            checks=tuple(map(check_of, run)),
            jax_version=self.session.versions.jax,
            python_version=self.session.versions.python,
            replicas_identical=any(check.replicas for check in run),
            notes=tuple(notes),
            equal_draws=any(answer.equal_draws for answer in answers if answer is not None)
            or any(each.told is not None and each.told.draws for each in not_run),
            collectives=read_collectives(compiled.collectives)
            if compiled is not None and compiled.collectives is not None
            else None,
            memory=compiled.memory if compiled is not None else None,
            derivation=next(iter((*early, *found[-1:])), None),
        )

    def _hold_uneven(self, run: Sequence[protocol.Check]) -> None:
        """Refuse a remainder that nothing shows right.

        Raises:
            RefusalError: JP061 where nothing was run, JP060 where no uneven batch was.
        """
        name, remainder = self.target.facts.name, self.how.remainder
        if remainder == "error":
            return
        if not run:
            raise refused(
                "JP061",
                f"what --remainder {remainder} makes of uneven batches of `{name}` is shown by running them, "
                "which takes more memory or time than there is, or arrays in place of shapes",
                "Leave --remainder out, or give smaller example inputs, as arrays",
                self.target.facts.span,
            )
        if not any(check.uneven for check in run):
            raise refused(
                "JP060",
                f"`{name}` takes no batch size that the devices do not share evenly, so --remainder "
                f"{remainder} cannot be proved",
                "Leave --remainder out, or give example inputs with a larger batch",
                self.target.facts.span,
            )


def _only_as(forms: Sequence[protocol.FixedForm]) -> Iterator[str]:
    """What is said of forms of the inputs for which alone the code is right, of alike values in one line."""
    alike: dict[str, list[str]] = {}
    for form in forms:
        if form.value:
            alike.setdefault(form.value, []).append(f"`{form.leaf}`")
        elif form.axis is None:
            yield f"the code checks that `{form.argument}` has the ranks, kinds and parts that it has here"
        else:
            yield f"the code checks that axis {form.axis} of `{form.leaf}` is as long as it is here"
    for value, leaves in alike.items():
        verb = "is" if len(leaves) == 1 else "are"
        yield f"the code checks that {first_few(leaves)} {verb} {value}, as here"


def about(seconds: float) -> str:
    """An estimate as the end of a note; ``""`` where there is none worth telling."""
    return f", about {seconds:.0f} s" if seconds >= 1 else ""
