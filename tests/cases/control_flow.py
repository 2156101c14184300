# flags: gen settle --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def settle(x):
    """Everything below `x` keeps to one example at a time, until the mean."""
    y = jax.lax.fori_loop(0, 3, lambda _, v: jnp.where(v > 0, v * 0.5, -v), x)
    y = jax.lax.while_loop(lambda v: jnp.any(v[1] < 3), lambda v: (v[0] + 1.0, v[1] + 1), (y, 0))[0]
    level = jnp.mean(y)
    return jax.lax.cond(level > 1.0, lambda v: v / level, lambda v: v, y)


def inputs(seed):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(24, 5)).astype("float32"),)
# output
"""Data-parallel `settle`: same call and same results as control_flow.py::settle, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0,), out_axes=0)
def p_settle(x):
    """`settle` on one device's share; `x` leaves are (devices, per_device, ...)."""
    y = jax.lax.fori_loop(0, 3, lambda _, v: jnp.where(v > 0, v * 0.5, -v), x)
    y = jax.lax.while_loop(
        lambda v: jnp.any(v[1] < 3), lambda v: (v[0] + 1.0, v[1] + 1), (y, 0)
    )[0]
    level = jnp.mean(y)
    level = jax.lax.pmean(level, axis_name=AXIS)
    return jax.lax.cond(level > 1.0, lambda v: v / level, lambda v: v, y)


def shard(x):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        name = f"x{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        if len(shape) != 2:
            raise ValueError(
                f"settle: {name} has shape {shape}: this was proved for rank 2; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"settle: {name} has shape {shape}: axis 0 "
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


def settle(x):
    """Everything below `x` keeps to one example at a time, until the mean."""
    return unshard(p_settle(shard(x)))
