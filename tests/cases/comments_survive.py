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


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), (AXIS,)), P(*axes))


#: Kind and rank of the batch's arrays in the proof.
PROVED = {"logits": ("float", 2), "labels": ("int", 1)}


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
            f"accuracy: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices), the same in all "
            f"of the batch (found {sizes})"
        )
    return False


def shard(logits, labels):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("logits", "labels")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (logits, labels))


def accuracy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Share of right answers.

    Ties go to the first class.
    """
    logits, labels = shard(logits, labels)
    return p_accuracy(logits, labels)
