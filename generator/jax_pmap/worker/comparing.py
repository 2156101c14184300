"""One run of a parallel function, compared with that of the reference."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from . import nans, prove
from .arguments import Packed, Values
from .distance import distance, is_finite
from .exceptions import describe_exception
from .generator import Shares, repeat_draws
from .jaxpr.trace import traced_arrays
from .leaves import category, fed_back
from .protocol import Check, Failure
from .prove import Differs, Replicas, Trial, host, leaf_table
from .trials import Bounds, Question, Trials

#: Tells of a failure what the output is instead; see `explain`.
Explain = Callable[[Differs, Question, Trial, int], Failure]


@dataclass(frozen=True, slots=True)
class Parallel:
    """A parallel function on so many devices, as it is held to the reference."""

    trials: Trials
    #: Makes the function, called with values as the reference is, for one run of that.
    make: Callable[[Trial], Callable[[Values], Any]]
    #: Finds what differs between the devices and should not, or lies elsewhere.
    replicas: Replicas
    count: int
    #: Puts the inputs where the function finds them, anew for each comparison: a call may take them with it.
    place: Callable[[Values], Values] = lambda values: values

    def run(
        self,
        about: Check,
        trial: Trial,
        allowed: Bounds,
        shares: Shares | None,
        *,
        call: Callable[[Values], Any] | None = None,
        explain: Explain | None = None,
        on_devices: bool = False,
        numbers: bool = False,
    ) -> Check:
        """What a run shows that is `about` some batch, precision and inputs.

        Args:
            about: all of it but what it shows.
            trial: the run of the reference; as many calls are made.
            allowed: how far each output of each call may be off.
            shares: those that random numbers are drawn for, if they are.
            call: is called in place of what `make` makes.
            explain: tells what a wrong output is instead.
            on_devices: whether outputs go into the next call as they are, as in a training loop; else through
                the host, which saves a compilation, since jax compiles anew for placed arguments.
            numbers: whether arrays that hold what is no number are left out.
        """
        trials, call = self.trials, call or self.make(trial)
        question, kind = trials.question, about.precision

        def compared(allowed: Bounds) -> Check:
            return self._compared(about, call, trial, allowed, on_devices, numbers)

        # What else is measured of rounding, where a difference may be that.
        measures: tuple[Callable[[Failure], Bounds | None], ...] = (
            lambda failure: trials.coarser(kind, trial, allowed, call),
            lambda failure: trials.wider(kind, trial, allowed, shares, failure),
        )
        with prove.x64(question.precision(kind)), repeat_draws(shares):
            try:
                return compared(allowed)
            except Differs as differs:
                last = differs
            for measure in measures:
                more = measure(last.failure) if last.failure.what == "value" else None
                if more is None:
                    continue
                allowed = more
                try:
                    return compared(allowed)
                except Differs as differs:
                    last = differs
            found = explain(last, question, trial, self.count) if explain else last.failure
            found = dataclasses.replace(found, on=question.described(about.inputs))
            return dataclasses.replace(about, failure=found)

    def passes_over(self, trial: Trial, check: Check) -> bool:
        """Whether a run failed by a NaN among its inputs, in what hangs on a maximum over devices.

        jax's `pmax` and `pmin` pass over a NaN that only some devices have.
        """
        question, failure = self.trials.question, check.failure
        if failure is None or failure.leaf is None or not question.has_nan(check.inputs):
            return False
        with prove.x64(question.precision(check.precision)):
            traced = traced_arrays(self.make(trial), Packed(trial.values[0], question.statics))
        return traced is not None and nans.is_behind(nans.behind_extremes(traced), failure.leaf)

    def _compared(
        self,
        about: Check,
        call: Callable[[Values], Any],
        trial: Trial,
        allowed: Bounds,
        on_devices: bool,
        numbers: bool,
    ) -> Check:
        """Make every call of `trial`, and compare.

        Raises:
            Differs: the first difference.
        """
        question = self.trials.question
        seen: list[_Leaf] = []
        copies, values = False, self.place(trial.values[0])
        for step, want in enumerate(trial.results):
            try:
                got = _called(call, values)
                failure = prove.same_form(got, want, widths=question.widths(about.precision))
                if failure is None:
                    seen += _leaves(got, want, allowed[step], numbers, question.derived)
                    failure = self.replicas(leaf_table(got), self.count)
                if failure is not None:
                    raise Differs(failure)
            except Differs as differs:
                raise Differs(dataclasses.replace(differs.failure, step=step), differs.copies) from None
            copies = copies or any(map(is_copied, jax.tree.leaves(got))) or getattr(call, "copies", False)
            values = prove.feed(values, got if on_devices else fed_back(got), question.chain)
        closest = max((each for each in seen if each.told and each.bound), key=_Leaf.share, default=NONE)
        told = {each.path for each in seen if each.told}
        noise = dict.fromkeys(each.path for each in seen if each.noise and each.path not in told)
        zero = dict.fromkeys(each.path for each in seen if not (each.path in told or each.path in noise))
        return dataclasses.replace(
            about,
            error=closest.error / closest.scale,
            tolerance=closest.bound / closest.scale,
            replicas=copies,
            noise=tuple(noise),
            zero=tuple(zero),
            compared=len(told),
        )


@dataclass(frozen=True, slots=True)
class _Leaf:
    """How far an output is off and may be, and how large it is."""

    path: str
    error: float
    bound: float
    scale: float

    @property
    def noise(self) -> bool:
        """Whether it is rounding alone."""
        return bool(self.bound and self.bound >= self.scale)

    @property
    def told(self) -> bool:
        """Whether it has digits that tell something."""
        return bool(self.scale) and not self.noise

    def share(self) -> float:
        """How near it comes to its bound."""
        return self.error / self.bound


NONE = _Leaf("", 0.0, 0.0, 1.0)


def _called(call: Callable[[Values], Any], values: Values) -> Any:
    """What a call returns; `Differs` where it fails."""
    try:
        return jax.block_until_ready(call(values))
    except (MemoryError, Differs):
        raise
    except BaseException as error:
        raise Differs(Failure("exception", error=describe_exception(error))) from error


def _leaves(got: Any, want: Any, allowed: Sequence[float], numbers: bool, derived: bool) -> Iterator[_Leaf]:
    """The outputs of one call, compared, up to the first that is farther off than it may be: `Differs`.

    What is rounding alone is zero in real numbers, and comes of other terms on a share: sums that cancel on
    all devices together cancel on none. The second moment of an optimiser is the square of that. So where it
    is `derived` equal, it may be as many times farther off.
    """
    pairs = zip(leaf_table(got), jax.tree.leaves(want), allowed, strict=True)
    for index, ((path, leaf), target, bound) in enumerate(pairs):
        if category(leaf) == "opaque":
            continue  # `same_form` compared it.
        left, right = host(leaf), host(target)
        if numbers and right.dtype.kind in "fc" and not is_finite(right):
            yield _Leaf(path, 0.0, 0.0, 0.0)  # It tells no more than a zero.
            continue
        error, scale = distance(left, right)
        bound *= prove.SLACK if derived and _Leaf(path, error, bound, scale).noise else 1.0
        if not error <= bound:
            raise Differs(prove.wrong_value(left, right, bound, path, index), {index: [left]})
        yield _Leaf(path, error, bound, scale)


def is_copied(leaf: Any) -> bool:
    """Whether an array lies on several devices, whole on each."""
    if not isinstance(leaf, jax.Array):
        return False
    return len(leaf.sharding.device_set) > 1 and bool(leaf.sharding.is_fully_replicated)
