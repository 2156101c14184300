# flags: gen totals --arg x=f32[24,4] --arg w=f32[4]
import jax.numpy as jnp


def totals(x, w):
    error = lambda scale: jnp.mean((x @ w) ** 2) / jnp.mean((scale * x) ** 2)
    total = 0.0
    for i in range(x.shape[1]):
        total = total + jnp.sum(x[:, i])
        total -= 1.0
    return total, error(2.0)
# output
"""Data-parallel `totals`: same call and same results as loop_totals.py::totals, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0, None), out_axes=None)
def p_totals(x, w):
    """`totals` on one device's share; `x` leaves are (devices, per_device, ...)."""
    error = lambda scale: jax.lax.pmean(
        jnp.mean((x @ w) ** 2), axis_name=AXIS
    ) / jax.lax.pmean(jnp.mean((scale * x) ** 2), axis_name=AXIS)
    total = 0.0
    for i in range(x.shape[1]):
        total = total + jax.lax.psum(jnp.sum(x[:, i]), axis_name=AXIS)
        total -= 1.0
    return total, error(2.0)


def shard(x):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        name = f"x{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        if len(shape) != 2:
            raise ValueError(
                f"totals: {name} has shape {shape}: this was proved for rank 2; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"totals: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )

    x = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), x
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    return jax.device_put(x, sharding)


def totals(x, w):
    return p_totals(shard(x), w)
