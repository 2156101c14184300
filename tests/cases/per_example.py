# flags: gen distances --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def distances(x, centers):
    """Of each example to each center."""
    squared = jax.vmap(lambda row: jnp.sum((row - centers) ** 2, axis=-1))(x)
    nearest = jnp.argmin(squared, axis=1)
    chosen = jax.nn.one_hot(nearest, centers.shape[0])
    sums = jnp.einsum("bk,bd->kd", chosen, x)
    counts = jax.ops.segment_sum(jnp.ones(x.shape[0]), nearest, num_segments=3)
    return nearest, sums / jnp.maximum(counts, 1.0)[:, None]


def inputs(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(24, 2)).astype("float32"), rng.normal(size=(3, 2)).astype("float32")
# output
"""Data-parallel `distances`: same call and same results as per_example.py::distances, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0, None), out_axes=(0, None))
def p_distances(x, centers):
    """`distances` on one device's share; `x` leaves are (devices, per_device, ...)."""
    squared = jax.vmap(lambda row: jnp.sum((row - centers) ** 2, axis=-1))(x)
    nearest = jnp.argmin(squared, axis=1)
    chosen = jax.nn.one_hot(nearest, centers.shape[0])
    sums = jnp.einsum("bk,bd->kd", chosen, x)
    counts = jax.ops.segment_sum(jnp.ones(x.shape[0]), nearest, num_segments=3)
    sums, counts = jax.lax.psum((sums, counts), axis_name=AXIS)
    return nearest, sums / jnp.maximum(counts, 1.0)[:, None]


def shard(x):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        name = f"x{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        if len(shape) != 2:
            raise ValueError(
                f"distances: {name} has shape {shape}: this was proved for rank 2; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"distances: {name} has shape {shape}: axis 0 "
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


def distances(x, centers):
    """Of each example to each center."""
    return unshard(p_distances(shard(x), centers))
