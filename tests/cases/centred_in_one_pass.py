# flags: gen step --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def step(w, real, made):
    """Both batches go through one pass, and what is centred there is the mean of both."""

    def loss(w):
        scores = jnp.tanh(jnp.concatenate([real, made]) @ w)
        one, other = jnp.split(scores - scores.mean(), 2)
        return jnp.mean(one * other)

    return w - 0.1 * jax.grad(loss)(w)


def inputs(seed):
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=shape).astype("float32") for shape in ((5,), (24, 5), (24, 5)))
# output
"""Data-parallel `step`: same call and same results as centred_in_one_pass.py::step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_step(w, real, made):
    """`step` on one device's share; `real` and `made` leaves are (devices, per_device, ...)."""

    def loss(w):
        scores = jnp.tanh(jnp.concatenate([real, made]) @ w)
        one, other = jnp.split(scores - jax.lax.pmean(scores.mean(), axis_name=AXIS), 2)
        return jnp.mean(one * other)

    return w - 0.1 * jax.lax.pmean(jax.grad(loss)(w), axis_name=AXIS)


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
PROVED = {"real": ("float", 2), "made": ("float", 2)}


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


def shard(real, made):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("real", "made")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (real, made))


def step(w, real, made):
    """Both batches go through one pass, and what is centred there is the mean of both."""
    real, made = shard(real, made)
    return p_step(replicate(w), real, made)
