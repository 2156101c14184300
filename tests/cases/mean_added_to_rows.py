# flags: gen train_step --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def elbo(params, x):
    """Of each example its reconstruction, with a term over the batch that is taken off all of them."""
    z = jnp.tanh(x @ params["w"])
    found = -jnp.sum((z @ params["w"].T - x) ** 2, axis=1)
    found -= 0.1 * jnp.mean(jnp.sum(z**2, axis=1))
    return found


def train_step(params, x):
    """What is added to each row alike needs no collective of its own where the rows are averaged."""
    loss, grads = jax.value_and_grad(lambda params: -jnp.mean(elbo(params, x)))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def inputs(seed):
    rng = np.random.default_rng(seed)
    return {"w": rng.normal(size=(5, 3)).astype("float32")}, rng.normal(size=(24, 5)).astype("float32")
# output
"""Data-parallel `train_step`: same call and same results as mean_added_to_rows.py::train_step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from mean_added_to_rows import elbo

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0), out_axes=None)
def p_train_step(params, x):
    """`train_step` on one device's share; `x` leaves are (devices, per_device, ...)."""
    loss, grads = jax.value_and_grad(lambda params: -jnp.mean(elbo(params, x)))(params)
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
PROVED = {"x": ("float", 2)}


def is_split(name, leaf):
    """Whether an earlier call split `leaf`; if none did, raise unless it is as in the proof and divisible."""
    shape, count = np.shape(leaf), jax.local_device_count()
    kind, rank = PROVED.get(name, ("no leaf", -1))
    if getattr(leaf, "sharding", None) is sharding(AXIS) and len(shape) == rank + 1:
        return True
    found = jax.dtypes.scalar_type_of(leaf).__name__
    if (found, len(shape)) != (kind, rank) or shape[0] % count:
        raise ValueError(
            f"train_step: {name} is {found}{list(shape)}; expected {kind} of "
            f"rank {rank}, axis 0 a multiple of {count} (devices)"
        )
    return False


def shard(x):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""

    def split(path, leaf):
        if is_split(f"x{jax.tree_util.keystr(path)}", leaf):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, x)


def train_step(params, x):
    """What is added to each row alike needs no collective of its own where the rows are averaged."""
    return p_train_step(replicate(params), shard(x))
