# flags: gen fit --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def fit(centres, x, tol=1e-3, most=50):
    """Lloyd's iterations, until no centre moves by more than `tol` of the size of the data."""

    def step(state):
        old, _, rounds = state
        nearest = jnp.argmin(jnp.sum((x[:, None] - old) ** 2, axis=-1), axis=1)
        member = jax.nn.one_hot(nearest, len(old))
        new = member.T @ x / jnp.maximum(member.sum(0), 1)[:, None]
        return new, jnp.max(jnp.abs(new - old)), rounds + 1

    def moves(state):
        centres, moved, rounds = state
        size = jnp.sqrt(jnp.mean((x - centres[0]) ** 2))
        return (moved > tol * size) & (rounds < most)

    return jax.lax.while_loop(moves, step, (centres, jnp.inf, 0))[0]


def inputs(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(48, 2)).astype("float32") + 4 * rng.integers(0, 3, size=(48, 1)).astype("float32")
    return x[:3] + 0.1, x
# output
"""Data-parallel `fit`: same call and same results as until_converged.py::fit, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(
    jax.pmap, axis_name=AXIS, in_axes=(None, 0, None, None), out_axes=None
)
def p_fit(centres, x, tol, most):
    """`fit` on one device's share; `x` leaves are (devices, per_device, ...)."""

    def step(state):
        old, _, rounds = state
        nearest = jnp.argmin(jnp.sum((x[:, None] - old) ** 2, axis=-1), axis=1)
        member = jax.nn.one_hot(nearest, len(old))
        new = (
            member.T
            @ x
            / jnp.maximum(jax.lax.psum(member.sum(0), axis_name=AXIS), 1)[:, None]
        )
        new = jax.lax.psum(new, axis_name=AXIS)
        return new, jnp.max(jnp.abs(new - old)), rounds + 1

    def moves(state):
        centres, moved, rounds = state
        size = jnp.sqrt(jax.lax.pmean(jnp.mean((x - centres[0]) ** 2), axis_name=AXIS))
        return jax.lax.pmax((moved > tol * size) & (rounds < most), axis_name=AXIS)

    return jax.lax.while_loop(moves, step, (centres, jnp.inf, 0))[0]


def shard(x):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        name = f"x{jax.tree_util.keystr(path)}"
        shape = np.shape(leaf)
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"fit: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )

    x = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), x
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    return jax.device_put(x, sharding)


def fit(centres, x, tol=1e-3, most=50):
    """Lloyd's iterations, until no centre moves by more than `tol` of the size of the data."""
    return p_fit(centres, shard(x), tol, most)
