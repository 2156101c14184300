"""Placements: how the value ``v`` on a device relates to the value ``V`` of the whole-batch program.

Each is a claim for one mesh axis of N devices, true on every device. `power` is the exponent ``e``: a mean
over a share of B / N rows is N times the part that it contributes to the mean of all B.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeAlias, TypeVar

Power: TypeAlias = "int | Fraction"


@dataclass(frozen=True, slots=True)
class Replicated:
    """``N**power * v == V``."""

    power: Power = 0


@dataclass(frozen=True, slots=True)
class Sharded:
    """``N**power * v`` is the device's part of ``V`` along `axis`.

    Along that axis ``V`` is seen as ``(outer, N, rest)``, and the device has its own index in the middle:
    with ``outer == 1`` one block of rows, else its rows of each of `outer` groups.
    """

    axis: int
    power: Power = 0
    outer: int = 1


@dataclass(frozen=True, slots=True)
class Partial:
    """``N**power * sum(v over devices) == V``."""

    power: Power = 0


@dataclass(frozen=True, slots=True)
class Spread:
    """`Partial`, and repeated: ``N**power * sum(v over devices)`` is a device's part of ``V`` along `axis`.

    ``V`` is alike throughout that axis. Such are the derivatives of a mean over the rows under `vmap` and
    the devices at once, before these are added up; nothing else has a rule for them.
    """

    axis: int
    power: Power = 0


@dataclass(frozen=True, slots=True)
class Offset:
    """`Sharded`, but for what is added to all rows of a device alike, and is zero in sum over the devices.

    So is the loss of each example with a mean over the batch added, of which a device has that over its
    share: what the means differ by cancels in a sum of all rows.
    """

    axis: int
    power: Power = 0


@dataclass(frozen=True, slots=True)
class Extreme:
    """The ``"max"`` or ``"min"`` of ``v`` over the devices is ``V``."""

    op: str


@dataclass(frozen=True, slots=True)
class Mixed:
    """Sharded, and reshaped into groups: ``N**power * v`` has elements of ``V``, at other places.

    Of 12 rows in 3 groups, ``reshape(3, 4)``, a device of two has 6 rows in 3 groups of 2: rows 0 and 1, 2
    and 3, 4 and 5. Seen together, the devices have each element of ``V`` once, and along other axes than
    `axes` at its place. Which element stands where depends on `axes`, their sizes, and `ahead` alone.
    """

    #: The axes that the rows are divided into, in the order in which they were one axis.
    axes: tuple[int, ...]
    #: That of them whose size grows with the share.
    axis: int
    #: How many runs of this device's rows there were in that one axis.
    ahead: int
    power: Power = 0


@dataclass(frozen=True, slots=True)
class Loose:
    """Sums of such groups: ``N**power * v`` summed over devices and `axes` is ``V`` summed over `axes`."""

    axes: tuple[int, ...]
    power: Power = 0


@dataclass(frozen=True, slots=True)
class Dealt:
    """In a round of a loop, one slice of what is `Mixed`: its rows, of all rounds, are those of ``V``."""

    axis: int
    #: Nesting depth of the loop.
    loop: int
    #: How the rounds' slices were made of the rows: `ahead`, and which axis was first, of the loop or `axis`.
    way: tuple[int, bool]
    power: Power = 0


@dataclass(frozen=True, slots=True)
class Row:
    """In a round of a loop over the examples: one of the device's rows of ``V``, or what is made of it."""

    loop: int
    power: Power = 0


@dataclass(frozen=True, slots=True)
class RowNumber:
    """In a round of a loop over the examples: the number of the row, within the share and within ``V``."""

    loop: int
    #: How many rounds, and so rows, there are in ``V``.
    length: int
    #: The column of a list of indices that holds it, None where all of the list does.
    column: "int | None" = None


@dataclass(frozen=True, slots=True)
class Filled:
    """What a loop over the examples carries where each round reads and writes its own row of it alone.

    In the round of one of its rows it is the device's part of ``V`` along `axis`, as `Sharded` is: in other
    devices' rounds nothing of that part changes.
    """

    axis: int
    loop: int
    #: Which of the carried values it was when the round began; None for zeros.
    carry: "int | None"
    power: Power = 0


@dataclass(frozen=True, slots=True)
class Rounds:
    """In a round of a loop: ``N**power * v`` summed over devices and rounds is ``V`` summed over rounds."""

    loop: int
    power: Power = 0


@dataclass(frozen=True, slots=True)
class Running:
    """What a loop carries: the sum of what is `Rounds` so far, which is `Partial` when the loop has ended."""

    loop: int
    power: Power = 0


@dataclass(frozen=True, slots=True)
class Index:
    """The device's index, as ``axis_index`` gives it, or times the size of a share.

    With `length`, it is where the device's share of so many rows begins.
    """

    length: int = 0


