"""Runs of emitted code on batches that its devices do not share evenly."""

from collections.abc import Callable
from typing import Any

from . import arguments, prove
from .arguments import Values
from .generator import rekeyed, repeat_draws
from .leaves import to_float64
from .protocol import Problem, Row
from .trials import Emitted, Trials


def uneven_sizes(count: int, base: int) -> list[int]:
    """Batch sizes up to `base` that `count` devices do not share evenly.

    One lacks a single row; one leaves a whole device without any, where the others have few.
    """
    each = min(count - 1, base // count)
    return [size for size in dict.fromkeys([base // count * count - 1, each * (count - 1)]) if size % count]


def check_uneven(
    trials: "Trials", function: Callable[..., Any], emitted: "Emitted", count: int, base: int, remainder: str
) -> list[Row]:
    """Runs on batches that do not divide, up to the first that fails; none where the reference fails.

    Under ``"pad"`` the result is that of the reference on the same rows, under ``"drop"`` on those at
    the front that divide.
    """
    question, checks = trials.question, []
    kind = "float64" if question.wide else "given"
    perturbed = len(question.data) if question.wide else 0
    chained = {name for name, _ in question.chain}
    for size in uneven_sizes(count, base):
        used = size if remainder == "pad" else size // count * count
        shares = question.shares(used, count)
        for index in dict.fromkeys((0, perturbed)) if used else ():
            try:
                expected, allowed = trials.at(kind, index, used, shares)
            except (MemoryError, Problem):
                raise
            except BaseException:
                break  # The reference takes no batch of this size.
            if trials.left_domain(index, used, shares):
                continue
            rows = rekeyed(arguments.cut(trials.values(index), question.axes, size), shares)
            if kind == "float64":
                with prove.x64(True):
                    rows = to_float64(rows)
            batch = {name: rows[name] for name in question.axes if name not in chained}
            first = expected.values[0]

            def call(
                values: Values, *, rows: Values = rows, batch: Values = batch, first: Values = first
            ) -> Any:
                whole = rows if values is first else {**values, **batch}
                return question.invoke(function, whole)

            with prove.x64(question.precision(kind)), repeat_draws(shares):
                found = prove.run_parallel(
                    call,
                    expected,
                    question.chain,
                    allowed,
                    lambda leaves: emitted.replicas(leaves, count),
                    on_devices=False,
                )
            for arrays in ("values", "copies"):
                found.get("failure", {}).pop(arrays, None)
            checks.append(
                {
                    "devices": count,
                    "precision": kind,
                    "batch": size,
                    "steps": question.steps,
                    "inputs": index,
                    "uneven": True,
                    **found,
                }
            )
            if "failure" in found:
                return checks
    return checks
