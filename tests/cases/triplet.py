# flags: gen triplet_loss --arg params=f32[64,32] --arg x=f32[24,64] --arg labels=i32[24]<4
import jax
import jax.numpy as jnp


def triplet_loss(params, x, labels):
    def loss_fn(params):
        z = jnp.tanh(x @ params)
        distance = jnp.sum((z[:, None] - z[None, :]) ** 2, axis=-1)
        same = labels[:, None] == labels[None, :]
        hardest = jnp.max(jnp.where(same, distance, 0.0), axis=1)
        nearest = jnp.min(jnp.where(same, jnp.inf, distance), axis=1)
        return jnp.mean(jnp.maximum(hardest - nearest + 1.0, 0.0))

    return jax.value_and_grad(loss_fn)(params)
# output
"""Data-parallel `triplet_loss`: same call and same results as triplet.py::triplet_loss, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_triplet_loss(params, x, labels):
    """`triplet_loss` on one device's share.

    `x` and `labels` leaves are (devices, per_device, ...).
    """

    def loss_fn(params):
        z = jnp.tanh(x @ params)
        distance = jnp.sum(
            (
                jax.lax.all_gather(z, axis_name=AXIS, axis=0, tiled=True)[:, None]
                - jax.lax.all_gather(z, axis_name=AXIS, axis=0, tiled=True)[None, :]
            )
            ** 2,
            axis=-1,
        )
        same = (
            jax.lax.all_gather(labels, axis_name=AXIS, axis=0, tiled=True)[:, None]
            == jax.lax.all_gather(labels, axis_name=AXIS, axis=0, tiled=True)[None, :]
        )
        hardest = jnp.max(jnp.where(same, distance, 0.0), axis=1)
        nearest = jnp.min(jnp.where(same, jnp.inf, distance), axis=1)
        return jnp.mean(jnp.maximum(hardest - nearest + 1.0, 0.0))

    return jax.lax.pmean(jax.value_and_grad(loss_fn)(params), axis_name=AXIS)


def shard(x, labels):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    ranks = {"x": 2, "labels": 1}
    devices = jax.local_devices()
    count = len(devices)
    arrays = {"x": x, "labels": labels}
    sizes = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        name = path[0].key + jax.tree_util.keystr(path[1:])
        shape = np.shape(leaf)
        if len(shape) != ranks.get(name):
            raise ValueError(
                f"triplet_loss: {name} has shape {shape}: this was proved for rank {ranks.get(name)}; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"triplet_loss: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )
        sizes[name] = size

    if len(set(sizes.values())) > 1:
        raise ValueError(f"triplet_loss: the batch has more than one size: {sizes}")

    arrays = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]),
        arrays,
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    arrays = jax.device_put(arrays, sharding)
    return arrays["x"], arrays["labels"]


def triplet_loss(params, x, labels):
    x, labels = shard(x, labels)
    return p_triplet_loss(params, x, labels)
