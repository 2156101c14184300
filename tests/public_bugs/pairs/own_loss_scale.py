"""Each device adapts a loss scale of its own, and divides common gradients by it.

source: https://github.com/pytorch/pytorch/issues/136009
class: a decision of one device
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def inputs(seed=0):
    random = np.random.default_rng(seed)
    w = random.normal(size=3).astype(np.float32)
    x = random.normal(size=(24, 3)).astype(np.float32)
    return w, np.float32(8), x, random.normal(size=24).astype(np.float32)


def scaled_loss(w, scale, x, y):
    return scale * jnp.mean((x @ w - y) ** 2)


def finite(grad):
    return jnp.all(jnp.abs(grad) < 65504 / 2)


def step(w, scale, grad, good):
    w = jnp.where(good, w - 0.1 * grad / scale, w)
    return w, jnp.where(good, scale * 2, scale / 2)


def reference(w, scale, x, y):
    grad = jax.grad(scaled_loss)(w, scale, x, y)
    return step(w, scale, grad, finite(grad))


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, None, 0, 0), out_axes=None)
def right(w, scale, x, y):
    grad = jax.lax.pmean(jax.grad(scaled_loss)(w, scale, x, y), "batch")
    return step(w, scale, grad, finite(grad))


# wrong
@functools.partial(jax.pmap, axis_name="batch")
def wrong(w, scale, x, y):
    own = jax.grad(scaled_loss)(w, scale, x, y)
    return step(w, scale, jax.lax.pmean(own, "batch"), finite(own))
