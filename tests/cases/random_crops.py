# flags: gen step --inputs this::inputs
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np


def crop(key, image, border):
    """Another part of an image whose edges go on."""
    first = jax.random.randint(key, (2,), 0, 2 * border + 1)
    wider = jnp.pad(image, ((border, border), (border, border), (0, 0)), mode="edge")
    return jax.lax.dynamic_slice(wider, (*first, 0), image.shape)


def step(w, key, images):
    keys = jax.random.split(key, len(images))
    images = jax.vmap(partial(crop, border=2))(keys, images)

    def loss(w):
        return jnp.mean((images.reshape(len(images), -1) @ w) ** 2)

    return w - 0.1 * jax.grad(loss)(w)


def inputs(seed):
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(24, 4, 4, 2)).astype("float32")
    return rng.normal(size=32).astype("float32"), jax.random.key(seed), images
# output
"""Data-parallel `step`: same call and same results as random_crops.py::step, on N devices."""

import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from random_crops import crop

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, None, 0), out_axes=None)
def p_step(w, key, images):
    """`step` on one device's share; `images` leaves are (devices, per_device, ...)."""
    keys = jax.random.split(
        jax.random.fold_in(key, jax.lax.axis_index(AXIS)), len(images)
    )
    images = jax.vmap(partial(crop, border=2))(keys, images)

    def loss(w):
        return jnp.mean((images.reshape(len(images), -1) @ w) ** 2)

    return w - 0.1 * jax.lax.pmean(jax.grad(loss)(w), axis_name=AXIS)


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
PROVED = {"images": ("float", 4)}


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


def shard(images):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""

    def split(path, leaf):
        if is_split(f"images{jax.tree_util.keystr(path)}", leaf):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, images)


def step(w, key, images):
    return p_step(replicate(w), key, shard(images))
