# flags: gen step --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import pmean


def step(w, x):
    loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    grad = pmean(grad, axis_name="devices")
    return w - 0.1 * grad, loss


def inputs(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=5).astype("float32"), rng.normal(size=(24, 5)).astype("float32")
# output
"""Data-parallel `step`: same call and same results as own_collectives.py::step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import pmean
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "devices"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0), out_axes=None)
def p_step(w, x):
    """`step` on one device's share; `x` leaves are (devices, per_device, ...)."""
    loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    loss = jax.lax.pmean(loss, axis_name=AXIS)
    grad = pmean(grad, axis_name="devices")
    return w - 0.1 * grad, loss


def shard(x):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        name = f"x{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        if len(shape) != 2:
            raise ValueError(
                f"step: {name} has shape {shape}: this was proved for rank 2; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"step: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )

    x = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), x
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    return jax.device_put(x, sharding)


def step(w, x):
    return p_step(w, shard(x))
