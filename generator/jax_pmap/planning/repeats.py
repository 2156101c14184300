"""Functions that return another result each time: what is refused of them has that reason, and no other."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from jax_pmap.model import Refusal, RefusalError, Span
from jax_pmap.planning.coupling import COUPLED
from jax_pmap.reading.target import Target
from jax_pmap.session import Session
from jax_pmap.worker import protocol
from jax_pmap.worker.protocol import Problem

#: Refusals that may come of comparing a function with another run of itself.
BY_COMPARING = COUPLED | {"JP040", "JP045", "JP053", "JP055", "JP062"}
#: What tells of the devices there are.
DEVICES = ("jax.device_count", "jax.local_device_count", "jax.devices", "jax.local_devices")
#: What changes by itself, by the first parts of its qualified name.
CHANGES = ("time", "datetime", "random", "numpy.random", "os.urandom", "uuid", "secrets")


def or_changing(session: Session, target: Target, refusal: Refusal, statics: Sequence[str]) -> Refusal:
    """`refusal`, or what is wrong with the function on one device, which no comparison can do without.

    That is a map over devices inside it (JP055), or another result each time it is traced, or on another
    number of devices (JP049).
    """
    if refusal.code not in BY_COMPARING:
        return refusal
    try:
        found = session.ask(protocol.Repeats(tuple(statics)), "tracing the function twice")
        if found == "same":
            changed = session.ask(protocol.FindChanged(tuple(statics)), "tracing the function twice")
            return _changes_object(target, changed) if changed else refusal
    except (Problem, RefusalError):
        return refusal
    if found == "mapped":
        return Refusal(
            "JP055",
            f"`{target.facts.name}` is parallel already: it calls a `pmap` or `shard_map`",
            "Name the function on one device that it was made from. Or prove it as it is: jax-pmap verify "
            f"{target.source.shown_path}::{target.source.qualname} --against FILE::FUNC",
            target.facts.span,
        )
    return _counts_devices(target) if found == "devices" else _changes(target)


def check_repeats(session: Session, target: Target, statics: Sequence[str]) -> None:
    """Refuse a function whose text calls what changes by itself, where that changes the result.

    Raises:
        RefusalError: JP049, at the call.
    """
    if _call_of(target, CHANGES) is None:
        return
    if session.ask(protocol.Repeats(tuple(statics)), "tracing the function twice") == "other":
        raise RefusalError(_changes(target))


def _counts_devices(target: Target) -> Refusal:
    """That the function is another one on each number of devices, and where it asks for that."""
    what, span = _blamed(target, DEVICES)
    return Refusal(
        "JP049",
        f"`{target.facts.name}` computes something else where jax has another number of devices, by {what}: "
        "there is no one result that all numbers of devices could give",
        "Pass what depends on it as an argument (a learning rate), or leave it out: the emitted code divides "
        "the work and combines the results by itself",
        span,
    )


def _changes_object(target: Target, changed: str) -> Refusal:
    """That each call changes an object that the function is given."""
    return Refusal(
        "JP049",
        f"each call of `{target.facts.name}` changes `{changed}`; compiled, it does so once, while traced",
        "Return the new value, and have the caller keep it",
        target.facts.span,
    )


def _changes(target: Target) -> Refusal:
    """That the function returns another result each time it is traced, and by what."""
    what, span = _blamed(target, CHANGES)
    return Refusal(
        "JP049",
        f"`{target.facts.name}` returns another result each time it is traced, by {what}, so no two runs "
        "can be compared; compiled, it keeps the result of the first",
        "Pass what changes as an argument: a time, a number drawn outside, or a jax.random key",
        span,
    )


def _blamed(target: Target, names: Sequence[str]) -> tuple[str, Span]:
    """What a message says is called of these names, and where."""
    call = _call_of(target, names)
    if call is None:
        return "something it calls", target.facts.span
    return f"`{target.parsed.segment(call)}`", target.parsed.span(call)


def _call_of(target: Target, names: Sequence[str]) -> ast.Call | None:
    """The first call in the target of what has one of these names, or stands below it."""
    for node in ast.walk(target.parsed.definition):
        if isinstance(node, ast.Call):
            name = target.parsed.qualname(node.func) or ""
            if any(name == each or name.startswith(f"{each}.") for each in names):
                return node
    return None
