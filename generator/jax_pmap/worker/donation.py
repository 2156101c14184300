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
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from . import prove
from .arguments import Values, map_batch
from .comparing import Parallel
from .leaves import category
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
    trials, count, axis_name = parallel.trials, parallel.count, emitted.axis_name
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

    def spread(leaf: Any, spec: PartitionSpec) -> Any:
        return jax.device_put(leaf, NamedSharding(mesh, spec)) if category(leaf) == "array" else leaf

    def on_all(values: Values) -> Values:
        def split(leaf: Any, axis: int) -> Any:
            return spread(leaf, PartitionSpec(*[None] * axis, axis_name))

        whole = {
            name: value
            if name in question.statics
            else jax.tree.map(lambda leaf: spread(leaf, PartitionSpec()), value)
            for name, value in values.items()
        }
        given = map_batch(values, question.axes, split)
        # A leaf of a mixed argument that is no batch goes to all devices as well.
        return {name: given[name] if name in question.axes else whole[name] for name in values}

    def on_first(values: Values) -> Values:
        first = jax.devices()[0]
        return {
            name: value
            if name in question.statics
            else jax.tree.map(lambda x: jax.device_put(x, first) if category(x) == "array" else x, value)
            for name, value in values.items()
        }

    for place in (on_first, on_all):
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
