# flags: gen step --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def score(params, tokens, lengths):
    """What the model says at the last token of each answer."""
    hidden = jnp.tanh(jnp.cumsum(params["embed"][tokens], axis=1))
    last = hidden[jnp.arange(tokens.shape[0]), lengths - 1]
    return last @ params["head"]


def step(params, pairs):
    """A step of a reward model on pairs of answers, both of which go through it at once."""
    count = pairs["chosen"].shape[0]

    def loss_fn(params):
        tokens = jnp.concatenate([pairs["chosen"], pairs["rejected"]])
        scores = score(params, tokens, jnp.concatenate([pairs["chosen_length"], pairs["rejected_length"]]))
        return -jnp.mean(jax.nn.log_sigmoid(scores[:count] - scores[count:]))

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def inputs(seed):
    rng = np.random.default_rng(seed)
    params = {"embed": rng.normal(size=(11, 4)), "head": rng.normal(size=4)}
    params = jax.tree.map(lambda p: p.astype("float32"), params)
    tokens = rng.integers(0, 11, size=(2, 24, 6)).astype("int32")
    lengths = rng.integers(1, 7, size=(2, 24)).astype("int32")
    names = ("chosen", "rejected")
    pairs = dict(zip(names, tokens)) | {f"{name}_length": n for name, n in zip(names, lengths)}
    return params, pairs
# output
"""Data-parallel `step`: same call and same results as last_tokens_of_pairs.py::step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from last_tokens_of_pairs import score

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0), out_axes=None)
def p_step(params, pairs):
    """`step` on one device's share; `pairs` leaves are (devices, per_device, ...)."""
    count = pairs["chosen"].shape[0]

    def loss_fn(params):
        tokens = jnp.concatenate([pairs["chosen"], pairs["rejected"]])
        scores = score(
            params,
            tokens,
            jnp.concatenate([pairs["chosen_length"], pairs["rejected_length"]]),
        )
        return -jnp.mean(jax.nn.log_sigmoid(scores[:count] - scores[count:]))

    loss, grads = jax.value_and_grad(loss_fn)(params)
    loss, grads = jax.lax.pmean((loss, grads), axis_name=AXIS)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


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
PROVED = {
    "pairs['chosen']": ("int", 2),
    "pairs['chosen_length']": ("int", 1),
    "pairs['rejected']": ("int", 2),
    "pairs['rejected_length']": ("int", 1),
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
            f"step: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices), the same in all "
            f"of the batch (found {sizes})"
        )
    return False


def shard(pairs):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        if is_split(f"pairs{jax.tree_util.keystr(path)}", leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, pairs)


def step(params, pairs):
    """A step of a reward model on pairs of answers, both of which go through it at once."""
    return p_step(replicate(params), shard(pairs))
