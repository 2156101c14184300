# flags: gen train_step --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def loss_fn(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2)


def train_step(params, x, y):
    """The gradients of all minibatches are sent once, and what is read in between when it is made."""
    grads = jax.tree.map(jnp.zeros_like, params)
    total = worst = 0.0
    for xs, ys in zip(jnp.split(x, 3), jnp.split(y, 3), strict=True):
        loss, part = jax.value_and_grad(loss_fn)(params, xs, ys)
        grads = jax.tree.map(lambda a, b: a + b, grads, part)
        total += loss
        worst = jnp.maximum(worst, jnp.max(jnp.abs(ys)))
    grads = jax.tree.map(lambda g: g / 3, grads)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), total / 3, worst


def inputs(seed):
    rng = np.random.default_rng(seed)
    params = {"w": rng.normal(size=(4, 8)).astype("float32"), "v": rng.normal(size=8).astype("float32")}
    return params, rng.normal(size=(36, 4)).astype("float32"), rng.normal(size=36).astype("float32")
# output
"""Data-parallel `train_step`: same call and same results as gradients_added_up.py::train_step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gradients_added_up import loss_fn

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 1, 1), out_axes=None)
def p_train_step(params, x, y):
    """`train_step` on one device's share.

    `x` and `y` leaves are (3, devices, per_device, ...).
    """
    x, y = merged((x, y))
    grads = jax.tree.map(jnp.zeros_like, params)
    total = worst = 0.0
    for xs, ys in zip(jnp.split(x, 3), jnp.split(y, 3), strict=True):
        loss, part = jax.value_and_grad(loss_fn)(params, xs, ys)
        grads = jax.tree.map(lambda a, b: a + b, grads, part)
        total += loss
        worst = jnp.maximum(worst, jax.lax.pmax(jnp.max(jnp.abs(ys)), axis_name=AXIS))
    grads = jax.tree.map(lambda g: g / 3, jax.lax.pmean(grads, axis_name=AXIS))
    return (
        jax.tree.map(lambda p, g: p - 0.1 * g, params, grads),
        jax.lax.pmean(total, axis_name=AXIS) / 3,
        worst,
    )


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
        and shape[0] == 3
    ):
        return True
    found = jax.dtypes.scalar_type_of(leaf).__name__
    sizes.update(shape[:1])
    if (found, len(shape)) != (kind, rank) or len(sizes) > 1 or shape[0] % (3 * count):
        raise ValueError(
            f"train_step: {name} is {found}{list(shape)}; expected {kind} of "
            f"rank {rank}, axis 0 a multiple of {3 * count} (3 for each of the "
            f"devices), the same in all of the batch (found {sizes})"
        )
    return False


def shard(x, y):
    """(B, ...) -> (3, devices, rows, ...): of each minibatch a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("x", "y")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(3, jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(None, AXIS))

    return jax.tree.map_with_path(split, (x, y))


def merged(tree):
    """(3, rows, ...) -> (3 * rows, ...): the minibatches one behind the other."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(3 * leaf.shape[1], *leaf.shape[2:]), tree
    )


def train_step(params, x, y):
    """The gradients of all minibatches are sent once, and what is read in between when it is made."""
    x, y = shard(x, y)
    return p_train_step(replicate(params), x, y)
