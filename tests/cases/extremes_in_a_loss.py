# flags: gen step --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def scaled(h):
    low, high = jnp.min(h, axis=0), h.max(axis=0)
    return (h - low) / (high - low + 1e-6)


def step(params, x, y):
    """The gradients go through the least and the largest value of the batch."""

    def loss_fn(p):
        errors = (jnp.tanh(scaled(x * p)).sum(1) - y) ** 2
        return jnp.mean(errors) + 0.1 * jnp.max(errors)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return params - 0.1 * grads, loss


def inputs(seed):
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=s).astype("float32") for s in ((3,), (48, 3), (48,)))
# output
"""Data-parallel `step`: same call and same results as extremes_in_a_loss.py::step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


def scaled(h):
    all_h = jax.lax.all_gather(h, axis_name=AXIS, axis=0, tiled=True)
    low, high = jnp.min(all_h, axis=0), all_h.max(axis=0)
    return (h - low) / (high - low + 1e-6)


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_step(params, x, y):
    """`step` on one device's share; `x` and `y` leaves are (devices, per_device, ...)."""

    def loss_fn(p):
        errors = (jnp.tanh(scaled(x * p)).sum(1) - y) ** 2
        mean = jax.lax.pmean(jnp.mean(errors), axis_name=AXIS)
        all_errors = jax.lax.all_gather(errors, axis_name=AXIS, axis=0, tiled=True)
        return mean + 0.1 * jnp.max(all_errors)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    # The loss is whole on every device, the gradient only that through its own rows.
    grads = jax.lax.pmean(grads, axis_name=AXIS)
    return params - 0.1 * grads, loss


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
            f"step: {name} is {found}{list(shape)}; expected {kind} of rank "
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


def step(params, x, y):
    """The gradients go through the least and the largest value of the batch."""
    x, y = shard(x, y)
    return p_step(replicate(params), x, y)
