# flags: gen total --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


AXIS = 3.0


def shard(x):
    return x * AXIS


def total(x, p_total):
    np = shard(x)
    result = jnp.sum(np) * p_total
    return {"result": result, "devices": x}


def inputs(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(24, 5)).astype("float32"), 2.0
# output
"""Data-parallel `total`: same call and same results as names_that_collide.py::total, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from names_that_collide import shard

AXIS_ = "batch"


@functools.partial(
    jax.pmap,
    axis_name=AXIS_,
    in_axes=(0, None),
    out_axes={"devices": 0, "result": None},
)
def p_total_(x, p_total):
    """`total` on one device's share; `x` leaves are (devices, per_device, ...)."""
    np = shard(x)
    result = jnp.sum(np) * p_total
    result = jax.lax.psum(result, axis_name=AXIS_)
    return {"result": result, "devices": x}


def shard_(x):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        name = f"x{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        if len(shape) != 2:
            raise ValueError(
                f"total: {name} has shape {shape}: this was proved for rank 2; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"total: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )

    x = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), x
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS_,)), P(AXIS_))
    return jax.device_put(x, sharding)


def unshard(tree):
    """Merge (devices, per_device) at `axes`."""
    axes = {"devices": 0, "result": None}

    def merge(axis, tree):
        if axis is None:
            return tree
        return jax.tree.map(
            lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]),
            tree,
        )

    return jax.tree.map(merge, axes, tree, is_leaf=lambda axis: axis is None)


def total(x, p_total):
    return unshard(p_total_(shard_(x), p_total))
