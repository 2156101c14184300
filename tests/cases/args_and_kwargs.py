# flags: gen total --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def total(w, *parts, **options):
    out = 0.0
    for part in parts:
        out = out + part @ w
    return out * options["scale"], jnp.min(out)


def inputs(seed):
    rng = np.random.default_rng(seed)
    parts = [rng.normal(size=(24, 5)).astype("float32") for _ in range(2)]
    return (rng.normal(size=5).astype("float32"), *parts), {"scale": 2.0}
# output
"""Data-parallel `total`: same call and same results as args_and_kwargs.py::total, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(
    jax.pmap, axis_name=AXIS, in_axes=(None, 0, None), out_axes=(0, None)
)
def p_total(w, parts, options):
    """`total` on one device's share; `parts` leaves are (devices, per_device, ...)."""
    out = 0.0
    for part in parts:
        out = out + part @ w
    return out * options["scale"], jax.lax.pmin(jnp.min(out), axis_name=AXIS)


def shard(parts):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    sizes = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(parts):
        name = f"parts{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        if len(shape) != 2:
            raise ValueError(
                f"total: {name} has shape {shape}: this was proved for rank 2; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"total: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )
        sizes[name] = size

    if len(set(sizes.values())) > 1:
        raise ValueError(f"total: the batch has more than one size: {sizes}")

    parts = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), parts
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    return jax.device_put(parts, sharding)


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


def total(w, *parts, **options):
    return unshard(p_total(w, shard(parts), options))
