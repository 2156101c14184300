"""Runs that show which of the caller's arrays a call takes with it.

Only arrays that lie where the compiled function wants them are really given up, so the caller's are placed
like that: on the devices already, split already, or on the first device, whose copy of a replicated array
shares its buffer.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from .arguments import Values
from .comparing import Parallel
from .handed import on_all, on_first
from .protocol import Check, Failure
from .prove import Differs


def fresh(values: Values, names: Sequence[str]) -> Values:
    """`values` with copies of the arrays that a call may take with it."""

    def copied(leaf: Any) -> Any:
        return leaf.copy() if isinstance(leaf, jax.Array) else leaf

    return {name: jax.tree.map(copied, value) if name in names else value for name, value in values.items()}


def watched(parallel: Parallel, function: Callable[..., Any], donated: Sequence[str]) -> Parallel:
    """`parallel`, of code that may take the arrays it is given with it, called on arrays on the first device.

    A call must leave every array alone that is not donated. On arrays of the host nothing is taken.
    """
    question = parallel.trials.question

    def call(values: Values) -> Any:
        out = question.invoke(function, values)
        jax.block_until_ready(out)
        for name, value in values.items():
            taken = any(isinstance(x, jax.Array) and x.is_deleted() for x in jax.tree.leaves(value))
            if taken and name not in donated:
                raise Differs(Failure("deleted", argument=name))
        return out

    def placed(values: Values) -> Values:
        return on_first(values, question.statics)

    return replace(parallel, make=lambda _: call, place=placed)


def check_donation(parallel: Parallel, axis_name: str, size: int) -> list[Check]:
    """Two chained calls of code that is `watched`, on arrays that lie on the devices already."""
    trials, count = parallel.trials, parallel.count
    question = trials.question
    shares = question.shares(size, count)
    expected, allowed = trials.at("given", 0, size, shares)
    mesh = Mesh(np.array(jax.devices()[:count]), (axis_name,))

    def placed(values: Values) -> Values:
        return on_all(values, question.axes, question.statics, mesh)

    twice = copy.copy(expected)
    twice.results = expected.results[:2]
    about = Check(count, "given", size, len(twice.results))
    return [
        replace(parallel, place=placed).run(about, twice, allowed, shares, on_devices=bool(question.chain))
    ]
