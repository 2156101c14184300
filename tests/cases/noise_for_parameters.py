# flags: gen langevin --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def langevin(key, w, x):
    grad = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    key, sub = jax.random.split(key)
    return key, w - 0.1 * grad + 0.01 * jax.random.normal(sub, w.shape)


def inputs(seed):
    rng = np.random.default_rng(seed)
    w, x = rng.normal(size=5).astype("float32"), rng.normal(size=(24, 5)).astype("float32")
    return jax.random.key(seed), w, x
# output
"""Data-parallel `langevin`: same call and same results as noise_for_parameters.py::langevin, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, None, 0), out_axes=None)
def p_langevin(key, w, x):
    """`langevin` on one device's share; `x` leaves are (devices, per_device, ...)."""
    grad = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    grad = jax.lax.pmean(grad, axis_name=AXIS)
    key, sub = jax.random.split(key)
    return key, w - 0.1 * grad + 0.01 * jax.random.normal(sub, w.shape)


def shard(x):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        name = f"x{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        if len(shape) != 2:
            raise ValueError(
                f"langevin: {name} has shape {shape}: this was proved for rank 2; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"langevin: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )

    x = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), x
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    return jax.device_put(x, sharding)


def langevin(key, w, x):
    return p_langevin(key, w, shard(x))
