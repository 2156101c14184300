# flags: gen summary --arg "params={'first': f32[4], 'second': f32[4]}" --arg x=f32[24,4] --arg y=f32[24]
import jax.numpy as jnp


def summary(params, x, y):
    """What a comprehension makes is made whole at once, and part by part where other parts are whole."""
    scores = {name: x @ w for name, w in params.items()}
    losses = {name: jnp.mean((score - y) ** 2) for name, score in scores.items()}
    best = jnp.minimum(losses["first"], losses["second"])
    norms = [(jnp.sum(w**2), jnp.mean(x * w, axis=0)) for w in params.values()]
    positive = [jnp.maximum(jnp.mean(score), 0) for score in scores.values()]
    return best, losses, norms, positive, [jnp.sum(jnp.abs(x), axis=0), *(jnp.sum(s) for s in scores.values())]
# output
"""Data-parallel `summary`: same call and same results as comprehensions.py::summary, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_summary(params, x, y):
    """`summary` on one device's share; `x` and `y` leaves are (devices, per_device, ...)."""
    scores = {name: x @ w for name, w in params.items()}
    losses = {name: jnp.mean((score - y) ** 2) for name, score in scores.items()}
    losses = jax.lax.pmean(losses, axis_name=AXIS)
    best = jnp.minimum(losses["first"], losses["second"])
    norms = [
        (jnp.sum(w**2), jax.lax.pmean(jnp.mean(x * w, axis=0), axis_name=AXIS))
        for w in params.values()
    ]
    positive = [
        jnp.maximum(jax.lax.pmean(jnp.mean(score), axis_name=AXIS), 0)
        for score in scores.values()
    ]
    return (
        best,
        losses,
        norms,
        positive,
        [
            jax.lax.psum(jnp.sum(jnp.abs(x), axis=0), axis_name=AXIS),
            *(jax.lax.psum(jnp.sum(s), axis_name=AXIS) for s in scores.values()),
        ],
    )


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), (AXIS,)), P(*axes))


#: Kind and rank of the batch's arrays in the proof.
PROVED = {"x": ("float", 2), "y": ("float", 1)}


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
            f"summary: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices), the same in all "
            f"of the batch (found {sizes})"
        )
    return False


def shard(x, y):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("x", "y")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (x, y))


def summary(params, x, y):
    """What a comprehension makes is made whole at once, and part by part where other parts are whole."""
    x, y = shard(x, y)
    return p_summary(params, x, y)
