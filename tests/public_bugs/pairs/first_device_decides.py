"""Whether a batch is skipped is decided by the loss of the first device alone.

source: https://github.com/ecmwf/WeatherGenerator/pull/2718
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
    return w, x, random.normal(size=24).astype(np.float32)


def loss_fn(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def reference(w, x, y):
    loss, grad = jax.value_and_grad(loss_fn)(w, x, y)
    return jnp.where(loss > 5.0, w, w - 0.1 * grad)


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0), out_axes=None)
def right(w, x, y):
    loss, grad = jax.lax.pmean(jax.value_and_grad(loss_fn)(w, x, y), "batch")
    return jnp.where(loss > 5.0, w, w - 0.1 * grad)


# wrong
@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0), out_axes=None)
def wrong(w, x, y):
    loss, grad = jax.value_and_grad(loss_fn)(w, x, y)
    first = jax.lax.all_gather(loss, "batch")[0]
    return jnp.where(first > 5.0, w, w - 0.1 * jax.lax.pmean(grad, "batch"))
