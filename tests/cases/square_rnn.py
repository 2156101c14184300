# flags: gen run_rnn --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def run_rnn(wh, wx, xs, h0):
    """As wide as the batch is large; time comes first."""

    def step(h, x):
        h = jnp.tanh(h @ wh + x @ wx)
        return h, h

    last, states = jax.lax.scan(step, h0, xs)
    return last.mean(axis=0), states


def inputs(seed):
    rng = np.random.default_rng(seed)
    shapes = ((24, 24), (3, 24), (5, 24, 3), (24, 24))
    return tuple(rng.normal(size=shape, scale=0.2).astype("float32") for shape in shapes)
# output
"""Data-parallel `run_rnn`: same call and same results as square_rnn.py::run_rnn, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(
    jax.pmap, axis_name=AXIS, in_axes=(None, None, 1, 0), out_axes=(None, 1)
)
def p_run_rnn(wh, wx, xs, h0):
    """`run_rnn` on one device's share.

    `xs` leaves have (devices, per_device) at axis 1, `h0` leaves are (devices,
    per_device, ...).
    """

    def step(h, x):
        h = jnp.tanh(h @ wh + x @ wx)
        return h, h

    last, states = jax.lax.scan(step, h0, xs)
    return jax.lax.pmean(last.mean(axis=0), axis_name=AXIS), states


def shard(xs, h0):
    """Split along `axes`: B becomes (devices, B // devices); None stays whole."""
    axes = {"xs": 1, "h0": 0}
    ranks = {"xs": 3, "h0": 2}
    devices = jax.local_devices()
    count = len(devices)
    arrays = {"xs": xs, "h0": h0}
    sizes = {}

    def split(path, axis, tree):
        if axis is None:
            return tree
        for inner, leaf in jax.tree_util.tree_leaves_with_path(tree):
            path_to_leaf = (*path, *inner)
            name = path_to_leaf[0].key + jax.tree_util.keystr(path_to_leaf[1:])
            shape = np.shape(leaf)
            if len(shape) != ranks.get(name):
                raise ValueError(
                    f"run_rnn: {name} has shape {shape}: this was proved for rank {ranks.get(name)}; "
                    "generate again with inputs of this shape"
                )
            size = shape[axis] if len(shape) > axis else 0
            if not size or size % count:
                raise ValueError(
                    f"run_rnn: {name} has shape {shape}: axis {axis} "
                    f"({size or 'missing or empty'}) does not divide over {count} devices; "
                    f"pass a multiple of {count}"
                )
            sizes[name] = size

        tree = jax.tree.map(
            lambda leaf: leaf.reshape(
                *leaf.shape[:axis],
                count,
                leaf.shape[axis] // count,
                *leaf.shape[axis + 1 :],
            ),
            tree,
        )
        return jax.device_put(
            tree,
            NamedSharding(Mesh(np.array(devices), (AXIS,)), P(*[None] * axis, AXIS)),
        )

    arrays = jax.tree_util.tree_map_with_path(
        split, axes, arrays, is_leaf=lambda axis: axis is None
    )
    if len(set(sizes.values())) > 1:
        raise ValueError(f"run_rnn: the batch has more than one size: {sizes}")

    return arrays["xs"], arrays["h0"]


def unshard(tree):
    """Merge (devices, per_device) at `axes`."""
    axes = (None, 1)

    def merge(axis, tree):
        if axis is None:
            return tree
        return jax.tree.map(
            lambda leaf: leaf.reshape(
                leaf.shape[0], leaf.shape[1] * leaf.shape[2], *leaf.shape[3:]
            ),
            tree,
        )

    return jax.tree.map(merge, axes, tree, is_leaf=lambda axis: axis is None)


def run_rnn(wh, wx, xs, h0):
    """As wide as the batch is large; time comes first."""
    xs, h0 = shard(xs, h0)
    return unshard(p_run_rnn(wh, wx, xs, h0))
