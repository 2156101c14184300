"""Have the worker run the emitted file beside the reference; turn what it measured into a verdict."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from jax_pmap.emit.axes import used_axes
from jax_pmap.emit.bound import emitted_name
from jax_pmap.model import (
    GATHERED,
    Check,
    Collective,
    Derivation,
    Evidence,
    Plan,
    Refusal,
    RefusalError,
    Role,
    Say,
    Span,
    refused,
)
from jax_pmap.planning.search import Observed
from jax_pmap.problems import error_details, error_line
from jax_pmap.proof.budget import ROOM, TIME
from jax_pmap.proof.causes import likeliest_cause
from jax_pmap.proof.ended import NO_RUN, UNTYPED, in_source, neither, untyped, why_not_run
from jax_pmap.reading.target import Target
from jax_pmap.session import Session
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
#: Chained calls: what a first step gets wrong in the state, a second one shows.
STEPS = 3
#: Outputs that a note lists.
SHOWN = 2
#: Places that a note names.
MOST_PLACES = 4
#: The way out where a batch that is cut to fit the devices is another thing to the function.
ROUND_BATCH = "Give example inputs with a batch of 24, or another multiple of 2, 3, 4 and 8"


class InMultiples(Exception):
    """The code is equal where each device has a multiple of some number of rows, and is to check that."""

    def __init__(self, multiple: int) -> None:
        super().__init__(multiple)
        self.multiple = multiple


def prove(
    session: Session,
    target: Target,
    plan: Plan,
    observed: Observed,
    code: str,
    say: Say,
    global_view: bool = False,
    remainder: str = "error",
    in_place: protocol.InPlace | None = None,
    counts: Sequence[int] = COUNTS,
    run_code: bool = True,
    derived: bool = False,
) -> Evidence:
    """Run the emitted `code` beside the reference on every device count the batch allows.

    Code that chooses its own devices is run on just those. Code in the `global_view` of jit draws the very
    numbers of one device and is compared as it is; other code is compared for equal draws. Unless `remainder`
    is ``"error"``, batches that the devices do not share evenly are run as well.

    Without `run_code` it is derived equal alone. What is `derived` by now needs a run as second witness.

    Of an edit `in_place`, `code` is what is new in the file; of an edited program, the function that it has
    is run in place of `code`.

    Raises:
        RefusalError: JP045, with the output, the device count, the error and the likeliest cause; JP041
            where the original takes the batch of too few device counts; JP060 where an uneven batch
            gives another result; JP061 where it is neither derived nor run.
        InMultiples: it is equal where shares are multiples of more than ``plan.multiple_of``.
    """
    batch, chosen = batch_size(plan), plan.devices.number
    counts = [count for count in counts if count <= batch] if chosen is None else [chosen]
    if plan.made and chosen is None:
        counts = [count for count in counts if plan.made % count == 0]
    if plan.mesh:
        counts = [math.prod(axis.size for axis in plan.mesh)]
    steps = STEPS if plan.chain else 2
    name = emitted_name(target) if in_place is None else target.facts.name
    checks: list[Check] = []
    notes: dict[str, None] = {}
    run: list[protocol.Check] = []
    folded = ran_uneven = copies = False
    compiled: tuple[Collective, ...] | None = None
    memory: protocol.Memory | None = None
    derivation: Derivation | None = None
    for variant in observed.variants:
        emitted = emitted_of(target, plan, code, in_place)
        comparison = comparison_of(plan, observed, variant, global_view)
        complete, told, affordable = derived, None, None
        if chosen is None and not derived:
            say("deriving: the placement of every value")
            room, seconds = int(ROOM * session.memory), TIME * session.timeout
            asked = protocol.Derive(comparison, emitted, plan.multiple_of, room, seconds)
            told = session.ask(asked, "deriving")
            if told.asked > plan.multiple_of and any(used_axes(each.axes) for each in plan.arguments):
                raise InMultiples(told.asked)
            found = read_derivation(told, target.source.root, plan.multiple_of)
            devices = counts[0] if plan.mesh else 0
            found = dataclasses.replace(found, devices=devices, rows_inside=plan.made)
            found = in_source(found, f"{name}_parallel.py", code, target)
            complete, affordable = found.complete, told.run
            derivation = found if derivation is None or derivation.complete else derivation
            if complete and not plan.mesh and all(count % 2 == 0 for count in told.counts):
                notes[ON_EVEN.format(" and ".join(map(str, told.counts)))] = None
            why = why_not_run(told) if run_code else NO_RUN
            if told.unshown:
                why = f"a run has no batch of {told.unshown[0]:,}"
            if why and not complete:
                raise RefusalError(neither(found, why, target))
        rows: int | None = None
        used = tuple(counts)
        if (chosen is not None or derived or not complete) and plan.multiple_of > 1:
            unit = max(counts) * plan.multiple_of
            rows = batch // unit * unit
            used = used if rows else ()
        if complete and not run_code:
            used = ()
        elif affordable is not None and complete:
            used, rows = affordable.counts, affordable.rows
            notes |= {affordable.why if used else f"{LEFT_OUT}: {affordable.why}": None}
        if not used:
            folded |= told is not None and told.draws
            continue
        estimate = affordable.seconds if affordable is not None and complete else 0.0
        say(f"running: on {', '.join(map(str, used))} devices" + about(estimate))
        try:
            comparison = dataclasses.replace(
                comparison,
                steps=2 if complete else steps,
                derived=complete,
                # A run that was cut to fit has no room for more inputs.
                others=affordable is None or not affordable.why,
                rows=rows,
            )
            while True:
                run_on = protocol.Prove(comparison, emitted, used, chosen is not None, remainder)
                answer = session.ask(run_on, "proving")
                failing = min((each.devices for each in answer.skipped), default=0)
                fewer = tuple(count for count in COUNTS if count < failing)
                if answer.checks or told is None or not complete or len(fewer) < 2:
                    break
                used = fewer  # Larger shares may suit the function.
        except RefusalError as error:
            if not complete or error.refusal.code not in LIMITS:
                raise
            # What it needs was estimated, and the estimate was too low.
            notes[f"{LEFT_OUT} to its end: {error.refusal.reason}"] = None
            break
        if not complete and all(check.precision != "float64" for check in answer.checks):
            notes[IN_ITS_DTYPES.format(target.facts.name)] = None
        folded |= answer.equal_draws
        if not answer.checks and not complete:
            raise RefusalError(too_few(answer.skipped, batch, target))
        notes |= dict.fromkeys(map(not_tried, answer.skipped))
        if complete:
            # What given inputs do not tell, the derivation does.
            shown = dataclasses.replace(answer.adequacy, weak=(), stuck=())
            answer = dataclasses.replace(answer, adequacy=shown)
        notes |= dict.fromkeys(adequacy(answer, target.source.root)) if answer.checks else {}
        notes |= dict.fromkeys(answer.notes)
        for check in answer.checks:
            if check.failure is not None and check.uneven:
                raise RefusalError(uneven(check, check.failure, target, remainder))
            if check.failure is not None:
                raised = check.failure.error
                if raised is not None and raised.type == UNTYPED:
                    raise untyped(raised, f"{name}_parallel.py", code, target, session.directory)
                refusal = failure(check, check.failure, target.facts.span)
                raise RefusalError(disagreeing(refusal) if complete else refusal)
            ran_uneven |= check.uneven
            copies |= check.replicas
            if check.collectives is not None:
                compiled = read_collectives(check.collectives)
                memory = check.memory
                notes |= dict.fromkeys(unplanned(check.collectives, plan, global_view))
            run.append(check)
            checks.append(check_of(check))
    if remainder != "error" and not checks:
        raise refused(
            "JP061",
            f"what --remainder {remainder} makes of uneven batches of `{target.facts.name}` is shown by "
            "running them, which takes more memory or time than there is, or arrays in place of shapes",
            "Leave --remainder out, or give smaller example inputs, as arrays",
            target.facts.span,
        )
    if remainder != "error" and not ran_uneven:
        raise refused(
            "JP060",
            f"`{target.facts.name}` takes no batch size that the devices do not share evenly, so --remainder "
            f"{remainder} cannot be proved",
            "Leave --remainder out, or give example inputs with a larger batch",
            target.facts.span,
        )
    notes.pop("", None)
    notes |= dict.fromkeys(rounding_alone(run, target) if run else ())
    if remainder == "drop":
        notes["of an uneven batch only the first rows are used, as many as the devices share evenly"] = None
    return Evidence(
        checks=tuple(checks),
        jax_version=session.versions.jax,
        python_version=session.versions.python,
        replicas_identical=copies,
        notes=tuple(notes),
        equal_draws=folded,
        collectives=compiled,
        memory=memory,
        derivation=derivation,
    )


def comparison_of(
    plan: Plan, observed: Observed, variant: Mapping[str, str], global_view: bool
) -> protocol.Comparison:
    """What every request of a proof says of the reference."""
    return protocol.Comparison(
        observed.roles.request(),
        chain=tuple((argument, steps_into(where)) for argument, where in plan.chain),
        steps=2,
        overrides=variant,
        global_view=global_view,
        donated=tuple(argument.name for argument in plan.arguments if argument.donated),
    )


def emitted_of(
    target: Target, plan: Plan, code: str, in_place: protocol.InPlace | None = None
) -> protocol.Emitted:
    """What every request of a proof says of the emitted `code`."""
    name = emitted_name(target) if in_place is None else target.facts.name
    return protocol.Emitted(
        code,
        name,
        name + "_parallel",
        str(target.source.path.with_name(f"{name}_parallel.py")),
        plan.axis_name,
        replicated_leaves(plan),
        mesh_of(plan),
        in_place,
    )


def read_derivation(answer: protocol.Derivation, root: Path, multiple: int = 1) -> Derivation:
    """What the worker derived, for code that takes a `multiple` of rows on a device.

    Where it ended, at the first of the outputs that was not reached.
    """
    if answer.complete:
        needed = [span_of(each.places, root) for each in answer.conditions]
        return Derivation(
            answer.operations,
            True,
            measured=answer.measured,
            multiple=multiple,
            multiple_for=tuple(dict.fromkeys(span for span in needed if span is not None)),
        )
    first = answer.endings[0]
    span = span_of(first.places, root)
    return Derivation(answer.operations, False, first.why, first.primitive, span, first.terms)


def span_of(places: Sequence[protocol.Place], root: Path) -> Span | None:
    """The innermost of some expressions, of the user's own if one is; None where none is known."""
    own = [place for place in places if Path(place.file).is_relative_to(root)] or places
    if not own:
        return None
    place, path = own[0], Path(own[0].file)
    file = path.relative_to(root).as_posix() if path.is_relative_to(root) else place.file
    return Span(file, place.line, place.column, place.end_line, place.end_column)


