# flags: gen step --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def jitter(key, image):
    return image + 0.1 * jax.random.normal(key, image.shape)


def step(weights, key, images, labels):
    """A key for each image, and one for the next step, of one split."""
    keys = jax.random.split(key, len(images) + 1)

    def loss_fn(weights):
        logits = jax.vmap(jitter)(keys[1:], images) @ weights
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1))

    loss, grads = jax.value_and_grad(loss_fn)(weights)
    return weights - 0.1 * grads, keys[0], loss


def inputs(seed):
    rng = np.random.default_rng(seed)
    weights, images = rng.normal(size=(6, 3)), rng.normal(size=(24, 6))
    labels = rng.integers(0, 3, size=24).astype("int32")
    return weights.astype("float32"), jax.random.key(seed), images.astype("float32"), labels
# output
"""Data-parallel `step`: same call and same results as keys_split_for_rows.py::step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from keys_split_for_rows import jitter

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, None, 0, 0), out_axes=None)
def p_step(weights, key, images, labels):
    """`step` on one device's share.

    `images` and `labels` leaves are (devices, per_device, ...).
    """
    keys = jax.random.split(key, jax.lax.psum(len(images), axis_name=AXIS) + 1)

    def loss_fn(weights):
        logits = jax.vmap(jitter)(own_share(keys[1:]), images) @ weights
        return -jnp.mean(
            jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
        )

    loss, grads = jax.value_and_grad(loss_fn)(weights)
    loss, grads = jax.lax.pmean((loss, grads), axis_name=AXIS)
    return weights - 0.1 * grads, keys[0], loss


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), (AXIS,)), P(*axes))


def replicate(tree):
    """`tree` whole on every device, where results are too: a call that gets these back compiles nothing anew."""
    whole = sharding()
    if all(getattr(leaf, "sharding", None) == whole for leaf in jax.tree.leaves(tree)):
        return tree
    return jax.device_put(tree, whole)


#: Kind and rank of the batch's arrays in the proof.
PROVED = {"images": ("float", 2), "labels": ("int", 1)}


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
            f"step: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices), the same in all "
            f"of the batch (found {sizes})"
        )
    return False


def shard(images, labels):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("images", "labels")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (images, labels))


def own_share(x, axis=0):
    """This device's part along `axis` of `x`, which every device has whole."""
    count = jax.lax.psum(1, AXIS)
    size, left = divmod(x.shape[axis], count)
    if left:
        raise ValueError(
            f"step: axis {axis} of {x.shape} does not divide over {count} devices"
        )
    parts = x.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :])
    return jax.lax.dynamic_index_in_dim(
        parts, jax.lax.axis_index(AXIS), axis, keepdims=False
    )


def step(weights, key, images, labels):
    """A key for each image, and one for the next step, of one split."""
    if (
        getattr(labels, "dtype", None) in ("int64", "uint64")
        and (abs(labels) > 2147483647).any()
    ):
        raise ValueError(
            "step: `labels` goes above 2147483647, where 32 bits may not hold "
            "what is computed with it; do before the call what `step` does "
            "with it in Python or NumPy"
        )
    images, labels = shard(images, labels)
    return p_step(replicate(weights), key, images, labels)
