# flags: gen train_step --inputs this::inputs --backend shard_map
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
"""Data-parallel `train_step`: same call and same results as train_step_shard_map.py::train_step, on N devices."""

import functools

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from train_step_shard_map import LEARNING_RATE, loss_fn

AXIS = "batch"


@functools.cache
def mesh():
    """The devices as one axis; made at the first call, so importing this file starts none."""
    return Mesh(np.array(jax.devices()), (AXIS,))


def p_train_step(params, batch):
    """`train_step` over the mesh: whole arrays outside, one device's share inside."""

    # check_vma=False: the collectives here are written out. With True, gradients of
    # replicated arguments arrive already summed, and a pmean after them is wrong.
    @functools.partial(
        jax.shard_map,
        mesh=mesh(),
        in_specs=(P(), P(AXIS)),
        out_specs=P(),
        check_vma=False,
    )
    def per_device(params, batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        loss, grads = jax.lax.pmean((loss, grads), axis_name=AXIS)
        params = jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads)
        return params, loss

    return per_device(params, batch)


@functools.cache
def compiled():
    """`p_train_step` compiled for the mesh; made at the first call."""
    whole = NamedSharding(mesh(), P())
    split = NamedSharding(mesh(), P(AXIS))
    return jax.jit(p_train_step, in_shardings=(whole, split), out_shardings=whole)


def shard(batch):
    """Put arrays on the devices, split along axis 0."""
    ranks = {"batch['x']": 2, "batch['y']": 1}
    count = mesh().size
    sizes = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        name = f"batch{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        if len(shape) != ranks.get(name):
            raise ValueError(
                f"train_step: {name} has shape {shape}: this was proved for rank {ranks.get(name)}; "
                "generate again with inputs of this shape"
            )
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
