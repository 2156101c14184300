"""Which runs make up the proof of a parallel function that the user wrote."""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from . import arguments, handed, kept_state, nans, noise, protocol, prove, strengthen, telling
from .apart import apart
from .arguments import Packed, Values
from .calling import Calling
from .comparing import Parallel
from .distance import distance
from .dividing import is_divided
from .drawn_keys import DRAWING
from .exceptions import attempted
from .few import check_few
from .generator import Shares, groupings, repeat_draws
from .jaxpr.forward import goes_into
from .jaxpr.trace import Traced, traced_arrays
from .jaxpr.versions import shard_map_specs
from .jaxpr.walk import equations
from .leaves import NUMBERS, category, is_float, to_float64
from .parallel import (
    MOST_LAYOUTS,
    Caller,
    attempt,
    changed_in_place,
    devices_of,
    fitting,
    holds_key,
    inconsistent,
    layouts,
    with_parts,
)
from .protocol import (
    AS_JAX,
    NOT_REFUSED,
    PLACED,
    REFILLED,
    REORDERED,
    Call,
    Calls,
    Check,
    Checks,
    Failure,
    Problem,
    Raised,
)
from .prove import Trial
from .proving import check_count, lost_nans, until_failure, usable_sizes
from .sizes import (
    ROOM,
    TAKEN,
    check_columns,
    check_lengths,
    check_odd,
    check_ragged,
    check_sizes,
    is_out_of_reach,
    run_large,
    sizes_drawn,
)
from .target import current
from .trials import Question, Trials
from .uneven import check_uneven

#: What draws random numbers, and does not only make keys.
DRAWS = DRAWING | {"rng_uniform"}
#: Rows for each device where the given ones are too few for so many, and the most devices that those are for.
LEAST_ROWS, MOST_GIVEN = 3, 8
#: Equal calls of a function that counts them, at most, and the seconds after which no more are made.
MOST_CALLS, MOST_SECONDS = 1000, 10.0


def try_layouts(trials: Trials, calling: Calling, asked: protocol.TryLayouts) -> Calls:
    """How a user's parallel function ends in the layouts asked for, or in all, up to one that is equal.

    What the inputs pass by name is passed so here, and where that raises by position.
    """
    question, count = trials.question, asked.count
    base = question.rows
    sizes, skipped = usable_sizes(trials, [count], base)
    if not sizes:
        return Calls(skipped=skipped[0])
    tried: list[Call] = []
    given, axes = question.data[0], question.axes
    every: Iterator[dict[str, str]] = layouts(calling, given, axes, question.statics, asked.data, count)
    if asked.layouts is not None:
        every = itertools.chain(*(with_parts(each, given, axes, asked.data, count) for each in asked.layouts))
    kept = [fitting(calling, each) for each in itertools.islice(every, MOST_LAYOUTS)]
    for drawn in generators(calling, question, count) if question.repeat else [question]:
        trials.question = drawn
        if drawn.among or drawn.strides:  # That is of a `shard_map`, which divides the batch itself.
            kept = kept[:1]
        shares = drawn.shares(sizes[count], count)
        trial, allowed = trials.at("given", 0, sizes[count], shares)
        with prove.x64(question.x64), repeat_draws(shares):
            for layout in kept:
                for named in dict.fromkeys((tuple(calling.named), ())):
                    way = dataclasses.replace(calling, named=named)
                    given = question.data[0]
                    caller = Caller(way, question.axes, layout, count, trial.results[0], given)
                    ended = attempt(caller, trial.values[0], allowed[0])
                    if ended.ends != "raises":
                        break
                ran = asked.layouts is None and ended.ends != "raises"
                if ran and asks_nothing(caller, trial.values[0], question.statics):
                    continue
                tried.append(ended)
                if ended.ends == "equal":
                    break
        if tried and tried[-1].ends == "equal":
            break
    trials.question = question
    return Calls(sizes[count], tuple(tried), left_out=tuple(calling.left_out))


def asks_nothing(caller: Caller, values: Values, statics: Sequence[str]) -> bool:
    """Whether a call with axes of devices leaves all of the batch to each: what is divided are copies."""
    if not caller.raw:
        return False
    packed = Packed(values, statics)
    traced = traced_arrays(caller.laid_out, packed)
    return traced is not None and not is_divided(
        traced, [axis is not None for axis in packed.axes(caller.axes)]
    )


