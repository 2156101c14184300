# flags: gen summary --arg x=f32[24,3]
import jax.numpy as jnp


def summary(x):
    total = jnp.sum(x)
    total = total + jnp.sum(x**2)
    total -= jnp.sum(jnp.abs(x))
    drift = jnp.mean(x)
    drift = drift + jnp.mean(x**3)
    shift = jnp.sum(x, axis=0)
    shift = shift + jnp.sum(x**2, axis=0)
    return jnp.sqrt(jnp.abs(total)), drift, jnp.mean(x - shift)
# output
"""Data-parallel `summary`: same call and same results as running_total.py::summary, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0,), out_axes=None)
def p_summary(x):
    """`summary` on one device's share; `x` leaves are (devices, per_device, ...)."""
    total = jnp.sum(x)
    total = total + jnp.sum(x**2)
    total -= jnp.sum(jnp.abs(x))
    drift = jnp.mean(x)
    drift = drift + jnp.mean(x**3)
    drift = jax.lax.pmean(drift, axis_name=AXIS)
    shift = jnp.sum(x, axis=0)
    shift = shift + jnp.sum(x**2, axis=0)
    total, shift = jax.lax.psum((total, shift), axis_name=AXIS)
    return (
        jnp.sqrt(jnp.abs(total)),
        drift,
        jax.lax.pmean(jnp.mean(x - shift), axis_name=AXIS),
    )


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
            f"summary: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices)"
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


def summary(x):
    return p_summary(shard(x))
