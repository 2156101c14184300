# flags: gen statistics --arg scores=f32[24,5] --arg labels=i32[24]<5 --arg mask=mask[24]
import jax.numpy as jnp


def hits(scores, labels, mask, k):
    best = jnp.argsort(scores, axis=1)[:, -k:]
    return jnp.sum(jnp.any(best == labels[:, None], axis=1) * mask)


def statistics(scores, labels, mask):
    found = {"rows": jnp.sum(mask), "square": 0.0}
    for k in range(1, 4):
        found[f"top {k}"] = hits(scores, labels, mask, k) / found["rows"]
        found["square"] += jnp.mean(scores[:, k] ** 2)
    return found
# output
"""Data-parallel `statistics`: same call and same results as kept_in_a_loop.py::statistics, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from kept_in_a_loop import hits

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0, 0, 0), out_axes=None)
def p_statistics(scores, labels, mask):
    """`statistics` on one device's share.

    `scores`, `labels` and `mask` leaves are (devices, per_device, ...).
    """
    found = {"rows": jax.lax.psum(jnp.sum(mask), axis_name=AXIS), "square": 0.0}
    for k in range(1, 4):
        found[f"top {k}"] = jax.lax.psum(
            hits(scores, labels, mask, k) / found["rows"], axis_name=AXIS
        )
        found["square"] += jax.lax.pmean(jnp.mean(scores[:, k] ** 2), axis_name=AXIS)
    return found


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), (AXIS,)), P(*axes))


#: Kind and rank of the batch's arrays in the proof.
PROVED = {"scores": ("float", 2), "labels": ("int", 1), "mask": ("float", 1)}


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
            f"statistics: {name} is {found}{list(shape)}; expected {kind} of "
            f"rank {rank}, axis 0 a multiple of {count} (devices), the same in "
            f"all of the batch (found {sizes})"
        )
    return False


def shard(scores, labels, mask):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("scores", "labels", "mask")[path[0].idx] + jax.tree_util.keystr(
            path[1:]
        )
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (scores, labels, mask))


def statistics(scores, labels, mask):
    if (
        getattr(labels, "dtype", None) in ("int64", "uint64")
        and (abs(labels) > 2147483647).any()
    ):
        raise ValueError(
            "statistics: `labels` goes above 2147483647, where 32 bits may not "
            "hold what is computed with it; do before the call what "
            "`statistics` does with it in Python or NumPy"
        )
    scores, labels, mask = shard(scores, labels, mask)
    return p_statistics(scores, labels, mask)
