# flags: gen total --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


AXIS = 3.0


def shard(x):
    return x * AXIS


def total(x, p_total):
    np = shard(x)
    result = jnp.sum(np) * p_total
    return {"result": result, "devices": x}


def inputs(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(24, 5)).astype("float32"), 2.0 + seed
# output
"""Data-parallel `total`: same call and same results as names_that_collide.py::total, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from names_that_collide import shard

AXIS_ = "batch"


@functools.partial(
    jax.pmap,
    axis_name=AXIS_,
    in_axes=(0, None),
    out_axes={"devices": 0, "result": None},
)
def p_total_(x, p_total):
    """`total` on one device's share; `x` leaves are (devices, per_device, ...)."""
    np = shard(x)
    result = jnp.sum(np) * p_total
    result = jax.lax.psum(result, axis_name=AXIS_)
    return {"result": result, "devices": x}


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), (AXIS_,)), P(*axes))


#: Kind and rank of the batch's arrays in the proof.
PROVED = {"x": ("float", 2)}


def is_split(name, leaf):
    """Whether an earlier call split `leaf`; if none did, raise unless it is as in the proof and divisible."""
    shape, count = np.shape(leaf), jax.local_device_count()
    kind, rank = PROVED.get(name, ("no leaf", -1))
    if getattr(leaf, "sharding", None) is sharding(AXIS_) and len(shape) == rank + 1:
        return True
    found = jax.dtypes.scalar_type_of(leaf).__name__
    if (found, len(shape)) != (kind, rank) or shape[0] % count:
        raise ValueError(
            f"total: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices)"
        )
    return False


def shard_(x):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""

    def split(path, leaf):
        if is_split(f"x{jax.tree_util.keystr(path)}", leaf):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS_))

    return jax.tree.map_with_path(split, x)


def unshard(tree):
    """Merge (devices, per_device) at `axes`."""

    def merge(leaf, axis):
        if axis is None:
            return leaf
        return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])

    axes = jax.tree.broadcast(
        {"devices": 0, "result": None}, tree, is_leaf=lambda axis: axis is None
    )
    return jax.tree.map(merge, tree, axes)


def total(x, p_total):
    return unshard(p_total_(shard_(x), p_total))
