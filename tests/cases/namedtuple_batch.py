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


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), (AXIS,)), P(*axes))


#: Kind and rank of the batch's arrays in the proof.
PROVED = {"batch.x": ("float", 2), "batch.y": ("float", 1)}


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
            f"losses: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices), the same in all "
            f"of the batch (found {sizes})"
        )
    return False


def shard(batch):
    """Split along `axes`: B becomes (devices, B // devices); what has None stays whole."""
    sizes = set()

    def split(path, leaf, axis):
        if axis is None or is_split(f"batch{jax.tree_util.keystr(path)}", leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    axes = jax.tree.broadcast(
        Batch(x=0, y=0, weights=None), batch, is_leaf=lambda axis: axis is None
    )
    return jax.tree.map_with_path(split, batch, axes)


def unshard(tree):
    """Merge (devices, per_device) at `axes`."""

    def merge(leaf, axis):
        if axis is None:
            return leaf
        return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])

    axes = jax.tree.broadcast(
        (None, Batch(x=0, y=0, weights=None)), tree, is_leaf=lambda axis: axis is None
    )
    return jax.tree.map(merge, tree, axes)


def losses(w: jax.Array, batch: Batch) -> tuple[jax.Array, Batch]:
    return unshard(p_losses(w, shard(batch)))