def disagreeing(refusal: Refusal) -> Refusal:
    """What to say where the code is derived equal, and a run gives something else."""
    return dataclasses.replace(
        refusal,
        reason=f"{refusal.reason}. It was derived equal for all inputs, so one of the two witnesses is "
        "wrong: rounding, overflow and NaN are not derived, and anything else is a bug of jax-pmap",
        hint="Look whether the numbers leave their range; if they do not, please report it with the function",
    )


def check_of(answer: protocol.Check) -> Check:
    """A check that went well, as evidence."""
    return Check(
        devices=answer.devices,
        precision="float64" if answer.precision == "float64" else "as given",
        batch=answer.batch,
        steps=answer.steps,
        error=answer.error,
        tolerance=answer.tolerance,
    )


def about(seconds: float) -> str:
    """An estimate as the end of a note; ``""`` where there is none worth telling."""
    return f", about {seconds:.0f} s" if seconds >= 1 else ""


def uneven(check: protocol.Check, found: protocol.Failure, target: Target, remainder: str) -> Refusal:
    """What to say of a batch that does not divide and gives another result than the original."""
    said = failure(check, found, target.facts.span)
    return Refusal(
        "JP060",
        f"with --remainder {remainder} and a batch of {check.batch} "
        f"{'the added rows count: ' if remainder == 'pad' else ''}{said.reason}",
        "Multiply by the mask or weights before every sum over the batch and divide by their sum, not by the "
        "number of rows; or --remainder drop"
        if remainder == "pad"
        else "Leave --remainder out",
        said.span,
        said.details,
    )


