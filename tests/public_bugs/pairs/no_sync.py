"""The gradients are not synchronised: every device trains a model of its own.

source: https://github.com/jax-ml/jax/issues/14433
class: no synchronisation
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def inputs(seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(24, 3)).astype(np.float32)
    y = random.normal(size=24).astype(np.float32)
    return random.normal(size=3).astype(np.float32), x, y


def loss_fn(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def reference(w, x, y):
    loss, grad = jax.value_and_grad(loss_fn)(w, x, y)
    return w - 0.1 * grad, loss


@functools.partial(jax.pmap, axis_name="batch")
def right(w, x, y):
    loss, grad = jax.value_and_grad(loss_fn)(w, x, y)
    grad = jax.lax.pmean(grad, "batch")
    return w - 0.1 * grad, jax.lax.pmean(loss, "batch")


# wrong
@functools.partial(jax.pmap, axis_name="batch")
def wrong(w, x, y):
    loss, grad = jax.value_and_grad(loss_fn)(w, x, y)
    return w - 0.1 * grad, jax.lax.pmean(loss, "batch")
