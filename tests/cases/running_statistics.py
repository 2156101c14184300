# flags: gen update --inputs this::inputs
import jax.numpy as jnp
import numpy as np


def update(count, mean, total, observations):
    """Statistics of observations (environments, steps, features), as a normaliser keeps them."""
    count = count + jnp.prod(jnp.array(observations.shape[:2]))
    before = observations - mean
    mean = mean + jnp.sum(before, axis=(0, 1)) / count
    total = total + jnp.sum(before * (observations - mean), axis=(0, 1))
    return count, mean, total, jnp.sqrt(jnp.maximum(total, 0) / count)


def inputs(seed):
    rng = np.random.default_rng(seed)
    return np.float32(0), np.zeros(3, np.float32), np.zeros(3, np.float32), np.float32(rng.normal(size=(48, 5, 3)))
# output
"""Data-parallel `update`: same call and same results as running_statistics.py::update, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(
    jax.pmap, axis_name=AXIS, in_axes=(None, None, None, 0), out_axes=None
)
def p_update(count, mean, total, observations):
    """`update` on one device's share; `observations` leaves are (devices, per_device, ...)."""
    total_2 = jax.lax.psum(jnp.prod(jnp.array(observations.shape[:2])), axis_name=AXIS)
    count = count + total_2
    before = observations - mean
    mean = mean + jax.lax.psum(jnp.sum(before, axis=(0, 1)), axis_name=AXIS) / count
    total_3 = jax.lax.psum(
        jnp.sum(before * (observations - mean), axis=(0, 1)), axis_name=AXIS
    )
    total = total + total_3
    return count, mean, total, jnp.sqrt(jnp.maximum(total, 0) / count)


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
PROVED = {"observations": ("float", 3)}


def is_split(name, leaf):
    """Whether an earlier call split `leaf`; if none did, raise unless it is as in the proof and divisible."""
    shape, count = np.shape(leaf), jax.local_device_count()
    kind, rank = PROVED.get(name, ("no leaf", -1))
    if getattr(leaf, "sharding", None) is sharding(AXIS) and len(shape) == rank + 1:
        return True
    found = jax.dtypes.scalar_type_of(leaf).__name__
    if (found, len(shape)) != (kind, rank) or shape[0] % count:
        raise ValueError(
            f"update: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices)"
        )
    return False


def shard(observations):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""

    def split(path, leaf):
        if is_split(f"observations{jax.tree_util.keystr(path)}", leaf):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, observations)


def update(count, mean, total, observations):
    """Statistics of observations (environments, steps, features), as a normaliser keeps them."""
    return p_update(
        replicate(count), replicate(mean), replicate(total), shard(observations)
    )
