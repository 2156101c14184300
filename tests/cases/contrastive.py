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
    logits = (
        jax.lax.all_gather(a, axis_name=AXIS, axis=0, tiled=True)
        @ jax.lax.all_gather(b, axis_name=AXIS, axis=0, tiled=True).T
        * jnp.exp(params["scale"])
    )
    by_image = jax.nn.log_softmax(logits, axis=1)
    by_text = jax.nn.log_softmax(logits, axis=0)
    return -jnp.mean(jnp.diag(by_image) + jnp.diag(by_text)) / 2


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_clip_step(params, images, texts):
    """`clip_step` on one device's share.

    `images` and `texts` leaves are (devices, per_device, ...).
    """
    loss, grads = jax.value_and_grad(clip_loss)(params, images, texts)
    grads = jax.lax.pmean(grads, axis_name=AXIS)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def shard(images, texts):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    arrays = {"images": images, "texts": texts}
    sizes = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        name = path[0].key + jax.tree_util.keystr(path[1:])
        shape = np.shape(leaf)
        if len(shape) != 2:
            raise ValueError(
                f"clip_step: {name} has shape {shape}: this was proved for rank 2; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"clip_step: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )
        sizes[name] = size

    if len(set(sizes.values())) > 1:
        raise ValueError(f"clip_step: the batch has more than one size: {sizes}")

    arrays = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]),
        arrays,
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    arrays = jax.device_put(arrays, sharding)
    return arrays["images"], arrays["texts"]


def clip_step(params, images, texts):
    images, texts = shard(images, texts)
    return p_clip_step(params, images, texts)
