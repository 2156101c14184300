# flags: gen mixed --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def mixed(x, kind="a"):
    match kind:
        case "a":
            y = x * 2
        case _:
            y = x
    with jax.named_scope("middle"):
        mean = jnp.mean(y, axis=0)
    try:
        z = y - mean
    except TypeError:
        z = y
    if (largest := jnp.max(z)) is not None:
        z = z / largest
    parts = [jnp.mean(z[:, i] ** 2) for i in range(2)]
    return z, parts


def inputs(seed):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(24, 5)).astype("float32"),)
# output
"""Data-parallel `mixed`: same call and same results as statements.py::mixed, on N devices."""

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
    in_axes=(0, None),
    out_axes=(0, None),
    static_broadcasted_argnums=1,
)
def p_mixed(x, kind):
    """`mixed` on one device's share; `x` leaves are (devices, per_device, ...)."""
    match kind:
        case "a":
            y = x * 2
        case _:
            raise NotImplementedError(
                "`case _` was not reached by the inputs this code was proved with"
            )
    with jax.named_scope("middle"):
        mean = jnp.mean(y, axis=0)
        mean = jax.lax.pmean(mean, axis_name=AXIS)
    try:
        z = y - mean
    except TypeError:
        raise NotImplementedError(
            "`except TypeError` was not reached by the inputs this code was proved with"
        )
    if (largest := jax.lax.pmax(jnp.max(z), axis_name=AXIS)) is not None:
        z = z / largest
    else:
        raise NotImplementedError(
            "the way past `if (largest := jnp.max(z)) is not None` was not reached by the inputs this code was proved with"
        )
    parts = [jnp.mean(z[:, i] ** 2) for i in range(2)]
    parts = jax.lax.pmean(parts, axis_name=AXIS)
    return z, parts


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
            f"mixed: {name} is {found}{list(shape)}; expected {kind} of rank "
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
        f"mixed: {expected}, as in the run this file was made from, not {found!r:.200}; "
        "to allow it, generate again with inputs that use it"
    )


def unshard(tree):
    """(devices, per_device, ...) -> (devices * per_device, ...)."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), tree
    )


def mixed(x, kind="a"):
    if kind != "a":
        raise unproved("`kind` must be 'a'", kind)
    z, parts = p_mixed(shard(x), kind)
    return unshard(z), parts
