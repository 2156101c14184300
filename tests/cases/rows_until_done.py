# flags: gen f --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def f(x):
    """Roots of each row by itself, and of all rows until the last is near enough."""

    def root(a):
        return jax.lax.while_loop(lambda s: jnp.abs(s**2 - a) > 1e-3, lambda s: 0.5 * (s + a / s), a + 1.0)

    def far(s):
        return jnp.any(jnp.abs(s**2 - x) > 1e-3)

    def nearer(s):
        return 0.5 * (s + x / s)

    return jax.vmap(root)(x).mean(), jax.lax.while_loop(far, nearer, x + 1.0)


def inputs(seed):
    return (np.random.default_rng(seed).uniform(0.5, 9, 48).astype("float32"),)
# output
"""Data-parallel `f`: same call and same results as rows_until_done.py::f, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0,), out_axes=(None, 0))
def p_f(x):
    """`f` on one device's share; `x` leaves are (devices, per_device, ...)."""

    def root(a):
        return jax.lax.while_loop(
            lambda s: jnp.abs(s**2 - a) > 1e-3, lambda s: 0.5 * (s + a / s), a + 1.0
        )

    def far(s):
        return jax.lax.pmax(jnp.any(jnp.abs(s**2 - x) > 1e-3), axis_name=AXIS)

    def nearer(s):
        return 0.5 * (s + x / s)

    return jax.lax.pmean(jax.vmap(root)(x).mean(), axis_name=AXIS), jax.lax.while_loop(
        far, nearer, x + 1.0
    )


def shard(x):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        name = f"x{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        if len(shape) != 1:
            raise ValueError(
                f"f: {name} has shape {shape}: this was proved for rank 1; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"f: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )

    x = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), x
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    return jax.device_put(x, sharding)


def unshard(tree):
    """Merge (devices, per_device) at `axes`."""
    axes = (None, 0)

    def merge(axis, tree):
        if axis is None:
            return tree
        return jax.tree.map(
            lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]),
            tree,
        )

    return jax.tree.map(merge, axes, tree, is_leaf=lambda axis: axis is None)


def f(x):
    """Roots of each row by itself, and of all rows until the last is near enough."""
    return unshard(p_f(shard(x)))
