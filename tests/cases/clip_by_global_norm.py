# flags: gen step --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np
import optax


tx = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(optax.cosine_decay_schedule(1e-2, 100)))


def step(params, opt_state, batch):
    x, y = batch

    def loss_fn(p):
        return jnp.mean((x @ p["w"] - y) ** 2) + 1e-2 * jnp.sum(p["w"] ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = tx.update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    return params, opt_state, {"loss": loss, "grad_norm": optax.global_norm(grads)}


def inputs(seed):
    rng = np.random.default_rng(seed)
    params = {"w": rng.normal(size=5).astype("float32")}
    batch = rng.normal(size=(24, 5)).astype("float32"), rng.normal(size=24).astype("float32")
    return params, tx.init(params), batch
# output
"""Data-parallel `step`: same call and same results as clip_by_global_norm.py::step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from clip_by_global_norm import tx

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, None, 0), out_axes=None)
def p_step(params, opt_state, batch):
    """`step` on one device's share; `batch` leaves are (devices, per_device, ...)."""
    x, y = batch

    def loss_fn(p):
        return jnp.mean((x @ p["w"] - y) ** 2) + 1e-2 * jnp.sum(p["w"] ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    loss, grads = jax.lax.pmean((loss, grads), axis_name=AXIS)
    updates, opt_state = tx.update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    return params, opt_state, {"loss": loss, "grad_norm": optax.global_norm(grads)}


def shard(batch):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    ranks = {"batch[0]": 2, "batch[1]": 1}
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


def step(params, opt_state, batch):
    return p_step(params, opt_state, shard(batch))
