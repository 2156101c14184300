# flags: gen totals --arg x=f32[24,4] --arg w=f32[4]
import jax.numpy as jnp


def totals(x, w):
    error = lambda scale: jnp.mean((x @ w) ** 2) / jnp.mean((scale * x) ** 2)
    total = 0.0
    for i in range(x.shape[1]):
        total = total + jnp.sum(x[:, i])
        total -= 1.0
    return total, error(2.0)
# output
"""Data-parallel `totals`: same call and same results as loop_totals.py::totals, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0, None), out_axes=None)
def p_totals(x, w):
    """`totals` on one device's share; `x` leaves are (devices, per_device, ...)."""
    error = lambda scale: jax.lax.pmean(
        jnp.mean((x @ w) ** 2), axis_name=AXIS
    ) / jax.lax.pmean(jnp.mean((scale * x) ** 2), axis_name=AXIS)
    total = 0.0
    for i in range(x.shape[1]):
        total = total + jax.lax.psum(jnp.sum(x[:, i]), axis_name=AXIS)
        total -= 1.0
    return total, error(2.0)


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
            f"totals: {name} is {found}{list(shape)}; expected {kind} of rank "
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


def totals(x, w):
    return p_totals(shard(x), w)
