"""Gradients of micro-batches, each of its own mean over tokens, are averaged.

source: https://huggingface.co/blog/gradient_accumulation
class: average of averages
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

STEPS = 3


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


def split(leaf):
    """(rows, ...) -> (STEPS, rows // STEPS, ...)"""
    if leaf.shape[0] % STEPS:
        return leaf[None]
    return leaf.reshape(STEPS, -1, *leaf.shape[1:])


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0, 0), out_axes=None)
def right(w, x, y, mask):
    def add(carry, micro):
        loss, grad = jax.value_and_grad(total)(w, *micro)
        return (carry[0] + loss, carry[1] + grad), None

    start = (jnp.zeros_like(w[0]), jnp.zeros_like(w))
    (loss, grad), _ = jax.lax.scan(add, start, (split(x), split(y), split(mask)))
    loss, grad, count = jax.lax.psum((loss, grad, jnp.sum(mask)), "batch")
    return w - 0.1 * grad / count, loss / count


# wrong
def mean(w, x, y, mask):
    return total(w, x, y, mask) / jnp.maximum(jnp.sum(mask), 1)


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0, 0), out_axes=None)
def wrong(w, x, y, mask):
    micro = (split(x), split(y), split(mask))
    losses, grads = jax.lax.map(lambda each: jax.value_and_grad(mean)(w, *each), micro)
    loss, grad = jax.lax.pmean((jnp.mean(losses), jnp.mean(grads, axis=0)), "batch")
    return w - 0.1 * grad, loss
