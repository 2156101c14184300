# flags: gen scale --inputs this::inputs --devices 4 --helper place --helper devices
import jax
import jax.numpy as jnp
import numpy as np


def scale(x, factor):
    return x * factor, jnp.max(x)


def inputs(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(24, 5)).astype("float32"), 2.0
# output
"""Data-parallel `scale`: same call and same results as helpers.py::scale, on N devices."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


def devices_in_use():
    """The first 4 devices: `scale` runs on these."""
    found = jax.local_devices()
    if len(found) < 4:
        raise RuntimeError(f"scale: needs 4 devices, found {len(found)}")
    return found[:4]


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0, None), out_axes=(0, None))
def p_scale(x, factor):
    """`scale` on one device's share; `x` leaves are (devices, per_device, ...)."""
    return x * factor, jax.lax.pmax(jnp.max(x), axis_name=AXIS)


def shard(x):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = devices_in_use()
    count = len(devices)
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        name = f"x{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        if len(shape) != 2:
            raise ValueError(
                f"scale: {name} has shape {shape}: this was proved for rank 2; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"scale: {name} has shape {shape}: axis 0 "
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


def place(batches):
    """Put the next batch on the devices while `p_scale` works on this one."""
    ahead = collections.deque()
    for batch in batches:
        ahead.append(shard(batch))
        if len(ahead) > 1:
            yield ahead.popleft()
    yield from ahead


def scale(x, factor):
    return unshard(p_scale(shard(x), factor))
