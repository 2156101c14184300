"""A penalty on the weights is added on every device, and summed over them.

source: https://www.tensorflow.org/api_docs/python/tf/nn/scale_regularization_loss
class: penalty summed over the devices
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


def errors(w, x, y):
    return jnp.sum((x @ w - y) ** 2)


def penalty(w):
    return 0.3 * jnp.sum(w**2)


def reference(w, x, y):
    loss, grad = jax.value_and_grad(lambda w: errors(w, x, y) / len(x) + penalty(w))(w)
    return w - 0.1 * grad, loss


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0), out_axes=None)
def right(w, x, y):
    devices = jax.lax.psum(1, "batch")

    def loss_fn(w):
        return errors(w, x, y) / (len(x) * devices) + penalty(w) / devices

    loss, grad = jax.lax.psum(jax.value_and_grad(loss_fn)(w), "batch")
    return w - 0.1 * grad, loss


# wrong
@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0), out_axes=None)
def wrong(w, x, y):
    devices = jax.lax.psum(1, "batch")

    def loss_fn(w):
        return errors(w, x, y) / (len(x) * devices) + penalty(w)

    loss, grad = jax.lax.psum(jax.value_and_grad(loss_fn)(w), "batch")
    return w - 0.1 * grad, loss
