"""What there is to say of a proof in which nothing is wrong: what was not tried, not compared, not told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from jax_pmap.model import EXCHANGE, GATHERED, Plan, refused
from jax_pmap.problems import error_line
from jax_pmap.reading.target import Target
from jax_pmap.units import first_few, human_bytes
from jax_pmap.worker import protocol

#: Outputs that a note lists.
SHOWN = 2
#: Places that a note names.
MOST_PLACES = 4


def not_tried(skipped: protocol.Skipped) -> str:
    """Why there is no check for a device count."""
    who = "the emitted code raises" if skipped.emitted else "the original itself fails"
    where = f"not on {skipped.devices} devices: with a batch of {skipped.batch}"
    return f"{where} {who} ({error_line(skipped.error)})"


def rounding_alone(checks: Sequence[protocol.Check], target: Target) -> Iterator[str]:
    """What there is to say of outputs that have no digits of their own in any of the worker's `checks`.

    Raises:
        RefusalError: JP045, where no output has any.
    """
    # Zero on some inputs, which rounding can be too, tells no more than it does.
    empty = set[str].intersection(*({*check.noise, *check.zero} for check in checks))
    paths = sorted(empty - set[str].intersection(*(set(check.zero) for check in checks)))
    if not paths:
        return
    if not any(check.compared for check in checks):
        raise refused(
            "JP045",
            f"every output of `{target.facts.name}` is rounding alone, on one device too: there is nothing "
            "to compare",
            "Give inputs of another size, or compute in wider floats",
            target.facts.span,
        )
    some = first_few([f"`{path}`" for path in paths], SHOWN)
    yield (
        f"nothing to compare in output {some}: rounding alone, on one device too, as where a gradient "
        "cancels to zero"
    )


def unplanned(rows: Sequence[protocol.Collective], plan: Plan, global_view: bool) -> Iterator[str]:
    """Communication in the compiled program that the plan does not ask for.

    The bytes are not compared: XLA joins collectives, drops those nothing depends on and keeps one of equal
    ones, and a planned one stands there as often as the function around it is called.
    """
    gathers = any(sync.op in ("all_gather", GATHERED) for sync in plan.syncs)
    # The gradient of a gather sums and scatters.
    expected = {"all-reduce", *(("all-gather", "reduce-scatter") if gathers else ())}
    expected |= {"all-to-all"} if any(sync.op == EXCHANGE for sync in plan.syncs) else set()
    for row in rows:
        size = human_bytes(row.bytes)
        if global_view and row.batch and row.kind == "all-gather":
            along = f" along `{'` and `'.join(row.axes)}`" if row.axes else ""
            kept = "; `jax.lax.with_sharding_constraint` in your function keeps activations divided"
            yield (
                f"the compiler gathers the batch{along}: {human_bytes(row.batch)} on every device"
                + (kept if plan.mesh else "")
            )
        if global_view and row.rounds:
            yield (
                f"the compiler puts {row.rounds} {row.kind} into each round of a loop that ends by its "
                "values, so all devices wait for the slowest in each; in code for --backend shard_map, where "
                "it runs in that, each goes on by itself if its rows do not touch others"
            )
        elif not global_view and row.kind not in expected:
            yield f"the compiled code has {row.count} {row.kind} ({size}) that the plan has not"


#: The share of a result from which on rounding hides a difference that is worth a note.
COARSE = 0.005


def adequacy(answer: protocol.Checks, root: Path) -> Iterator[str]:
    """What the inputs given could not show, and what no inputs of the proof did."""
    shown = answer.adequacy
    if shown.weak and shown.sets > 0:
        yield (
            f"the inputs given tell little by themselves ({'; '.join(shown.weak)}): the proof also ran "
            f"on {shown.sets} sets made from them, with other numbers, masks and labels"
        )
    if shown.stuck:
        places = [shown_place(place, root) for place in shown.stuck]
        more = f" and {len(places) - MOST_PLACES} more" if len(places) > MOST_PLACES else ""
        yield (
            f"went one way only on all inputs of the proof: {', '.join(places[:MOST_PLACES])}{more}; what "
            "the other way gives is not shown"
        )
    if shown.nans:
        paths = [f"`{path}`" if path else "the result" for path in shown.nans]
        be, them = ("is", "it") if len(paths) == 1 else ("are", "them")
        yield (
            f"{first_few(paths)} {be} NaN on the given inputs, on one device as on several: of {them} the "
            "run shows no more"
        )
    bound = max((check.tolerance for check in answer.checks), default=0.0)
    if shown.narrow and bound >= COARSE:
        yield (
            f"floats of 16 bits or less inside: results that differ by less than {bound:.0%} of their size "
            "cannot be told from rounding"
        )
    if shown.half:
        yield (
            "float16 ends at 65504: what is larger may become infinite on one device and not on several, or "
            "the reverse, as gradients of a mean over fewer rows are larger"
        )


def shown_place(place: str, root: Path) -> str:
    """``file:line`` relative to `root`, where the file is below it."""
    path, _, line = place.rpartition(":")
    try:
        path = Path(path).relative_to(root).as_posix()
    except ValueError:
        path = Path(path).name
    return f"{path}:{line}"
