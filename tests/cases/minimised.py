# flags: gen f --inputs this::inputs
import jax.numpy as jnp
import numpy as np
from jax.scipy.optimize import minimize


def f(w, x, y):
    """Ridge regression by a library that takes gradients of what it is handed."""

    def objective(p):
        errors = x @ p - y
        return jnp.mean(errors**2) + 0.1 * jnp.sum(p**2)

    found = minimize(objective, w, method="BFGS", options={"maxiter": 3})
    return found.x, found.fun


def inputs(seed):
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=s).astype("float32") for s in ((3,), (48, 3), (48,)))
# output
"""Data-parallel `f`: same call and same results as minimised.py::f, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.optimize import minimize
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_f(w, x, y):
    """`f` on one device's share; `x` and `y` leaves are (devices, per_device, ...)."""

    def objective(p):
        errors = x @ jax.lax.pmean(p, axis_name=AXIS) - y
        return jax.lax.pmean(
            jnp.mean(errors**2) + 0.1 * jnp.sum(jax.lax.pmean(p, axis_name=AXIS) ** 2),
            axis_name=AXIS,
        )

    found = minimize(objective, w, method="BFGS", options={"maxiter": 3})
    return found.x, found.fun


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
    """Ridge regression by a library that takes gradients of what it is handed."""
    x, y = shard(x, y)
    return p_f(w, x, y)
