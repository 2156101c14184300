# flags: gen pool --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def pool(x, weights=None):
    """Weighted mean over the batch, or the plain one."""
    if weights is None:
        return jnp.mean(x, axis=0)
    total = jnp.sum(x * weights[:, None], axis=0)
    return total / jnp.sum(weights)


def inputs(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(24, 5)).astype("float32"), rng.uniform(size=24).astype("float32")
# output
"""Data-parallel `pool`: same call and same results as early_return.py::pool, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0, 0), out_axes=None)
def p_pool(x, weights):
    """`pool` on one device's share; `x` and `weights` leaves are (devices, per_device, ...)."""
    if weights is None:
        raise NotImplementedError(
            "`if weights is None` was not reached by the inputs this code was proved with"
        )
    total = jnp.sum(x * weights[:, None], axis=0)
    total = jax.lax.psum(total, axis_name=AXIS)
    return total / jax.lax.psum(jnp.sum(weights), axis_name=AXIS)


def shard(x, weights):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    ranks = {"x": 2, "weights": 1}
    devices = jax.local_devices()
    count = len(devices)
    arrays = {"x": x, "weights": weights}
    sizes = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        name = path[0].key + jax.tree_util.keystr(path[1:])
        shape = np.shape(leaf)
        if len(shape) != ranks.get(name):
            raise ValueError(
                f"pool: {name} has shape {shape}: this was proved for rank {ranks.get(name)}; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"pool: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )
        sizes[name] = size

    if len(set(sizes.values())) > 1:
        raise ValueError(f"pool: the batch has more than one size: {sizes}")

    arrays = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]),
        arrays,
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    arrays = jax.device_put(arrays, sharding)
    return arrays["x"], arrays["weights"]


def pool(x, weights=None):
    """Weighted mean over the batch, or the plain one."""
    x, weights = shard(x, weights)
    return p_pool(x, weights)
