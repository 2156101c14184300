"""Which runs make up a proof: on which inputs, in which precision, on which device counts."""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from . import arguments, nans, noise, prove
from .arguments import Values
from .compiled import compiled, executables
from .donation import check_donation
from .explain import add_cause
from .generator import repeat_draws
from .protocol import Check, Checks, Problem, Row, Skipped, decode
from .prove import Trial
from .server import describe_exception, summary
from .sizes import check_odd, minds_size, program, run_large
from .trials import Emitted, Question, Trials
from .uneven import check_uneven


def usable_sizes(
    trials: Trials, counts: Sequence[int], base: int, shares: int = 0
) -> tuple[dict[int, int], list[Skipped]]:
    """The batch for each device count, and the counts for which the reference refuses the cut batch.

    It is divided among all of the devices, or among `shares` of them.

    Raises:
        Problem: the reference fails on the whole batch too.
    """
    kind = "float64" if trials.question.wide else "given"
    sizes: dict[int, int] = {}
    skipped: list[Skipped] = []
    for count in counts:
        size = base // (shares or count) * (shares or count)
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
    try:
        program(question, question.traceable, rows)
    except MemoryError:
        raise
    except BaseException:
        return False
    return True


def check_count(
    trials: Trials,
    make: Callable[[Trial], Callable[[Values], Any]],
    replicas: Callable[[Sequence[tuple[str, Any]], int], dict[str, Any] | None],
    count: int,
    size: int,
    *,
    with_given: bool,
    plans: Sequence[tuple[str, int]] | None = None,
    mesh: "Mapping[str, int] | None" = None,
) -> list[dict[str, Any]]:
    """The runs on one device count, in order, up to the first that fails: those of the question, or `plans`.

    `make` returns the parallel function, called with values as the reference is, for one run of
    that; `replicas` finds an output that differs between devices. With `with_given`, the first run in
    the user's own dtypes has what `compiled` tells of the function, whose devices may be a `mesh`.
    """
    question, checks = trials.question, []
    shares = question.shares(size, count)
    looked = not with_given
    for kind, index in question.plans(with_given) if plans is None else plans:
        expected, allowed = trials.at(kind, index, size, shares)
        if trials.left_domain(index, size, shares):
            continue
        before = executables() if kind == "given" and not looked else []
        with prove.x64(question.precision(kind)), repeat_draws(shares):
            run = functools.partial(
                prove.run_parallel,
                make(expected),
                expected,
                question.chain,
                replicas=lambda leaves: replicas(leaves, count),
                # Placed arguments are compiled for anew: once is enough.
                on_devices=kind == "given" and with_given,
                widths=question.widths(kind),
                numbers=trials.was_found(index) and trials.at(kind, 0, size, shares)[0].finite,
            )
            found = run(allowed=allowed)
            if found.get("failure", {}).get("what") == "value":
                wider = trials.wider(kind, index, size, shares)
                found = found if wider is None else run(allowed=wider)
            if "failure" in found:
                add_cause(found["failure"], question, expected, count)
                found["failure"]["on"] = question.described(index)
            elif kind == "given" and not looked:
                looked = True
                found |= compiled(before, size, mesh or {})
        checks.append(
            {
                "devices": count,
                "precision": kind,
                "batch": size,
                "steps": question.steps,
                "inputs": index,
                **found,
            }
        )
        if "failure" in found:
            break
    return checks


