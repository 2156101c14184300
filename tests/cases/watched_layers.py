# flags: gen step --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def loss_of(w, x, y):
    """Layers in a loop, with a scale for all examples, and what is watched of each layer."""

    def layer(h, w):
        logits = h @ w
        scale = jnp.max(jnp.abs(logits)) / 127
        rounded = logits + jax.lax.stop_gradient(jnp.round(logits / scale) * scale - logits)
        h = h + jnp.tanh(rounded)
        return h, {"largest": h.max(), "least": jnp.min(h), "size": jnp.sqrt(jnp.mean(h**2))}

    h, watched = jax.lax.scan(layer, x, w)
    return jnp.mean((h.sum(axis=1) - y) ** 2), watched


def step(w, x, y):
    (loss, watched), grads = jax.value_and_grad(loss_of, has_aux=True)(w, x, y)
    return w - 0.1 * grads, loss, watched


def inputs(seed):
    rng = np.random.default_rng(seed)
    w, x, y = rng.normal(size=(3, 4, 4)), rng.normal(size=(24, 4)), rng.normal(size=24)
    return w.astype("float32") / 2, x.astype("float32"), y.astype("float32")
# output
"""Data-parallel `step`: same call and same results as watched_layers.py::step, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


def loss_of(w, x, y):
    """Layers in a loop, with a scale for all examples, and what is watched of each layer."""

    def layer(h, w):
        logits = h @ w
        scale = jnp.max(jnp.abs(logits)) / 127
        scale = jax.lax.pmax(jax.lax.stop_gradient(scale), axis_name=AXIS)
        rounded = logits + jax.lax.stop_gradient(
            jnp.round(logits / scale) * scale - logits
        )
        h = h + jnp.tanh(rounded)
        return h, {
            "largest": h.max(),
            "least": jnp.min(h),
            "size": jnp.sqrt(jax.lax.pmean(jnp.mean(h**2), axis_name=AXIS)),
        }

    h, watched = jax.lax.scan(layer, x, w)
    return jnp.mean((h.sum(axis=1) - y) ** 2), watched


@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None)
def p_step(w, x, y):
    """`step` on one device's share; `x` and `y` leaves are (devices, per_device, ...)."""
    (loss, watched), grads = jax.value_and_grad(loss_of, has_aux=True)(w, x, y)
    loss, grads = jax.lax.pmean((loss, grads), axis_name=AXIS)
    watched = {
        **watched,
        "largest": jax.lax.pmax(watched["largest"], axis_name=AXIS),
        "least": jax.lax.pmin(watched["least"], axis_name=AXIS),
    }
    return w - 0.1 * grads, loss, watched


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


def shard(x, y):
    """(B, ...) -> (devices, B // devices, ...), a part for each device."""
    sizes = set()

    def split(path, leaf):
        name = ("x", "y")[path[0].idx] + jax.tree_util.keystr(path[1:])
        if is_split(name, leaf, sizes):
            return leaf
        leaf = leaf.reshape(jax.local_device_count(), -1, *leaf.shape[1:])
        if getattr(leaf, "sharding", None) is None:
            return leaf  # on the host, or traced: the call itself places it
        return jax.device_put(leaf, sharding(AXIS))

    return jax.tree.map_with_path(split, (x, y))


def step(w, x, y):
    x, y = shard(x, y)
    return p_step(replicate(w), x, y)
