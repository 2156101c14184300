"""Losses are divided by the tokens of all devices, and their gradients averaged on top.

source: https://github.com/verl-project/verl-SpeCo/pull/29
class: scaled by the number of devices
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def inputs(seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(24, 3)).astype(np.float32)
    y = random.normal(size=24).astype(np.float32)
    mask = (random.random(24) < 0.7).astype(np.float32)
    return random.normal(size=3).astype(np.float32), x, y, mask


def total(w, x, y, mask):
    return jnp.sum(mask * (x @ w - y) ** 2)


def reference(w, x, y, mask):
    loss, grad = jax.value_and_grad(lambda w: total(w, x, y, mask) / jnp.sum(mask))(w)
    return w - 0.1 * grad, loss


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0, 0), out_axes=None)
def right(w, x, y, mask):
    loss, grad = jax.value_and_grad(total)(w, x, y, mask)
    loss, grad, count = jax.lax.psum((loss, grad, jnp.sum(mask)), "batch")
    return w - 0.1 * grad / count, loss / count


# wrong
@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0, 0), out_axes=None)
def wrong(w, x, y, mask):
    count = jax.lax.psum(jnp.sum(mask), "batch")
    loss, grad = jax.value_and_grad(lambda w: total(w, x, y, mask) / count)(w)
    return w - 0.1 * jax.lax.pmean(grad, "batch"), jax.lax.psum(loss, "batch")
