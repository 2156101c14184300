# flags: gen fit --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def fit(w, x, y):
    """Gradient descent until the error is small; the weights, the steps taken and the error left."""

    def error(w):
        return jnp.sqrt(jnp.mean((x @ w - y) ** 2))

    def step(state):
        w, steps = state
        slope = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
        return w - 0.05 * slope, steps + 1

    w, steps = jax.lax.while_loop(lambda state: (error(state[0]) > 0.2) & (state[1] < 60), step, (w, 0))
    return w, steps, error(w)


def inputs(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(24, 3)).astype("float32")
    return np.zeros(3, "float32"), x, x @ np.array([1, -2, 0.5], "float32")
# output
"""Data-parallel `fit`: same call and same results as until_converged.py::fit, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_fit(w, x, y):
    """`fit` on one device's share; `x` and `y` leaves are (devices, per_device, ...)."""

    def error(w):
        return jnp.sqrt(jax.lax.pmean(jnp.mean((x @ w - y) ** 2), axis_name=AXIS))

    def step(state):
        w, steps = state
        slope = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
        slope = jax.lax.pmean(slope, axis_name=AXIS)
        return w - 0.05 * slope, steps + 1

    w, steps = jax.lax.while_loop(
        lambda state: (error(state[0]) > 0.2) & (state[1] < 60), step, (w, 0)
    )
    return w, steps, error(w)


def shard(x, y):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    ranks = {"x": 2, "y": 1}
    devices = jax.local_devices()
    count = len(devices)
    arrays = {"x": x, "y": y}
    sizes = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        name = path[0].key + jax.tree_util.keystr(path[1:])
        shape = np.shape(leaf)
        if len(shape) != ranks.get(name):
            raise ValueError(
                f"fit: {name} has shape {shape}: this was proved for rank {ranks.get(name)}; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"fit: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )
        sizes[name] = size

    if len(set(sizes.values())) > 1:
        raise ValueError(f"fit: the batch has more than one size: {sizes}")

    arrays = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]),
        arrays,
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    arrays = jax.device_put(arrays, sharding)
    return arrays["x"], arrays["y"]


def fit(w, x, y):
    """Gradient descent until the error is small; the weights, the steps taken and the error left."""
    x, y = shard(x, y)
    return p_fit(w, x, y)
