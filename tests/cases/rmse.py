# flags: gen rmse --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def rmse(predicted, target):
    return jnp.sqrt(jnp.mean((predicted - target) ** 2))


def inputs(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(24, 3)).astype("float32"), rng.normal(size=(24, 3)).astype("float32")
# output
"""Data-parallel `rmse`: same call and same results as rmse.py::rmse, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0, 0), out_axes=None)
def p_rmse(predicted, target):
    """`rmse` on one device's share.

    `predicted` and `target` leaves are (devices, per_device, ...).
    """
    return jnp.sqrt(jax.lax.pmean(jnp.mean((predicted - target) ** 2), axis_name=AXIS))


def shard(predicted, target):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    arrays = {"predicted": predicted, "target": target}
    sizes = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        name = path[0].key + jax.tree_util.keystr(path[1:])
        shape = np.shape(leaf)
        if len(shape) != 2:
            raise ValueError(
                f"rmse: {name} has shape {shape}: this was proved for rank 2; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"rmse: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )
        sizes[name] = size

    if len(set(sizes.values())) > 1:
        raise ValueError(f"rmse: the batch has more than one size: {sizes}")

    arrays = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]),
        arrays,
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    arrays = jax.device_put(arrays, sharding)
    return arrays["predicted"], arrays["target"]


def rmse(predicted, target):
    predicted, target = shard(predicted, target)
    return p_rmse(predicted, target)