@dataclass(frozen=True, slots=True)
class Downward:
    """What ``~axis_index`` gives: as an unsigned number, the index down from the largest there is."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions within the share: `Sharded` along `axis`, but for the first row's own position.

    ``V`` is ``iota`` along `axis`. `column` is the column of an array of indices ``(…, k)`` that holds
    them, None where all of the array does; `length` is the size of `axis` in ``V``. The other columns are
    `Sharded` with so many groups, `outer`: None where there are none, and the rows may be those of any.
    """

    axis: int
    length: int
    column: "int | None" = None
    outer: "int | None" = None


@dataclass(frozen=True, slots=True)
class Labels:
    """Whole numbers that tell entries of the share apart: each is that of ``V`` less how many stand ahead.

    What numbers all entries of the whole batch, as ``arange(rows * 2).reshape(rows, 2)``, numbers on a device
    those of its share. Two of one device are equal where they are in ``V``. With `least` above zero labels
    begin there, and zeros stand for none, in ``V`` too.
    """

    axis: int
    #: How many there are in ``V``.
    length: int
    least: int = 0


@dataclass(frozen=True, slots=True)
class Corner:
    """Positions along `axis`, from zero, in an array of as many rows as columns: those of the share.

    ``V`` is ``iota`` along `axis`, of the whole batch along both axes.
    """

    axis: int
    other: int


@dataclass(frozen=True, slots=True)
class Diagonal:
    """``N**power * v`` is the device's block of ``V`` on the diagonal of two `axes`.

    `alone`, ``V`` is zero in all other blocks. Such is ``eye(rows)``, and what a linear function makes of
    each of its rows: `jax.jacrev` asks so for the derivatives of all results.
    """

    #: In their order.
    axes: tuple[int, int]
    power: Power = 0
    alone: bool = True

    def at(self, axes: Sequence[int]) -> "Diagonal":
        """The same where its axes are others, `axes`, in either order."""
        first, last = sorted(axes)
        return replace(self, axes=(first, last))


@dataclass(frozen=True, slots=True)
class OwnKey:
    """A PRNG key of the device's own, where ``V`` is the one key of the whole-batch program.

    What is drawn with it is equal to what ``V`` draws in distribution, row by row.
    """


@dataclass(frozen=True, slots=True)
class Blocks:
    """Outside the mapped function: ``v`` is ``V`` with `axis` reshaped to ``(N, rest)``."""

    axis: int
    power: Power = 0


@dataclass(frozen=True, slots=True)
class Copies:
    """Outside the mapped function: ``v`` is N copies of ``V`` stacked along `axis`."""

    axis: int
    power: Power = 0


@dataclass(frozen=True, slots=True)
class OwnKeys:
    """Outside the mapped function: N keys along `axis`, one for each device, made of the key ``V``."""

    axis: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """No relation is claimed; why, and the first operation of which none was."""

    reason: str
    #: That operation, and those in whose jaxprs it stands, for its place in the source.
    equations: tuple[Any, ...] = ()


Placement: TypeAlias = (
    "Replicated | Sharded | Partial | Spread | Offset | Extreme | Mixed | Loose | Dealt | Row | RowNumber"
    " | Filled | Rounds | Running | Index | Downward | Positions | Labels | Corner | Diagonal | OwnKey"
    " | Blocks | Copies | OwnKeys | Unknown"
)
WHOLE = Replicated()
#: Those in a round of a loop that say something of all its rounds seen together.
OF_ROUNDS = (Dealt, Row, RowNumber, Filled, Rounds, Running)
P = TypeVar("P", Replicated, Sharded, Partial, Mixed, Blocks, Copies)


def scaled(place: P, by: Power) -> P:
    """`place`, its power raised by `by`."""
    return replace(place, power=place.power + by) if by else place


def times(sizes: Sequence[int], rows: Sequence[int]) -> "int | None":
    """How many groups of so many rows sizes are, given for each trace; None where these are not as many."""
    if not all(rows) or any(size % n for size, n in zip(sizes, rows, strict=True)):
        return None
    found = {size // n for size, n in zip(sizes, rows, strict=True)}
    return found.pop() if len(found) == 1 else None


def shown(place: Placement) -> str:
    """A placement as DTensor prints it: ``R``, ``S0``, ``P``, ``max``; ``P*N`` is N times too small."""
    power = getattr(place, "power", 0)
    tail = f"*N^{power}" if power not in (0, 1) else "*N" if power else ""
    if isinstance(place, Replicated):
        return f"R{tail}"
    if isinstance(place, Sharded):
        return f"S{place.axis}{f'/{place.outer}' if place.outer != 1 else ''}{tail}"
    if isinstance(place, Partial):
        return f"P{tail}"
    if isinstance(place, Extreme):
        return place.op
    return type(place).__name__.lower()
