"""The function as the user calls it, held against the traced one that is planned and proved."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax_pmap.emit.constants import is_compiled
from jax_pmap.model import RefusalError, Request, Span, refused
from jax_pmap.planning.repeats import or_changing
from jax_pmap.planning.roles import RoleFinder
from jax_pmap.problems import first_line, shown_file
from jax_pmap.reading.target import Target
from jax_pmap.session import ROOM, TIME, Session
from jax_pmap.units import first_few
from jax_pmap.worker import protocol
from jax_pmap.worker.protocol import ASKS_FOR_TYPES, NOT_TAKEN, CallComparison, unless
from jax_pmap.worker.scopes import names_in

NUMBERS = frozenset({"bool", "int", "float", "complex"})
#: The largest integer of 32 bits.
MOST = (1 << 31) - 1
#: Why an argument is static that tells a number of Python from an array.
TOLD = "the function tells Python numbers from arrays by it"
COUNTED = "Python computes with it, in 64 bits"
#: The way out for a function whose caller compiles it where that is not seen.
COMPILED = "if you only call it compiled, put `@jax.jit` on it"


@dataclass(frozen=True, slots=True)
class AsCalled:
    """What the call shows beside the trace."""

    notes: tuple[str, ...] = ()
    #: Whether arguments became static for it.
    changed: bool = False
    #: Leaves that the call computes with in NumPy, and how large their integers of 64 bits may be.
    fitting: Mapping[str, int] = dataclasses.field(default_factory=dict)


def as_called(
    session: Session, target: Target, finder: RoleFinder, request: Request, whole: protocol.Traced
) -> AsCalled:
    """Follow the function with the arguments as they are given, and hold it against its trace.

    Numbers of Python become static where it takes that to keep what the function means.

    Raises:
        RefusalError: JP062, with the line or the argument by which tracing changes the meaning; JP049 where
            the function changes by itself.
    """
    # Code that synchronises only where an axis is bound is called without one.
    if is_compiled(target) or any(axis.error.type for axis in whole.axes):
        return AsCalled()

    # Decorators that hand on what they are given are no part of the emitted code.
    left_out = tuple(
        decorator.text.partition("(")[0] for decorator in target.facts.decorators if decorator.passes_on
    )

    data = finder.likely_data()

    def ask(statics: tuple[str, ...]) -> CallComparison:
        asked = protocol.CompareWithCall(
            statics,
            left_out,
            data,
            specified=request.inputs is None and request.run is None,
            room=int(ROOM * session.memory),
            seconds=TIME * session.timeout,
        )
        return session.ask(asked, "following the function as it is called")

    answer = ask(finder.statics)
    numbers = [
        name
        for name, argument in finder.described.items()
        if name not in finder.statics
        and argument["leaves"]
        and all(leaf["category"] in NUMBERS for leaf in argument["leaves"])
        and argument["hashable"]
    ]
    changed = False
    if numbers and differs(answer, numbers):
        kept = (*finder.statics, *numbers)
        after = unless(NOT_TAKEN, ask, kept)
        if after is not None and not differs(after, ()):
            why = TOLD if answer.parted else COUNTED
            for name in numbers:
                fewer = tuple(each for each in kept if each != name)
                if name in answer.told:
                    continue
                without = unless(NOT_TAKEN, ask, fewer)
                if without is not None and not differs(without, ()):
                    kept, after = fewer, without
            for name in kept:
                if name not in finder.statics:
                    finder.why[name] = why
            if answer.parted or asks_for_types(target):
                finder.typed = tuple(name for name in kept if name in numbers)
            finder.statics = tuple(name for name in finder.described if name in kept)
            answer, changed = after, True
    try:
        refuse(answer, target, session.directory)
    except RefusalError as error:
        if answer.later or answer.changed:
            raise  # It names what changes, and where.
        raise RefusalError(or_changing(session, target, error.refusal, finder.statics)) from None
    return AsCalled(tuple(said(answer, target)), changed, fitting(answer))


def asks_for_types(target: Target) -> bool:
    """Whether code in the target's file asks for types: then 2 is another number than 2.0."""
    return not ASKS_FOR_TYPES.isdisjoint(names_in(target.parsed.tree))


