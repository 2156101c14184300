# flags: gen reduce --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def reduce(x, mode="mean", *, negate: bool = False, scale=1.0):
    if negate:
        x = -x
    if mode == "mean":
        return scale * x.mean(axis=0)
    elif mode == "sum":
        return scale * x.sum(axis=0)
    raise ValueError(f"no such mode: {mode}")


def inputs(seed):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(24, 5)).astype("float32"),)
# output
"""Data-parallel `reduce`: same call and same results as static_options.py::reduce, on N devices."""

import functools

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(
    jax.pmap,
    axis_name=AXIS,
    in_axes=(0, None, None, None),
    out_axes=None,
    static_broadcasted_argnums=(1, 2),
)
def p_reduce(x, mode, negate: bool, scale):
    """`reduce` on one device's share; `x` leaves are (devices, per_device, ...)."""
    if negate:
        x = -x
    if mode == "mean":
        return jax.lax.pmean(scale * x.mean(axis=0), axis_name=AXIS)
    elif mode == "sum":
        return jax.lax.psum(scale * x.sum(axis=0), axis_name=AXIS)
    raise ValueError(f"no such mode: {mode}")


def shard(x):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        name = f"x{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        if len(shape) != 2:
            raise ValueError(
                f"reduce: {name} has shape {shape}: this was proved for rank 2; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"reduce: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )

    x = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), x
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    return jax.device_put(x, sharding)


def reduce(x, mode="mean", *, negate: bool = False, scale=1.0):
    if mode not in ("mean", "sum"):
        raise ValueError(
            "reduce: `mode` must be 'mean' or 'sum', as in the run this file "
            f"was made from, not {mode!r}; to allow it, generate again with "
            "inputs that use it"
        )
    if negate not in (False, True):
        raise ValueError(
            "reduce: `negate` must be False or True, as in the run this file "
            f"was made from, not {negate!r}; to allow it, generate again with "
            "inputs that use it"
        )
    return p_reduce(shard(x), mode, negate, scale)
