# flags: gen step --inputs this::inputs
"""The rows of the batch as numbers, in a configuration and in the code: on a device, those of its share."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

SETTINGS = SimpleNamespace(rows=24, samples=3, rate=24)


def rendered(w, rays, key):
    depths = jnp.linspace(0.0, 1.0, SETTINGS.samples)
    depths = depths + jax.random.uniform(key, (SETTINGS.rows, SETTINGS.samples))
    points = jnp.tanh(rays @ w).reshape(SETTINGS.rows, SETTINGS.samples, 8)
    ends = jnp.ones((24, 1, 8))
    return jnp.concatenate([points * depths[..., None], ends], axis=1)


def step(w, rays, key):
    def loss(w):
        return jnp.mean(jnp.sum(rendered(w, rays, key), axis=1) ** 2)

    value, slope = jax.value_and_grad(loss)(w)
    return w - slope / SETTINGS.rate, value


def inputs(seed):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype("float32")
    return draw(4, 24), draw(24, 4), jax.random.key(seed)
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


def rendered(w, rays, key):
    depths = jnp.linspace(0.0, 1.0, SETTINGS.samples)
    depths = depths + jax.random.uniform(
        jax.random.fold_in(key, jax.lax.axis_index(AXIS)),
        (own_size(SETTINGS.rows), SETTINGS.samples),
    )
    points = jnp.tanh(rays @ w).reshape(own_size(SETTINGS.rows), SETTINGS.samples, 8)
    ends = jnp.ones((own_size(24), 1, 8))
    return jnp.concatenate([points * depths[..., None], ends], axis=1)


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, None), out_axes=None)
def p_step(w, rays, key):
    """`step` on one device's share; `rays` leaves are (devices, per_device, ...)."""

    def loss(w):
        return jnp.mean(jnp.sum(rendered(w, rays, key), axis=1) ** 2)

    value, slope = jax.value_and_grad(loss)(w)
    value, slope = jax.lax.pmean((value, slope), axis_name=AXIS)
    return w - slope / SETTINGS.rate, value


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
    if getattr(leaf, "sharding", None) is sharding(AXIS) and len(shape) == rank + 1:
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
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, rays)


def own_size(rows):
    """This device's part of `rows`, which are those of all devices."""
    count = jax.lax.psum(1, AXIS)
    size, left = divmod(rows, count)
    if left:
        raise ValueError(f"step: {rows} rows do not divide over {count} devices")
    return size


def step(w, rays, key):
    return p_step(replicate(w), shard(rays), key)
