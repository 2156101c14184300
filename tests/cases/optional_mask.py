# flags: gen step --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def step(w, batch):
    def loss_fn(w):
        error = (batch["x"] @ w - batch["y"]) ** 2
        if "mask" in batch:
            return jnp.sum(error * batch["mask"]) / jnp.sum(batch["mask"])
        return jnp.mean(error)

    return jax.value_and_grad(loss_fn)(w)


def inputs(seed):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(24, 5)).astype("float32"), rng.normal(size=24).astype("float32")
    return rng.normal(size=5).astype("float32"), {"x": x, "y": y}
# output
"""Data-parallel `step`: same call and same results as optional_mask.py::step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0), out_axes=None)
def p_step(w, batch):
    """`step` on one device's share; `batch` leaves are (devices, per_device, ...)."""

    def loss_fn(w):
        error = (batch["x"] @ w - batch["y"]) ** 2
        if "mask" in batch:
            raise NotImplementedError(
                '`if "mask" in batch` was not reached by the inputs this code was proved with'
            )
        return jnp.mean(error)

    return jax.lax.pmean(jax.value_and_grad(loss_fn)(w), axis_name=AXIS)


def shard(batch):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    ranks = {"batch['x']": 2, "batch['y']": 1}
    devices = jax.local_devices()
    count = len(devices)
    sizes = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        name = f"batch{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        if len(shape) != ranks.get(name):
            raise ValueError(
                f"step: {name} has shape {shape}: this was proved for rank {ranks.get(name)}; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"step: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )
        sizes[name] = size

    if len(set(sizes.values())) > 1:
        raise ValueError(f"step: the batch has more than one size: {sizes}")

    batch = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), batch
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    return jax.device_put(batch, sharding)


def step(w, batch):
    return p_step(w, shard(batch))
