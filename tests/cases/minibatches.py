# flags: gen update --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def loss_fn(w, x, y):
    return jnp.sqrt(jnp.mean((jnp.tanh(x @ w) - y) ** 2))


def sgd(w, minibatch):
    loss, grads = jax.value_and_grad(loss_fn)(w, *minibatch)
    return w - 0.1 * grads, loss


def update(w, x, y):
    size = x.shape[0]
    minibatches = x.reshape(4, size // 4, -1), y.reshape(4, size // 4)
    w, losses = jax.lax.scan(sgd, w, minibatches)
    return w, losses.mean()


def inputs(seed):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype("float32")
    return draw(5), draw(64, 5), draw(64)
# output
"""Data-parallel `update`: same call and same results as minibatches.py::update, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


def loss_fn(w, x, y):
    return jnp.sqrt(jax.lax.pmean(jnp.mean((jnp.tanh(x @ w) - y) ** 2), axis_name=AXIS))


def sgd(w, minibatch):
    loss, grads = jax.value_and_grad(loss_fn)(w, *minibatch)
    return w - 0.1 * jax.lax.pmean(grads, axis_name=AXIS), loss


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_update(w, x, y):
    """`update` on one device's share; `x` and `y` leaves are (devices, per_device, ...)."""
    size = x.shape[0]
    all_x = jax.lax.all_gather(x, axis_name=AXIS, axis=0, tiled=True)
    total_size = jax.lax.psum(size, axis_name=AXIS)
    all_y = jax.lax.all_gather(y, axis_name=AXIS, axis=0, tiled=True)
    minibatches = own_share(all_x.reshape(4, total_size // 4, -1), axis=1), own_share(
        all_y.reshape(4, total_size // 4), axis=1
    )
    w, losses = jax.lax.scan(sgd, w, minibatches)
    return w, losses.mean()


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
PROVED = {"x": ("float", 2), "y": ("float", 1)}


def shard(x, y):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    count, sizes = jax.local_device_count(), set()

    def split(path, leaf):
        name = ("x", "y")[path[0].idx] + jax.tree_util.keystr(path[1:])
        shape = np.shape(leaf)
        kind, rank = PROVED.get(name, ("no leaf", 0))
        if getattr(leaf, "sharding", None) == sharding(AXIS) and len(shape) == rank + 1:
            return leaf  # by an earlier call
        found = jax.dtypes.scalar_type_of(leaf).__name__
        sizes.update(shape[:1])
        if (found, len(shape)) != (kind, rank) or len(sizes) > 1 or shape[0] % count:
            raise ValueError(
                f"update: {name} is {found}{list(shape)}; expected {kind} of rank "
                f"{rank}, axis 0 a multiple of {count} (devices), the same in all "
                f"of the batch (found {sizes})"
            )
        leaf = leaf.reshape(count, -1, *shape[1:])
        if not isinstance(leaf, jax.Array):
            return leaf  # on the host: the call itself places it in less time
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (x, y))


def own_share(x, axis=0):
    """This device's part along `axis` of `x`, which every device has whole."""
    count = jax.lax.psum(1, AXIS)
    size, left = divmod(x.shape[axis], count)
    if left:
        raise ValueError(
            f"update: axis {axis} of {x.shape} does not divide over {count} devices"
        )
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(AXIS) * size, size, axis)


def update(w, x, y):
    x, y = shard(x, y)
    return p_update(replicate(w), x, y)
