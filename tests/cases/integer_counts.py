# flags: gen count --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def count(predicted, labels):
    right = jnp.sum(predicted == labels)
    histogram = jnp.bincount(labels, length=5)
    return right, histogram, jnp.any(predicted == 3), right / labels.shape[0]


def inputs(seed):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 5, 48), rng.integers(0, 5, 48)
# output
"""Data-parallel `count`: same call and same results as integer_counts.py::count, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0, 0), out_axes=None)
def p_count(predicted, labels):
    """`count` on one device's share.

    `predicted` and `labels` leaves are (devices, per_device, ...).
    """
    right = jnp.sum(predicted == labels)
    histogram = jnp.bincount(labels, length=5)
    right, histogram = jax.lax.psum((right, histogram), axis_name=AXIS)
    return (
        right,
        histogram,
        jax.lax.pmax(jnp.any(predicted == 3), axis_name=AXIS),
        right / jax.lax.psum(labels.shape[0], axis_name=AXIS),
    )


def shard(predicted, labels):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    arrays = {"predicted": predicted, "labels": labels}
    sizes = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        name = path[0].key + jax.tree_util.keystr(path[1:])
        shape = np.shape(leaf)
        if len(shape) != 1:
            raise ValueError(
                f"count: {name} has shape {shape}: this was proved for rank 1; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"count: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )
        sizes[name] = size

    if len(set(sizes.values())) > 1:
        raise ValueError(f"count: the batch has more than one size: {sizes}")

    arrays = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]),
        arrays,
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    arrays = jax.device_put(arrays, sharding)
    return arrays["predicted"], arrays["labels"]


def count(predicted, labels):
    if (
        getattr(predicted, "dtype", None) in ("int64", "uint64")
        and (abs(predicted) > 2147483647).any()
    ):
        raise ValueError(
            "count: `predicted` goes above 2147483647, where 32 bits may not "
            "hold what is computed with it; do before the call what `count` "
            "does with it in Python or NumPy"
        )
    if (
        getattr(labels, "dtype", None) in ("int64", "uint64")
        and (abs(labels) > 2147483647).any()
    ):
        raise ValueError(
            "count: `labels` goes above 2147483647, where 32 bits may not hold "
            "what is computed with it; do before the call what `count` does "
            "with it in Python or NumPy"
        )
    predicted, labels = shard(predicted, labels)
    return p_count(predicted, labels)