def differs(answer: CallComparison, numbers: Any) -> bool:
    """Whether the call and the trace differ, or the type of one of these `numbers` is asked for."""
    return bool(answer.parted or answer.changed or answer.apart or {*answer.told} & {*numbers})


def fitting(answer: CallComparison) -> dict[str, int]:
    """How large integers of 64 bits may be, by leaf that NumPy computes with."""
    rows = {row: row.up_to for row in answer.wide if row.up_to is not None}
    # jax itself takes no Python number that 32 bits do not hold.
    return {row.name: up_to for row, up_to in rows.items() if (row.dtype, up_to) != ("int", MOST)}


def refuse(answer: CallComparison, target: Target, directory: Path) -> None:
    """Refuse a function that tracing makes another one.

    Raises:
        RefusalError: JP062.
    """
    facts = target.facts
    if answer.parted:
        place = answer.parted
        span = Span(shown_file(place.file, directory), place.line)
        raise refused(
            "JP062",
            f"`{facts.name}` is another function when it is traced, as on several devices: line "
            f"{place.line} {place.what}",
            "Do outside what depends on the type (`jnp.asarray(x)` before the call), or ask for `x.dtype`, "
            f"`x.shape` and the like, which tracing keeps; a number that chooses: --static NAME; {COMPILED}",
            span,
        )
    if answer.later:
        place, by = answer.later.read, answer.later.change
        where, line = Span(shown_file(place.file, directory), place.line), f"line {by.line}"
        if by.file != place.file:
            line += f" of {shown_file(by.file, directory)}"
        raise refused(
            "JP062",
            f"each call of `{facts.name}` reads `{place.what}` anew, which {line} changes; traced, as on "
            "several devices, it keeps what that was at the first call",
            f"Pass it as an argument of `{facts.name}`, and return it where it changes there; {COMPILED}",
            where,
        )
    if answer.changed:
        raise refused(
            "JP062",
            f"a call of `{facts.name}` changes the NumPy array `{answer.changed[0]}` of its caller in "
            "place; traced, as on several devices, it changes nothing",
            f"Make a new array in the body (`x = x + 1` for `x += 1`); {COMPILED}",
            facts.span,
        )
    if answer.apart is None:
        return
    apart = answer.apart
    values = f"`result{apart.path}` is {apart.want} when it is called, and {apart.got}"
    if answer.reordered:
        raise refused(
            "JP062",
            f"`{facts.name}` goes through a dict in the order in which its keys were put in; traced, as on "
            f"several devices, it gets dicts with sorted keys: {values} when traced",
            f"Take the parts by their names, or sort them: `for name in sorted(params)`; {COMPILED}",
            facts.span,
        )
    if answer.narrowed:
        names = first_few([f"`{row.name}` ({row.dtype})" for row in answer.narrowed])
        lose = "loses" if len(answer.narrowed) == 1 else "lose"
        raise refused(
            "JP062",
            f"{names} {lose} digits where jax takes it in 32 bits, as on several devices: {values}",
            "Do that arithmetic before the call and pass what it gives, or let jax have 64 bits: "
            f'`jax.config.update("jax_enable_x64", True)`; {COMPILED}',
            facts.span,
        )
    raise refused(
        "JP062",
        f"`{facts.name}` computes in NumPy or Python what jax computes otherwise once it is traced, as on "
        f"several devices: {values} when traced",
        f"Use jnp in place of np on what the function is given; {COMPILED}",
        facts.span,
    )


def said(answer: CallComparison, target: Target) -> list[str]:
    """The notes on what the call showed."""
    name = target.facts.name
    if not answer.run:
        return [f"not held against an uncompiled call of `{name}`: {answer.why}"]
    notes = []
    if answer.failed:
        error = answer.failed
        notes.append(
            f"called uncompiled, `{name}` fails ({error.type}: {first_line(error.message)}); the proof "
            "is against the function as jax traces it"
        )
    wide = [row for row in answer.wide if row.dtype.endswith("64")]
    if wide:
        names = first_few([f"`{row.name}` ({row.dtype})" for row in wide])
        notes.append(
            f"called uncompiled, `{name}` computes with {names} in NumPy; the parallel one does in jax, "
            "which gave the same on these inputs"
        )
    return notes
