"""Which runs make up a proof: on which inputs, in which precision, on which device counts."""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

from . import nans, noise, protocol, prove, telling
from .arguments import Values
from .comparing import Parallel
from .compiled import compiled, executables
from .donation import check_donation, watched
from .exceptions import attempted, describe_exception, summary
from .explain import with_cause
from .few import is_equal, runs_on_few
from .generator import Shares, groupings, repeat_draws
from .protocol import RETURNED, Check, Checks, Dtypes, Failure, Problem, Skipped
from .sizes import check_odd, minds_size, program, run_many, sizes_drawn
from .trials import Emitted, Question, Trials
from .uneven import check_uneven


def usable_sizes(
    trials: Trials, counts: Sequence[int], base: int, shares: int = 0, multiple: int = 1
) -> tuple[dict[int, int], list[Skipped]]:
    """The batch for each device count, and the counts for which the reference refuses the cut batch.

    It is divided among all of the devices, or among `shares` of them, each of which has a `multiple` of rows.

    Raises:
        Problem: the reference fails on the whole batch too.
    """
    kind = trials.question.kind
    sizes: dict[int, int] = {}
    skipped: list[Skipped] = []
    for count in counts:
        among = shares or count
        # Where that is no row at all, the code itself refuses what it is given.
        size = base // (among * multiple) * among * multiple or base // among * among
        try:
            trials.at(kind, 0, size, trials.question.shares(size, count))
        except (MemoryError, Problem):
            raise
        except BaseException as error:
            found = describe_exception(error)
            if size == base:
                raise Problem("reference", summary(error), error=found) from error
            # Such as a reshape that needs a multiple of four rows.
            skipped.append(Skipped(count, size, found))
        else:
            sizes[count] = size
    return sizes, skipped


def takes_share(question: Question, rows: int) -> bool:
    """Whether the function itself can be traced for so many rows."""
    return program(question, question.traceable, rows) is not None


def check_count(
    parallel: Parallel,
    size: int,
    *,
    with_given: bool,
    plans: Sequence[tuple[Dtypes, int]] | None = None,
    mesh: Mapping[str, int] | None = None,
) -> list[Check]:
    """The runs on one device count, in order, up to the first that fails: those of the question, or `plans`.

    With `with_given`, the first run in the user's own dtypes has what `compiled` tells of the function, whose
    devices may be a `mesh`.
    """
    trials, count, checks = parallel.trials, parallel.count, list[Check]()
    question = trials.question
    shares = question.shares(size, count)
    looked = not with_given
    for kind, index in question.plans(with_given) if plans is None else plans:
        expected, allowed = trials.at(kind, index, size, shares)
        if trials.left_domain(index, size, shares):
            continue
        looks = kind == "given" and not looked
        before = executables() if looks else []
        run = functools.partial(
            parallel.run,
            Check(count, kind, size, question.steps, index),
            expected,
            allowed,
            shares,
            explain=with_cause,
            numbers=trials.was_found(index) and trials.at(kind, 0, size, shares)[0].finite,
        )
        # Placed arguments are compiled for anew: once is enough.
        on_devices = kind == "given" and with_given
        check = run(on_devices=on_devices)
        told = compiled(before, size, mesh or {}) if looks and check.raised is None else (None, None)
        if on_devices and (failure := check.failure) and failure.step and run().failure is None:
            check = dataclasses.replace(check, failure=dataclasses.replace(failure, on=RETURNED))
        found = in_float64(parallel, check, shares, on_devices=on_devices)
        check = found[-1]
        if looks and check.failure is None:
            looked = True
            found[-1] = dataclasses.replace(check, collectives=told[0], memory=told[1])
        if check.failure is not None and parallel.passes_over(expected, check):
            continue  # It is named where `lost_nans` puts one in.
        checks += found
        if check.failure is not None:
            break
    return checks


