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


def shard(data):
    """Split along `axes`: B becomes (devices, B // devices); None stays whole."""
    axes = {"ids": 0, "scale": None, "table": None, "x": 0}
    ranks = {"data['ids']": 1, "data['x']": 2}
    devices = jax.local_devices()
    count = len(devices)
    sizes = {}

    def split(path, axis, tree):
        if axis is None:
            return tree
        for inner, leaf in jax.tree_util.tree_leaves_with_path(tree):
            path_to_leaf = (*path, *inner)
            name = f"data{jax.tree_util.keystr(path_to_leaf)}"
            shape = np.shape(leaf)
            if len(shape) != ranks.get(name):
                raise ValueError(
                    f"score: {name} has shape {shape}: this was proved for rank {ranks.get(name)}; "
                    "generate again with inputs of this shape"
                )
            size = shape[0] if shape else 0
            if not size or size % count:
                raise ValueError(
                    f"score: {name} has shape {shape}: axis 0 "
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

    data = jax.tree_util.tree_map_with_path(
        split, axes, data, is_leaf=lambda axis: axis is None
    )
    if len(set(sizes.values())) > 1:
        raise ValueError(f"score: the batch has more than one size: {sizes}")

    return data


def unshard(tree):
    """Merge (devices, per_device) at `axes`."""
    axes = {"logits": 0, "mean": None, "table": None}

    def merge(axis, tree):
        if axis is None:
            return tree
        return jax.tree.map(
            lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]),
            tree,
        )

    return jax.tree.map(merge, axes, tree, is_leaf=lambda axis: axis is None)


def score(data):
    """`data` holds examples, a table with as many rows that they share, and a number."""
    return unshard(p_score(shard(data)))
