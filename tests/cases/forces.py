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

    `positions`, `velocities` and `masses` leaves are (devices, per_device, ...).
    """
    all_positions = jax.lax.all_gather(positions, axis_name=AXIS, axis=0, tiled=True)
    towards = all_positions[None] - positions[:, None]
    distances = jnp.sqrt(jnp.sum(towards**2, axis=-1) + 1e-2)
    all_masses = jax.lax.all_gather(masses, axis_name=AXIS, axis=0, tiled=True)
    pulls = all_masses[None, :, None] * towards / distances[..., None] ** 3
    velocities = velocities + 0.01 * jnp.sum(pulls, axis=1)
    all_masses_2 = jax.lax.all_gather(-masses, axis_name=AXIS, axis=0, tiled=True)
    heaviest_first = own_share(jnp.argsort(jnp.argsort(all_masses_2)))
    return positions + 0.01 * velocities, velocities, heaviest_first


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), (AXIS,)), P(*axes))


#: Kind and rank of the batch's arrays in the proof.
PROVED = {"positions": ("float", 2), "velocities": ("float", 2), "masses": ("float", 1)}


def is_split(name, leaf, sizes):
    """Whether an earlier call split `leaf`; if none did, raise unless it is as in the proof and divisible."""
    shape, count = np.shape(leaf), jax.local_device_count()
    kind, rank = PROVED.get(name, ("no leaf", -1))
    if getattr(leaf, "sharding", None) is sharding(AXIS) and len(shape) == rank + 1:
        return True
    found = jax.dtypes.scalar_type_of(leaf).__name__
    sizes.update(shape[:1])
    if (found, len(shape)) != (kind, rank) or len(sizes) > 1 or shape[0] % count:
        raise ValueError(
            f"step: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices), the same in all "
            f"of the batch (found {sizes})"
        )
    return False


def shard(positions, velocities, masses):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("positions", "velocities", "masses")[
            path[0].idx
        ] + jax.tree_util.keystr(path[1:])
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (positions, velocities, masses))


def own_share(x, axis=0):
    """This device's part along `axis` of `x`, which every device has whole."""
    count = jax.lax.psum(1, AXIS)
    size, left = divmod(x.shape[axis], count)
    if left:
        raise ValueError(
            f"step: axis {axis} of {x.shape} does not divide over {count} devices"
        )
    parts = x.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :])
    return jax.lax.dynamic_index_in_dim(
        parts, jax.lax.axis_index(AXIS), axis, keepdims=False
    )


def unshard(tree):
    """(devices, per_device, ...) -> (devices * per_device, ...)."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), tree
    )


def step(positions, velocities, masses):
    positions, velocities, masses = shard(positions, velocities, masses)
    return unshard(p_step(positions, velocities, masses))
