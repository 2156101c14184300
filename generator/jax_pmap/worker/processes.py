"""Emitted code in one of several processes that jax makes one of, beside the reference in each of them.

All of them do the same at the same time: what one process has is put together in each of them before it is
compared.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from . import arguments, prove
from .arguments import Values
from .comparing import Parallel
from .distance import same_bits
from .exceptions import summary
from .leaves import is_abstract, is_key
from .protocol import Checks, Failure, Problem, ProveInProcesses
from .proving import check_layouts
from .trials import Emitted, Trials

#: How often collectives themselves are tried: those that are wrong are wrong most of the time.
ROUNDS = 20
#: Numbers that each device has in these rounds, times the devices.
NUMBERS = 64


def prove_in_processes(trials: Trials, emitted: Emitted, asked: ProveInProcesses) -> Checks:
    """Run emitted code with this process's rows, and compare what all processes made of theirs.

    Raises:
        Problem: ``"transport"`` where collectives between processes are wrong or fail without it;
            ``"inputs"`` where there are no numbers to run on, or too few.
    """
    question = trials.question
    count, number = len(jax.devices()), jax.process_count()
    try:
        wrong = transport()
    except Exception as error:
        wrong = f"they do not come to their end: {summary(error)}"
    if wrong:
        raise Problem("transport", wrong)
    if is_abstract(question.data[0]):
        raise Problem("inputs", "the inputs are shapes alone")
    shares = count if emitted.mesh is None else emitted.mesh.shares
    question = trials.question = dataclasses.replace(question, among=shares)
    base, unit = question.rows, shares * asked.multiple
    size = base // unit * unit
    if not size:
        raise Problem("inputs", f"a batch of {base} is smaller than the {unit} rows it takes")
    function = emitted.define(count, question.x64)
    rows = own_rows(emitted, size // shares)

    def own(leaf: Any, axis: int) -> Any:
        # What a call returned as an array of all processes goes into the next one as it is.
        across = isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
        return leaf if across else arguments.take(leaf, axis, rows)

    def call(values: Values) -> Any:
        mine = arguments.map_batch(values, question.axes, own)
        result = question.invoke(function, mine)
        jax.block_until_ready(result)
        failure = _apart(emitted, prove.leaf_table(result))
        if failure is not None:
            raise prove.Differs(failure)
        leaves, tree = jax.tree.flatten(result)
        whole = [
            leaf if axis is None or not leaf.is_fully_addressable else gathered(leaf, axis)
            for leaf, axis in zip(leaves, asked.output_axes, strict=True)
        ]
        return jax.tree.unflatten(tree, whole)

    parallel = Parallel(trials, lambda _: call, lambda leaves, _: None, count)
    checks = check_layouts(parallel, size, with_given=False, plans=[("given", 0)])
    return Checks(tuple(dataclasses.replace(check, processes=number) for check in checks))


def own_rows(emitted: Emitted, rows: int) -> slice:
    """The rows of the batch that this process's devices have, `rows` each."""
    mine = [i for i, device in enumerate(jax.devices()) if device.process_index == jax.process_index()]
    if emitted.mesh is not None:
        along = list(emitted.mesh.axes).index(emitted.asked.axis_name)
        mine = [int(np.unravel_index(i, tuple(emitted.mesh.axes.values()))[along]) for i in mine]
    return slice(min(mine) * rows, (max(mine) + 1) * rows)


def gathered(leaf: jax.Array, axis: int) -> np.ndarray:
    """This process's rows along `axis`, as pmap returns them, with those of the others."""
    return np.concatenate([*multihost_utils.process_allgather(np.asarray(leaf))], axis=axis)


def _apart(emitted: Emitted, leaves: Sequence[tuple[str, Any]]) -> Failure | None:
    """The first output that should be the same on all devices of all processes and is not."""
    if emitted.mesh is not None:
        return emitted.replicas(leaves, len(jax.devices()))
    for index in emitted.asked.replicated:
        path, leaf = leaves[index]
        if not isinstance(leaf, jax.Array):
            return Failure("replicas", path=path, why="it is not a jax array")
        bits = jax.random.key_data(leaf) if is_key(leaf) else leaf
        copies = [np.asarray(shard.data) for shard in bits.addressable_shards]
        everywhere = multihost_utils.process_allgather(copies[0])
        if not all(same_bits(copy, copies[0]) for copy in (*copies, *everywhere)):
            return Failure("replicas", path=path, why=prove.UNLIKE)
    return None


def transport() -> str:
    """What collectives between the processes get wrong by themselves; ``""`` where all are right."""
    count, own = len(jax.devices()), len(jax.local_devices())
    first = next(i for i, each in enumerate(jax.devices()) if each.process_index == jax.process_index())

    def all_three(x: Any) -> Any:
        return (
            jax.lax.psum(x, "all"),
            jax.lax.all_gather(x, "all"),
            jax.lax.psum_scatter(x, "all"),
        )

    run = jax.pmap(all_three, axis_name="all")
    for turn in range(ROUNDS):
        numbers = np.arange(count * count * NUMBERS) % (turn + 7)
        every = numbers.reshape(count, count, NUMBERS).astype(np.float32)
        total, rows, parts = map(np.asarray, run(every[first : first + own]))
        for name, got, want in (
            ("psum", total, np.broadcast_to(every.sum(0), total.shape)),
            ("all_gather", rows, np.broadcast_to(every, rows.shape)),
            ("psum_scatter", parts, every.sum(0)[first : first + own]),
        ):
            if not np.array_equal(got, want):
                return f"`{name}` of whole numbers was wrong in round {turn + 1} of {ROUNDS}"
    return ""
