# flags: gen step --inputs this::inputs
"""A batch of examples that are drawn inside, from a data set that is handed in whole."""

import jax
import jax.numpy as jnp
import numpy as np

BATCH = 24


def sample(key, images, labels):
    order = jax.random.permutation(key, len(images))[:BATCH]
    return images[order], labels[order]


def loss_fn(w, x, y):
    return jnp.mean((jnp.tanh(x @ w).sum(-1) - y) ** 2)


def step(w, key, images, labels):
    x, y = sample(key, images, labels)
    loss, grads = jax.value_and_grad(loss_fn)(w, x, y)
    return w - 0.1 * grads, loss


def inputs(seed):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype("float32")
    return draw(5, 7), jax.random.key(seed), draw(100, 5), draw(100)
# output
"""Data-parallel `step`: same call and same results as drawn_minibatch.py::step, on N devices."""

import functools

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from drawn_minibatch import loss_fn, sample

AXIS = "batch"


@functools.partial(
    jax.pmap, axis_name=AXIS, in_axes=(None, None, None, None, 0), out_axes=None
)
def p_step(w, key, images, labels, device):
    """`step` on one device's share.

    `device` is its number, since pmap has to map over something.
    """
    x, y = own_share(sample(key, images, labels))
    loss, grads = jax.value_and_grad(loss_fn)(w, x, y)
    loss, grads = jax.lax.pmean((loss, grads), axis_name=AXIS)
    return w - 0.1 * grads, loss


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


def own_share(tree, axis=0):
    """This device's part along `axis` of the arrays of `tree`, which every device has whole."""
    count = jax.lax.psum(1, AXIS)

    def part(x):
        size, left = divmod(x.shape[axis], count)
        if left:
            raise ValueError(
                f"step: axis {axis} of {x.shape} does not divide over {count} devices"
            )
        parts = x.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :])
        return jax.lax.dynamic_index_in_dim(
            parts, jax.lax.axis_index(AXIS), axis, keepdims=False
        )

    return jax.tree.map(part, tree)


def step(w, key, images, labels):
    return p_step(
        replicate(w), key, images, labels, np.arange(len(jax.local_devices()))
    )
