# flags: gen area --inputs this::inputs
import jax.numpy as jnp
import numpy as np


def area(scores, labels):
    """The part of pairs, one of each label, that scores put in order: the area under the curve."""
    positive, negative = labels == 1, labels == 0
    difference = scores[:, None] - scores[None, :]
    ordered = (difference > 0) + 0.5 * (difference == 0)
    pairs = jnp.sum(positive) * jnp.sum(negative)
    return jnp.sum(ordered * positive[:, None] * negative[None, :]) / pairs


def inputs(seed):
    rng = np.random.default_rng(seed)
    return np.float32(rng.normal(size=48)), np.int32(rng.integers(0, 2, 48))
# output
"""Data-parallel `area`: same call and same results as ranked_pairs.py::area, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0, 0), out_axes=None)
def p_area(scores, labels):
    """`area` on one device's share.

    `scores` and `labels` leaves are (devices, per_device, ...).
    """
    positive, negative = labels == 1, labels == 0
    all_scores = jax.lax.all_gather(scores, axis_name=AXIS, axis=0, tiled=True)
    difference = scores[:, None] - all_scores[None, :]
    ordered = (difference > 0) + 0.5 * (difference == 0)
    total_positive, total_negative = jax.lax.psum(
        (jnp.sum(positive), jnp.sum(negative)), axis_name=AXIS
    )
    pairs = total_positive * total_negative
    all_negative = jax.lax.all_gather(negative, axis_name=AXIS, axis=0, tiled=True)
    return jax.lax.psum(
        jnp.sum(ordered * positive[:, None] * all_negative[None, :]) / pairs,
        axis_name=AXIS,
    )


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), (AXIS,)), P(*axes))


#: Kind and rank of the batch's arrays in the proof.
PROVED = {"scores": ("float", 1), "labels": ("int", 1)}


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
            f"area: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices), the same in all "
            f"of the batch (found {sizes})"
        )
    return False


def shard(scores, labels):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("scores", "labels")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (scores, labels))


def area(scores, labels):
    """The part of pairs, one of each label, that scores put in order: the area under the curve."""
    if (
        getattr(labels, "dtype", None) in ("int64", "uint64")
        and (abs(labels) > 2147483647).any()
    ):
        raise ValueError(
            "area: `labels` goes above 2147483647, where 32 bits may not hold "
            "what is computed with it; do before the call what `area` does "
            "with it in Python or NumPy"
        )
    scores, labels = shard(scores, labels)
    return p_area(scores, labels)
