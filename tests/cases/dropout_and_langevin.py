# flags: gen train_step --inputs this::inputs --backend shard_map
import jax
import jax.numpy as jnp
import numpy as np


def train_step(params, key, batch):
    key, drop, noise = jax.random.split(key, 3)

    def loss_fn(params):
        h = jnp.tanh(batch["x"] @ params["w"])
        keep = jax.random.bernoulli(drop, 0.5, h.shape)
        h = jnp.where(keep, h / 0.5, 0.0)
        return jnp.mean((h @ params["v"] - batch["y"]) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    grads["w"] += 0.01 * jax.random.normal(noise, grads["w"].shape)
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    return params, key, loss


def inputs(seed):
    r = np.random.default_rng(seed)
    params = {"w": r.normal(size=(5, 7)).astype("float32"), "v": r.normal(size=7).astype("float32")}
    batch = {"x": r.normal(size=(24, 5)).astype("float32"), "y": r.normal(size=24).astype("float32")}
    return params, jax.random.PRNGKey(seed), batch
# output
"""Data-parallel `train_step`: same call and same results as dropout_and_langevin.py::train_step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.cache
def mesh():
    """The devices as one axis; made at the first call, so importing this file starts none."""
    return Mesh(np.array(jax.devices()), (AXIS,))


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(mesh(), P(*axes))


def p_train_step(params, key, batch):
    """`train_step` over the mesh: whole arrays outside, one device's share inside."""

    # check_vma=False: the collectives here are written out. With True, gradients of
    # replicated arguments arrive already summed, and a pmean after them is wrong.
    @functools.partial(
        jax.shard_map,
        mesh=mesh(),
        in_specs=(P(), P(), P(AXIS)),
        out_specs=P(),
        check_vma=False,
    )
    def per_device(params, key, batch):
        key, drop, noise = jax.random.split(key, 3)

        def loss_fn(params):
            h = jnp.tanh(batch["x"] @ params["w"])
            keep = jax.random.bernoulli(
                jax.random.fold_in(drop, jax.lax.axis_index(AXIS)), 0.5, h.shape
            )
            h = jnp.where(keep, h / 0.5, 0.0)
            return jnp.mean((h @ params["v"] - batch["y"]) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        loss, grads = jax.lax.pmean((loss, grads), axis_name=AXIS)
        grads["w"] += 0.01 * jax.random.normal(noise, grads["w"].shape)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return params, key, loss

    return per_device(params, key, batch)


@functools.cache
def compiled():
    """`p_train_step` compiled for the mesh; made at the first call."""
    return jax.jit(
        p_train_step,
        in_shardings=(sharding(), sharding(), sharding(AXIS)),
        out_shardings=sharding(),
    )


def replicate(tree):
    """`tree` whole on every device, where results are too: a call that gets these back compiles nothing anew."""
    whole = sharding()
    if all(getattr(leaf, "sharding", None) == whole for leaf in jax.tree.leaves(tree)):
        return tree
    return jax.device_put(tree, whole)


#: Kind and rank of the batch's arrays in the proof.
PROVED = {"batch['x']": ("float", 2), "batch['y']": ("float", 1)}


def check(name, leaf, sizes):
    """Raise unless `leaf` is as in the proof and divisible among the devices."""
    shape, count = np.shape(leaf), mesh().size
    kind, rank = PROVED.get(name, ("no leaf", -1))
    found = jax.dtypes.scalar_type_of(leaf).__name__
    sizes.update(shape[:1])
    if (found, len(shape)) != (kind, rank) or len(sizes) > 1 or shape[0] % count:
        raise ValueError(
            f"train_step: {name} is {found}{list(shape)}; expected {kind} of "
            f"rank {rank}, axis 0 a multiple of {count} (devices), the same in "
            f"all of the batch (found {sizes})"
        )


def shard(batch):
    """Put arrays on the devices, split along axis 0."""
    sizes = set()

    def split(path, leaf):
        check(f"batch{jax.tree_util.keystr(path)}", leaf, sizes)
        # Arrays on the host are placed by the call itself, which is faster.
        there = getattr(leaf, "sharding", None) in (None, sharding(AXIS))
        return leaf if there else jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, batch)


def train_step(params, key, batch):
    return compiled()(replicate(params), replicate(key), shard(batch))
