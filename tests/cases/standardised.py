# flags: gen standardised --arg x=f32[24,5]
import jax.numpy as jnp


def standardised(x):
    return (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-6)
# output
"""Data-parallel `standardised`: same call and same results as standardised.py::standardised, on N devices."""

import functools

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0,), out_axes=0)
def p_standardised(x):
    """`standardised` on one device's share; `x` leaves are (devices, per_device, ...)."""
    return (x - jax.lax.pmean(x.mean(axis=0), axis_name=AXIS)) / (
        jax.numpy.sqrt(
            jax.lax.pmean(
                jax.numpy.mean(
                    (
                        x
                        - jax.lax.pmean(
                            jax.numpy.mean(x, axis=0, keepdims=True), axis_name=AXIS
                        )
                    )
                    ** 2,
                    axis=0,
                ),
                axis_name=AXIS,
            )
        )
        + 1e-6
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
                f"standardised: {name} has shape {shape}: this was proved for rank 2; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"standardised: {name} has shape {shape}: axis 0 "
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


def standardised(x):
    return unshard(p_standardised(shard(x)))
