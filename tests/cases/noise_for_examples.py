# flags: gen f --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def f(key, x):
    noise = jax.random.normal(key, x.shape)
    return x + noise


def inputs(seed):
    return jax.random.key(seed), np.ones((24, 5), "float32")
# output
"""Data-parallel `f`: same call and same results as noise_for_examples.py::f, on N devices."""

import functools

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0), out_axes=0)
def p_f(key, x):
    """`f` on one device's share; `x` leaves are (devices, per_device, ...)."""
    noise = jax.random.normal(
        jax.random.fold_in(key, jax.lax.axis_index(AXIS)), x.shape
    )
    return x + noise


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


def unshard(tree):
    """(devices, per_device, ...) -> (devices * per_device, ...)."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), tree
    )


def f(key, x):
    return unshard(p_f(key, shard(x)))