def sums_gradients(call: Callable[[Values], Any], question: Question) -> bool:
    """Whether a program, on 2 devices, is mapped by a `shard_map` that sums gradients of what is replicated.

    It does with its check of what varies, which is the default.
    """
    values = arguments.cut(question.data[0], question.axes, 2)
    traced = traced_arrays(call, Packed(values, question.statics))
    return traced is not None and any(
        equation.primitive.name == "shard_map"
        and bool(equation.params.get("check_vma", equation.params.get("check_rep", False)))
        for equation in equations(traced)
    )


def takes(trials: Trials, count: int) -> bool:
    """Whether the reference runs on its inputs at all, with the constants they have here."""
    question = trials.question
    try:
        sizes, _ = usable_sizes(trials, [count], question.rows)
    except Problem:
        return False
    return bool(sizes)


def prove_parallel(trials: Trials, calling: Calling, asked: protocol.ProveParallel) -> Checks:
    """The runs of a user's parallel function on all the devices there are, in one layout."""
    if asked.elsewhere:
        return prove_elsewhere(trials, calling, asked)
    proof = _Written(trials, calling, asked)
    checks = until_failure(proof.stages())
    question = trials.question
    adequacy = trials.adequacy([asked.count])
    return Checks(tuple(checks), (), question.repeat, tuple(proof.notes), adequacy)


