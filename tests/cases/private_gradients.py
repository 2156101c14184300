# flags: gen f --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib

TX = contrib.dpsgd(learning_rate=0.1, l2_norm_clip=1.0, noise_multiplier=0.5, seed=0)


def error(w, x, y):
    return (jax.nn.relu(x @ w["in"]) @ w["out"] - y) ** 2


def f(w, state, x, y):
    """A private step: a library clips the gradient of each example, averages them and adds noise."""
    gradients = jax.vmap(jax.grad(error), in_axes=(None, 0, 0))(w, x, y)
    updates, state = TX.update(gradients, state, w)
    return optax.apply_updates(w, updates), state


def inputs(seed):
    rng = np.random.default_rng(seed)
    w, a, x, y = (rng.normal(size=s).astype("float32") for s in ((8, 32), (32,), (24, 8), (24,)))
    w = {"in": w, "out": a}
    return w, TX.init(w), jnp.asarray(x), jnp.asarray(y)
# output
"""Data-parallel `f`: same call and same results as private_gradients.py::f, on N devices."""

import functools

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from private_gradients import TX, error

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, None, 0, 0), out_axes=None)
def p_f(w, state, x, y):
    """`f` on one device's share; `x` and `y` leaves are (devices, per_device, ...)."""
    gradients = jax.vmap(jax.grad(error), in_axes=(None, 0, 0))(w, x, y)
    updates, state = TX.update(
        jax.lax.all_gather(gradients, axis_name=AXIS, axis=0, tiled=True), state, w
    )
    return optax.apply_updates(w, updates), state


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
                f"f: {name} has shape {shape}: this was proved for rank {ranks.get(name)}; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"f: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )
        sizes[name] = size

    if len(set(sizes.values())) > 1:
        raise ValueError(f"f: the batch has more than one size: {sizes}")

    arrays = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]),
        arrays,
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    arrays = jax.device_put(arrays, sharding)
    return arrays["x"], arrays["y"]


def f(w, state, x, y):
    """A private step: a library clips the gradient of each example, averages them and adds noise."""
    x, y = shard(x, y)
    return p_f(w, state, x, y)
