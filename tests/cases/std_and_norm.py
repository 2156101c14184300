# flags: gen f --inputs this::inputs
import jax.numpy as jnp
import numpy as np


def f(x):
    """Columns by their spread, and the size of all of them together."""
    y = x * 2
    z = y / (jnp.std(y, axis=0) + 1)
    return z, jnp.var(z, axis=0), jnp.linalg.norm(z)


def inputs(seed):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(24, 5)).astype("float32"),)
# output
"""Data-parallel `f`: same call and same results as std_and_norm.py::f, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0,), out_axes=(0, None, None))
def p_f(x):
    """`f` on one device's share; `x` leaves are (devices, per_device, ...)."""
    y = x * 2
    z = y / (
        jnp.sqrt(
            jax.lax.pmean(
                jnp.mean(
                    (
                        y
                        - jax.lax.pmean(
                            jnp.mean(y, axis=0, keepdims=True), axis_name=AXIS
                        )
                    )
                    ** 2,
                    axis=0,
                ),
                axis_name=AXIS,
            )
        )
        + 1
    )
    return (
        z,
        jax.lax.pmean(
            jnp.mean(
                (z - jax.lax.pmean(jnp.mean(z, axis=0, keepdims=True), axis_name=AXIS))
                ** 2,
                axis=0,
            ),
            axis_name=AXIS,
        ),
        jnp.sqrt(jax.lax.psum(jnp.sum(z**2), axis_name=AXIS)),
    )


def shard(x):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        name = f"x{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        if len(shape) != 2:
            raise ValueError(
                f"f: {name} has shape {shape}: this was proved for rank 2; "
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
    axes = (0, None, None)

    def merge(axis, tree):
        if axis is None:
            return tree
        return jax.tree.map(
            lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]),
            tree,
        )

    return jax.tree.map(merge, axes, tree, is_leaf=lambda axis: axis is None)


def f(x):
    """Columns by their spread, and the size of all of them together."""
    return unshard(p_f(shard(x)))
