"""Whether rows count that are added to a batch, for devices to share it evenly."""

import dataclasses
import itertools
import math
from collections.abc import Collection

from .. import prove
from ..exceptions import summary
from ..following import traced_as
from ..jaxpr.trace import counts_for
from ..placements.derive import counted
from ..protocol import Ending, Problem
from ..trials import Question
from .claims import Claim, Inputs


def where_counted(claim: Claim, rows: int, zeros: Collection[str]) -> Ending | None:
    """Where added rows are seen to count in a batch of `rows` with them; see `counted`."""
    counts = counts_for(rows, most=3)
    each = [claim.inputs(rows // count) for count in counts]
    try:
        programs = [traced_as(one.function, one.packed, one.leaves).jaxpr for one in each]
    except (MemoryError, Problem):
        raise
    except BaseException as error:
        return Ending(0, f"the original is not traced for a part of {rows} rows: {summary(error)}")
    why = counted(programs, counts, each[0].names, claim.packed.axes(claim.axes), zeros)
    return None if why is None else dataclasses.replace(why, why=f"in an uneven batch, {why.why}")


def apart_by_size(question: Question, sizes: Collection[int], zeros: Collection[str]) -> tuple[int, ...]:
    """Two of some sizes of the batch of which rows that are added are not seen to make one; or none.

    A function that asks for its rows may be one for few and another for many, and of a batch a little below
    the limit added rows make one above it. Where that lies, and whether there is one, is seen from the
    function on both sides. What it does not take is left out.
    """
    packed = question.packed
    axes = packed.axes(question.axes)
    with prove.x64(question.x64):
        each = [Inputs.of(question, packed, size) for size in sorted(sizes)]
        for few, more in itertools.pairwise(one for one in each if one.traced is not None):
            rows = 2 * math.lcm(few.rows, more.rows)
            times = (rows // few.rows, rows // more.rows)
            if counted([few.jaxpr, more.jaxpr], times, few.names, axes, zeros):
                return few.rows, more.rows
    return ()
