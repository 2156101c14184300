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


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), (AXIS,)), P(*axes))


def replicate(tree):
    """`tree` whole on every device, where results are too: a call that gets these back compiles nothing anew."""
    whole = sharding()
    if all(getattr(leaf, "sharding", None) == whole for leaf in jax.tree.leaves(tree)):
        return tree
    return jax.device_put(tree, whole)


#: Kind and rank of the batch's arrays in the proof.
PROVED = {"x": ("float", 2), "y": ("float", 1)}


def is_split(name, leaf, sizes):
    """Whether an earlier call split `leaf`; if none did, raise unless it is as in the proof and divisible."""
    shape, count = np.shape(leaf), jax.local_device_count()
    kind, rank = PROVED.get(name, ("no leaf", -1))
    if getattr(leaf, "sharding", None) is sharding(AXIS) and len(shape) == rank + 1:
        return True
    found = jax.dtypes.scalar_type_of(leaf).__name__
    sizes.update(shape[:1])
    if (found, len(shape)) != (kind, rank) or len(sizes) > 1 or shape[0] % count:
        raise ValueError(
            f"fit: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices), the same in all "
            f"of the batch (found {sizes})"
        )
    return False


def shard(x, y):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("x", "y")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (x, y))


def fit(w, x, y):
    """Gradient descent until the error is small; the weights, the steps taken and the error left."""
    x, y = shard(x, y)
    return p_fit(replicate(w), x, y)
