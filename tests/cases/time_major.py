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


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), (AXIS,)), P(*axes))


#: Kind and rank of the batch's arrays in the proof.
PROVED = {"sequence": ("float", 3)}


def is_split(name, leaf):
    """Whether an earlier call split `leaf`; if none did, raise unless it is as in the proof and divisible."""
    shape, count = np.shape(leaf), jax.local_device_count()
    kind, rank = PROVED.get(name, ("no leaf", -1))
    if (
        getattr(leaf, "sharding", None) is sharding(None, AXIS)
        and len(shape) == rank + 1
    ):
        return True
    found = jax.dtypes.scalar_type_of(leaf).__name__
    if (found, len(shape)) != (kind, rank) or shape[1] % count:
        raise ValueError(
            f"unroll: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 1 a multiple of {count} (devices)"
        )
    return False


def shard(sequence):
    """Axis 1: B becomes (devices, B // devices), a part for each device."""

    def split(path, leaf):
        if is_split(f"sequence{jax.tree_util.keystr(path)}", leaf):
            return leaf
        leaf = leaf.reshape(
            leaf.shape[0], jax.local_device_count(), -1, *leaf.shape[2:]
        )
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(None, AXIS))

    return jax.tree.map_with_path(split, sequence)


def unshard(tree):
    """Merge (devices, per_device) at `axes`."""

    def merge(leaf, axis):
        if axis is None:
            return leaf
        return leaf.reshape(
            leaf.shape[0], leaf.shape[1] * leaf.shape[2], *leaf.shape[3:]
        )

    axes = jax.tree.broadcast((1, None), tree, is_leaf=lambda axis: axis is None)
    return jax.tree.map(merge, tree, axes)


def unroll(params, sequence):
    """`sequence` is [time, batch, features]."""
    return unshard(p_unroll(params, shard(sequence)))
