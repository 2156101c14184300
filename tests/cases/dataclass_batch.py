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
    mean = 0.9 * state.mean + 0.1 * state.x.mean(axis=0)
    mean = jax.lax.pmean(mean, axis_name=AXIS)
    return State(x=state.x - mean, mean=mean)


def shard(state):
    """Split along `axes`: B becomes (devices, B // devices); None stays whole."""
    axes = State(x=0, mean=None)
    devices = jax.local_devices()
    count = len(devices)

    def split(path, axis, tree):
        if axis is None:
            return tree
        for inner, leaf in jax.tree_util.tree_leaves_with_path(tree):
            path_to_leaf = (*path, *inner)
            name = f"state{jax.tree_util.keystr(path_to_leaf)}"
            shape = np.shape(leaf)
            if len(shape) != 2:
                raise ValueError(
                    f"center: {name} has shape {shape}: this was proved for rank 2; "
                    "generate again with inputs of this shape"
                )
            size = shape[0] if shape else 0
            if not size or size % count:
                raise ValueError(
                    f"center: {name} has shape {shape}: axis 0 "
                    f"({size or 'missing or empty'}) does not divide over {count} devices; "
                    f"pass a multiple of {count}"
                )

        tree = jax.tree.map(
            lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]),
            tree,
        )
        return jax.device_put(
            tree, NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
        )

    state = jax.tree_util.tree_map_with_path(
        split, axes, state, is_leaf=lambda axis: axis is None
    )
    return state


def unshard(tree):
    """Merge (devices, per_device) at `axes`."""
    axes = State(x=0, mean=None)

    def merge(axis, tree):
        if axis is None:
            return tree
        return jax.tree.map(
            lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]),
            tree,
        )

    return jax.tree.map(merge, axes, tree, is_leaf=lambda axis: axis is None)


def center(state: State) -> State:
    return unshard(p_center(shard(state)))
