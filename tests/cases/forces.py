# flags: gen step --inputs this::inputs
import jax.numpy as jnp
import numpy as np


def step(positions, velocities, masses):
    towards = positions[None] - positions[:, None]
    distances = jnp.sqrt(jnp.sum(towards**2, axis=-1) + 1e-2)
    pulls = masses[None, :, None] * towards / distances[..., None] ** 3
    velocities = velocities + 0.01 * jnp.sum(pulls, axis=1)
    heaviest_first = jnp.argsort(jnp.argsort(-masses))
    return positions + 0.01 * velocities, velocities, heaviest_first


def inputs(seed):
    rng = np.random.default_rng(seed)
    bodies = rng.normal(size=(2, 24, 3)).astype("float32")
    return bodies[0], bodies[1], rng.uniform(0.5, 2.0, size=24).astype("float32")
# output
"""Data-parallel `step`: same call and same results as forces.py::step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0, 0, 0), out_axes=0)
def p_step(positions, velocities, masses):
    """`step` on one device's share.

    `positions` and `velocities` and `masses` leaves are (devices, per_device, ...).
    """
    towards = (
        jax.lax.all_gather(positions, axis_name=AXIS, axis=0, tiled=True)[None]
        - positions[:, None]
    )
    distances = jnp.sqrt(jnp.sum(towards**2, axis=-1) + 1e-2)
    pulls = (
        jax.lax.all_gather(masses, axis_name=AXIS, axis=0, tiled=True)[None, :, None]
        * towards
        / distances[..., None] ** 3
    )
    velocities = velocities + 0.01 * jnp.sum(pulls, axis=1)
    heaviest_first = own_share(
        jnp.argsort(
            jnp.argsort(jax.lax.all_gather(-masses, axis_name=AXIS, axis=0, tiled=True))
        )
    )
    return positions + 0.01 * velocities, velocities, heaviest_first


def shard(positions, velocities, masses):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    ranks = {"positions": 2, "velocities": 2, "masses": 1}
    devices = jax.local_devices()
    count = len(devices)
    arrays = {"positions": positions, "velocities": velocities, "masses": masses}
    sizes = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        name = path[0].key + jax.tree_util.keystr(path[1:])
        shape = np.shape(leaf)
        if len(shape) != ranks.get(name):
            raise ValueError(
                f"step: {name} has shape {shape}: this was proved for rank {ranks.get(name)}; "
                "generate again with inputs of this shape"
            )
        size = shape[0] if shape else 0
        if not size or size % count:
            raise ValueError(
                f"step: {name} has shape {shape}: axis 0 "
                f"({size or 'missing or empty'}) does not divide over {count} devices; "
                f"pass a multiple of {count}"
            )
        sizes[name] = size

    if len(set(sizes.values())) > 1:
        raise ValueError(f"step: the batch has more than one size: {sizes}")

    arrays = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]),
        arrays,
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    arrays = jax.device_put(arrays, sharding)
    return arrays["positions"], arrays["velocities"], arrays["masses"]


def own_share(x, axis=0):
    """This device's part along `axis` of `x`, which every device has whole."""
    count = jax.lax.psum(1, AXIS)
    size, left = divmod(x.shape[axis], count)
    if left:
        raise ValueError(
            f"step: axis {axis} of {x.shape} does not divide over {count} devices"
        )
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(AXIS) * size, size, axis)


def unshard(tree):
    """(devices, per_device, ...) -> (devices * per_device, ...)."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), tree
    )


def step(positions, velocities, masses):
    positions, velocities, masses = shard(positions, velocities, masses)
    return unshard(p_step(positions, velocities, masses))
