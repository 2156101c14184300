# flags: gen mixup --inputs this::inputs
import jax
import numpy as np


def mixup(key, x):
    order = jax.random.permutation(key, x.shape[0])
    return 0.7 * x + 0.3 * x[order]


def inputs(seed):
    return jax.random.key(seed), np.random.default_rng(seed).normal(size=(24, 5)).astype("float32")
# output
"""Data-parallel `mixup`: same call and same results as mixup.py::mixup, on N devices."""

import functools

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0), out_axes=0)
def p_mixup(key, x):
    """`mixup` on one device's share; `x` leaves are (devices, per_device, ...)."""
    order = own_share(
        jax.random.permutation(key, jax.lax.psum(x.shape[0], axis_name=AXIS))
    )
    return (
        0.7 * x + 0.3 * jax.lax.all_gather(x, axis_name=AXIS, axis=0, tiled=True)[order]
    )


def shard(x):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        name = f"x{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        if len(shape) != 2:
            raise ValueError(
                f"mixup: {name} has shape {shape}: this was proved for rank 2; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"mixup: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )

    x = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), x
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    return jax.device_put(x, sharding)


def own_share(x, axis=0):
    """This device's part along `axis` of `x`, which every device has whole."""
    count = jax.lax.psum(1, AXIS)
    size, left = divmod(x.shape[axis], count)
    if left:
        raise ValueError(
            f"mixup: axis {axis} of {x.shape} does not divide over {count} devices"
        )
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(AXIS) * size, size, axis)


def unshard(tree):
    """(devices, per_device, ...) -> (devices * per_device, ...)."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), tree
    )


def mixup(key, x):
    return unshard(p_mixup(key, shard(x)))
