"""Runs that show which of the caller's arrays a call takes with it.

Only arrays that lie where the compiled function wants them are really given up, so the caller's are placed
like that: on the devices already, split already, or on the first device, whose copy of a replicated array
shares its buffer.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from . import prove
from .arguments import Values
from .comparing import Parallel
from .handed import on_all, on_first
from .protocol import Check, Failure
from .prove import Differs
from .trials import Emitted


def fresh(values: Values, names: Sequence[str]) -> Values:
    """`values` with copies of the arrays that a call may take with it."""

    def copied(leaf: Any) -> Any:
        return leaf.copy() if isinstance(leaf, jax.Array) else leaf

    return {name: jax.tree.map(copied, value) if name in names else value for name, value in values.items()}


def check_donation(
    parallel: Parallel, function: Callable[..., Any], emitted: Emitted, size: int
) -> list[Check]:
    """Two chained calls on placed inputs, which must leave every array alone that is not donated."""
    trials, count, axis_name = parallel.trials, parallel.count, emitted.asked.axis_name
    question = trials.question
    shares = question.shares(size, count)
    expected, allowed = trials.at("given", 0, size, shares)
    checks: list[Check] = []
    mesh = Mesh(np.array(jax.devices()[:count]), (axis_name,))

    def call(values: Values) -> Any:
        out = question.invoke(function, values)
        jax.block_until_ready(out)
        for name, value in values.items():
            taken = any(isinstance(x, jax.Array) and x.is_deleted() for x in jax.tree.leaves(value))
            if taken and name not in emitted.donated:
                raise Differs(Failure("deleted", argument=name))
        return out

    def on_devices(values: Values) -> Values:
        return on_all(values, question.axes, question.statics, mesh)

    def on_device(values: Values) -> Values:
        return on_first(values, question.statics)

    for place in (on_device, on_devices):
        placed = copy.copy(expected)
        placed.results = expected.results[:2]
        with prove.x64(question.precision("given")):
            placed.values = [place(expected.values[0])]
        about = Check(count, "given", size, len(placed.results))
        chained = bool(question.chain)
        checks.append(parallel.run(about, placed, allowed, shares, call=call, on_devices=chained))
        if checks[-1].failure is not None:
            break
    return checks
