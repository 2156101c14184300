# flags: gen improve --inputs this::inputs
"""Epochs of shuffled minibatches, as in PPO: the order is drawn inside."""

import jax
import jax.numpy as jnp
import numpy as np


def loss_fn(w, minibatch):
    x, y = minibatch
    return jnp.sqrt(jnp.mean((jnp.tanh(x @ w) - y) ** 2))


def improve(w, rollout, key):
    def minibatch(w, rows):
        loss, grads = jax.value_and_grad(loss_fn)(w, jax.tree.map(lambda leaf: leaf[rows], rollout))
        return w - 0.1 * grads, loss

    def epoch(w, key):
        order = jax.random.permutation(key, rollout[0].shape[0])
        return jax.lax.scan(minibatch, w, order.reshape(4, -1))

    w, losses = jax.lax.scan(epoch, w, jax.random.split(key, 3))
    return w, losses.mean()


def inputs(seed):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype("float32")
    return draw(5), (draw(192, 5), draw(192)), jax.random.key(seed)
# output
"""Data-parallel `improve`: same call and same results as shuffled_epochs.py::improve, on N devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "batch"


def loss_fn(w, minibatch):
    x, y = minibatch
    return jnp.sqrt(jax.lax.pmean(jnp.mean((jnp.tanh(x @ w) - y) ** 2), axis_name=AXIS))


@functools.partial(
    jax.pmap, axis_name=AXIS, in_axes=(None, None, None, 0), out_axes=None
)
def p_improve(w, rollout, key, device):
    """`improve` on one device's share.

    `device` is its number, since pmap has to map over something.
    """

    def minibatch(w, rows):
        loss, grads = jax.value_and_grad(loss_fn)(
            w, jax.tree.map(lambda leaf: leaf[rows], rollout)
        )
        # The loss is whole on every device, the gradient only that through its own rows.
        grads = jax.lax.pmean(grads, axis_name=AXIS)
        return w - 0.1 * grads, loss

    def epoch(w, key):
        order = jax.random.permutation(key, rollout[0].shape[0])
        return jax.lax.scan(minibatch, w, own_share(order.reshape(4, -1), axis=1))

    w, losses = jax.lax.scan(epoch, w, jax.random.split(key, 3))
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


def own_share(x, axis=0):
    """This device's part along `axis` of `x`, which every device has whole."""
    count = jax.lax.psum(1, AXIS)
    size, left = divmod(x.shape[axis], count)
    if left:
        raise ValueError(
            f"improve: axis {axis} of {x.shape} does not divide over {count} devices"
        )
    parts = x.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :])
    return jax.lax.dynamic_index_in_dim(
        parts, jax.lax.axis_index(AXIS), axis, keepdims=False
    )


def improve(w, rollout, key):
    return p_improve(replicate(w), rollout, key, np.arange(len(jax.local_devices())))
