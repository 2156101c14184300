# flags: gen mixup --inputs this::inputs
import jax
import numpy as np


def mixup(key, x):
    order = jax.random.permutation(key, x.shape[0])
    return 0.7 * x + 0.3 * x[order]


def inputs(seed):
    return jax.random.key(seed), np.random.default_rng(seed).normal(size=(24, 5)).astype("float32")
# output
"""Data-parallel `mixup`: same call and same results as mixup.py::mixup, on N devices."""

import functools

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0), out_axes=0)
def p_mixup(key, x):
    """`mixup` on one device's share; `x` leaves are (devices, per_device, ...)."""
    count = jax.lax.psum(x.shape[0], axis_name=AXIS)
    order = own_share(jax.random.permutation(key, count))
    all_x = jax.lax.all_gather(x, axis_name=AXIS, axis=0, tiled=True)
    return 0.7 * x + 0.3 * all_x[order]


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
            f"mixup: {name} is {found}{list(shape)}; expected {kind} of rank "
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


def own_share(x, axis=0):
    """This device's part along `axis` of `x`, which every device has whole."""
    count = jax.lax.psum(1, AXIS)
    size, left = divmod(x.shape[axis], count)
    if left:
        raise ValueError(
            f"mixup: axis {axis} of {x.shape} does not divide over {count} devices"
        )
    parts = x.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :])
    return jax.lax.dynamic_index_in_dim(
        parts, jax.lax.axis_index(AXIS), axis, keepdims=False
    )


def unshard(tree):
    """(devices, per_device, ...) -> (devices * per_device, ...)."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), tree
    )


def mixup(key, x):
    return unshard(p_mixup(key, shard(x)))
