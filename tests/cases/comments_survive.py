# flags: gen accuracy --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def accuracy(
    logits: jax.Array,  # (batch, classes)
    labels: jax.Array,  # (batch,)
) -> jax.Array:
    """Share of right answers.

    Ties go to the first class.
    """
    # The class with the largest logit.
    guess: jax.Array = jnp.argmax(logits, axis=-1)
    right = (
        guess == labels  # elementwise
    )
    return jnp.mean(right)  # over the batch


def inputs(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(24, 5)).astype("float32"), rng.integers(0, 5, 24)
# output
"""Data-parallel `accuracy`: same call and same results as comments_survive.py::accuracy, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0, 0), out_axes=None)
def p_accuracy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """`accuracy` on one device's share.

    `logits` and `labels` leaves are (devices, per_device, ...).
    """
    # The class with the largest logit.
    guess: jax.Array = jnp.argmax(logits, axis=-1)
    right = guess == labels  # elementwise
    return jax.lax.pmean(jnp.mean(right), axis_name=AXIS)  # over the batch


def shard(logits, labels):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    ranks = {"logits": 2, "labels": 1}
    devices = jax.local_devices()
    count = len(devices)
    arrays = {"logits": logits, "labels": labels}
    sizes = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        name = path[0].key + jax.tree_util.keystr(path[1:])
        shape = np.shape(leaf)
        if len(shape) != ranks.get(name):
            raise ValueError(
                f"accuracy: {name} has shape {shape}: this was proved for rank {ranks.get(name)}; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"accuracy: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )
        sizes[name] = size

    if len(set(sizes.values())) > 1:
        raise ValueError(f"accuracy: the batch has more than one size: {sizes}")

    arrays = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]),
        arrays,
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    arrays = jax.device_put(arrays, sharding)
    return arrays["logits"], arrays["labels"]


def accuracy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Share of right answers.

    Ties go to the first class.
    """
    logits, labels = shard(logits, labels)
    return p_accuracy(logits, labels)