def in_float64(parallel: Parallel, check: Check, shares: Shares | None, *, on_devices: bool) -> list[Check]:
    """A run in the user's own dtypes, made again beside one in float64 where that tells that it was rounding.

    Where a rounding decides, as which way a `relu` goes, the gradients behind it are others, and those of
    other layers are not: what is measured of one run bounds no other. In float64 hardly any decides. So what
    was derived equal, and is equal there, may be as far off in each output as rounding leads in any. Both are
    called with the same arrays `on_devices`, of which code may make something else.
    """
    trials, failure = parallel.trials, check.failure
    question = trials.question
    own = check.precision == "given" and question.eps["given"] <= prove.NARROW
    if failure is None or failure.what != "value" or failure.on == RETURNED or not (own and question.derived):
        return [check]
    if not trials.widen():
        return [check]
    about = Check(check.devices, "float64", check.batch, check.steps, check.inputs)
    # What can be traced so may still fail, as a callback that gives float32.
    made = attempted(trials.at, "float64", check.inputs, check.batch, shares)
    if made is None:
        return [check]
    exact = parallel.run(about, *made, shares, on_devices=on_devices)
    if exact.failure is None:
        trial, allowed = trials.at("given", check.inputs, check.batch, shares)
        again = dataclasses.replace(about, precision="given")
        uniform = prove.uniform_bounds(allowed, trial)
        again = parallel.run(again, trial, uniform, shares, on_devices=on_devices)
        if again.failure is None:
            return [exact, again]
    return [check]


