# flags: gen score --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def score(data):
    """`data` holds examples, a table with as many rows that they share, and a number."""
    rows = data["table"][data["ids"]]
    logits = jnp.sum(rows * data["x"], axis=-1) * data["scale"]
    return {"logits": logits, "mean": logits.mean(), "table": data["table"]}


def inputs(seed):
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(24, 5)).astype("float32")
    x = rng.normal(size=(24, 5)).astype("float32")
    return ({"x": x, "ids": rng.integers(0, 24, 24), "table": table, "scale": np.float32(2.0)},)
# output
"""Data-parallel `score`: same call and same results as dict_with_table.py::score, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(
    jax.pmap,
    axis_name=AXIS,
    in_axes=({"ids": 0, "scale": None, "table": None, "x": 0},),
    out_axes={"logits": 0, "mean": None, "table": None},
)
def p_score(data):
    """`score` on one device's share.

    `data` leaves that are split are (devices, per_device, ...).
    """
    rows = data["table"][data["ids"]]
    logits = jnp.sum(rows * data["x"], axis=-1) * data["scale"]
    return {
        "logits": logits,
        "mean": jax.lax.pmean(logits.mean(), axis_name=AXIS),
        "table": data["table"],
    }


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), (AXIS,)), P(*axes))


#: Kind and rank of the batch's arrays in the proof.
PROVED = {"data['ids']": ("int", 1), "data['x']": ("float", 2)}


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
            f"score: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices), the same in all "
            f"of the batch (found {sizes})"
        )
    return False


def shard(data):
    """Split along `axes`: B becomes (devices, B // devices); what has None stays whole."""
    sizes = set()

    def split(path, leaf, axis):
        if axis is None or is_split(f"data{jax.tree_util.keystr(path)}", leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    axes = jax.tree.broadcast(
        {"ids": 0, "scale": None, "table": None, "x": 0},
        data,
        is_leaf=lambda axis: axis is None,
    )
    return jax.tree.map_with_path(split, data, axes)


def unshard(tree):
    """Merge (devices, per_device) at `axes`."""

    def merge(leaf, axis):
        if axis is None:
            return leaf
        return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])

    axes = jax.tree.broadcast(
        {"logits": 0, "mean": None, "table": None},
        tree,
        is_leaf=lambda axis: axis is None,
    )
    return jax.tree.map(merge, tree, axes)


def score(data):
    """`data` holds examples, a table with as many rows that they share, and a number."""
    return unshard(p_score(shard(data)))
