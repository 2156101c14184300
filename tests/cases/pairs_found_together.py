# flags: gen f --inputs this::inputs
import jax.numpy as jnp
import numpy as np


def f(x, y, labels):
    """Forces along two coordinates, and how like each other those of one kind are."""
    dx = x[:, None] - x[None, :]
    dy = y[:, None] - y[None, :]
    far = jnp.sqrt(dx**2 + dy**2 + 0.01)
    same = (labels[:, None] == labels[None, :]).astype(far.dtype)
    others = 1.0 - jnp.eye(x.shape[0])
    alike = jnp.sum(same * others * jnp.exp(-far), 1) / jnp.sum(others * jnp.exp(-far), 1)
    return (dx / far).sum(1), (dy / far).sum(1), -jnp.mean(alike)


def inputs(seed):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, 24)).astype("float32")
    return x, y, rng.integers(0, 3, 24).astype("int32")
# output
"""Data-parallel `f`: same call and same results as pairs_found_together.py::f, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(0, 0, 0), out_axes=(0, 0, None))
def p_f(x, y, labels):
    """`f` on one device's share.

    `x` and `y` and `labels` leaves are (devices, per_device, ...).
    """
    dx = x[:, None] - jax.lax.all_gather(x, axis_name=AXIS, axis=0, tiled=True)[None, :]
    dy = y[:, None] - jax.lax.all_gather(y, axis_name=AXIS, axis=0, tiled=True)[None, :]
    far = jnp.sqrt(dx**2 + dy**2 + 0.01)
    same = (
        labels[:, None]
        == jax.lax.all_gather(labels, axis_name=AXIS, axis=0, tiled=True)[None, :]
    ).astype(far.dtype)
    others = 1.0 - own_share(jnp.eye(jax.lax.psum(x.shape[0], axis_name=AXIS)))
    alike = jnp.sum(same * others * jnp.exp(-far), 1) / jnp.sum(
        others * jnp.exp(-far), 1
    )
    return (
        (dx / far).sum(1),
        (dy / far).sum(1),
        jax.lax.pmean(-jnp.mean(alike), axis_name=AXIS),
    )


def shard(x, y, labels):
    """(B, ...) -> (devices, B // devices, ...), each part on its device."""
    devices = jax.local_devices()
    count = len(devices)
    arrays = {"x": x, "y": y, "labels": labels}
    sizes = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        name = path[0].key + jax.tree_util.keystr(path[1:])
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
        sizes[name] = size

    if len(set(sizes.values())) > 1:
        raise ValueError(f"f: the batch has more than one size: {sizes}")

    arrays = jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]),
        arrays,
    )
    sharding = NamedSharding(Mesh(np.array(devices), (AXIS,)), P(AXIS))
    arrays = jax.device_put(arrays, sharding)
    return arrays["x"], arrays["y"], arrays["labels"]


def own_share(x, axis=0):
    """This device's part along `axis` of `x`, which every device has whole."""
    count = jax.lax.psum(1, AXIS)
    size, left = divmod(x.shape[axis], count)
    if left:
        raise ValueError(
            f"f: axis {axis} of {x.shape} does not divide over {count} devices"
        )
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(AXIS) * size, size, axis)


def unshard(tree):
    """Merge (devices, per_device) at `axes`."""
    axes = (0, 0, None)

    def merge(axis, tree):
        if axis is None:
            return tree
        return jax.tree.map(
            lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]),
            tree,
        )

    return jax.tree.map(merge, axes, tree, is_leaf=lambda axis: axis is None)


def f(x, y, labels):
    """Forces along two coordinates, and how like each other those of one kind are."""
    x, y, labels = shard(x, y, labels)
    return unshard(p_f(x, y, labels))
