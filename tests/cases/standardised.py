# flags: gen standardised --arg x=f32[24,5]
import jax.numpy as jnp


def standardised(x):
    return (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-6)
# output
"""Data-parallel `standardised`: same call and same results as standardised.py::standardised, on N devices."""

import functools

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0,), out_axes=0)
def p_standardised(x):
    """`standardised` on one device's share; `x` leaves are (devices, per_device, ...)."""
    mean = jax.lax.pmean(x.mean(axis=0), axis_name=AXIS)
    mean_square = jax.lax.pmean(jax.numpy.mean((x - mean) ** 2, axis=0), axis_name=AXIS)
    return (x - mean) / (jax.numpy.sqrt(mean_square) + 1e-6)


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), (AXIS,)), P(*axes))


#: Kind and rank of the batch's arrays in the proof.
PROVED = {"x": ("float", 2)}


def is_split(name, leaf):
    """Whether an earlier call split `leaf`; if none did, raise unless it is as in the proof and divisible."""
    shape, count = np.shape(leaf), jax.local_device_count()
    kind, rank = PROVED.get(name, ("no leaf", -1))
    if getattr(leaf, "sharding", None) is sharding(AXIS) and len(shape) == rank + 1:
        return True
    found = jax.dtypes.scalar_type_of(leaf).__name__
    if (found, len(shape)) != (kind, rank) or shape[0] % count:
        raise ValueError(
            f"standardised: {name} is {found}{list(shape)}; expected {kind} of "
            f"rank {rank}, axis 0 a multiple of {count} (devices)"
        )
    return False


def shard(x):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""

    def split(path, leaf):
        if is_split(f"x{jax.tree_util.keystr(path)}", leaf):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, x)


def unshard(tree):
    """(devices, per_device, ...) -> (devices * per_device, ...)."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), tree
    )


def standardised(x):
    return unshard(p_standardised(shard(x)))
