# flags: gen f --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def loss(w, x, y):
    h = jnp.tanh(jnp.tanh(x @ w) @ w.T @ w)
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


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 1, 1), out_axes=None)
def p_f(w, x, y):
    """`f` on one device's share; `x` and `y` leaves are (12, devices, per_device, ...)."""
    x, y = merged((x, y))
    n = x.shape[0] // 4
    losses = []
    for i in range(4):
        error, slope = jax.value_and_grad(loss)(
            w, x[i * n : (i + 1) * n], y[i * n : (i + 1) * n]
        )
        error, slope = jax.lax.pmean((error, slope), axis_name=AXIS)
        w = w - 0.1 * slope
        losses.append(error)
    part = slice(n, 2 * n)
    w = w - 0.1 * jax.lax.pmean(jax.grad(loss)(w, x[part], y[part]), axis_name=AXIS)
    total = jnp.zeros_like(w)
    for xs, ys in zip(jnp.split(x, 3), jnp.split(y, 3), strict=True):
        total = total + jax.grad(loss)(w, xs, ys)
    return w - 0.1 * jax.lax.pmean(total, axis_name=AXIS), jnp.stack(losses)


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
    if (
        getattr(leaf, "sharding", None) is sharding(None, AXIS)
        and len(shape) == rank + 2
        and shape[0] == 12
    ):
        return True
    found = jax.dtypes.scalar_type_of(leaf).__name__
    sizes.update(shape[:1])
    if (found, len(shape)) != (kind, rank) or len(sizes) > 1 or shape[0] % (12 * count):
        raise ValueError(
            f"f: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {12 * count} (12 for each of the "
            f"devices), the same in all of the batch (found {sizes})"
        )
    return False


def shard(x, y):
    """(B, ...) -> (12, devices, rows, ...): of each minibatch a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("x", "y")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(12, jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(None, AXIS))

    return jax.tree.map_with_path(split, (x, y))


def merged(tree):
    """(12, rows, ...) -> (12 * rows, ...): the minibatches one behind the other."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(12 * leaf.shape[1], *leaf.shape[2:]), tree
    )


def f(w, x, y):
    """A step on each of four slices of the rows, then gradients that are added up over three parts."""
    x, y = shard(x, y)
    return p_f(replicate(w), x, y)
