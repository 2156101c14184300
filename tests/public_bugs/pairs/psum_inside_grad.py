"""The loss is averaged over the devices inside the function that is differentiated.

source: https://github.com/jax-ml/jax/issues/3970
class: collective inside the differentiated loss
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


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0), out_axes=None)
def right(w, x, y):
    loss, grad = jax.lax.pmean(jax.value_and_grad(loss_fn)(w, x, y), "batch")
    return w - 0.1 * grad, loss


# wrong
def mean_loss(w, x, y):
    return jax.lax.pmean(loss_fn(w, x, y), "batch")


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0), out_axes=None)
def wrong(w, x, y):
    loss, grad = jax.value_and_grad(mean_loss)(w, x, y)
    return w - 0.1 * grad, loss
