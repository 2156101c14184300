"""The mean of the devices' masked means: shares with more padding weigh too much.

source: https://github.com/huggingface/transformers/pull/19494
class: average of averages
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
    loss, grad = jax.value_and_grad(lambda w: total(w, x, y, mask) / jnp.sum(mask))(w)
    loss, grad = jax.lax.pmean((loss, grad), "batch")
    return w - 0.1 * grad, loss
