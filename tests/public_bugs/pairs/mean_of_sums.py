"""A loss that is a sum over the batch is averaged over the devices.

source: https://github.com/intel/ipex-llm/issues/2079
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
    return random.normal(size=3).astype(np.float32), x, y


def loss_fn(w, x, y):
    return jnp.sum((x @ w - y) ** 2)


def reference(w, x, y):
    loss, grad = jax.value_and_grad(loss_fn)(w, x, y)
    return w - 0.01 * grad, loss


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0), out_axes=None)
def right(w, x, y):
    loss, grad = jax.lax.psum(jax.value_and_grad(loss_fn)(w, x, y), "batch")
    return w - 0.01 * grad, loss


# wrong
@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0), out_axes=None)
def wrong(w, x, y):
    loss, grad = jax.lax.pmean(jax.value_and_grad(loss_fn)(w, x, y), "batch")
    return w - 0.01 * grad, loss
