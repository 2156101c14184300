"""The learning rate follows the tokens that this device has seen.

source: https://github.com/karpathy/nanochat/pull/857
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
    y = random.normal(size=24).astype(np.float32)
    return w, np.float32(100), x, y, random.integers(1, 9, size=24).astype(np.float32)


def loss_fn(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def rate(seen):
    return 0.1 * jnp.cos(seen / 1000)


def reference(w, seen, x, y, tokens):
    seen = seen + tokens.sum()
    return w - rate(seen) * jax.grad(loss_fn)(w, x, y), seen


@functools.partial(jax.pmap, axis_name="batch")
def right(w, seen, x, y, tokens):
    seen = seen + jax.lax.psum(tokens.sum(), "batch")
    grad = jax.lax.pmean(jax.grad(loss_fn)(w, x, y), "batch")
    return w - rate(seen) * grad, seen


# wrong
@functools.partial(jax.pmap, axis_name="batch")
def wrong(w, seen, x, y, tokens):
    seen = seen + tokens.sum() * jax.lax.psum(1, "batch")
    grad = jax.lax.pmean(jax.grad(loss_fn)(w, x, y), "batch")
    return w - rate(seen) * grad, seen
