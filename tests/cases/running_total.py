# flags: gen summary --arg x=f32[24,3]
import jax.numpy as jnp


def summary(x):
    total = jnp.sum(x)
    total = total + jnp.sum(x**2)
    total -= jnp.sum(jnp.abs(x))
    drift = jnp.mean(x)
    drift = drift + jnp.mean(x**3)
    shift = jnp.sum(x, axis=0)
    shift = shift + jnp.sum(x**2, axis=0)
    return jnp.sqrt(jnp.abs(total)), drift, jnp.mean(x - shift)
# output
"""Data-parallel `summary`: same call and same results as running_total.py::summary, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0,), out_axes=None)
def p_summary(x):
    """`summary` on one device's share; `x` leaves are (devices, per_device, ...)."""
    total = jnp.sum(x)
    total = total + jnp.sum(x**2)
    total -= jnp.sum(jnp.abs(x))
    drift = jnp.mean(x)
    drift = drift + jnp.mean(x**3)
    drift = jax.lax.pmean(drift, axis_name=AXIS)
    shift = jnp.sum(x, axis=0)
    shift = shift + jnp.sum(x**2, axis=0)
    total, shift = jax.lax.psum((total, shift), axis_name=AXIS)
    return (
        jnp.sqrt(jnp.abs(total)),
        drift,
        jax.lax.pmean(jnp.mean(x - shift), axis_name=AXIS),
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
                f"summary: {name} has shape {shape}: this was proved for rank 2; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"summary: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )

    x = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), x
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    return jax.device_put(x, sharding)


def summary(x):
    return p_summary(shard(x))
