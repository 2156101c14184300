"""Runs of emitted code on batches that its devices do not share evenly."""

from collections.abc import Callable, Sequence
from typing import Any

from . import arguments, prove, telling
from .arguments import Values
from .comparing import Parallel
from .exceptions import attempted
from .generator import rekeyed
from .leaves import to_float64
from .protocol import Check


def uneven_sizes(count: int, base: int) -> list[int]:
    """Batch sizes up to `base` that `count` devices do not share evenly.

    One lacks a single row; one leaves a whole device without any, where the others have few.
    """
    each = min(count - 1, base // count)
    return [size for size in dict.fromkeys([base // count * count - 1, each * (count - 1)]) if size % count]


def check_uneven(
    parallel: Parallel,
    function: Callable[..., Any],
    base: int,
    remainder: str,
    refused: Sequence[tuple[int, int]] = (),
    shares: int | None = None,
) -> list[Check]:
    """Runs on batches that do not divide, up to the first that fails; none where the reference fails.

    With so few rows on a device as are `refused` the code raises. The batch is divided in as many `shares` as
    there are devices, unless that is said.

    Under ``"pad"`` the result is that of the reference on the same rows, under ``"drop"`` on those at
    the front that divide.
    """
    trials, count, checks = parallel.trials, shares or parallel.count, list[Check]()
    question, kind = trials.question, trials.question.kind
    if question.derived:
        inputs = [0, len(question.data) if question.wide else 0]
    else:
        inputs = [index for _, index in question.plans(with_given=False)]
    chained = {name for name, _ in question.chain}
    for size in uneven_sizes(count, base):
        used = size if remainder == "pad" else size // count * count
        each = -(-used // count)
        if telling.is_refused(refused, each, each * count):
            continue
        drawn = question.shares(used, count)
        for index in dict.fromkeys(inputs) if used else ():
            if (made := attempted(trials.at, kind, index, used, drawn)) is None:
                break  # The reference takes no batch of this size.
            expected, allowed = made
            if trials.left_domain(index, used, drawn):
                continue
            rows = rekeyed(arguments.cut(trials.values(index), question.axes, size), drawn)
            if kind == "float64":
                with prove.x64(True):
                    rows = to_float64(rows)
            # Rows that are left out are in no result, nor in a later call that one goes into.
            kept = remainder == "drop" and not chained.isdisjoint(question.axes)
            batch = {} if kept else {name: rows[name] for name in question.axes if name not in chained}
            first = expected.values[0]

            def call(
                values: Values, *, rows: Values = rows, batch: Values = batch, first: Values = first
            ) -> Any:
                whole = rows if values is first else {**values, **batch}
                return question.invoke(function, whole)

            about = Check(parallel.count, kind, size, question.steps, index, uneven=True)
            checks.append(parallel.run(about, expected, allowed, drawn, call=call))
            if checks[-1].failure is not None:
                return checks
    return checks
