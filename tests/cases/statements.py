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
    if (largest := jnp.max(z)) is not None:
        z = z / jax.lax.pmax(largest, axis_name=AXIS)
    else:
        raise NotImplementedError(
            "the way past `if (largest := jnp.max(z)) is not None` was not reached by the inputs this code was proved with"
        )
    parts = [jax.lax.pmean(jnp.mean(z[:, i] ** 2), axis_name=AXIS) for i in range(2)]
    return z, parts


def shard(x):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        name = f"x{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        if len(shape) != 2:
            raise ValueError(
                f"mixed: {name} has shape {shape}: this was proved for rank 2; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"mixed: {name} has shape {shape}: axis 0 "
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


def mixed(x, kind="a"):
    if kind != "a":
        raise ValueError(
            "mixed: `kind` must be 'a', as in the run this file was made from, "
            f"not {kind!r}; to allow it, generate again with inputs that use it"
        )
    z, parts = p_mixed(shard(x), kind)
    return unshard(z), parts
