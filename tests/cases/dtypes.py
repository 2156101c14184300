# flags: gen summaries --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def summaries(z, h):
    return jnp.mean(z), jnp.abs(jnp.sum(z)), jnp.max(h, axis=0), h.mean()


def inputs(seed):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(24, 5)) + 1j * rng.normal(size=(24, 5))
    return z.astype("complex64"), rng.normal(size=(24, 5)).astype("float16")
# output
"""Data-parallel `summaries`: same call and same results as dtypes.py::summaries, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0, 0), out_axes=None)
def p_summaries(z, h):
    """`summaries` on one device's share; `z` and `h` leaves are (devices, per_device, ...)."""
    return (
        jax.lax.pmean(jnp.mean(z), axis_name=AXIS),
        jnp.abs(jax.lax.psum(jnp.sum(z), axis_name=AXIS)),
        jax.lax.pmax(jnp.max(h, axis=0), axis_name=AXIS),
        jax.lax.pmean(h.mean(), axis_name=AXIS),
    )


def shard(z, h):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    arrays = {"z": z, "h": h}
    sizes = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        name = path[0].key + jax.tree_util.keystr(path[1:])
        shape = np.shape(leaf)
        if len(shape) != 2:
            raise ValueError(
                f"summaries: {name} has shape {shape}: this was proved for rank 2; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"summaries: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )
        sizes[name] = size

    if len(set(sizes.values())) > 1:
        raise ValueError(f"summaries: the batch has more than one size: {sizes}")

    arrays = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]),
        arrays,
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    arrays = jax.device_put(arrays, sharding)
    return arrays["z"], arrays["h"]


def summaries(z, h):
    z, h = shard(z, h)
    return p_summaries(z, h)
