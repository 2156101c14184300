# flags: gen standardize --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def standardize(x):
    """Zero mean and unit variance over the batch."""
    mean = jnp.mean(x, axis=0)
    mean_of_squares = jnp.mean(x**2, axis=0)
    variance = mean_of_squares - mean**2
    return (x - mean) / jnp.sqrt(variance + 1e-5), variance


def inputs(seed):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(24, 5)).astype("float32"),)
# output
"""Data-parallel `standardize`: same call and same results as variance_from_two_means.py::standardize, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0,), out_axes=(0, None))
def p_standardize(x):
    """`standardize` on one device's share; `x` leaves are (devices, per_device, ...)."""
    mean = jnp.mean(x, axis=0)
    mean_of_squares = jnp.mean(x**2, axis=0)
    mean, mean_of_squares = jax.lax.pmean((mean, mean_of_squares), axis_name=AXIS)
    variance = mean_of_squares - mean**2
    return (x - mean) / jnp.sqrt(variance + 1e-5), variance


def shard(x):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        name = f"x{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        if len(shape) != 2:
            raise ValueError(
                f"standardize: {name} has shape {shape}: this was proved for rank 2; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"standardize: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )

    x = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), x
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    return jax.device_put(x, sharding)


def unshard(tree):
    """Merge (devices, per_device) at `axes`."""
    axes = (0, None)

    def merge(axis, tree):
        if axis is None:
            return tree
        return jax.tree.map(
            lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]),
            tree,
        )

    return jax.tree.map(merge, axes, tree, is_leaf=lambda axis: axis is None)


def standardize(x):
    """Zero mean and unit variance over the batch."""
    return unshard(p_standardize(shard(x)))
