"""Weighted by tokens on each device, and averaged over the devices without weights.

source: https://github.com/ml-explore/mlx-lm/pull/1413
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


def weighted(w, x, y, mask):
    """The running mean of the gradients of two micro-batches, weighted by their tokens, and by what it is."""
    half = x.shape[0] // 2
    first = (x[:half], y[:half], mask[:half])
    second = (x[half:], y[half:], mask[half:])
    one, other = (jax.value_and_grad(total)(w, *micro) for micro in (first, second))
    # A device may have nothing but padding.
    count = jnp.where(jnp.any(mask > 0), jnp.sum(mask), 1)
    return (one[0] + other[0]) / count, (one[1] + other[1]) / count, count


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0, 0), out_axes=None)
def right(w, x, y, mask):
    loss, grad, count = weighted(w, x, y, mask)
    loss, grad, whole = jax.lax.psum((loss * count, grad * count, jnp.sum(mask)), "batch")
    return w - 0.1 * grad / whole, loss / whole


# wrong
@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0, 0), out_axes=None)
def wrong(w, x, y, mask):
    loss, grad, _ = weighted(w, x, y, mask)
    loss, grad = jax.lax.pmean((loss, grad), "batch")
    return w - 0.1 * grad, loss
