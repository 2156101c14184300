"""Choose among the forms of one function that are proved, by what the compiler made of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from jax_pmap.model import GATHERED, Generated, Refusal
from jax_pmap.units import human_bytes

#: Sizes that are less than this apart do not decide.
APART = 1.05


def _rounds(made: Generated) -> int:
    """Collectives in loops that go on for as long as their values say."""
    return sum(row.rounds for row in made.evidence.collectives or ())


def _sent(made: Generated) -> int:
    """Bytes of communication on a device in one call."""
    return sum(row.moved or row.bytes for row in made.evidence.collectives or ())


def _repeated(made: Generated) -> int:
    """Bytes of what every device gathers, and goes on with as all others do."""
    return sum(sync.bytes for sync in made.plan.syncs if sync.op == "all_gather")


def _parts(made: Generated) -> int:
    """Bytes that devices gather along other axes than that of the batch, to do the same work there."""
    return sum(sync.bytes for sync in made.plan.syncs if sync.op == GATHERED and any(sync.along))


def _memory(made: Generated) -> int:
    """Bytes of memory on a device."""
    return made.evidence.memory.total if made.evidence.memory is not None else 0


#: (what is less in the better form, how it is said of the two), the weightiest first.
TESTS: tuple[tuple[Callable[[Generated], int], str], ...] = (
    (_rounds, "in {other} all devices wait for the slowest in each round of a loop"),
    (_parts, "in {other} devices along an axis of the mesh do the same work on {more} that they gather"),
    (_sent, "its compiled program communicates {less} on a device, that of {other} {more}"),
    (_memory, "it takes {less} of memory on a device, {other} {more}"),
    (_repeated, "in {other} all devices do the same work on {more} that they gather"),
)


def choose(made: Sequence[Generated], refusals: Sequence[Refusal]) -> Generated:
    """The best of some forms of one function, with a note that says why.

    A form that is refused is not in question. Of two, that one is better in which no device waits for others
    in the rounds of a loop, then the one in which parts of parameters are not gathered for repeated work,
    then the one that communicates less, then that which takes less memory, then that in which no work is
    repeated; where all is alike, the first of `made`.
    """
    best, why = made[0], ""
    for other in made[1:]:
        better, why = _of_two(best, other)
        best = better
    if len(made) == 1 and refusals:
        why = f"the other form is refused ({refusals[0].code})"
    elif len(made) == 1:
        why = "no other form takes these options"
    note = f"--backend auto took {best.backend}: {why}"
    evidence = dataclasses.replace(best.evidence, notes=(*best.evidence.notes, note))
    return dataclasses.replace(best, evidence=evidence)


def _of_two(first: Generated, second: Generated) -> tuple[Generated, str]:
    """The better of two forms, and why it is."""
    if not (first.evidence.checks and second.evidence.checks):
        return first, "nothing was run that could be compared, and its communication is written out"
    rows = [max(check.batch for check in made.evidence.checks) for made in (first, second)]
    for measure, said in TESTS:
        sizes = measure(first), measure(second)
        if max(sizes) <= APART * min(sizes) or (measure is _memory and rows[0] != rows[1]):
            continue
        better, worse = (first, second) if sizes[0] < sizes[1] else (second, first)
        less, more = human_bytes(min(sizes)), human_bytes(max(sizes))
        return better, said.format(other=worse.backend, less=less, more=more)
    return first, f"{second.backend} compiles to a program that is no better, and here the collectives show"
