"""The average of the weights follows each device's own step, the weights the common one.

source: https://github.com/google-deepmind/optax/issues/474
class: state drifts
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def inputs(seed=0):
    random = np.random.default_rng(seed)
    w = random.normal(size=3).astype(np.float32)
    x = random.normal(size=(24, 3)).astype(np.float32)
    return w, w.copy(), x, random.normal(size=24).astype(np.float32)


def loss_fn(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def reference(w, average, x, y):
    w = w - 0.1 * jax.grad(loss_fn)(w, x, y)
    return w, 0.9 * average + 0.1 * w


@functools.partial(jax.pmap, axis_name="batch")
def right(w, average, x, y):
    w = w - 0.1 * jax.lax.pmean(jax.grad(loss_fn)(w, x, y), "batch")
    return w, 0.9 * average + 0.1 * w


# wrong
@functools.partial(jax.pmap, axis_name="batch")
def wrong(w, average, x, y):
    w = w - 0.1 * jax.grad(loss_fn)(w, x, y)
    average = 0.9 * average + 0.1 * w
    return jax.lax.pmean(w, "batch"), average
