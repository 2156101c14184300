"""Only the first device clips its gradients: the weights go out of step.

source: https://github.com/microsoft/DeepSpeed/pull/1801
class: clipping by another norm
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


def clipped(grad, norm):
    return grad * jnp.minimum(1.0, 0.1 / norm)


def reference(w, x, y):
    grad = jax.grad(loss_fn)(w, x, y)
    return w - clipped(grad, jnp.sqrt(jnp.sum(grad**2)))


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0), out_axes=None)
def right(w, x, y):
    grad = jax.lax.pmean(jax.grad(loss_fn)(w, x, y), "batch")
    return w - clipped(grad, jnp.sqrt(jnp.sum(grad**2)))


# wrong
@functools.partial(jax.pmap, axis_name="batch")
def wrong(w, x, y):
    grad = jax.lax.pmean(jax.grad(loss_fn)(w, x, y), "batch")
    first = jax.lax.axis_index("batch") == 0
    return w - jnp.where(first, clipped(grad, jnp.sqrt(jnp.sum(grad**2))), grad)
