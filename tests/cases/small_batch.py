# flags: gen f --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def f(x):
    return jnp.mean(x)


def inputs(seed):
    return (np.random.default_rng(seed).normal(size=(4, 3)),)
# output
"""Data-parallel `f`: same call and same results as small_batch.py::f, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0,), out_axes=None)
def p_f(x):
    """`f` on one device's share; `x` leaves are (devices, per_device, ...)."""
    return jax.lax.pmean(jnp.mean(x), axis_name=AXIS)


def shard(x):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        name = f"x{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        if len(shape) != 2:
            raise ValueError(
                f"f: {name} has shape {shape}: this was proved for rank 2; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"f: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )

    x = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), x
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    return jax.device_put(x, sharding)


def f(x):
    return p_f(shard(x))
