"""What to say of emitted code that a run shows wrong, and of a run that there cannot be."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from jax_pmap.model import Derivation, Plan, Refusal, Span
from jax_pmap.problems import error_details, error_line
from jax_pmap.proof.causes import likeliest_cause
from jax_pmap.reading.target import Target
from jax_pmap.worker import protocol

#: The way out where a batch that is cut to fit the devices is another thing to the function.
ROUND_BATCH = "Give example inputs with a batch of 24, or another multiple of 2, 3, 4 and 8"
#: What jax speaks of where code that has a mesh of its own is called under another that is set.
OTHER_MESH = "context mesh"


def failure(
    check: protocol.Check,
    found: protocol.Failure,
    span: Span,
    statics: Mapping[str, str] = MappingProxyType({}),
) -> Refusal:
    """What a failed check says to the user.

    `statics` are values of static arguments, as source, that are others than those of the example inputs.
    """
    devices = check.devices
    output = f"output `{found.path}`" if found.path else "the output"
    step = f", call {found.step + 1}" if found.step else ""
    where = f"on {devices} devices{step}"
    if check.resized:
        where += f" with a batch of {check.batch}"
    constants = ", ".join(f"{name}={value}" for name, value in statics.items())
    if constants:
        where += f" with `{constants}`"
    hint = (
        "Look for an argument whose role is another than the plan's (--shard NAME, --replicate NAME), and "
        "for a result that depends on the order of the batch, on time or on a global variable; or try "
        "--backend jit. If it is none of these, please report it with the function"
    )
    if check.resized:
        hint = (
            "Look for a number of rows in the code that so large a batch goes beyond (`x[:100]`), and cut "
            f"the batch ahead of the call. If there is none: {hint[0].lower()}{hint[1:]}"
        )
    if constants:
        hint = (
            f"The function asks about `{constants}`, which the example inputs do not have. Give inputs with "
            "that value, for code that is planned from it; or try --backend jit. If it is neither, please "
            "report it with the function"
        )
    details: tuple[str, ...] = ()
    if found.error is not None:
        reason = f"the emitted code fails {where}: {error_line(found.error)}"
        details = error_details(found.error)
        hint = way_out(found.error) or hint
    elif found.what == "replicas":
        reason = f"{output} is planned as replicated, but {where} {found.why}"
    elif found.what == "deleted":
        reason = f"the emitted code deletes the caller's `{found.argument}`, which is not donated, {where}"
        hint = "Take --donate out, or donate other arguments; please report it with the function"
    elif found.what in ("draws", "keys"):
        reason = f"the emitted code uses its random keys wrongly {where}: {found.why}"
        if found.what == "keys":
            hint = "Draw each set of numbers with a key of its own: `rows, shared = jax.random.split(key)`"
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


def way_out(error: protocol.Raised) -> str:
    """What to do of an exception that emitted code raises and the original does not; "" where unknown."""
    if error.type == "NotImplementedError":
        return ROUND_BATCH
    if OTHER_MESH in error.message:
        return (
            "The program sets a mesh for all that follows, or a package that it imports does "
            "(`jax.set_mesh`), and code for several devices runs under none but its own. Set it only around "
            "what needs it, `with jax.set_mesh(mesh):`, or turn it off by an option of the package"
        )
    if "sharding_constraint inside jit" in error.message:
        return (
            "`jax.lax.with_sharding_constraint` says on which devices of a mesh of its own a value lies, and "
            "the code runs on others. Leave it out of the function for one device, where it changes no number"
        )
    names = [name for _, _, name in error.frames]
    if "shard" in names[:-1]:
        return (
            "An argument is an object of a class that looks at the shapes of its arrays, and pmap wants them "
            "with an axis of devices in front. Try --backend shard_map, which takes them as they are"
        )
    return ""


def reached_by_some(refusal: Refusal, code: str) -> Refusal:
    """What to say where a run reaches code that the inputs which it was derived for do not."""
    return dataclasses.replace(
        refusal,
        reason=f"{code} is reached by the batch of a run, and not by the larger ones that the code is "
        "derived for: the function chooses by the size of the batch",
        hint="Give inputs with as many rows as it is to work with (--inputs), or take that choice out of it",
        details=(),
    )


def disagreeing(refusal: Refusal) -> Refusal:
    """What to say where the code is derived equal, and a run gives something else."""
    return dataclasses.replace(
        refusal,
        reason=f"{refusal.reason}. It was derived equal for all inputs, so one of the two witnesses is "
        "wrong: rounding, overflow and NaN are not derived, and anything else is a bug of jax-pmap",
        hint="Look whether the numbers leave their range; if they do not, please report it with the function",
    )


def otherwise(refusal: Refusal) -> Refusal:
    """What to say where the code is derived equal, and a run with another number of rows is not."""
    return dataclasses.replace(
        refusal,
        reason=f"{refusal.reason}. With as many rows as are given it was derived equal; with so many it "
        "works in another way",
    )


def couples_parts(derivation: Derivation, plan: Plan, span: Span) -> Refusal:
    """What to say of code that goes on with parts of what is divided, where that is not derived."""
    at = f" at `{derivation.primitive}`" if derivation.primitive else ""
    return Refusal(
        "JP046",
        "in shard_map code each device goes on with its own part of what is divided as soon as the gradients "
        f"are scattered, and that this gives the same is not derived{at}: {derivation.reason}",
        "Use --backend jit, where the compiler works out what else devices have to send each other, for the "
        "norm of all gradients say",
        derivation.span or span,
        tuple(note for note in plan.notes if note.startswith("along `")),
    )


def uneven(
    check: protocol.Check,
    found: protocol.Failure,
    target: Target,
    remainder: str,
    derivation: Derivation | None = None,
    statics: Mapping[str, str] = MappingProxyType({}),
) -> Refusal:
    """What to say of a batch that does not divide and gives another result than the original.

    Where the `derivation` ended is the place at which added rows count.
    """
    said = failure(check, found, target.facts.span, statics)
    return Refusal(
        "JP060",
        f"with --remainder {remainder} and a batch of {check.batch} "
        f"{'the added rows count: ' if remainder == 'pad' else ''}{said.reason}",
        "Multiply by the mask or weights before every sum over the batch and divide by their sum, not by the "
        "number of rows; or --remainder drop"
        if remainder == "pad"
        else "Leave --remainder out",
        (derivation.span if derivation is not None else None) or said.span,
        said.details,
    )


def apart_by_size(sizes: Sequence[int], target: Target) -> Refusal:
    """What to say of added rows where the function is not the same for batches of two sizes."""
    return Refusal(
        "JP060",
        f"`{target.facts.name}` computes something else for a batch of {sizes[0]:,} than for one of "
        f"{sizes[1]:,}: rows that are added to an uneven batch may make it the other function",
        "Hand in what depends on the number of rows as an argument; or --remainder drop",
        target.facts.span,
    )


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
        ROUND_BATCH
        if batch % 24
        else f"Give example inputs with a larger batch: of {batch} rows a share has too few, or a number "
        f"that `{target.facts.name}` does not take",
        target.facts.span,
        error_details(error),
    )
