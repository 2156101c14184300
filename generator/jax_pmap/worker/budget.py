"""What the second witness may cost: bytes and seconds of a run, estimated from the traced program."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .arguments import LeafAxes, MadeInside, Packed
from .jaxpr.trace import counts_for
from .jaxpr.versions import opened
from .jaxpr.walk import equations, subjaxprs
from .leaves import category
from .protocol import MOST_DEVICES, Affordable
from .work import work

#: Seconds that compiling one operation takes, and numbers computed in a second, both on the careful side.
COMPILING, COMPUTING = 1.5e-3, 1e9
#: Seconds that a loop takes to go round once, whatever it computes.
LOOPING = 1e-5
#: Device counts that a run may be made on, the most telling first, of each and of them.
PAIRS = ((3, 8), (3, 2), (2,))
#: Operations above which compiling for each count is most of what a proof takes; one has to do.
FEW = 500


def fitting(
    packed: Packed,
    axes: LeafAxes,
    jaxpr: Any,
    rows: int,
    derived: "tuple[int, Sequence[int]]",
    room: int,
    seconds: float,
    multiple: int = 1,
    shares: int = 0,
) -> Affordable:
    """The largest run of a derived program, on two device counts or one, that takes no more than it may.

    Args:
        packed: the values of the call.
        axes: their batch axes.
        jaxpr: the reference, traced on the whole batch.
        rows: the size of the batch that is given.
        derived: the size of the batch that was traced, and the device counts.
        room: bytes that there are.
        seconds: processor time that there is.
        multiple: what the rows on a device have to be a multiple of.
        shares: among how many devices of a mesh the batch is divided; 0 without one.
    """
    if max(derived[1]) > MOST_DEVICES:
        return Affordable(
            0, (), f"{max(derived[1])} devices are more than the {MOST_DEVICES} that are simulated"
        )
    split = [axis is not None for axis in packed.axes(axes)]
    state = sum(array_bytes(leaf) for leaf, cut in zip(packed.leaves, split, strict=True) if not cut)
    given = sum(array_bytes(leaf) for leaf, cut in zip(packed.leaves, split, strict=True) if cut)
    inside = max(peak(jaxpr) - state, given)
    operations, numbers = size(jaxpr), work(jaxpr)
    # Counts that share the given batch evenly, where there are two: others cut it to another size.
    even = counts_for(rows // multiple) if rows % multiple == 0 else []
    given_counts = tuple(even) if len(even) == 2 else PAIRS[0]
    whole: Any = (*derived, "") if derived[0] <= rows else (None, given_counts, "")
    sizes: dict[tuple[int, ...], int] = {pair: multiple * math.lcm(*pair) for pair in PAIRS}
    if shares:
        whole, sizes = (*derived, ""), {tuple(derived[1]): multiple * shares}
    if whole[0] is None and multiple > 1 and len(even) != 2:
        fit = next((pair for pair in PAIRS if sizes[pair] <= rows), None)
        if fit is None:
            return Affordable(0, (), f"{rows} rows do not give two devices a multiple of {multiple}")
        whole = (rows // sizes[fit] * sizes[fit], fit, "")
    smaller = [
        (size, pair, "to fit memory and time, ") for pair, size in sizes.items() if size < (whole[0] or rows)
    ]
    if isinstance(axes, MadeInside):
        smaller = []
    taken = spent = 0.0
    most = 2 if operations <= FEW else 1
    for some, pair, why in (whole, *smaller):
        counts = tuple(pair)[:most]
        share = (some or rows) / max(rows, 1)
        taken = 2 * state * (max(counts) + 1) + 2 * inside * share
        spent = (1 + len(counts)) * (operations * COMPILING + 2 * numbers * share / COMPUTING)
        if taken <= room and spent <= seconds:
            said = f"the run has a batch of {some} on {' and '.join(map(str, sorted(counts)))} devices"
            return Affordable(some, counts, why and why + said, spent)
    return Affordable(0, (), f"a run needs about {human(taken)} and {spent:.0f} s, more than there is for it")


def human(amount: float) -> str:
    """``"3.1 GB"``."""
    return f"{amount / 1e9:.1f} GB"


def array_bytes(leaf: Any) -> int:
    """Bytes of an array leaf; 0 of anything else."""
    return math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize if category(leaf) == "array" else 0


def variable_bytes(variable: Any) -> int:
    """Bytes of a value in a jaxpr; of a key, those of two words."""
    aval = variable.aval
    width = getattr(getattr(aval, "dtype", None), "itemsize", 8)
    return math.prod(getattr(aval, "shape", ())) * int(width)


def size(jaxpr: Any) -> int:
    """How many operations a program has, each counted once however often a loop runs it."""
    return sum(1 for _ in equations(jaxpr))


def stored(jaxpr: Any) -> int:
    """Bytes of all that a program computes, inner programs included, each operation taken once."""
    return sum(variable_bytes(variable) for each in equations(jaxpr) for variable in each.outvars)


def peak(jaxpr: Any) -> int:
    """Bytes needed at once when a program runs operation by operation and drops what it needs no more."""
    jaxpr, _ = opened(jaxpr)
    last: dict[Any, int] = {}
    for index, equation in enumerate(jaxpr.eqns):
        for variable in equation.invars:
            if not hasattr(variable, "val"):
                last[variable] = index
    for variable in jaxpr.outvars:
        if not hasattr(variable, "val"):  # Literals have one.
            last[variable] = len(jaxpr.eqns)
    live = sum(variable_bytes(v) for v in (*jaxpr.invars, *jaxpr.constvars))
    most = live
    dying: dict[int, list[Any]] = {}
    for variable, index in last.items():
        dying.setdefault(index, []).append(variable)
    kept = {*jaxpr.invars, *jaxpr.constvars}
    for index, equation in enumerate(jaxpr.eqns):
        inner = max(map(peak, subjaxprs(equation)), default=0)
        live += sum(variable_bytes(v) for v in equation.outvars if v in last)
        most = max(most, live + inner)
        live -= sum(variable_bytes(v) for v in dying.get(index, ()) if v not in kept)
    return most
