"""Which runs make up the proof of a parallel function that the user wrote."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from . import arguments, nans, noise, prove, strengthen
from .apart import apart
from .arguments import Packed, Values
from .calling import Calling
from .drawn_keys import DRAWING
from .generator import repeat_draws
from .jaxpr.forward import goes_into
from .jaxpr.trace import NUMBERS, Traced, traced_arrays
from .jaxpr.walk import equations
from .leaves import category
from .parallel import (
    MOST_LAYOUTS,
    Caller,
    Layout,
    attempt,
    changed_in_place,
    devices_of,
    fitting,
    holds_key,
    inconsistent,
    layouts,
)
from .protocol import Call, Calls, Problem, Row
from .prove import Trial
from .proving import check_count, lost_nans, usable_sizes
from .sizes import check_odd, check_ragged, check_sizes, raised, run_large
from .trials import Question, Trials

#: What draws random numbers, and does not only make keys.
DRAWS = DRAWING | {"rng_uniform"}


def try_layouts(
    trials: Trials,
    calling: Calling,
    count: int,
    wanted: Sequence[Layout] | None,
) -> Calls:
    """How a user's parallel function ends in each `wanted` way of calling it, up to one that is equal.

    None for all ways. What the inputs pass by name is passed so here, and where that raises by position.
    """
    question = trials.question
    base = arguments.batch_size(question.data[0], question.axes)
    sizes, skipped = usable_sizes(trials, [count], base)
    if not sizes:
        return Calls(skipped=skipped[0])
    tried: list[Call] = []
    asked: Iterable[Layout] = wanted or itertools.islice(
        layouts(calling, question.data[0], question.axes, question.statics), MOST_LAYOUTS
    )
    kept = [fitting(calling, each) for each in asked]
    for siblings in (False, True)[: 2 if question.repeat else 1]:
        trials.question = dataclasses.replace(question, siblings=siblings)
        shares = trials.question.shares(sizes[count], count)
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
                tried.append(ended)
                if ended.ends == "equal":
                    break
        if tried[-1].ends == "equal":
            break
    trials.question = question
    return Calls(sizes[count], tuple(tried))


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
        sizes, _ = usable_sizes(trials, [count], arguments.batch_size(question.data[0], question.axes))
    except Problem:
        return False
    return bool(sizes)


def prove_parallel(
    trials: Trials,
    calling: Calling,
    layout: Layout,
    count: int,
    *,
    with_given: bool,
    unshown: Sequence[int] = (),
    donated: Sequence[str] = (),
) -> tuple[list[Row], list[str]]:
    """The runs of a user's parallel function on all the devices there are, in one layout; and notes.

    Those in the user's own dtypes and on other batch sizes are made `with_given`: also on the most rows
    of those that are `unshown`: for which deriving it came to no end. Callers give up what is `donated`.
    """
    question = trials.question

    def make(trial: Trial) -> Caller:
        return Caller(calling, question.axes, layout, count, trial.results[0], question.data[0])

    size = arguments.batch_size(question.data[0], question.axes) // count * count
    # Keys with a device axis are whatever the caller makes of them: nothing to hold against the reference.
    keyed = [name for name, form in layout.items() if form != "whole" and holds_key(question.data[0][name])]
    if question.repeat and not keyed:
        # What is wrong with the keys says more than the numbers that come of it.
        shape = trials.at("given", 0, size, question.shares(size, count))[0]
        own = dataclasses.replace(question, invoke=lambda run, values: run(values))
        keys = noise.own_draws(own, make(shape), inconsistent, count, size, run=with_given)
        if "failure" in keys:
            return [{"devices": count, "precision": "given", **keys}], []
    if question.repeat:
        question = trials.question = own_keys(trials, make, count, size)
    program = make(trials.at("given", 0, size, question.shares(size, count))[0])
    if not question.derived:
        _search(trials, program, count)
    checks = check_count(trials, make, inconsistent, count, size, with_given=with_given)
    if question.wide and (why := fails_wide(checks)):
        # In the user's own dtypes it may run: a literal beside `axis_index`, which has 32 bits, is enough.
        trials.question = dataclasses.replace(question, eps={"given": question.eps["given"]})
        checks, notes = prove_parallel(
            trials, calling, layout, count, with_given=with_given, unshown=unshown, donated=donated
        )
        return checks, [f"it fails in float64, and was compared in its own dtypes alone: {why}", *notes]
    if "failure" in checks[-1] and question.repeat:
        checks[-1]["failure"]["drawn"] = depends_on_draws(question, checks[-1]["failure"].get("leaf"))
    if "failure" in checks[-1] and (why := calling.defaults_apart(question.data[0])):
        checks[-1]["failure"]["defaults"] = why
    if "failure" not in checks[-1] and not question.derived:
        checks += check_odd(trials, make, inconsistent, count, size)
    if "failure" in checks[-1] or not with_given:
        return checks, []
    if not question.derived:
        checks += check_apart(trials, make, program, count, size)
    given = trials.at("given", 0, size, question.shares(size, count))[0]
    caller = make(given)
    if "failure" not in checks[-1] and not caller.raw:
        checks += check_ragged(trials, make, inconsistent, count)
        checks += check_arguments(trials.question, calling, given, count, size, donated)
    if "failure" in checks[-1]:
        return checks, []
    with prove.x64(question.x64), repeat_draws(question.shares(size, count)):
        result = caller.laid_out(given.values[0])
        wrong = None if caller.raw else numbers_for_arrays(question, result)
    lies_on = devices_of(result)
    lost = lost_nans(trials, make(given), count, size)
    if wrong is None and lost:
        dropped = lost_by_itself(question, caller, given.values[0], lost)
        wrong = None if dropped is None else of_lost(dropped)
    if wrong is not None:
        about = {"devices": count, "precision": "given", "batch": size, "alone": True}
        return [*checks, {**about, "failure": {"step": 0, **wrong}}], []
    more, notes = check_sizes(trials, make, inconsistent, count, lies_on, caller.laid_out)
    if unshown and not any("failure" in check for check in more):
        kind = "float64" if question.wide else "given"
        large = run_large(trials, make, inconsistent, count, kind, unshown[::-1])
        if large is not None and raised(large):
            error = large["failure"]["error"]
            notes.append(
                f"a batch of {large['batch']:,} fails on {count} devices: {error.type}: {error.message}"
            )
        elif large is not None:
            more.append(large)
        else:
            notes.append(f"not tried on a batch of {unshown[0]:,}, which is worked on otherwise")
    return checks + more, notes + nans.noted(lost)


def numbers_for_arrays(question: Question, result: Any) -> Row | None:
    """The failure of a result that has a number of Python where the reference, traced, has an array."""
    packed = Packed(question.data[0], question.statics)
    kinds: list[str] = []

    def run(leaves: Sequence[Any]) -> list[Any]:
        flat = jax.tree.leaves(question.traceable(packed.unpack(leaves)))
        kinds[:] = [category(leaf) for leaf in flat]
        return []

    try:
        jax.eval_shape(run, packed.leaves)
    except MemoryError:
        raise
    except BaseException:
        return None
    for (path, leaf), wanted in zip(prove.leaf_table(result), kinds, strict=False):
        if category(leaf) in NUMBERS and wanted == "array":
            return {"what": "type", "path": path, "got": type(leaf).__name__, "want": "an array"}
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
    # What is no array has no place among the results of a program.
    leaves = [
        each
        for each in lost
        if each.passed and not (behind[each.leaf] if each.leaf < len(behind) else any(behind))
    ]
    return next(iter(leaves), None)


def of_lost(leaf: nans.Lost) -> Row:
    """The failure of a result that is a number where the reference's is NaN."""
    return {
        "what": "value",
        "path": leaf.path,
        "leaf": leaf.leaf,
        "off": math.inf,
        "tolerance": 0.0,
        "ratio": None,
        "cause": "passed",
        "on": "the given inputs with NaN in their first row",
        **prove.elements(leaf.several, leaf.one, 0.0),
    }


