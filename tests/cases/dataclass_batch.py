# flags: gen center --inputs this::inputs
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    x: jax.Array
    mean: jax.Array


def center(state: State) -> State:
    mean = 0.9 * state.mean + 0.1 * state.x.mean(axis=0)
    return State(x=state.x - mean, mean=mean)


def inputs(seed):
    rng = np.random.default_rng(seed)
    return (State(rng.normal(size=(24, 5)).astype("float32"), np.ones(5, "float32")),)
# output
"""Data-parallel `center`: same call and same results as dataclass_batch.py::center, on N devices."""

import functools

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dataclass_batch import State

AXIS = "batch"


@functools.partial(
    jax.pmap,
    axis_name=AXIS,
    in_axes=(State(x=0, mean=None),),
    out_axes=State(x=0, mean=None),
)
def p_center(state: State) -> State:
    """`center` on one device's share.

    `state` leaves that are split are (devices, per_device, ...).
    """
    mean = 0.9 * state.mean + 0.1 * jax.lax.pmean(state.x.mean(axis=0), axis_name=AXIS)
    return State(x=state.x - mean, mean=mean)


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), (AXIS,)), P(*axes))


#: Kind and rank of the batch's arrays in the proof.
PROVED = {"state.x": ("float", 2)}


def is_split(name, leaf):
    """Whether an earlier call split `leaf`; if none did, raise unless it is as in the proof and divisible."""
    shape, count = np.shape(leaf), jax.local_device_count()
    kind, rank = PROVED.get(name, ("no leaf", -1))
    if getattr(leaf, "sharding", None) is sharding(AXIS) and len(shape) == rank + 1:
        return True
    found = jax.dtypes.scalar_type_of(leaf).__name__
    if (found, len(shape)) != (kind, rank) or shape[0] % count:
        raise ValueError(
            f"center: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices)"
        )
    return False


def shard(state):
    """Split along `axes`: B becomes (devices, B // devices); what has None stays whole."""

    def split(path, leaf, axis):
        if axis is None or is_split(f"state{jax.tree_util.keystr(path)}", leaf):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    axes = jax.tree.broadcast(
        State(x=0, mean=None), state, is_leaf=lambda axis: axis is None
    )
    return jax.tree.map_with_path(split, state, axes)


def unshard(tree):
    """Merge (devices, per_device) at `axes`."""

    def merge(leaf, axis):
        if axis is None:
            return leaf
        return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])

    axes = jax.tree.broadcast(
        State(x=0, mean=None), tree, is_leaf=lambda axis: axis is None
    )
    return jax.tree.map(merge, tree, axes)


def center(state: State) -> State:
    return unshard(p_center(shard(state)))
