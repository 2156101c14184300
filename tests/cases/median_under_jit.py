# flags: gen center --inputs this::inputs --backend jit
import jax
import jax.numpy as jnp
import numpy as np


def center(x):
    return x - jnp.median(x, axis=0)


def inputs(seed):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(24, 5)).astype("float32"),)
# output
"""Data-parallel `center`: same call and same results as median_under_jit.py::center, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.cache
def mesh():
    """The devices as one axis; made at the first call, so importing this file starts none."""
    return Mesh(np.array(jax.devices()), (AXIS,))


def p_center(x):
    """`center` on the whole batch; the compiler divides the work."""
    return x - jnp.median(x, axis=0)


@functools.cache
def compiled():
    """`p_center` compiled for the mesh; made at the first call."""
    split = NamedSharding(mesh(), P(AXIS))
    return jax.jit(p_center, in_shardings=(split,), out_shardings=split)


def shard(x):
    """Put arrays on the devices, split along axis 0."""
    count = mesh().size
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        name = f"x{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"center: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )

    sharding = NamedSharding(mesh(), P(AXIS))
    return jax.device_put(x, sharding)


def center(x):
    return compiled()(shard(x))
