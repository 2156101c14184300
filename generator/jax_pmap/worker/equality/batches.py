"""Batches of other sizes than the given one, for which a function may work in another way."""

import math
from collections.abc import Sequence

from .. import telling
from ..budget import size as operations
from ..jaxpr.coincidences import alike
from ..jaxpr.trace import COUNTS, counts_for
from ..protocol import Ending, Shown
from ..sizes import MANY
from .claims import Claim, Inputs, Untraced
from .compare import compared, ended, only_there
from .counts import ODD

#: A prime above `MANY`, and one that gives about as many for a few devices: no share of so many rows is a
#: multiple of anything by chance.
PRIMES = (4099, 277)


def with_many_rows(
    claim: Claim, inputs: Inputs, usual: Sequence[int], multiple: int
) -> tuple[Sequence[tuple[Inputs, Sequence[int]]], int]:
    """Batches of thousands of rows for which the reference is another program than for these `inputs`.

    Each with the counts of devices to derive it on. None where it is the same, but for numbers in proportion
    to the rows, or not traced for so many. Rows that are gone through one by one are not. A parallel function
    that is not made of the reference's own text may have thresholds of its own: for that the first of several
    batches counts that it takes.

    Also what rows must be a multiple of for it to be the same: what the batches in the traces have in common
    did not show in these. ``x[: len(x) // 4 * 4]`` is all of ``x`` on shares of 4 and of 8, and
    ``-len(x) % 8`` is 0 for every batch that 8 devices share. That they are a multiple of `multiple` is
    known.
    """
    size = inputs.rows
    round_ = -(-MANY // size) * size
    tried = [(multiple * math.lcm(*usual) * PRIMES[1], usual), (round_, usual)]
    if claim.reference is not None:
        each = ((claim.inputs(rows), counts[:2]) for rows, counts in tried)
        return [(many, counts) for many, counts in each if many.traced is not None], 1
    twice = claim.inputs(2 * size)
    if twice.traced is None or operations(twice.jaxpr) >= operations(inputs.jaxpr) + size:
        return (), 1
    if claim.foreign:
        odd = (multiple * math.prod(ODD) * PRIMES[1], ODD)
        each = ((claim.inputs(rows), counts) for rows, counts in (odd, *tried))
        return [(many, counts) for many, counts in each if many.traced is not None], 1

    def same(other: Inputs) -> bool:
        return alike(inputs.program, twice.program, other.program)

    prime, many = claim.inputs(multiple * PRIMES[0]), claim.inputs(round_)
    if prime.traced is not None and same(prime):
        return (), 1
    if many.traced is None or not same(many):
        return [(many, usual)] if many.traced is not None else (), 1
    differs = prime.traced is not None  # What it does not take raises by itself.
    for part in (n for n in range(2, size) if size % n == 0):
        other = claim.inputs(math.lcm(part, multiple) * PRIMES[0])
        if other.traced is not None and same(other):
            return (), part if differs else 1
        differs = differs or other.traced is not None
    return (), size if differs else 1


def otherwise_with(claim: Claim, rows: int) -> Ending | None:
    """Where the derivation ends for a batch of `rows`, on the counts of devices that share it.

    None where it does not, where there are no counts, or where the function raises.

    On numbers of devices on which a foreign function raises, whoever calls it is told, and it is derived on
    those that it takes. Emitted code should check its batch there, and say what it takes.
    """
    counts, inputs = _sharing(claim, rows), claim.inputs(rows)
    if not counts:
        return None
    found: Shown | None
    try:
        try:
            found = compared(claim, inputs, counts)
        except Untraced as problem:
            if not claim.foreign or len(problem.programs) != 1:
                raise
            # One tells nothing of how its numbers depend on how many there are.
            found = compared(claim, inputs, counts_for(rows, most=len(COUNTS)))
    except Untraced as problem:
        if not problem.programs:
            return None
        found = (problem.found if claim.foreign else None) or ended(problem)
    there = f"a batch of {rows} is worked on in another way than the given one"
    return next(iter(only_there(found, there).endings), None)


def _sharing(claim: Claim, rows: int) -> list[int]:
    """Counts of devices that share `rows`, and of which each has several: with one, `few` is asked.

    On all of them a device has a multiple of rows that the code takes, and on none it says that it takes no
    such batch.
    """
    counts = [
        count
        for count in counts_for(rows, most=len(COUNTS))
        if rows // count % claim.multiple == 0 and not telling.is_refused(claim.refused, rows // count, rows)
    ]
    several = [count for count in counts if rows > count]
    if claim.refused and len(counts) == 1:
        # One tells nothing of how numbers depend on how many there are, and one device has all rows.
        counts = [*counts, 1]
    return (several if len(several) > 1 else counts)[:2]


def suiting(claim: Claim, rows: int, share: int) -> int | None:
    """What shares are a multiple of for which the function is equal, where it is not for a batch of `rows`.

    It cuts its share in parts, say: the `share` that it took has as many rows as these need.
    """
    for part in (part for part in range(2, share + 1) if share % part == 0):
        try:
            if compared(claim, claim.inputs(rows * part), counts_for(rows * part)).complete:
                return part
        except Untraced:  # It does not take so many.
            continue
    return None