def fails_wide(checks: Sequence[Row]) -> str:
    """The error with which the first run fails in float64, or ``""``."""
    failure = checks[0].get("failure", {})
    wide = checks[0]["precision"] == "float64" and len(checks) == 1 and not failure.get("step")
    if not wide or failure.get("what") != "exception":
        return ""
    return f"{failure['error'].type}: {failure['error'].message.strip().partition(chr(10))[0]}"


def depends_on_draws(question: Question, leaf: int | None) -> bool:
    """Whether random numbers go into an output of the reference, or into any where none is named."""
    packed = Packed(question.data[0], question.statics)
    with prove.x64(question.x64):
        drawn = goes_into(Traced(question.traceable, packed, packed.leaves).jaxpr, DRAWS)
    return any(drawn) if leaf is None or leaf >= len(drawn) else drawn[leaf]


def _search(trials: Trials, program: Caller, count: int) -> None:
    """Have the runs made on inputs too on which the reference or `program` decides in other ways."""
    question = trials.question
    with prove.x64(question.precision("float64" if question.wide else "given")):
        # Both are looked into: what is wrong may be a decision that only one of them takes.
        found = trials.search([program], [count])
        # Unlike emitted code, it need not be made of the reference's own operations.
        given = question.data[0], question.axes, question.settled
        more = (*strengthen.extremes(*given), *strengthen.lone(*given))
        found = dataclasses.replace(found, inputs=(*found.inputs, *more))
        trials.question = dataclasses.replace(question, found=found)


