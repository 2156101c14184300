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


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(mesh(), P(*axes))


def p_center(x):
    """`center` on the whole batch; the compiler divides the work."""
    return x - jnp.median(x, axis=0)


@functools.cache
def compiled():
    """`p_center` compiled for the mesh; made at the first call."""
    return jax.jit(
        p_center, in_shardings=(sharding(AXIS),), out_shardings=sharding(AXIS)
    )


def check(name, leaf):
    """Raise unless `leaf` is divisible among the devices."""
    shape, count = np.shape(leaf), mesh().size
    if not shape or shape[0] % count:
        raise ValueError(
            f"center: {name} is of shape {shape}; expected axis 0 a multiple of "
            f"{count} (devices)"
        )


def shard(x):
    """Put arrays on the devices, split along axis 0."""

    def split(path, leaf):
        check(f"x{jax.tree_util.keystr(path)}", leaf)
        # Arrays on the host are placed by the call itself, which is faster.
        there = getattr(leaf, "sharding", None) in (None, sharding(AXIS))
        return leaf if there else jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, x)


def center(x):
    return compiled()(shard(x))
