# flags: gen train_step --inputs this::inputs --backend jit
"""Linear regression."""

import jax
import jax.numpy as jnp
import numpy as np

LEARNING_RATE = 0.1


def loss_fn(params, batch):
    predicted = batch["x"] @ params["w"] + params["b"]
    return jnp.mean((predicted - batch["y"]) ** 2)


def train_step(params, batch):
    """One step of gradient descent."""
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    params = jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads)
    return params, loss


def inputs(seed):
    rng = np.random.default_rng(seed)
    params = {"w": rng.normal(size=4).astype("float32"), "b": np.float32(0.5)}
    x = rng.normal(size=(24, 4)).astype("float32")
    return params, {"x": x, "y": x @ np.arange(4, dtype="float32")}
# output
"""Data-parallel `train_step`: same call and same results as train_step_jit.py::train_step, on N devices."""

import functools

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from train_step_jit import LEARNING_RATE, loss_fn

AXIS = "batch"


@functools.cache
def mesh():
    """The devices as one axis; made at the first call, so importing this file starts none."""
    return Mesh(np.array(jax.devices()), (AXIS,))


def p_train_step(params, batch):
    """`train_step` on the whole batch; the compiler divides the work."""
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    params = jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads)
    return params, loss


@functools.cache
def compiled():
    """`p_train_step` compiled for the mesh; made at the first call."""
    whole = NamedSharding(mesh(), P())
    split = NamedSharding(mesh(), P(AXIS))
    return jax.jit(p_train_step, in_shardings=(whole, split), out_shardings=whole)


def shard(batch):
    """Put arrays on the devices, split along axis 0."""
    count = mesh().size
    sizes = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        name = f"batch{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"train_step: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )
        sizes[name] = size

    if len(set(sizes.values())) > 1:
        raise ValueError(f"train_step: the batch has more than one size: {sizes}")

    sharding = NamedSharding(mesh(), P(AXIS))
    return jax.device_put(batch, sharding)


def train_step(params, batch):
    """One step of gradient descent."""
    return compiled()(params, shard(batch))
