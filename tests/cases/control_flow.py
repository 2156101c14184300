# flags: gen settle --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def settle(x):
    """Everything below `x` keeps to one example at a time, until the mean."""
    y = jax.lax.fori_loop(0, 3, lambda _, v: jnp.where(v > 0, v * 0.5, -v), x)
    y = jax.lax.while_loop(lambda v: jnp.any(v[1] < 3), lambda v: (v[0] + 1.0, v[1] + 1), (y, 0))[0]
    level = jnp.mean(y)
    return jax.lax.cond(level > 1.0, lambda v: v / level, lambda v: v, y)


def inputs(seed):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(24, 5)).astype("float32"),)
# output
"""Data-parallel `settle`: same call and same results as control_flow.py::settle, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0,), out_axes=0)
def p_settle(x):
    """`settle` on one device's share; `x` leaves are (devices, per_device, ...)."""
    y = jax.lax.fori_loop(0, 3, lambda _, v: jnp.where(v > 0, v * 0.5, -v), x)
    y = jax.lax.while_loop(
        lambda v: jnp.any(v[1] < 3), lambda v: (v[0] + 1.0, v[1] + 1), (y, 0)
    )[0]
    level = jnp.mean(y)
    level = jax.lax.pmean(level, axis_name=AXIS)
    return jax.lax.cond(level > 1.0, lambda v: v / level, lambda v: v, y)


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
            f"settle: {name} is {found}{list(shape)}; expected {kind} of rank "
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


def unshard(tree):
    """(devices, per_device, ...) -> (devices * per_device, ...)."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), tree
    )


def settle(x):
    """Everything below `x` keeps to one example at a time, until the mean."""
    return unshard(p_settle(shard(x)))
