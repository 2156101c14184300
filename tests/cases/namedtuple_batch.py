# flags: gen losses --inputs this::inputs
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Batch(NamedTuple):
    x: jax.Array
    y: jax.Array
    weights: jax.Array


def losses(w: jax.Array, batch: Batch) -> tuple[jax.Array, Batch]:
    error = batch.x @ w - batch.y
    scaled = batch._replace(x=batch.x * batch.weights)
    return jnp.mean(error**2), scaled


def inputs(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(24, 5)).astype("float32")
    weights = rng.normal(size=5).astype("float32")
    return rng.normal(size=5).astype("float32"), Batch(x, x.sum(axis=1), weights)
# output
"""Data-parallel `losses`: same call and same results as namedtuple_batch.py::losses, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from namedtuple_batch import Batch

AXIS = "batch"


@functools.partial(
    jax.pmap,
    axis_name=AXIS,
    in_axes=(None, Batch(x=0, y=0, weights=None)),
    out_axes=(None, Batch(x=0, y=0, weights=None)),
)
def p_losses(w: jax.Array, batch: Batch) -> tuple[jax.Array, Batch]:
    """`losses` on one device's share.

    `batch` leaves that are split are (devices, per_device, ...).
    """
    error = batch.x @ w - batch.y
    scaled = batch._replace(x=batch.x * batch.weights)
    return jax.lax.pmean(jnp.mean(error**2), axis_name=AXIS), scaled


def shard(batch):
    """Split along `axes`: B becomes (devices, B // devices); None stays whole."""
    axes = Batch(x=0, y=0, weights=None)
    ranks = {"batch.x": 2, "batch.y": 1}
    devices = jax.local_devices()
    count = len(devices)
    sizes = {}

    def split(path, axis, tree):
        if axis is None:
            return tree
        for inner, leaf in jax.tree_util.tree_leaves_with_path(tree):
            path_to_leaf = (*path, *inner)
            name = f"batch{jax.tree_util.keystr(path_to_leaf)}"
            shape = np.shape(leaf)
            if len(shape) != ranks.get(name):
                raise ValueError(
                    f"losses: {name} has shape {shape}: this was proved for rank {ranks.get(name)}; "
                    "generate again with inputs of this shape"
                )
            size = shape[0] if shape else 0
            if not size or size % count:
                raise ValueError(
                    f"losses: {name} has shape {shape}: axis 0 "
                    f"({size or 'missing or empty'}) does not divide over {count} devices; "
                    f"pass a multiple of {count}"
                )
            sizes[name] = size

        tree = jax.tree.map(
            lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]),
            tree,
        )
        return jax.device_put(
            tree, NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
        )

    batch = jax.tree_util.tree_map_with_path(
        split, axes, batch, is_leaf=lambda axis: axis is None
    )
    if len(set(sizes.values())) > 1:
        raise ValueError(f"losses: the batch has more than one size: {sizes}")

    return batch


def unshard(tree):
    """Merge (devices, per_device) at `axes`."""
    axes = (None, Batch(x=0, y=0, weights=None))

    def merge(axis, tree):
        if axis is None:
            return tree
        return jax.tree.map(
            lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]),
            tree,
        )

    return jax.tree.map(merge, axes, tree, is_leaf=lambda axis: axis is None)


def losses(w: jax.Array, batch: Batch) -> tuple[jax.Array, Batch]:
    return unshard(p_losses(w, shard(batch)))
