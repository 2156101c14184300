"""What a reader of the plan should know: what it holds for, what was assumed, what it may cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jax_pmap.emit.context import SITE, sites_in
from jax_pmap.inputs.load import Loaded
from jax_pmap.model import Argument, Backend, Leaf, Request, Role, moded
from jax_pmap.planning.benefit import HALF, depends_on_batch, is_gathered
from jax_pmap.planning.decide import Observation
from jax_pmap.planning.roles import LARGEST_COUNT, Roles
from jax_pmap.reading.target import Target
from jax_pmap.units import first_few


def plan_notes(
    target: Target,
    loaded: Loaded,
    request: Request,
    arguments: tuple[Argument, ...],
    observation: Observation,
    captured: Sequence[Leaf],
    donated: Sequence[str],
    layers: Sequence[str],
    switches: Sequence[str],
    roles: Roles,
    minibatches: int,
) -> Iterator[str]:
    """The notes of a plan, in the order in which they are shown."""
    facts = target.facts
    yield from loaded.notes
    for decorator in facts.decorators:
        if decorator.passes_on and not request.in_place:
            yield f"`@{decorator.text}` hands on what it is given and what comes back, and is left out"
    yield from _static_notes(arguments, observation, captured)
    yield from _limit_notes(facts.name, arguments)
    if sites := [*filter(None, sites_in(layers))]:
        yield (
            f"what numpyro has for each example ({first_few([f'`{each}`' for each in sites])}) counts on a "
            "device for the examples of all devices; the mean over them is that of the whole batch"
        )
    elif layers and SITE not in layers:
        yield (
            f"layers of {' and '.join(layers)} that name no axis "
            "of the devices take mean, variance and codebooks over all of them: those of the whole batch"
        )
    yield from _mode_notes(moded(arguments, switches), request.backend)
    if roles.rows:
        yield (
            f"what the function makes itself is divided where it is made, {roles.rows} rows or a multiple of "
            "them: numbers of devices that do not divide them are refused"
        )
    if (refusal := roles.passed_over) is not None:
        # What is in a row, its positions, is divided with more to send than rows are.
        yield (
            f"`{roles.made[0].value}` is divided along axis {roles.made[0].axis}, and devices send each "
            f"other what they have, since along another one {refusal.reason} ({refusal.code}). "
            f"{refusal.hint}"
        )
    if minibatches > 1:
        yield (
            f"the batch is cut into {minibatches} groups of rows, and each device gets its part of every one "
            "of them, so that no example has to be sent to another device"
        )
    if observation.share is not None and request.backend is not Backend.JIT:
        gathered = is_gathered(observation)
        # A library that sums over rows in the middle of a call is divided by a compiler alone.
        other = "; --backend auto looks whether the compiler finds less" if observation.share > HALF else ""
        yield (
            f"what is {'gathered' if gathered else 'made'} is worked on by every device: each of "
            f"{LARGEST_COUNT} does {observation.share:.0%} of the work of one{other if gathered else ''}"
        )
    for name, callee in facts.donated_elsewhere:
        if name not in donated:
            yield f"`{callee}` donates `{name}`, `{facts.name}` does not; --donate {name} would"
    for name in request.donate:
        if name not in facts.donated_parameters:
            yield f"`{name}` is donated: the arrays passed for it cannot be used again after the call"
    if not depends_on_batch(observation, target):
        yield (
            "the results are equal, but whether the devices share the work is up to the compiler: no result "
            "is split over them, and the function cannot be written with explicit collectives"
        )


def _limit_notes(function: str, arguments: tuple[Argument, ...]) -> Iterator[str]:
    """What the code refuses, as the original would compute with it outside of jax."""
    limits = []
    for argument in arguments:
        for path, up_to in argument.fits:
            limits.append(f"`{path}` above {up_to}")
    if limits:
        named = ", ".join(limits)
        yield f"the code refuses {named}: called uncompiled, `{function}` computes with that in NumPy"


def _below(name: str, captured: Sequence[Leaf]) -> list[str]:
    """Those of some constants that an argument holds, the first few of them."""
    paths = [f"`{leaf.path}`" for leaf in captured if leaf.path.startswith((f"{name}.", f"{name}["))]
    return [*paths[:3], "…"] if len(paths) > 3 else paths


def _static_notes(
    arguments: tuple[Argument, ...], observation: Observation, captured: Sequence[Leaf]
) -> Iterator[str]:
    """What was assumed of arguments that are no arrays, and of extremes."""
    for argument in arguments:
        if len(argument.proved_values) > 1 or (
            argument.proved_values and argument.proved_values != ("None",)
        ):
            allowed = " and ".join(argument.proved_values)
            yield (f"`{argument.name}` was tried with {allowed}; the emitted function takes no other value")
        elif argument.partition:
            constants = [
                leaf.path
                for leaf in argument.leaves
                if leaf.role is Role.STATIC and not leaf.value and not leaf.identity
            ]
            if not constants:
                continue
            some = first_few([f"`{path}`" for path in constants])
            yield (
                f"{some} {'is' if len(constants) == 1 else 'are'} no array and static: the proof holds for "
                "the value given; one that reduces differently may need other collectives"
            )
        elif argument.name in observation.free:
            yield (
                f"`{argument.name}` is static, and given nothing but what is the same on every device: "
                "another one needs no other collectives"
            )
        elif argument.static and any(leaf.identity for leaf in argument.leaves):
            leaf = argument.leaves[0]
            imported = leaf.imported.replace(":", ".")
            allowed = f"nothing but `{imported}`" if imported else f"no {leaf.dtype} of other contents"
            yield (
                f"`{argument.name}` is static; the emitted function takes {allowed}, and with --static "
                f"{argument.name} any"
            )
        elif argument.static and any(leaf.value for leaf in argument.leaves):
            read = ", ".join(f"{leaf.path} = {leaf.value}" for leaf in argument.leaves)
            yield (
                f"`{argument.name}` is static and was tried with {read}; the emitted function takes no other "
                f"values of {'this' if len(argument.leaves) == 1 else 'these'}, and with --static "
                f"{argument.name} any"
            )
        elif argument.static and (paths := _below(argument.name, captured)):
            others = " or ".join(paths)
            yield f"`{argument.name}` is static: the emitted function takes none with another {others}"
        elif argument.static:
            yield (
                f"`{argument.name}` is static: the proof holds for the value it had; one that reduces "
                "differently may need other collectives"
            )
    # One byte is a truth value, and no NaN.
    extremes = dict.fromkeys(s.op for s in observation.syncs if s.op in ("pmax", "pmin") and s.bytes > 1)
    if extremes:
        ops = " and ".join(f"jax.lax.{op}" for op in extremes)
        yield f"{ops} may drop a NaN that jnp.max and jnp.min would return; the proof has none in it"


def _mode_notes(arguments: Sequence[Argument], backend: Backend) -> Iterator[str]:
    """What the plan does not hold for: a model in training has random numbers and statistics of its own."""
    for argument in arguments:
        if backend is not Backend.JIT:
            yield (
                f"`{argument.name}` had {', '.join(argument.modes)}; in another mode, where draws and "
                "statistics may need other collectives, the emitted function raises"
            )
