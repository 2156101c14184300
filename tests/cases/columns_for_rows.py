# flags: gen loss_and_grads --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np
import optax


def loss_fn(w, pictures, texts):
    scores = jnp.tanh(pictures @ w) @ jnp.tanh(texts @ w).T
    right = jnp.arange(scores.shape[0])
    by_picture = optax.softmax_cross_entropy_with_integer_labels(scores, right)
    by_text = optax.softmax_cross_entropy_with_integer_labels(scores.T, right)
    return jnp.mean(by_picture) + jnp.mean(by_text)


def loss_and_grads(w, pictures, texts):
    return jax.value_and_grad(loss_fn)(w, pictures, texts)


def inputs(seed):
    rng = np.random.default_rng(seed)
    pair = (rng.normal(size=(24, 5)).astype("float32") for _ in range(2))
    return rng.normal(size=(5, 4)).astype("float32"), *pair
# output
"""Data-parallel `loss_and_grads`: same call and same results as columns_for_rows.py::loss_and_grads, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


def loss_fn(w, pictures, texts):
    all_values = jax.lax.all_gather(
        jnp.tanh(texts @ w), axis_name=AXIS, axis=0, tiled=True
    )
    scores = jnp.tanh(pictures @ w) @ all_values.T
    right = own_share(jnp.arange(jax.lax.psum(scores.shape[0], axis_name=AXIS)))
    by_picture = optax.softmax_cross_entropy_with_integer_labels(scores, right)
    own_rows = jax.lax.all_to_all(
        scores.T, axis_name=AXIS, split_axis=0, concat_axis=1, tiled=True
    )
    by_text = optax.softmax_cross_entropy_with_integer_labels(own_rows, right)
    return jnp.mean(by_picture) + jnp.mean(by_text)


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_loss_and_grads(w, pictures, texts):
    """`loss_and_grads` on one device's share.

    `pictures` and `texts` leaves are (devices, per_device, ...).
    """
    return jax.lax.pmean(
        jax.value_and_grad(loss_fn)(w, pictures, texts), axis_name=AXIS
    )


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
PROVED = {"pictures": ("float", 2), "texts": ("float", 2)}


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
            f"loss_and_grads: {name} is {found}{list(shape)}; expected {kind} "
            f"of rank {rank}, axis 0 a multiple of {count} (devices), the same "
            f"in all of the batch (found {sizes})"
        )
    return False


def shard(pictures, texts):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("pictures", "texts")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (pictures, texts))


def own_share(x, axis=0):
    """This device's part along `axis` of `x`, which every device has whole."""
    count = jax.lax.psum(1, AXIS)
    size, left = divmod(x.shape[axis], count)
    if left:
        raise ValueError(
            f"loss_and_grads: axis {axis} of {x.shape} does not divide over {count} devices"
        )
    parts = x.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :])
    return jax.lax.dynamic_index_in_dim(
        parts, jax.lax.axis_index(AXIS), axis, keepdims=False
    )


def loss_and_grads(w, pictures, texts):
    pictures, texts = shard(pictures, texts)
    return p_loss_and_grads(replicate(w), pictures, texts)