def check_layouts(parallel: Parallel, size: int, **how: Any) -> list[Check]:
    """`check_count`, with draws laid in the first way in which the results are equal: see `groupings`."""
    trials = parallel.trials
    question = trials.question
    checks = check_count(parallel, size, **how)
    failure = checks[-1].failure if checks else None
    if question.repeat and failure is not None and failure.what == "value":
        for groups in groupings(*sizes_drawn(question, size), size // question.minibatches):
            trials.question = dataclasses.replace(question, groups=groups)
            found = check_count(parallel, size, **how)
            if found[-1].failure is None:
                return found
        trials.question = question
    return checks


def until_failure(stages: Iterable[Sequence[Check]]) -> list[Check]:
    """The checks of some stages, each of which is made where none before it fails."""
    checks: list[Check] = []
    for found in stages:
        checks += found
        if checks and checks[-1].failure is not None:
            break
    return checks


def prove_emitted(trials: Trials, emitted: Emitted, asked: protocol.Prove) -> Checks:
    """Run emitted code on several device counts beside the reference, up to the first failure.

    Skipped are the device counts on which the reference, or the code with reason, fails on the batch cut to
    fit them.
    """
    counts, shares = asked.counts, emitted.mesh.shares if emitted.mesh is not None else 0
    question = trials.question = dataclasses.replace(trials.question, among=shares)
    base = question.rows
    try:
        sizes, skipped = usable_sizes(trials, counts, base, shares, asked.multiple)
    except Problem:
        if not question.wide:
            raise
        # A callback may give the dtype that it says, and no other.
        question = trials.question = dataclasses.replace(question, eps={"given": question.eps["given"]})
        sizes, skipped = usable_sizes(trials, counts, base, shares, asked.multiple)
    most = max(sizes, default=0)
    proof = _Emitted(trials, emitted, base, most, skipped, asked)

    def enough() -> bool:
        # Much is looked at on the most devices alone.
        left = len(counts) - len(skipped)
        return left >= min(2, len(counts)) and most not in [each.devices for each in skipped]

    def only(count: int) -> contextlib.AbstractContextManager[None]:
        return prove.only_devices(len(jax.devices()) if asked.fixed else count)

    if question.derived and asked.few and most:
        with only(most):
            call = functools.partial(question.invoke, emitted.define(most, question.x64))
            proof.hold_few(proof.parallel(most, call))
        if proof.unlike:
            # Code that refuses them is other code, and run in place of this.
            return Checks((), tuple(skipped), unlike=tuple(proof.unlike))
    checks: list[Check] = []
    for count, size in sizes.items():
        if not enough() or (checks and checks[-1].failure is not None):
            break
        with only(count):
            checks += until_failure(proof.stages(count, size))
    if not enough():
        return Checks((), tuple(skipped))
    adequacy = trials.adequacy(list(sizes))
    unlike = tuple(proof.unlike)
    return Checks(tuple(checks), tuple(skipped), proof.folded, tuple(proof.notes), adequacy, unlike)


class _Emitted:
    """Emitted code on one device count after the other; on the `most` devices, more is looked at."""

    def __init__(
        self,
        trials: Trials,
        emitted: Emitted,
        base: int,
        most: int,
        skipped: list[Skipped],
        asked: protocol.Prove,
    ) -> None:
        self.trials, self.question, self.emitted = trials, trials.question, emitted
        self.base, self.most, self.skipped, self.remainder = base, most, skipped, asked.remainder
        self.few, self.refused, self.multiple = asked.few, asked.refused, asked.multiple
        #: Whether any key is folded, what the runs came upon, and those of the `few` that are not equal.
        self.folded, self.notes, self.unlike = False, list[str](), list[tuple[int, int]]()

    def stages(self, count: int, size: int) -> Iterator[Sequence[Check]]:
        """The runs on one device count; none where it is skipped."""
        question, emitted, most = self.question, self.emitted, count == self.most
        try:
            function = emitted.define(count, question.x64)
        except BaseException as error:
            yield [Check(count, failure=Failure("exception", error=describe_exception(error)))]
            return
        call = functools.partial(question.invoke, function)
        parallel = self.parallel(count, call)
        if emitted.donated and most:
            parallel = watched(parallel, function, emitted.donated)
        if question.repeat:
            # What is wrong with the keys says more than the numbers that come of it.
            yield self.keys(call, count, size, run=False)
        mesh = emitted.mesh.axes if emitted.mesh is not None else None
        found = check_layouts(parallel, size, with_given=most, mesh=mesh)
        raised = found[-1].raised
        if raised is not None and (
            # Cut to fit, the batch takes a branch that it does not take whole, or gives devices too few rows,
            # as the code itself says; or the user's own reshape takes no share of that size.
            (raised.type == "NotImplementedError" and size < self.base)
            or telling.is_refused(self.refused, size // count, size)
            or not takes_share(question, size // count)
        ):
            self.skipped.append(Skipped(count, size, raised, emitted=True))
            return
        yield found
        # Which keys are whose, and what another batch size does, is derived.
        if not question.derived:
            yield check_odd(parallel, size)
        if question.repeat and not question.derived and most:
            yield self.keys(call, count, size, run=True)
        if emitted.donated and most:
            yield check_donation(parallel, emitted.asked.axis_name, size)
        if most and not question.derived and minds_size(question):
            # A branch on the size that was not taken raises by itself.
            many = run_many(parallel)
            yield [many] if many is not None else []
        if most and re.search("pmax|pmin", emitted.asked.code):
            self.notes += nans.noted(lost_nans(self.trials, call, count, size))
        if self.remainder != "error":
            shares = self.shares(count)
            yield check_uneven(parallel, function, self.base, self.remainder, self.refused, shares)
        if most and not question.derived:
            self.hold_few(parallel)

    def parallel(self, count: int, call: Callable[[Values], Any]) -> Parallel:
        """The code on so many devices, which `call` runs where jax shows these."""
        return Parallel(self.trials, lambda _: call, self.emitted.replicas, count)

    def shares(self, count: int) -> int:
        """Among how many of so many devices the batch is divided."""
        return self.emitted.mesh.shares if self.emitted.mesh is not None else count

    def hold_few(self, parallel: Parallel) -> None:
        """Run the code with the few rows on a device that are asked for; note which are not equal."""
        shares = self.shares(parallel.count)
        for ends in self.few:
            if not is_equal(runs_on_few(parallel, ends, shares, self.multiple)):
                self.unlike.append(ends)

    def keys(self, call: Callable[[Values], Any], count: int, size: int, *, run: bool) -> Sequence[Check]:
        """A failure where keys are wrong, or results that hold no noise; see `noise.own_draws`."""
        found = noise.own_draws(self.question, call, self.emitted.replicas, count, size, run=run)
        if isinstance(found, Failure):
            return [Check(count, failure=found)]
        self.folded |= found
        return ()


def lost_nans(trials: Trials, call: Callable[[Values], Any], count: int, size: int) -> list[nans.Lost]:
    """What becomes of a NaN, where several devices make another thing of it than one."""
    question, kind = trials.question, trials.question.kind
    shares = question.shares(size, count)
    values = trials.at(kind, 0, size, shares)[0].values[0]
    with prove.x64(question.precision(kind)), repeat_draws(shares):
        return nans.lost(question.reference, call, values, question.axes, each=not question.derived)