def prove_elsewhere(trials: Trials, calling: Calling, asked: protocol.ProveParallel) -> Checks:
    """The runs on more devices than the given rows are for: on more rows, other numbers in them too.

    And on the given rows, where it is called as the reference is, and need not divide them. Of some batches
    the first on which the function does not raise. There are none where these would cost too much, and where
    the reference takes none of the batches.
    """
    question, count = trials.question, asked.count
    base = question.rows
    ran: list[Check] = []
    if base < count and set(asked.parallel.layout.values()) == {"whole"} and not question.repeat:
        ran = until_failure(_Written(trials, calling, asked).elsewhere())
        if ran[-1].failure is not None and ran[-1].raised is None:
            return Checks(tuple(ran), (), question.repeat)
    shares = [-(-base // count)] if base >= LEAST_ROWS * count else [LEAST_ROWS, max(base // MOST_GIVEN, 1)]
    for size in dict.fromkeys(share * count for share in shares):
        data = tuple(arguments.cut(each, question.axes, size) for each in question.data)
        copies = strengthen.size_of({**data[0], **dict.fromkeys(question.axes)}) * count
        if strengthen.size_of(data[0]) > ROOM or copies > TAKEN or is_out_of_reach(question, size):
            continue
        trials.question = dataclasses.replace(question, data=data)
        more = attempted(lambda: until_failure(_Written(trials, calling, asked).elsewhere()))
        ran = more or ran  # There are none where the reference takes no such batch.
        if more and more[-1].raised is None:
            break
    return Checks(tuple(dataclasses.replace(each, resized=True) for each in ran), (), question.repeat)


class _Written:
    """A function that the user wrote, on all the devices there are."""

    def __init__(self, trials: Trials, calling: Calling, asked: protocol.ProveParallel) -> None:
        self.trials, self.calling, self.asked, self.count = trials, calling, asked, asked.count
        rows = trials.question.rows
        self.size = rows // asked.count * asked.count or rows
        self.parallel = Parallel(trials, self.make, inconsistent, asked.count)
        #: What the runs came upon, a sentence each.
        self.notes: list[str] = []

    def make(self, trial: Trial) -> Caller:
        """The function, as it is called for one run of the reference."""
        question, layout = self.trials.question, self.asked.parallel.layout
        return Caller(self.calling, question.axes, layout, self.count, trial.results[0], question.data[0])

    def given(self) -> Trial:
        """The run of the reference on the given inputs in the user's own dtypes."""
        shares = self.trials.question.shares(self.size, self.count)
        return self.trials.at("given", 0, self.size, shares)[0]

    def stages(self) -> Iterator[Sequence[Check]]:
        """The runs, in order."""
        trials, with_given = self.trials, self.asked.with_given
        if trials.question.repeat:
            # What is wrong with the keys says more than the numbers that come of it.
            wrong = self.keys()
            if self.in_own_dtypes(wrong):
                yield from self.stages()
                return
            yield wrong
            trials.question = own_keys(trials, self.calling, self.make, self.count, self.size)
        question, program = trials.question, self.make(self.given())
        if not question.derived:
            _search(trials, program, self.count)
        found = check_count(self.parallel, self.size, with_given=with_given)
        if self.in_own_dtypes(found):
            yield from self.stages()
            return
        yield self.detailed(found)
        if not question.derived:
            yield check_odd(self.parallel, self.size)
        if with_given:
            yield from self.once(question, program)

    def elsewhere(self) -> Iterator[Sequence[Check]]:
        """The runs on a count of devices that is none of the usual ones; see `prove_elsewhere`."""
        trials = self.trials
        if trials.question.repeat:
            trials.question = own_keys(trials, self.calling, self.make, self.count, self.size)
        question, first = trials.question, len(trials.question.data)
        plans = [(question.kind, index) for index in (0, first, first + 1)]
        found = check_count(self.parallel, self.size, with_given=False, plans=plans)
        if self.in_own_dtypes(found):
            yield from self.elsewhere()
            return
        yield self.detailed(found)

    def in_own_dtypes(self, found: Sequence[Check]) -> bool:
        """Whether what failed is the float64 alone. The question is that in the user's own dtypes then."""
        question = self.trials.question
        why = fails_wide(found, question.x64) if question.wide else ""
        if why:
            # In the user's own dtypes it may run: a literal beside `axis_index`, of 32 bits, is enough.
            self.trials.question = dataclasses.replace(question, eps={"given": question.eps["given"]})
            self.notes.append(f"not compared in float64, but in its own dtypes alone: {why}")
        return bool(why)

    def keys(self) -> Sequence[Check]:
        """A failure where keys are wrong.

        Those with a device axis are whatever the caller makes of them: nothing to hold against the reference.
        """
        question, layout = self.trials.question, self.asked.parallel.layout
        if any(form != "whole" and holds_key(question.data[0][name]) for name, form in layout.items()):
            return ()
        caller, run = self.make(self.given()), self.asked.with_given
        found = noise.own_draws(question, caller, inconsistent, self.count, self.size, run=run)
        return [Check(self.count, question.kind, failure=found)] if isinstance(found, Failure) else ()

    def detailed(self, checks: Sequence[Check]) -> Sequence[Check]:
        """The checks, with what else is known of a failure."""
        question, failure = self.trials.question, checks[-1].failure
        if failure is None:
            return checks
        drawn = question.repeat and depends_on_draws(question, failure.leaf)
        defaults = self.calling.defaults_apart(question.data[0])
        failure = dataclasses.replace(failure, drawn=drawn, defaults=defaults)
        return [*checks[:-1], dataclasses.replace(checks[-1], failure=failure)]

    def once(self, question: Question, program: Caller) -> Iterator[Sequence[Check]]:
        """What is looked at on one device count alone."""
        trials, count, size, given = self.trials, self.count, self.size, self.given()
        if not question.derived:
            yield check_apart(self.parallel, program, size)
            yield self.counted(given)
        caller, donated = self.make(given), self.asked.comparison.donated
        if not caller.raw:
            if self.asked.remainder == "drop":
                base = question.rows
                yield check_uneven(self.parallel, self.calling.function, base, "drop")
            else:
                yield check_ragged(self.parallel, caller.laid_out)
            yield check_arguments(trials.question, self.calling, given, count, size)
            yield self.handed(given, donated)
            if handed.emitted_namespace(self.calling.function) and not question.repeat:
                yield self.forms(given)
        with prove.x64(question.x64), repeat_draws(question.shares(size, count)):
            result = caller.laid_out(given.values[0])
            wrong = None if caller.raw else numbers_for_arrays(question, result)
        lies_on = devices_of(result)
        if "inner" in caller.layout.values() and 0 < lies_on < count:
            # It maps another axis, of one element say, where each device has one row.
            said = (
                f"it works on {lies_on} of {count} devices; --shard NAME:AXIS says which axis is the batch's"
            )
            yield [
                Check(count, "given", size, failure=Failure("exception", error=Raised("ValueError", said)))
            ]
        lost = lost_nans(trials, self.make(given), count, size)
        if wrong is None and lost:
            dropped = lost_by_itself(question, caller, given.values[0], lost)
            wrong = None if dropped is None else of_lost(dropped)
        yield [] if wrong is None else [Check(count, "given", size, alone=True, failure=wrong)]
        named = telling.named([self.calling.function, current().fn])
        more, notes = check_sizes(self.parallel, lies_on, caller.laid_out, named)
        self.notes += notes
        yield more
        yield check_few(self.parallel, caller.laid_out, named)
        yield [] if question.derived else check_columns(self.parallel)
        known = telling.named([current().fn])
        yield check_lengths(self.parallel, [number for number in named if number not in known])
        if self.asked.unshown:
            yield self.unshown(self.asked.unshown)
        self.notes += nans.noted(lost)

    def counted(self, given: Trial) -> Sequence[Check]:
        """A failure where one of many equal calls gives something else than the reference, as a counter says.

        Of a function that keeps something of a call, as many are made as its code has a number for.
        """
        function, question = self.calling.function, self.trials.question
        call, values = self.make(given), given.values[0]
        known = [number for number in telling.named([function]) if number <= MOST_CALLS]
        with prove.x64(question.x64):
            left = attempted(kept_state.left_by_calls, function, lambda: call(values))
            if not left or not known or question.draws or self.calling.mutated:
                return ()
            ends = time.monotonic() + MOST_SECONDS
            for number in range(kept_state.CALLS, max(known) + 2):
                failure = attempted(lambda: roughly(call(values), given.results[0]))
                if failure is not None:
                    said = f"equal calls, each of which changes `{left}`"
                    failure = dataclasses.replace(failure, step=number, on=said)
                    return [Check(self.count, "given", self.size, number + 1, alone=True, failure=failure)]
                if time.monotonic() > ends:
                    break
        return ()

    def handed(self, given: Trial, donated: Sequence[str]) -> Sequence[Check]:
        """A failure where a way of handing arrays over gives other results, or a call takes them with it.

        All other runs hand over arrays of NumPy, new ones in each call.
        """
        question = self.trials.question
        shares = question.shares(self.size, self.count)
        _, allowed = self.trials.at("given", 0, self.size, shares)
        with prove.x64(question.x64):
            others = [*handed.ways(given.values[0], question.axes, question.statics)]
            placed = handed.placer(self.calling.function)
        about = Check(self.count, "given", self.size, 1, alone=True)
        call = self.make(given)

        def ahead(values: Values) -> Any:
            assert placed is not None
            values.update(placed(values))
            return call(values)

        def again(values: Values) -> Any:
            return handed.refilled(self.calling, values, question.statics)

        if placed:
            others.append((PLACED, dict(given.values[0])))
        if not self.calling.mutated:
            others.append((REFILLED, dict(given.values[0])))
        others.append((REORDERED, {name: handed.reordered(value) for name, value in given.values[0].items()}))
        calls = {PLACED: ahead, REFILLED: again}
        for way, values in others:
            first = handed.first_call(given, values)
            check = self.parallel.run(about, first, allowed, shares, call=calls.get(way, call))
            if check.raised is not None and way != PLACED:
                # What lies on devices already has to lie where the function wants it.
                if way == AS_JAX:
                    said = f"{check.raised.type}: {check.raised.message}"
                    self.notes.append(f"it takes arrays of NumPy alone; given {way} it fails: {said}")
                continue
            if check.failure is not None:
                if way == REORDERED and self.minds_order(given, values, shares):
                    continue
                return [dataclasses.replace(check, failure=dataclasses.replace(check.failure, on=way))]
            gone = [name for name in handed.taken(values) if name not in donated]
            if gone:
                return [dataclasses.replace(about, failure=Failure("deleted", argument=gone[0]))]
        return ()

    def minds_order(self, given: Trial, values: Values, shares: Shares | None) -> bool:
        """Whether the reference, called uncompiled, gives something else for dicts in another order."""
        with prove.x64(self.trials.question.x64), repeat_draws(shares):
            return roughly(current().reference(values), given.results[0]) is not None

    def forms(self, given: Trial) -> Sequence[Check]:
        """A failure where generated code that was edited takes arrays of another form, and is not equal then.

        As it was emitted it raises for them, where it is not equal. Of code written by hand nobody says which
        forms it is for.
        """
        question = self.trials.question

        def both(values: Values) -> tuple[Any, Any] | None:
            trial = Trial(question.reference, values, (), 1)
            return (self.make(trial)(values), trial.results[0]) if trial.finite else None

        for form, values in handed.forms(given.values[0], question.axes):
            with prove.x64(question.x64):
                results = attempted(both, values)
            if results and (failure := prove.same_form(*results) or roughly(*results)):
                failure = dataclasses.replace(failure, on=f"{form}{NOT_REFUSED}")
                return [Check(self.count, "given", self.size, 1, alone=True, failure=failure)]
        return ()

    def unshown(self, sizes: Sequence[int]) -> Sequence[Check]:
        """A run on the most rows of `sizes` for which deriving came to no end; a note where there is none."""
        large = run_large(self.parallel, sizes[::-1])
        if large is None:
            self.notes.append(f"not tried on a batch of {sizes[0]:,}, which is worked on otherwise")
        elif large.raised is not None:
            said = f"{large.raised.type}: {large.raised.message}"
            self.notes.append(f"a batch of {large.batch:,} fails on {self.count} devices: {said}")
        return [large] if large is not None and large.raised is None else []


def roughly(got: Any, want: Any) -> Failure | None:
    """The first output of which half of the digits are others, where rounding is not measured."""
    for index, ((path, leaf), target) in enumerate(
        zip(prove.leaf_table(got), jax.tree.leaves(want), strict=True)
    ):
        if category(leaf) == "opaque":
            continue
        left, right = prove.host(leaf), prove.host(target)
        error, scale = distance(left, right)
        bound = scale * float(jax.numpy.finfo(left.dtype).eps) ** 0.5 if is_float(leaf) else 0.0
        if not error <= bound:
            return prove.wrong_value(left, right, bound, path, index)
    return None


def numbers_for_arrays(question: Question, result: Any) -> Failure | None:
    """The failure of a result that has a number of Python where the reference, traced, has an array."""
    packed = question.packed
    kinds: list[str] = []

    def run(leaves: Sequence[Any]) -> list[Any]:
        flat = jax.tree.leaves(question.traceable(packed.unpack(leaves)))
        kinds[:] = [category(leaf) for leaf in flat]
        return []

    attempted(jax.eval_shape, run, packed.leaves)
    for (path, leaf), wanted in zip(prove.leaf_table(result), kinds, strict=False):
        if category(leaf) in NUMBERS and wanted == "array":
            return Failure("type", path=path, got=type(leaf).__name__, want="an array")
    return None


def lost_by_itself(
    question: Question, caller: Caller, values: Values, lost: Sequence[nans.Lost]
) -> nans.Lost | None:
    """The first result whose NaN nothing but the function's own code loses; None if it is not traced."""
    with prove.x64(question.x64):
        traced = traced_arrays(caller.laid_out, Packed(values, question.statics))
    if traced is None:
        return None
    behind = nans.behind_extremes(traced)
    return next((each for each in lost if each.passed and not nans.is_behind(behind, each.leaf)), None)


def of_lost(leaf: nans.Lost) -> Failure:
    """The failure of a result that is a number where the reference's is NaN."""
    failure = prove.wrong_value(leaf.several, leaf.one, 0.0, leaf.path, leaf.leaf)
    on = "the given inputs with NaN among their rows"
    return dataclasses.replace(failure, cause="passed", on=on)


def fails_wide(checks: Sequence[Check], x64: bool) -> str:
    """Why the first run fails in float64, where it may not in the user's own dtypes, or ``""``.

    What is cast to float32, or is a mean of truth values, is one there too. In a 64-bit mode of the user's,
    `x64`, that is a difference.
    """
    failure = checks[0].failure if checks and checks[0].precision == "float64" else None
    if failure is None or failure.step:
        return ""
    if failure.what == "dtype" and (failure.got, failure.want) == ("float32", "float64") and not x64:
        return f"a result is {failure.got}, and the reference's is {failure.want}"
    if failure.error is None:
        return ""
    return f"{failure.error.type}: {failure.error.message.strip().partition(chr(10))[0]}"


def depends_on_draws(question: Question, leaf: int | None) -> bool:
    """Whether random numbers go into an output of the reference, or into any where none is named."""
    packed = question.packed
    with prove.x64(question.x64):
        drawn = goes_into(Traced.of(question.traceable, packed, packed.leaves).jaxpr, DRAWS)
    return any(drawn) if leaf is None or leaf >= len(drawn) else drawn[leaf]


def _search(trials: Trials, program: Caller, count: int) -> None:
    """Have the runs made on inputs too on which the reference or `program` decides in other ways."""
    question = trials.question
    with prove.x64(question.precision(question.kind)):
        # Both are looked into: what is wrong may be a decision that only one of them takes.
        found = trials.search([program], [count])
        # Unlike emitted code, it need not be made of the reference's own operations.
        given = question.data[0], question.axes, question.settled
        more = [*strengthen.extremes(*given), *strengthen.lone(*given), *strengthen.moved_round(*given)]
        # Of a loop, a counter may be how often it goes round.
        more += () if question.loops else strengthen.far_on(*given)
        more += [values for values in strengthen.emptied(*given) if gives_numbers(question, values)]
        found = dataclasses.replace(found, inputs=(*found.inputs, *more))
        trials.question = dataclasses.replace(question, found=found)


def gives_numbers(question: Question, values: Values) -> bool:
    """Whether all that the reference makes of some values are numbers, and its loops are known to end."""
    wide = to_float64(values) if question.wide else values
    return not question.loops and bool(attempted(lambda: prove.finite(question.reference(wide))))


def generators(calling: Calling, question: Question, count: int) -> Iterator[Question]:
    """The question with each generator that may give a parallel function the reference's random numbers.

    That is one in which a key folded with the device's index is that device's own; one in which those are too
    that come of splitting a key into as many as there are devices; and, on a mesh of several axes, those in
    which keys are folded along each of the axes that divide the rows together, and those in which devices
    along one axis have the rows, and draw the same as those along the others.
    """
    yield dataclasses.replace(question, siblings=False)
    yield dataclasses.replace(question, siblings=True)
    rows = question.rows // count * count
    for groups in groupings(*sizes_drawn(question, rows), rows // question.minibatches):
        yield dataclasses.replace(question, siblings=False, groups=groups)
    values = arguments.cut(question.data[0], question.axes, count)
    whole = Caller(calling, question.axes, dict.fromkeys(values, "whole"), count, None)
    traced = traced_arrays(whole.laid_out, Packed(values, question.statics))
    found = equations(traced) if traced is not None else ()
    maps = [each.params for each in found if each.primitive.name == "shard_map"]
    together = {
        strides
        for params in maps
        for names in shard_map_specs(params)[0]
        if len(strides := strides_of(names, dict(params["mesh"].shape))) > 1
    }
    for strides in sorted(together):
        yield dataclasses.replace(question, siblings=False, strides=strides)
    sizes = {size for params in maps for size in dict(params["mesh"].shape).values() if 1 < size < count}
    for size in sorted(sizes):
        yield dataclasses.replace(question, siblings=False, among=size)


def strides_of(names: Mapping[str, int], mesh: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Of axes of a mesh that divide the first axis of an array, how many parts devices are apart."""
    along = [name for name, dimension in names.items() if dimension == 0]
    return tuple((name, math.prod(mesh[after] for after in along[at + 1 :])) for at, name in enumerate(along))


def own_keys(
    trials: Trials, calling: Calling, make: Callable[[Trial], Caller], count: int, size: int
) -> Question:
    """The question with the first of `generators` for which the function is equal on the first inputs."""
    question = trials.question
    for drawn in generators(calling, question, count):
        trials.question = drawn
        shares = drawn.shares(size, count)
        trial, allowed = trials.at("given", 0, size, shares)
        with prove.x64(question.x64), repeat_draws(shares):
            if attempt(make(trial), trial.values[0], allowed[0]).ends == "equal":
                return trials.question
    return question


def check_apart(parallel: Parallel, program: Caller, size: int) -> list[Check]:
    """Runs on inputs on which the reference and `program` decide in other combinations than elsewhere."""
    trials, count = parallel.trials, parallel.count
    question, kind = trials.question, trials.question.kind
    with prove.x64(question.precision(kind)), repeat_draws(question.shares(size, count)):
        more = apart((question.traceable, program), question, size)
    known = question.found.inputs
    trials.question = dataclasses.replace(
        question, found=dataclasses.replace(question.found, inputs=(*known, *more))
    )
    first = len(question.data) + len(strengthen.PERTURBED) + len(known)
    plans = [(kind, first + index) for index in range(len(more))]
    found = check_count(parallel, size, with_given=False, plans=plans)
    return [dataclasses.replace(check, alone=True) for check in found]


def check_arguments(question: Question, calling: Calling, given: Trial, count: int, size: int) -> list[Check]:
    """A failure where a drop-in changes what it is called with, and the reference does not."""
    values = given.values[0]
    with prove.x64(question.x64), repeat_draws(question.shares(size, count)):
        changed = changed_in_place(calling, values)
        kept = set(changed) - set(changed_in_place(question.traceable, values) if changed else ())
    found = [Failure("changed", argument=path) for path in changed if path in kept]
    return [Check(count, "given", size, alone=True, failure=failure) for failure in found[:1]]
