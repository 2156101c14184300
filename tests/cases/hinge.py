# flags: gen spread_penalty --arg w=f32[6,3] --arg x=f32[24,6]
import jax
import jax.numpy as jnp


def spread_penalty(w, x):
    z = jnp.tanh(x @ w) * 8
    spread = jax.nn.relu(1 - jnp.sqrt(jnp.var(z, axis=0) + 1e-4))
    return jnp.mean(spread) + jnp.mean(z**2)
# output
"""Data-parallel `spread_penalty`: same call and same results as hinge.py::spread_penalty, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0), out_axes=None)
def p_spread_penalty(w, x):
    """`spread_penalty` on one device's share; `x` leaves are (devices, per_device, ...)."""
    z = jnp.tanh(x @ w) * 8
    spread = jax.nn.relu(
        1
        - jnp.sqrt(
            jax.lax.pmean(
                jnp.mean(
                    (
                        z
                        - jax.lax.pmean(
                            jnp.mean(z, axis=0, keepdims=True), axis_name=AXIS
                        )
                    )
                    ** 2,
                    axis=0,
                ),
                axis_name=AXIS,
            )
            + 1e-4
        )
    )
    return jax.lax.pmean(jnp.mean(spread) + jnp.mean(z**2), axis_name=AXIS)


def shard(x):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        name = f"x{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        if len(shape) != 2:
            raise ValueError(
                f"spread_penalty: {name} has shape {shape}: this was proved for rank 2; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"spread_penalty: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )

    x = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), x
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    return jax.device_put(x, sharding)


def spread_penalty(w, x):
    return p_spread_penalty(w, shard(x))