def replicated_leaves(plan: Plan) -> tuple[int, ...]:
    """Leaves of the result and of what is changed in place that must be the same on every device."""
    if plan.mesh:
        return ()  # Where each lies on the mesh is compared, and so are copies among those.
    found = [i for i, leaf in enumerate(plan.outputs) if leaf.role is Role.REPLICATED]
    changed = sum(len(argument.leaves) for argument in plan.arguments if argument.name in plan.mutated)
    return (*found, *range(len(plan.outputs), len(plan.outputs) + changed))


def mesh_of(plan: Plan) -> protocol.Mesh | None:
    """The mesh, among how many devices it divides the batch, and where each leaf of the result lies on it.

    Behind the result come leaves of arguments that are changed in place. None stands for what is no array.
    """
    if not plan.mesh:
        return None
    changed = [argument for argument in plan.arguments if argument.name in plan.mutated]
    leaves = [*plan.outputs, *(leaf for argument in changed for leaf in argument.leaves)]
    return protocol.Mesh(
        {axis.name: axis.size for axis in plan.mesh},
        plan.shares or 0,
        tuple(None if leaf.role is Role.STATIC else leaf.spec for leaf in leaves),
    )


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
    some = ", ".join(f"`{path}`" for path in paths[:SHOWN])
    more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    yield (
        f"nothing to compare in output {some}{more}: rounding alone, on one device too, as where a gradient "
        "cancels to zero"
    )


def read_collectives(rows: Sequence[protocol.Collective]) -> tuple[Collective, ...]:
    """What the worker read in a compiled program."""
    return tuple(Collective(row.kind, row.count, row.bytes, row.axes, row.rounds) for row in rows)


