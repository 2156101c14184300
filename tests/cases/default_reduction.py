# flags: gen summarise --inputs this::inputs
import jax.numpy as jnp
import numpy as np


def summarise(x, depth: int, reduce=jnp.sum):
    for _ in range(depth):
        x = jnp.tanh(x)
    return reduce(x, axis=0)


def inputs(seed):
    return np.random.default_rng(seed).normal(size=(24, 5)).astype("float32"), 2
# output
"""Data-parallel `summarise`: same call and same results as default_reduction.py::summarise, on N devices."""

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
    in_axes=(0, None, None),
    out_axes=None,
    static_broadcasted_argnums=(1, 2),
)
def p_summarise(x, depth: int, reduce):
    """`summarise` on one device's share; `x` leaves are (devices, per_device, ...)."""
    for _ in range(depth):
        x = jnp.tanh(x)
    return jax.lax.psum(reduce(x, axis=0), axis_name=AXIS)


def shard(x):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        name = f"x{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        if len(shape) != 2:
            raise ValueError(
                f"summarise: {name} has shape {shape}: this was proved for rank 2; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"summarise: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )

    x = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), x
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    return jax.device_put(x, sharding)


def summarise(x, depth: int, reduce=jnp.sum):
    if depth != 2:
        raise ValueError(
            "summarise: `depth` must be 2, as in the run this file was made "
            f"from, not {depth!r}; to allow it, generate again with inputs that "
            "use it"
        )
    if reduce != jnp.sum:
        raise ValueError(
            "summarise: `reduce` must be jnp.sum, as in the run this file was "
            f"made from, not {reduce!r}; to allow it, generate again with "
            "inputs that use it"
        )
    return p_summarise(shard(x), depth, reduce)
