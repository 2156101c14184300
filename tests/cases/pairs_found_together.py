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

    `x`, `y` and `labels` leaves are (devices, per_device, ...).
    """
    dx = x[:, None] - jax.lax.all_gather(x, axis_name=AXIS, axis=0, tiled=True)[None, :]
    dy = y[:, None] - jax.lax.all_gather(y, axis_name=AXIS, axis=0, tiled=True)[None, :]
    far = jnp.sqrt(dx**2 + dy**2 + 0.01)
    all_labels = jax.lax.all_gather(labels, axis_name=AXIS, axis=0, tiled=True)
    same = (labels[:, None] == all_labels[None, :]).astype(far.dtype)
    others = 1.0 - own_share(jnp.eye(jax.lax.psum(x.shape[0], axis_name=AXIS)))
    alike = jnp.sum(same * others * jnp.exp(-far), 1) / jnp.sum(
        others * jnp.exp(-far), 1
    )
    return (
        (dx / far).sum(1),
        (dy / far).sum(1),
        jax.lax.pmean(-jnp.mean(alike), axis_name=AXIS),
    )


@functools.cache
def sharding(*axes):
    """`P(*axes)` over the devices; made at the first call, so importing this file starts none."""
    return NamedSharding(Mesh(np.array(jax.local_devices()), (AXIS,)), P(*axes))


#: Kind and rank of the batch's arrays in the proof.
PROVED = {"x": ("float", 1), "y": ("float", 1), "labels": ("int", 1)}


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
            f"f: {name} is {found}{list(shape)}; expected {kind} of rank "
            f"{rank}, axis 0 a multiple of {count} (devices), the same in all "
            f"of the batch (found {sizes})"
        )
    return False


def shard(x, y, labels):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("x", "y", "labels")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (x, y, labels))


def own_share(x, axis=0):
    """This device's part along `axis` of `x`, which every device has whole."""
    count = jax.lax.psum(1, AXIS)
    size, left = divmod(x.shape[axis], count)
    if left:
        raise ValueError(
            f"f: axis {axis} of {x.shape} does not divide over {count} devices"
        )
    parts = x.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :])
    return jax.lax.dynamic_index_in_dim(
        parts, jax.lax.axis_index(AXIS), axis, keepdims=False
    )


def unshard(tree):
    """Merge (devices, per_device) at `axes`."""

    def merge(leaf, axis):
        if axis is None:
            return leaf
        return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])

    axes = jax.tree.broadcast((0, 0, None), tree, is_leaf=lambda axis: axis is None)
    return jax.tree.map(merge, tree, axes)


def f(x, y, labels):
    """Forces along two coordinates, and how like each other those of one kind are."""
    if (
        getattr(labels, "dtype", None) in ("int64", "uint64")
        and (abs(labels) > 2147483647).any()
    ):
        raise ValueError(
            "f: `labels` goes above 2147483647, where 32 bits may not hold "
            "what is computed with it; do before the call what `f` does with "
            "it in Python or NumPy"
        )
    x, y, labels = shard(x, y, labels)
    return unshard(p_f(x, y, labels))
