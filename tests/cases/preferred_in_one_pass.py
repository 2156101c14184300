# flags: gen step --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def score(params, tokens):
    hidden = jnp.tanh(params["embed"][tokens] + jnp.zeros((len(tokens), 1, 1)))
    return (hidden @ params["head"]).sum(axis=1)


def step(params, chosen, rejected):
    """A step on pairs of answers, both of which go through the model at once."""

    def loss_fn(params):
        scores = score(params, jnp.concatenate([chosen, rejected]))
        margin = scores[: len(chosen)] - scores[len(chosen) :]
        return -jnp.mean(jax.nn.log_sigmoid(margin)), jnp.mean(margin > 0)

    (loss, accuracy), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss, accuracy


def inputs(seed):
    rng = np.random.default_rng(seed)
    params = {"embed": rng.normal(size=(11, 4)), "head": rng.normal(size=4)}
    params = jax.tree.map(lambda p: p.astype("float32"), params)
    return params, *rng.integers(0, 11, size=(2, 24, 6)).astype("int32")
# output
"""Data-parallel `step`: same call and same results as preferred_in_one_pass.py::step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from preferred_in_one_pass import score

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_step(params, chosen, rejected):
    """`step` on one device's share.

    `chosen` and `rejected` leaves are (devices, per_device, ...).
    """

    def loss_fn(params):
        scores = score(params, jnp.concatenate([chosen, rejected]))
        margin = scores[: len(chosen)] - scores[len(chosen) :]
        return -jnp.mean(jax.nn.log_sigmoid(margin)), jnp.mean(margin > 0)

    (loss, accuracy), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    loss, accuracy, grads = jax.lax.pmean((loss, accuracy, grads), axis_name=AXIS)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss, accuracy


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
PROVED = {"chosen": ("int", 2), "rejected": ("int", 2)}


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
            f"step: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices), the same in all "
            f"of the batch (found {sizes})"
        )
    return False


def shard(chosen, rejected):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("chosen", "rejected")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (chosen, rejected))


def step(params, chosen, rejected):
    """A step on pairs of answers, both of which go through the model at once."""
    chosen, rejected = shard(chosen, rejected)
    return p_step(replicate(params), chosen, rejected)
