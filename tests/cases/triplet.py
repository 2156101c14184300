# flags: gen triplet_loss --arg params=f32[64,32] --arg x=f32[24,64] --arg labels=i32[24]<4
import jax
import jax.numpy as jnp


def triplet_loss(params, x, labels):
    def loss_fn(params):
        z = jnp.tanh(x @ params)
        distance = jnp.sum((z[:, None] - z[None, :]) ** 2, axis=-1)
        same = labels[:, None] == labels[None, :]
        hardest = jnp.max(jnp.where(same, distance, 0.0), axis=1)
        nearest = jnp.min(jnp.where(same, jnp.inf, distance), axis=1)
        return jnp.mean(jnp.maximum(hardest - nearest + 1.0, 0.0))

    return jax.value_and_grad(loss_fn)(params)
# output
"""Data-parallel `triplet_loss`: same call and same results as triplet.py::triplet_loss, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_triplet_loss(params, x, labels):
    """`triplet_loss` on one device's share.

    `x` and `labels` leaves are (devices, per_device, ...).
    """

    def loss_fn(params):
        z = jnp.tanh(x @ params)
        all_z = jax.lax.all_gather(z, axis_name=AXIS, axis=0, tiled=True)
        distance = jnp.sum((z[:, None] - all_z[None, :]) ** 2, axis=-1)
        all_labels = jax.lax.all_gather(labels, axis_name=AXIS, axis=0, tiled=True)
        same = labels[:, None] == all_labels[None, :]
        hardest = jnp.max(jnp.where(same, distance, 0.0), axis=1)
        nearest = jnp.min(jnp.where(same, jnp.inf, distance), axis=1)
        return jnp.mean(jnp.maximum(hardest - nearest + 1.0, 0.0))

    return jax.lax.pmean(jax.value_and_grad(loss_fn)(params), axis_name=AXIS)


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
PROVED = {"x": ("float", 2), "labels": ("int", 1)}


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
            f"triplet_loss: {name} is {found}{list(shape)}; expected {kind} of "
            f"rank {rank}, axis 0 a multiple of {count} (devices), the same in "
            f"all of the batch (found {sizes})"
        )
    return False


def shard(x, labels):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("x", "labels")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (x, labels))


def triplet_loss(params, x, labels):
    if (
        getattr(labels, "dtype", None) in ("int64", "uint64")
        and (abs(labels) > 2147483647).any()
    ):
        raise ValueError(
            "triplet_loss: `labels` goes above 2147483647, where 32 bits may "
            "not hold what is computed with it; do before the call what "
            "`triplet_loss` does with it in Python or NumPy"
        )
    x, labels = shard(x, labels)
    return p_triplet_loss(replicate(params), x, labels)
