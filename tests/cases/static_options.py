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
        return scale * jax.lax.pmean(x.mean(axis=0), axis_name=AXIS)
    elif mode == "sum":
        return scale * jax.lax.psum(x.sum(axis=0), axis_name=AXIS)
    raise ValueError(f"no such mode: {mode}")


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), (AXIS,)), P(*axes))


#: Kind and rank of the batch's arrays in the proof.
PROVED = {"x": ("float", 2)}


def is_split(name, leaf):
    """Whether an earlier call split `leaf`; if none did, raise unless it is as in the proof and divisible."""
    shape, count = np.shape(leaf), jax.local_device_count()
    kind, rank = PROVED.get(name, ("no leaf", -1))
    if getattr(leaf, "sharding", None) is sharding(AXIS) and len(shape) == rank + 1:
        return True
    found = jax.dtypes.scalar_type_of(leaf).__name__
    if (found, len(shape)) != (kind, rank) or shape[0] % count:
        raise ValueError(
            f"reduce: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices)"
        )
    return False


def shard(x):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""

    def split(path, leaf):
        if is_split(f"x{jax.tree_util.keystr(path)}", leaf):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, x)


def unproved(expected, found):
    """The error for an input that is not as in the run this file was made from."""
    return ValueError(
        f"reduce: {expected}, as in the run this file was made from, not {found!r:.200}; "
        "to allow it, generate again with inputs that use it"
    )


def reduce(x, mode="mean", *, negate: bool = False, scale=1.0):
    if mode not in ("mean", "sum"):
        raise unproved("`mode` must be 'mean' or 'sum'", mode)
    if negate not in (False, True):
        raise unproved("`negate` must be False or True", negate)
    return p_reduce(shard(x), mode, negate, scale)
