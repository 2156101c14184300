# flags: gen spread_penalty --arg w=f32[6,3] --arg x=f32[24,6]
import jax
import jax.numpy as jnp


def spread_penalty(w, x):
    z = jnp.tanh(x @ w) * 8
    spread = jax.nn.relu(1 - jnp.sqrt(jnp.var(z, axis=0) + 1e-4))
    return jnp.mean(spread) + jnp.mean(z**2)
# output
"""Data-parallel `spread_penalty`: same call and same results as hinge.py::spread_penalty, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0), out_axes=None)
def p_spread_penalty(w, x):
    """`spread_penalty` on one device's share; `x` leaves are (devices, per_device, ...)."""
    z = jnp.tanh(x @ w) * 8
    mean = jax.lax.pmean(jnp.mean(z, axis=0), axis_name=AXIS)
    mean_square = jax.lax.pmean(jnp.mean((z - mean) ** 2, axis=0), axis_name=AXIS)
    spread = jax.nn.relu(1 - jnp.sqrt(mean_square + 1e-4))
    return jax.lax.pmean(jnp.mean(spread) + jnp.mean(z**2), axis_name=AXIS)


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
            f"spread_penalty: {name} is {found}{list(shape)}; expected {kind} "
            f"of rank {rank}, axis 0 a multiple of {count} (devices)"
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


def spread_penalty(w, x):
    return p_spread_penalty(w, shard(x))