def unplanned(rows: Sequence[protocol.Collective], plan: Plan, global_view: bool) -> Iterator[str]:
    """Communication in the compiled program that the plan does not ask for.

    The bytes are not compared: XLA joins collectives, drops those nothing depends on and keeps one of equal
    ones, and a planned one stands there as often as the function around it is called.
    """
    gathers = any(sync.op in ("all_gather", GATHERED) for sync in plan.syncs)
    # The gradient of a gather sums and scatters.
    expected = {"all-reduce", *(("all-gather", "reduce-scatter") if gathers else ())}
    for row in rows:
        size = f"{row.bytes} bytes"
        if global_view and row.batch and row.kind == "all-gather":
            along = f" along `{'` and `'.join(row.axes)}`" if row.axes else ""
            yield f"the compiler gathers the batch{along}: {row.batch} bytes on every device"
        if global_view and row.rounds:
            yield (
                f"the compiler puts {row.rounds} {row.kind} into each round of a loop that ends by its "
                "values, so all devices wait for the slowest in each; in code for --backend shard_map each "
                "goes on by itself, where its rows do not touch others"
            )
        elif not global_view and row.kind not in expected:
            yield f"the compiled code has {row.count} {row.kind} ({size}) that the plan has not"


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
    if shown.narrow and answer.checks:
        bound = max(check.tolerance for check in answer.checks)
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


def too_few(skipped: Sequence[protocol.Skipped], batch: int, target: Target) -> Refusal:
    """What to say of a function that takes only some sizes of the batch, and too few to compare."""
    error = skipped[0].error
    sizes = ", ".join(str(size) for size in sorted({each.batch for each in skipped}))
    fails = "goes another way" if skipped[0].emitted else "fails"
    return Refusal(
        "JP041",
        f"`{target.facts.name}` takes a batch of {batch}, but {fails} on {sizes}, cut for "
        f"{' and '.join(str(each.devices) for each in skipped)} devices: "
        f"{error_line(error)}",
        ROUND_BATCH,
        target.facts.span,
        error_details(error),
    )


def batch_size(plan: Plan) -> int:
    """Size of the batch axis in the plan's inputs."""
    for argument in plan.arguments:
        for leaf in argument.leaves:
            if leaf.axis is not None:
                return leaf.shape[leaf.axis]
    return plan.made


def steps_into(path: str) -> tuple[int | str, ...]:
    """``"[0]['w']"`` as the steps ``(0, "w")``."""
    steps: list[int | str] = []
    for part in path.replace("]", "").split("[")[1:]:
        steps.append(int(part) if part.isdigit() else part.strip("'\""))
    return tuple(steps)


def failure(check: protocol.Check, found: protocol.Failure, span: Span) -> Refusal:
    """What a failed check says to the user."""
    devices = check.devices
    output = f"output `{found.path}`" if found.path else "the output"
    step = f", call {found.step + 1}" if found.step else ""
    where = f"on {devices} devices{step}"
    if check.resized:
        where += f" with a batch of {check.batch}"
    hint = (
        "Look for an argument whose role is another than the plan's (--shard NAME, --replicate NAME), and "
        "for a result that depends on the order of the batch, on time or on a global variable; or try "
        "--backend jit. If it is none of these, please report it with the function"
    )
    details: tuple[str, ...] = ()
    if found.error is not None:
        reason = f"the emitted code fails {where}: {error_line(found.error)}"
        details = error_details(found.error)
        if found.error.type == "NotImplementedError":
            hint = ROUND_BATCH
    elif found.what == "replicas":
        reason = f"{output} is planned as replicated, but {where} {found.why}"
    elif found.what == "deleted":
        reason = f"the emitted code deletes the caller's `{found.argument}`, which is not donated, {where}"
        hint = "Take --donate out, or donate other arguments; please report it with the function"
    elif found.what in ("draws", "keys"):
        reason = f"the emitted code uses its random keys wrongly {where}: {found.why}"
    elif found.what == "mesh":
        reason = f"{output} does not lie on the mesh as planned {where}: {found.why}"
    elif found.what == "shares":
        reason = f"{output} is planned as split over the devices, but {where} {found.why}"
    elif found.what == "value":
        reason = f"{output} differs {where}: error {found.off:.1e} of its size, bound {found.tolerance:.1e}"
        cause = likeliest_cause(found, check.precision, devices)
        if cause:
            reason += f". Likeliest cause: {cause}"
        details = (f"emitted:   {found.got}", f"reference: {found.want}")
    else:
        reason = f"{output} has another {found.what} {where}: {found.got}, the original's is {found.want}"
    return Refusal("JP045", reason, hint, span, details)
