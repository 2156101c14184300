# flags: gen unroll --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def unroll(params, sequence):
    """`sequence` is [time, batch, features]."""

    def cell(carry, x):
        carry = jnp.tanh(x @ params["in"] + carry @ params["rec"])
        return carry, carry

    first = jnp.zeros((sequence.shape[1], 4))
    last, outputs = jax.lax.scan(cell, first, sequence)
    return outputs, jnp.mean(last**2)


def inputs(seed):
    rng = np.random.default_rng(seed)
    params = {"in": rng.normal(size=(5, 4)).astype("float32"), "rec": rng.normal(size=(4, 4)).astype("float32")}
    return params, rng.normal(size=(7, 24, 5)).astype("float32")
# output
"""Data-parallel `unroll`: same call and same results as time_major.py::unroll, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 1), out_axes=(1, None))
def p_unroll(params, sequence):
    """`unroll` on one device's share.

    `sequence` leaves have (devices, per_device) at axis 1.
    """

    def cell(carry, x):
        carry = jnp.tanh(x @ params["in"] + carry @ params["rec"])
        return carry, carry

    first = jnp.zeros((sequence.shape[1], 4))
    last, outputs = jax.lax.scan(cell, first, sequence)
    return outputs, jax.lax.pmean(jnp.mean(last**2), axis_name=AXIS)


def shard(sequence):
    """Axis 1: B becomes (devices, B // devices), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    for path, leaf in jax.tree_util.tree_leaves_with_path(sequence):
        name = f"sequence{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        if len(shape) != 3:
            raise ValueError(
                f"unroll: {name} has shape {shape}: this was proved for rank 3; "
                "generate again with inputs of this shape"
            )
        size = shape[1] if len(shape) > 1 else 0
        if not size or size % count:
            raise ValueError(
                f"unroll: {name} has shape {shape}: axis 1 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )

    sequence = jax.tree.map(
        lambda leaf: leaf.reshape(
            leaf.shape[0], count, leaf.shape[1] // count, *leaf.shape[2:]
        ),
        sequence,
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(None, AXIS))
    return jax.device_put(sequence, sharding)


def unshard(tree):
    """Merge (devices, per_device) at `axes`."""
    axes = (1, None)

    def merge(axis, tree):
        if axis is None:
            return tree
        return jax.tree.map(
            lambda leaf: leaf.reshape(
                leaf.shape[0], leaf.shape[1] * leaf.shape[2], *leaf.shape[3:]
            ),
            tree,
        )

    return jax.tree.map(merge, axes, tree, is_leaf=lambda axis: axis is None)


def unroll(params, sequence):
    """`sequence` is [time, batch, features]."""
    return unshard(p_unroll(params, shard(sequence)))