def own_keys(trials: Trials, make: Callable[[Trial], Caller], count: int, size: int) -> Question:
    """The question with the generator for which the function is equal on the first inputs.

    That is one in which a key folded with the device's index is that device's own, or one in which those are
    too that come of splitting a key into as many as there are devices.
    """
    question = trials.question
    for siblings in (False, True):
        trials.question = dataclasses.replace(question, siblings=siblings)
        shares = trials.question.shares(size, count)
        trial, allowed = trials.at("given", 0, size, shares)
        with prove.x64(question.x64), repeat_draws(shares):
            if attempt(make(trial), trial.values[0], allowed[0]).ends == "equal":
                return trials.question
    return question


def check_apart(
    trials: Trials, make: Callable[[Trial], Caller], program: Caller, count: int, size: int
) -> list[Row]:
    """Runs on inputs on which the reference and `program` decide in other combinations than elsewhere."""
    question, kind = trials.question, "float64" if trials.question.wide else "given"
    with prove.x64(question.precision(kind)), repeat_draws(question.shares(size, count)):
        more = apart((question.traceable, program), question, size)
    known = question.found.inputs
    trials.question = dataclasses.replace(
        question, found=dataclasses.replace(question.found, inputs=(*known, *more))
    )
    first = len(question.data) + len(strengthen.PERTURBED) + len(known)
    plans = [(kind, first + index) for index in range(len(more))]
    found = check_count(trials, make, inconsistent, count, size, with_given=False, plans=plans)
    return [{**check, "alone": True} for check in found]


def check_arguments(
    question: Question,
    calling: Calling,
    given: Trial,
    count: int,
    size: int,
    donated: Sequence[str],
) -> list[Row]:
    """A failure where a drop-in changes or takes what it is called with, and the reference does not."""
    values = given.values[0]
    with prove.x64(question.x64), repeat_draws(question.shares(size, count)):
        changed = changed_in_place(calling, values)
        kept = set(changed) - set(changed_in_place(question.traceable, values) if changed else ())
        taken = [name for name in given_up(calling, values) if name not in donated]
    paths = [path for path in changed if path in kept]
    found = [("changed", path) for path in paths] + [("deleted", name) for name in taken]
    failure = {"what": found[0][0], "step": 0, "path": "", "argument": found[0][1]} if found else {}
    about = {"devices": count, "precision": "given", "batch": size, "alone": True}
    return [{**about, "failure": failure}] if failure else []


def given_up(calling: Calling, values: Values) -> list[str]:
    """Arguments of which a call takes arrays with it that lie on a device (``donate_argnums``)."""
    given = {
        name: jax.tree.map(lambda x: jax.numpy.array(x) if category(x) == "array" else x, value)
        for name, value in values.items()
    }
    jax.block_until_ready(calling(dict(given)))

    def is_gone(leaf: Any) -> bool:
        return isinstance(leaf, jax.Array) and leaf.is_deleted()

    return [name for name, value in given.items() if any(map(is_gone, jax.tree.leaves(value)))]
