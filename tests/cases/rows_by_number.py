# flags: gen evaluate --arg w=f32[5,4] --arg states=f32[24,5] --arg rewards=f32[24]
import jax
import jax.numpy as jnp


def evaluate(w, states, rewards):
    """A distribution of returns, shifted by each reward and put back on its atoms in a loop over the rows."""
    atoms = jnp.linspace(-1.0, 1.0, 4)

    def loss(w):
        p = jax.nn.softmax(states @ w)
        at = (jnp.clip(rewards[:, None] + 0.9 * atoms, -1.0, 1.0) + 1.0) * 1.5
        low, share = jnp.floor(at).astype(jnp.int32), at - jnp.floor(at)

        def put(i, target):
            target = target.at[i, low[i]].add(p[i] * (1.0 - share[i]))
            return target.at[i, jnp.minimum(low[i] + 1, 3)].add(p[i] * share[i])

        target = jax.lax.fori_loop(0, len(rewards), put, jnp.zeros_like(p))
        return -jnp.mean(jnp.sum(jax.lax.stop_gradient(target) * jnp.log(p), 1))

    value, grads = jax.value_and_grad(loss)(w)
    return w - 0.1 * grads, value
# output
"""Data-parallel `evaluate`: same call and same results as rows_by_number.py::evaluate, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_evaluate(w, states, rewards):
    """`evaluate` on one device's share.

    `states` and `rewards` leaves are (devices, per_device, ...).
    """
    atoms = jnp.linspace(-1.0, 1.0, 4)

    def loss(w):
        p = jax.nn.softmax(states @ w)
        at = (jnp.clip(rewards[:, None] + 0.9 * atoms, -1.0, 1.0) + 1.0) * 1.5
        low, share = jnp.floor(at).astype(jnp.int32), at - jnp.floor(at)

        def put(i, target):
            target = target.at[i, low[i]].add(p[i] * (1.0 - share[i]))
            return target.at[i, jnp.minimum(low[i] + 1, 3)].add(p[i] * share[i])

        target = jax.lax.fori_loop(0, len(rewards), put, jnp.zeros_like(p))
        return -jnp.mean(jnp.sum(jax.lax.stop_gradient(target) * jnp.log(p), 1))

    value, grads = jax.value_and_grad(loss)(w)
    value, grads = jax.lax.pmean((value, grads), axis_name=AXIS)
    return w - 0.1 * grads, value


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
PROVED = {"states": ("float", 2), "rewards": ("float", 1)}


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
            f"evaluate: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices), the same in all "
            f"of the batch (found {sizes})"
        )
    return False


def shard(states, rewards):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("states", "rewards")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (states, rewards))


def evaluate(w, states, rewards):
    """A distribution of returns, shifted by each reward and put back on its atoms in a loop over the rows."""
    states, rewards = shard(states, rewards)
    return p_evaluate(replicate(w), states, rewards)
