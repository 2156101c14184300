# flags: gen update --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def loss_fn(w, x, y):
    return jnp.sqrt(jnp.mean((jnp.tanh(x @ w) - y) ** 2))


def sgd(w, minibatch):
    loss, grads = jax.value_and_grad(loss_fn)(w, *minibatch)
    return w - 0.1 * grads, loss


def update(w, x, y):
    size = x.shape[0]
    minibatches = x.reshape(4, size // 4, -1), y.reshape(4, size // 4)
    w, losses = jax.lax.scan(sgd, w, minibatches)
    return w, losses.mean()


def inputs(seed):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype("float32")
    return draw(5), draw(64, 5), draw(64)
# output
"""Data-parallel `update`: same call and same results as minibatches.py::update, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


def loss_fn(w, x, y):
    return jnp.sqrt(jax.lax.pmean(jnp.mean((jnp.tanh(x @ w) - y) ** 2), axis_name=AXIS))


def sgd(w, minibatch):
    loss, grads = jax.value_and_grad(loss_fn)(w, *minibatch)
    return w - 0.1 * jax.lax.pmean(grads, axis_name=AXIS), loss


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_update(w, x, y):
    """`update` on one device's share; `x` and `y` leaves are (devices, per_device, ...)."""
    size = x.shape[0]
    minibatches = own_share(
        jax.lax.all_gather(x, axis_name=AXIS, axis=0, tiled=True).reshape(
            4, jax.lax.psum(size, axis_name=AXIS) // 4, -1
        ),
        axis=1,
    ), own_share(
        jax.lax.all_gather(y, axis_name=AXIS, axis=0, tiled=True).reshape(
            4, jax.lax.psum(size, axis_name=AXIS) // 4
        ),
        axis=1,
    )
    w, losses = jax.lax.scan(sgd, w, minibatches)
    return w, losses.mean()


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
                f"update: {name} has shape {shape}: this was proved for rank {ranks.get(name)}; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"update: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )
        sizes[name] = size

    if len(set(sizes.values())) > 1:
        raise ValueError(f"update: the batch has more than one size: {sizes}")

    arrays = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]),
        arrays,
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    arrays = jax.device_put(arrays, sharding)
    return arrays["x"], arrays["y"]


def own_share(x, axis=0):
    """This device's part along `axis` of `x`, which every device has whole."""
    count = jax.lax.psum(1, AXIS)
    size, left = divmod(x.shape[axis], count)
    if left:
        raise ValueError(
            f"update: axis {axis} of {x.shape} does not divide over {count} devices"
        )
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(AXIS) * size, size, axis)


def update(w, x, y):
    x, y = shard(x, y)
    return p_update(w, x, y)