def prove_emitted(
    trials: Trials, emitted: Emitted, counts: Sequence[int], *, fixed: bool, remainder: str = "error"
) -> Checks:
    """Run emitted code on several device counts beside the reference, up to the first failure.

    Skipped are the device counts that the reference itself leaves out, as it fails on the batch cut to fit
    them. With `fixed`, the code chooses its devices
    itself. Unless `remainder` is ``"error"``, batches that do not divide are run as well.
    """
    shares = emitted.mesh.shares if emitted.mesh is not None else 0
    question = trials.question = dataclasses.replace(trials.question, among=shares)
    base = arguments.batch_size(question.data[0], question.axes)
    try:
        sizes, skipped = usable_sizes(trials, counts, base, shares)
    except Problem:
        if not question.wide:
            raise
        # A callback may give the dtype that it says, and no other.
        question = trials.question = dataclasses.replace(question, eps={"given": question.eps["given"]})
        sizes, skipped = usable_sizes(trials, counts, base, shares)

    def enough() -> bool:
        left = len(counts) - len(skipped)
        return left >= min(2, len(counts)) and not any(each.devices == max(sizes) for each in skipped)

    checks: list[Row] = []
    notes: list[str] = []
    folded = False
    for count, size in sizes.items():
        if not enough():
            break
        with prove.only_devices(len(jax.devices()) if fixed else count):
            try:
                function = emitted.define(count, question.x64)
            except BaseException as error:
                failure = {"what": "exception", "step": 0, "error": describe_exception(error)}
                checks.append({"devices": count, "failure": failure})
                break
            if question.repeat:
                # What is wrong with the keys says more than the numbers that come of it.
                found = noise.own_draws(question, function, emitted.replicas, count, size, run=False)
                folded |= found.get("folded", False)
                if "failure" in found:
                    checks.append({"devices": count, **found})
                    break

            def make(_: Trial, function: Callable[..., Any] = function) -> Callable[[Values], Any]:
                return lambda values: question.invoke(function, values)

            checks += check_count(
                trials,
                make,
                emitted.replicas,
                count,
                size,
                with_given=count == max(sizes),
                mesh=emitted.mesh.axes if emitted.mesh is not None else None,
            )
            raised = checks[-1].get("failure", {}).get("error")
            refused = raised is not None and raised.type == "NotImplementedError"
            if (refused and size < base) or (raised and not takes_share(question, size // count)):
                # Cut to fit, the batch takes a branch that it does not take whole, as the code itself says;
                # or the user's own reshape takes no share of that size.
                checks = [check for check in checks if check["devices"] != count]
                skipped.append(Skipped(count, size, raised, emitted=True))
                if count == max(sizes):
                    break  # Much is looked at on the most devices alone.
                continue
            if question.derived:
                # Which keys are whose, and what another batch size does, is derived.
                if "failure" in checks[-1]:
                    break
            elif "failure" not in checks[-1]:
                checks += check_odd(trials, make, emitted.replicas, count, size)
            if (
                question.repeat
                and not question.derived
                and count == max(sizes)
                and "failure" not in checks[-1]
            ):
                found = noise.own_draws(question, function, emitted.replicas, count, size, run=True)
                if "failure" in found:
                    checks.append({"devices": count, **found})
            if emitted.donated and count == max(sizes) and "failure" not in checks[-1]:
                checks += check_donation(trials, function, emitted, count, size)
            if (
                count == max(sizes)
                and "failure" not in checks[-1]
                and not question.derived
                and minds_size(question)
            ):
                large = run_large(
                    trials, make, emitted.replicas, count, "float64" if question.wide else "given"
                )
                # A branch on the size that was not taken raises by itself.
                if large is not None and large.get("failure", {}).get("what") != "exception":
                    checks.append(large)
            if count == max(sizes) and "failure" not in checks[-1] and re.search("pmax|pmin", emitted.code):
                call = functools.partial(question.invoke, function)
                notes += nans.noted(lost_nans(trials, call, count, size))
            if remainder != "error" and "failure" not in checks[-1]:
                checks += check_uneven(trials, function, emitted, count, base, remainder)
        if "failure" in checks[-1]:
            break
    if not enough():
        return Checks((), tuple(skipped))
    return Checks(
        decode(tuple[Check, ...], checks),
        tuple(skipped),
        folded,
        tuple(notes),
        question.adequacy(list(sizes)),
    )


def lost_nans(trials: Trials, call: Callable[[Values], Any], count: int, size: int) -> list[nans.Lost]:
    """What becomes of a NaN, where several devices make another thing of it than one."""
    question, kind = trials.question, "float64" if trials.question.wide else "given"
    shares = question.shares(size, count)
    values = trials.at(kind, 0, size, shares)[0].values[0]
    with prove.x64(question.precision(kind)), repeat_draws(shares):
        return nans.lost(question.reference, call, values, question.axes)
