# flags: gen train_step --inputs this::inputs
import jax
import jax.numpy as jnp


def encode(points, frequencies):
    (count, dims) = points.shape
    assert points.shape == (count, dims)
    scaled = points[:, :, None] * 2.0 ** jnp.arange(frequencies)
    assert scaled.shape == (count, dims, frequencies)
    encoded = jnp.concatenate([jnp.sin(scaled), jnp.cos(scaled)], axis=-1)
    assert encoded.shape == (count, dims, 2 * frequencies)
    return encoded.reshape(count, -1)


def render(params, rays, colors):
    count = rays.shape[0]
    assert colors.shape == (count, 3)
    hidden = jax.nn.relu(encode(rays, 4) @ params["inner"])
    assert hidden.shape == (count, 16)
    rendered = jax.nn.sigmoid(hidden @ params["outer"])
    assert rendered.shape == colors.shape == (count, 3)
    if rendered.shape[0] != count:
        raise ValueError("one color for each ray")
    return rendered


@jax.jit
def train_step(params, rays, colors):
    def loss_fn(params):
        rendered = render(params, rays, colors)
        assert rendered.shape == (len(rays), 3)
        return jnp.mean((rendered - colors) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def inputs(seed):
    keys = jax.random.split(jax.random.key(seed), 4)
    params = {"inner": jax.random.normal(keys[0], (24, 16)), "outer": jax.random.normal(keys[1], (16, 3))}
    return params, jax.random.normal(keys[2], (24, 3)), jax.random.uniform(keys[3], (24, 3))
# output
"""Data-parallel `train_step`: same call and same results as checked_shapes.py::train_step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from checked_shapes import render

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_train_step(params, rays, colors):
    """`train_step` on one device's share.

    `rays` and `colors` leaves are (devices, per_device, ...).
    """

    def loss_fn(params):
        rendered = render(params, rays, colors)
        assert rendered.shape == (len(rays), 3)
        return jnp.mean((rendered - colors) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    loss, grads = jax.lax.pmean((loss, grads), axis_name=AXIS)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


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
PROVED = {"rays": ("float", 2), "colors": ("float", 2)}


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
            f"train_step: {name} is {found}{list(shape)}; expected {kind} of "
            f"rank {rank}, axis 0 a multiple of {count} (devices), the same in "
            f"all of the batch (found {sizes})"
        )
    return False


def shard(rays, colors):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("rays", "colors")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (rays, colors))


def train_step(params, rays, colors):
    rays, colors = shard(rays, colors)
    return p_train_step(replicate(params), rays, colors)
