# flags: gen scale --inputs this::inputs --devices 0,2,4
import jax
import jax.numpy as jnp
import numpy as np


def scale(x, factor):
    return x * factor


def inputs(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(24, 5)).astype("float32"), 2.0
# output
"""Data-parallel `scale`: same call and same results as device_ids.py::scale, on N devices."""

import functools

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


def devices_in_use():
    """Devices 0, 2, 4, in this order: `scale` runs on these."""
    ids = (0, 2, 4)
    found = {device.id: device for device in jax.local_devices()}
    missing = [each for each in ids if each not in found]
    if missing:
        raise RuntimeError(
            f"scale: no device with id {missing}, there are {sorted(found)}"
        )
    return [found[each] for each in ids]


def p_scale(x, factor):
    """`scale` on one device's share; `x` leaves are (devices, per_device, ...)."""
    return x * factor


@functools.cache
def compiled():
    """`p_scale` on the chosen devices; made at the first call."""
    return jax.pmap(
        p_scale, axis_name=AXIS, in_axes=(0, None), out_axes=0, devices=devices_in_use()
    )


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
    """(devices, per_device, ...) -> (devices * per_device, ...)."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), tree
    )


def scale(x, factor):
    return unshard(compiled()(shard(x), factor))
