# flags: gen pool --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def pool(x, weights=None):
    """Weighted mean over the batch, or the plain one."""
    if weights is None:
        return jnp.mean(x, axis=0)
    total = jnp.sum(x * weights[:, None], axis=0)
    return total / jnp.sum(weights)


def inputs(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(24, 5)).astype("float32"), rng.uniform(size=24).astype("float32")
# output
"""Data-parallel `pool`: same call and same results as early_return.py::pool, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0, 0), out_axes=None)
def p_pool(x, weights):
    """`pool` on one device's share; `x` and `weights` leaves are (devices, per_device, ...)."""
    if weights is None:
        raise NotImplementedError(
            "`if weights is None` was not reached by the inputs this code was proved with"
        )
    total = jnp.sum(x * weights[:, None], axis=0)
    total = jax.lax.psum(total, axis_name=AXIS)
    return total / jax.lax.psum(jnp.sum(weights), axis_name=AXIS)


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), (AXIS,)), P(*axes))


#: Kind and rank of the batch's arrays in the proof.
PROVED = {"x": ("float", 2), "weights": ("float", 1)}


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
            f"pool: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices), the same in all "
            f"of the batch (found {sizes})"
        )
    return False


def shard(x, weights):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("x", "weights")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (x, weights))


def pool(x, weights=None):
    """Weighted mean over the batch, or the plain one."""
    x, weights = shard(x, weights)
    return p_pool(x, weights)
