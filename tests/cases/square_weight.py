# flags: gen apply --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def apply(w, b, x):
    """All three have 24 rows; only `x` is the batch."""
    hidden = jnp.tanh(x @ w + b)
    return hidden, hidden.mean(axis=0)


def inputs(seed):
    rng = np.random.default_rng(seed)
    w, x = (rng.normal(size=(24, 24)).astype("float32") for _ in range(2))
    return w, rng.normal(size=24).astype("float32"), x
# output
"""Data-parallel `apply`: same call and same results as square_weight.py::apply, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(
    jax.pmap, axis_name=AXIS, in_axes=(None, None, 0), out_axes=(0, None)
)
def p_apply(w, b, x):
    """`apply` on one device's share; `x` leaves are (devices, per_device, ...)."""
    hidden = jnp.tanh(x @ w + b)
    return hidden, jax.lax.pmean(hidden.mean(axis=0), axis_name=AXIS)


def shard(x):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        name = f"x{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        if len(shape) != 2:
            raise ValueError(
                f"apply: {name} has shape {shape}: this was proved for rank 2; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"apply: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )

    x = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), x
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    return jax.device_put(x, sharding)


def unshard(tree):
    """Merge (devices, per_device) at `axes`."""
    axes = (0, None)

    def merge(axis, tree):
        if axis is None:
            return tree
        return jax.tree.map(
            lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]),
            tree,
        )

    return jax.tree.map(merge, axes, tree, is_leaf=lambda axis: axis is None)


def apply(w, b, x):
    """All three have 24 rows; only `x` is the batch."""
    return unshard(p_apply(w, b, shard(x)))
