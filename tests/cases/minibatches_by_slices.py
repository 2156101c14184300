# flags: gen f --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def loss(w, x, y):
    h = jnp.tanh(x @ w)
    for _ in range(3):
        h = jnp.tanh(h @ w.T @ w)
    return jnp.mean((h.sum(-1) - y) ** 2)


def f(w, x, y):
    """A step on each of four slices of the rows, then gradients that are added up over three parts."""
    n = x.shape[0] // 4
    losses = []
    for i in range(4):
        error, slope = jax.value_and_grad(loss)(w, x[i * n : (i + 1) * n], y[i * n : (i + 1) * n])
        w = w - 0.1 * slope
        losses.append(error)
    part = slice(n, 2 * n)
    w = w - 0.1 * jax.grad(loss)(w, x[part], y[part])
    total = jnp.zeros_like(w)
    for xs, ys in zip(jnp.split(x, 3), jnp.split(y, 3), strict=True):
        total = total + jax.grad(loss)(w, xs, ys)
    return w - 0.1 * total, jnp.stack(losses)


def inputs(seed):
    rng = np.random.default_rng(seed)
    w, x, y = (rng.normal(size=s).astype("float32") for s in ((3, 16), (288, 3), (288,)))
    return w, x, y
# output
"""Data-parallel `f`: same call and same results as minibatches_by_slices.py::f, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from minibatches_by_slices import loss

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_f(w, x, y):
    """`f` on one device's share; `x` and `y` leaves are (devices, per_device, ...)."""
    n = x.shape[0] // 4
    losses = []
    for i in range(4):
        error, slope = jax.value_and_grad(loss)(
            w,
            own_share(
                jax.lax.all_gather(x, axis_name=AXIS, axis=0, tiled=True)[
                    i
                    * jax.lax.psum(n, axis_name=AXIS) : (i + 1)
                    * jax.lax.psum(n, axis_name=AXIS)
                ]
            ),
            own_share(
                jax.lax.all_gather(y, axis_name=AXIS, axis=0, tiled=True)[
                    i
                    * jax.lax.psum(n, axis_name=AXIS) : (i + 1)
                    * jax.lax.psum(n, axis_name=AXIS)
                ]
            ),
        )
        error, slope = jax.lax.pmean((error, slope), axis_name=AXIS)
        w = w - 0.1 * slope
        losses.append(error)
    part = slice(jax.lax.psum(n, axis_name=AXIS), 2 * jax.lax.psum(n, axis_name=AXIS))
    w = w - 0.1 * jax.lax.pmean(
        jax.grad(loss)(
            w,
            own_share(jax.lax.all_gather(x, axis_name=AXIS, axis=0, tiled=True)[part]),
            own_share(jax.lax.all_gather(y, axis_name=AXIS, axis=0, tiled=True)[part]),
        ),
        axis_name=AXIS,
    )
    total = jnp.zeros_like(w)
    for xs, ys in zip(
        jnp.split(jax.lax.all_gather(x, axis_name=AXIS, axis=0, tiled=True), 3),
        jnp.split(jax.lax.all_gather(y, axis_name=AXIS, axis=0, tiled=True), 3),
        strict=True,
    ):
        total = total + jax.lax.pmean(
            jax.grad(loss)(w, own_share(xs), own_share(ys)), axis_name=AXIS
        )
    return w - 0.1 * total, jnp.stack(losses)


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
        if not size or size % (12 * count):
            raise ValueError(
                f"f: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices in multiples of 12; "
                f"pass a multiple of {12 * count}"
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


def own_share(x, axis=0):
    """This device's part along `axis` of `x`, which every device has whole."""
    count = jax.lax.psum(1, AXIS)
    size, left = divmod(x.shape[axis], count)
    if left:
        raise ValueError(
            f"f: axis {axis} of {x.shape} does not divide over {count} devices"
        )
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(AXIS) * size, size, axis)


def f(w, x, y):
    """A step on each of four slices of the rows, then gradients that are added up over three parts."""
    x, y = shard(x, y)
    return p_f(w, x, y)
