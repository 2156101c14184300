# flags: gen step --inputs this::inputs
"""The rows of the batch as a number in a configuration: on a device, those of its share."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

SETTINGS = SimpleNamespace(rows=24, samples=3)


def step(w, rays):
    def loss(w):
        points = jnp.tanh(rays @ w).reshape(SETTINGS.rows, SETTINGS.samples, 2)
        ends = jnp.ones((SETTINGS.rows, 1, 2))
        return jnp.mean(jnp.sum(jnp.concatenate([points, ends], axis=1), axis=1) ** 2)

    value, slope = jax.value_and_grad(loss)(w)
    return w - 0.1 * slope, value


def inputs(seed):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype("float32")
    return draw(4, 6), draw(24, 4)
# output
"""Data-parallel `step`: same call and same results as written_size_divided.py::step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from written_size_divided import SETTINGS

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0), out_axes=None)
def p_step(w, rays):
    """`step` on one device's share; `rays` leaves are (devices, per_device, ...)."""

    def loss(w):
        devices = jax.lax.psum(1, axis_name=AXIS)
        points = jnp.tanh(rays @ w).reshape(
            SETTINGS.rows // devices, SETTINGS.samples, 2
        )
        ends = own_share(jnp.ones((SETTINGS.rows, 1, 2)))
        return jnp.mean(jnp.sum(jnp.concatenate([points, ends], axis=1), axis=1) ** 2)

    value, slope = jax.value_and_grad(loss)(w)
    value, slope = jax.lax.pmean((value, slope), axis_name=AXIS)
    return w - 0.1 * slope, value


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), (AXIS,)), P(*axes))


def replicate(tree):
    """`tree` whole on every device, where results are too: a call that gets these back compiles nothing anew."""
    whole = sharding()
    if all(getattr(leaf, "sharding", None) == whole for leaf in jax.tree.leaves(tree)):
        return tree
    return jax.device_put(tree, whole)


#: Kind and rank of the batch's arrays in the proof.
PROVED = {"rays": ("float", 2)}


def is_split(name, leaf):
    """Whether an earlier call split `leaf`; if none did, raise unless it is as in the proof and divisible."""
    shape, count = np.shape(leaf), jax.local_device_count()
    kind, rank = PROVED.get(name, ("no leaf", -1))
    if getattr(leaf, "sharding", None) == sharding(AXIS) and len(shape) == rank + 1:
        return True
    found = jax.dtypes.scalar_type_of(leaf).__name__
    if (found, len(shape)) != (kind, rank) or shape[0] % count:
        raise ValueError(
            f"step: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices)"
        )
    return False


def shard(rays):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""

    def split(path, leaf):
        if is_split(f"rays{jax.tree_util.keystr(path)}", leaf):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if not isinstance(leaf, jax.Array):
            return leaf  # on the host: the call itself places it in less time
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, rays)


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


def step(w, rays):
    return p_step(replicate(w), shard(rays))
