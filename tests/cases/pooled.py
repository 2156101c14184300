# flags: gen f --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def f(w, x):
    """Weights over the batch, and penalties on its covariance and its spread."""

    def loss(w):
        z = jnp.tanh(x @ w)
        pooled = jax.nn.softmax(z[:, 0], axis=0) @ z
        spread = jnp.std(z - pooled, axis=0, ddof=1)
        return jnp.sum(jnp.cov(z.T) ** 2) - jnp.mean(spread) + jax.nn.logsumexp(z * pooled)

    return jax.value_and_grad(loss)(w)


def inputs(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(5, 3)).astype("float32"), rng.normal(size=(24, 5)).astype("float32")
# output
"""Data-parallel `f`: same call and same results as pooled.py::f, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0), out_axes=None)
def p_f(w, x):
    """`f` on one device's share; `x` leaves are (devices, per_device, ...)."""

    def loss(w):
        z = jnp.tanh(x @ w)
        largest = jax.lax.pmax(
            jax.lax.stop_gradient(jnp.max(z[:, 0], axis=0, keepdims=True)),
            axis_name=AXIS,
        )
        weights = jnp.exp(z[:, 0] - largest)
        total_weights = jax.lax.psum(jnp.sum(weights, axis=0), axis_name=AXIS)
        pooled = (weights / total_weights) @ z
        pooled = jax.lax.psum(pooled, axis_name=AXIS)
        values = z - pooled
        mean = jax.lax.pmean(jnp.mean(values, axis=0), axis_name=AXIS)
        total_square = jax.lax.psum(
            jnp.sum((values - mean) ** 2, axis=0), axis_name=AXIS
        )
        count = jax.lax.psum(jnp.size(values, axis=0), axis_name=AXIS)
        spread = jnp.sqrt(total_square / (count - 1))
        rows = jnp.atleast_2d(z.T)
        mean_2 = jax.lax.pmean(jnp.mean(rows, axis=1, keepdims=True), axis_name=AXIS)
        apart = rows - mean_2
        total = jax.lax.psum(apart @ apart.T, axis_name=AXIS)
        count_2 = jax.lax.psum(apart.shape[1], axis_name=AXIS)
        values_2 = z * pooled
        top = jax.lax.pmax(jax.lax.stop_gradient(jnp.max(values_2)), axis_name=AXIS)
        largest_2 = jnp.where(jnp.isfinite(top), top, 0)
        total_2 = jax.lax.psum(jnp.sum(jnp.exp(values_2 - largest_2)), axis_name=AXIS)
        return (
            jnp.sum(jnp.squeeze(total / (count_2 - 1)) ** 2)
            - jnp.mean(spread)
            + (jnp.log(total_2) + largest_2)
        )

    return jax.lax.pmean(jax.value_and_grad(loss)(w), axis_name=AXIS)


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
            f"f: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices)"
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


def f(w, x):
    """Weights over the batch, and penalties on its covariance and its spread."""
    return p_f(replicate(w), shard(x))
