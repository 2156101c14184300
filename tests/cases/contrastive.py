# flags: gen clip_step --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def encode(weights, x):
    z = jnp.tanh(x @ weights)
    return z / jnp.linalg.norm(z, axis=-1, keepdims=True)


def clip_loss(params, images, texts):
    a = encode(params["image"], images)
    b = encode(params["text"], texts)
    logits = a @ b.T * jnp.exp(params["scale"])
    by_image = jax.nn.log_softmax(logits, axis=1)
    by_text = jax.nn.log_softmax(logits, axis=0)
    return -jnp.mean(jnp.diag(by_image) + jnp.diag(by_text)) / 2


def clip_step(params, images, texts):
    loss, grads = jax.value_and_grad(clip_loss)(params, images, texts)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def inputs(seed):
    rng = np.random.default_rng(seed)
    params = {"image": rng.normal(size=(12, 8)), "text": rng.normal(size=(10, 8)), "scale": 0.5}
    params = jax.tree.map(lambda leaf: np.asarray(leaf, "float32"), params)
    return params, rng.normal(size=(24, 12)).astype("float32"), rng.normal(size=(24, 10)).astype("float32")
# output
"""Data-parallel `clip_step`: same call and same results as contrastive.py::clip_step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from contrastive import encode

AXIS = "batch"


def clip_loss(params, images, texts):
    a = encode(params["image"], images)
    b = encode(params["text"], texts)
    all_b = jax.lax.all_gather(b, axis_name=AXIS, axis=0, tiled=True)
    logits = a @ all_b.T * jnp.exp(params["scale"])
    by_image = jax.nn.log_softmax(logits, axis=1)
    largest = jax.lax.pmax(
        jax.lax.stop_gradient(jnp.max(logits, axis=0, keepdims=True)), axis_name=AXIS
    )
    shifted = logits - largest
    total = jax.lax.psum(jnp.sum(jnp.exp(shifted), axis=0), axis_name=AXIS)
    by_text = shifted - jnp.log(total)
    own = jnp.arange(by_image.shape[0])
    own_2 = jnp.arange(by_text.shape[0])
    return (
        -jnp.mean(
            by_image[own, jax.lax.axis_index(axis_name=AXIS) * by_image.shape[0] + own]
            + by_text[
                own_2, jax.lax.axis_index(axis_name=AXIS) * by_text.shape[0] + own_2
            ]
        )
        / 2
    )


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_clip_step(params, images, texts):
    """`clip_step` on one device's share.

    `images` and `texts` leaves are (devices, per_device, ...).
    """
    loss, grads = jax.value_and_grad(clip_loss)(params, images, texts)
    loss, grads = jax.lax.pmean((loss, grads), axis_name=AXIS)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


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
PROVED = {"images": ("float", 2), "texts": ("float", 2)}


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
            f"clip_step: {name} is {found}{list(shape)}; expected {kind} of "
            f"rank {rank}, axis 0 a multiple of {count} (devices), the same in "
            f"all of the batch (found {sizes})"
        )
    return False


def shard(images, texts):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("images", "texts")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (images, texts))


def clip_step(params, images, texts):
    images, texts = shard(images, texts)
    return p_clip_step(replicate(params), images, texts)
