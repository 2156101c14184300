# flags: gen f --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.sparse.linalg import cg


def f(w, x, y):
    """Newton's method by conjugate gradients, a Gauss-Newton step, and a ridge solved without a matrix."""

    def objective(p):
        return jnp.mean((jnp.tanh(x @ p) - y) ** 2) + 0.05 * jnp.sum(p**2)

    def curvature(v):
        return jax.jvp(jax.grad(objective), (w,), (v,))[1] + v

    newton, _ = cg(curvature, jax.grad(objective)(w), maxiter=5)
    errors, along = jax.linearize(lambda p: jnp.tanh(x @ p) - y, w)
    back = jax.linear_transpose(along, w)
    gauss, _ = cg(lambda v: back(along(v))[0] + 0.1 * v, back(errors)[0], maxiter=4)

    def normal(v):
        return x.T @ (x @ v) + 0.1 * v

    ridge = jax.lax.custom_linear_solve(normal, w, lambda solve, b: cg(solve, b)[0], symmetric=True)
    return w - newton, w - gauss, ridge


def inputs(seed):
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=s).astype("float32") for s in ((3,), (48, 3), (48,)))
# output
"""Data-parallel `f`: same call and same results as second_order.py::f, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.sparse.linalg import cg
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_f(w, x, y):
    """`f` on one device's share; `x` and `y` leaves are (devices, per_device, ...)."""

    def objective(p):
        return jnp.mean((jnp.tanh(x @ p) - y) ** 2) + 0.05 * jnp.sum(p**2)

    def curvature(v):
        return jax.lax.pmean(
            jax.jvp(jax.grad(objective), (w,), (v,))[1] + v, axis_name=AXIS
        )

    newton, _ = cg(
        curvature, jax.lax.pmean(jax.grad(objective)(w), axis_name=AXIS), maxiter=5
    )
    errors, along = jax.linearize(lambda p: jnp.tanh(x @ p) - y, w)
    back = jax.linear_transpose(along, w)
    gauss, _ = cg(
        lambda v: jax.lax.psum(back(along(v))[0], axis_name=AXIS) + 0.1 * v,
        jax.lax.psum(back(errors)[0], axis_name=AXIS),
        maxiter=4,
    )

    def normal(v):
        return jax.lax.psum(x.T @ (x @ v), axis_name=AXIS) + 0.1 * v

    ridge = jax.lax.custom_linear_solve(
        normal, w, lambda solve, b: cg(solve, b)[0], symmetric=True
    )
    return w - newton, w - gauss, ridge


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


def f(w, x, y):
    """Newton's method by conjugate gradients, a Gauss-Newton step, and a ridge solved without a matrix."""
    x, y = shard(x, y)
    return p_f(w, x, y)
