# flags: gen step --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def step(w, users, items, ids, freq):
    """Of the other items in the batch those that are the same one are no negatives."""

    def loss(w):
        u, v = users @ w, items @ w
        logits = u @ v.T - jnp.log(freq)[None, :]
        same = ids[:, None] == ids[None, :]
        other = ~jnp.eye(len(ids), dtype=bool)
        logits = jnp.where(same & other, -1e9, logits)
        return -jnp.mean(jnp.diagonal(jax.nn.log_softmax(logits)))

    return w - 0.1 * jax.grad(loss)(w)


def inputs(seed):
    rng = np.random.default_rng(seed)
    w, users, items = (rng.normal(size=shape).astype("float32") for shape in ((5, 3), (24, 5), (24, 5)))
    return w, users, items, rng.integers(0, 15, 24), rng.random(24).astype("float32") + 0.1
# output
"""Data-parallel `step`: same call and same results as other_pairs_alike.py::step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0, 0, 0), out_axes=None)
def p_step(w, users, items, ids, freq):
    """`step` on one device's share.

    `users`, `items`, `ids` and `freq` leaves are (devices, per_device, ...).
    """

    def loss(w):
        u, v = users @ w, items @ w
        all_v = jax.lax.all_gather(v, axis_name=AXIS, axis=0, tiled=True)
        all_values = jax.lax.all_gather(
            jnp.log(freq), axis_name=AXIS, axis=0, tiled=True
        )
        logits = u @ all_v.T - all_values[None, :]
        all_ids = jax.lax.all_gather(ids, axis_name=AXIS, axis=0, tiled=True)
        same = ids[:, None] == all_ids[None, :]
        other = ~own_share(jnp.eye(jax.lax.psum(len(ids), axis_name=AXIS), dtype=bool))
        logits = jnp.where(same & other, -1e9, logits)
        values = jax.nn.log_softmax(logits)
        own = jnp.arange(values.shape[0])
        return -jnp.mean(
            values[own, jax.lax.axis_index(axis_name=AXIS) * values.shape[0] + own]
        )

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
PROVED = {
    "users": ("float", 2),
    "items": ("float", 2),
    "ids": ("int", 1),
    "freq": ("float", 1),
}


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


def shard(users, items, ids, freq):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("users", "items", "ids", "freq")[path[0].idx] + jax.tree_util.keystr(
            path[1:]
        )
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (users, items, ids, freq))


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


def step(w, users, items, ids, freq):
    """Of the other items in the batch those that are the same one are no negatives."""
    if (
        getattr(ids, "dtype", None) in ("int64", "uint64")
        and (abs(ids) > 2147483647).any()
    ):
        raise ValueError(
            "step: `ids` goes above 2147483647, where 32 bits may not hold "
            "what is computed with it; do before the call what `step` does "
            "with it in Python or NumPy"
        )
    users, items, ids, freq = shard(users, items, ids, freq)
    return p_step(replicate(w), users, items, ids, freq)
