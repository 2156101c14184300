# flags: gen fit --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def step(w, x):
    """New weights, which are whole here, and numbers that are those of a share."""
    near = jax.nn.sigmoid(x @ w)
    return near @ x / near.sum(), {"mean": near.mean(), "sure": jnp.sum(near > 0.9)}


def fit(w, x):
    start = w, {"mean": jnp.zeros(()), "sure": jnp.zeros((), int)}
    return jax.lax.fori_loop(0, 3, lambda _, state: step(state[0], x), start)


def inputs(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=3).astype("float32"), rng.normal(size=(24, 3)).astype("float32")
# output
"""Data-parallel `fit`: same call and same results as taken_apart_in_a_lambda.py::fit, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


def step(w, x):
    """New weights, which are whole here, and numbers that are those of a share."""
    near = jax.nn.sigmoid(x @ w)
    total, total_2 = jax.lax.psum((near @ x, near.sum()), axis_name=AXIS)
    return total / total_2, {"mean": near.mean(), "sure": jnp.sum(near > 0.9)}


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0), out_axes=None)
def p_fit(w, x):
    """`fit` on one device's share; `x` leaves are (devices, per_device, ...)."""
    start = w, {"mean": jnp.zeros(()), "sure": jnp.zeros((), int)}
    return jax.lax.fori_loop(
        0,
        3,
        lambda _, state: (
            lambda result: (
                result[0],
                {
                    **result[1],
                    "mean": jax.lax.pmean(result[1]["mean"], axis_name=AXIS),
                    "sure": jax.lax.psum(result[1]["sure"], axis_name=AXIS),
                },
            )
        )(step(state[0], x)),
        start,
    )


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
            f"fit: {name} is {found}{list(shape)}; expected {kind} of rank "
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


def fit(w, x):
    return p_fit(replicate(w), shard(x))
