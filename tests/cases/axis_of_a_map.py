# flags: gen learn --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np
import optax

optimizer = optax.sgd(0.1, momentum=0.9)


def update(state, batch):
    """One step of each of several copies, which share their gradients."""
    params, momentum = state

    def loss_fn(params):
        hidden = jnp.tanh(batch["x"] @ params["w"])
        # Of the batches of all copies.
        centre = jax.lax.pmean(jnp.mean(hidden, axis=0), axis_name="batch")
        return jnp.mean(((hidden - centre) @ params["v"] - batch["y"]) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    grads = jax.lax.pmean(grads, axis_name="batch")
    updates, momentum = optimizer.update(grads, momentum)
    return (optax.apply_updates(params, updates), momentum), jax.lax.pmean(loss, axis_name="batch")


def learn(states, batches):
    """Copies are divided over the devices, whose axis has another name than that of the map."""
    return jax.vmap(update, axis_name="batch")(states, batches)


def inputs(seed):
    rng = np.random.default_rng(seed)
    params = {"w": rng.normal(size=(5, 4)), "v": rng.normal(size=4)}
    params = {name: np.stack([leaf] * 24).astype("float32") for name, leaf in params.items()}
    batches = {"x": rng.normal(size=(24, 6, 5)), "y": rng.normal(size=(24, 6))}
    return (params, jax.vmap(optimizer.init)(params)), {k: v.astype("float32") for k, v in batches.items()}
# output
"""Data-parallel `learn`: same call and same results as axis_of_a_map.py::learn, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from axis_of_a_map import optimizer

AXIS = "devices"


def update(state, batch):
    """One step of each of several copies, which share their gradients."""
    params, momentum = state

    def loss_fn(params):
        hidden = jnp.tanh(batch["x"] @ params["w"])
        # Of the batches of all copies.
        centre = jax.lax.pmean(jnp.mean(hidden, axis=0), axis_name=("batch", AXIS))
        return jnp.mean(((hidden - centre) @ params["v"] - batch["y"]) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    grads = jax.lax.pmean(grads, axis_name=("batch", AXIS))
    updates, momentum = optimizer.update(grads, momentum)
    return (optax.apply_updates(params, updates), momentum), jax.lax.pmean(
        loss, axis_name="batch"
    )


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0, 0), out_axes=0)
def p_learn(states, batches):
    """`learn` on one device's share.

    `states` and `batches` leaves are (devices, per_device, ...).
    """
    result = jax.vmap(update, axis_name="batch")(states, batches)
    result = (result[0], jax.lax.pmean(result[1], axis_name=AXIS))
    return result


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), (AXIS,)), P(*axes))


#: Kind and rank of the batch's arrays in the proof.
PROVED = {
    "states[0]['v']": ("float", 2),
    "states[0]['w']": ("float", 3),
    "states[1][0].trace['v']": ("float", 2),
    "states[1][0].trace['w']": ("float", 3),
    "batches['x']": ("float", 3),
    "batches['y']": ("float", 2),
}


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
            f"learn: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices), the same in all "
            f"of the batch (found {sizes})"
        )
    return False


def shard(states, batches):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("states", "batches")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (states, batches))


def unshard(tree):
    """(devices, per_device, ...) -> (devices * per_device, ...)."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), tree
    )


def learn(states, batches):
    """Copies are divided over the devices, whose axis has another name than that of the map."""
    states, batches = shard(states, batches)
    return unshard(p_learn(states, batches))
