"""Gradients are accumulated over two minibatches of each device before one update."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def loss_fn(w, x, y):
    return jnp.mean(jnp.logaddexp(0.0, -y * (x @ w)))


def step(w, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(w, x, y)
    return w - 0.3 * grads, loss


def inputs(seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(48, 3)).astype(np.float32)
    return random.normal(size=3).astype(np.float32), x, np.sign(random.normal(size=48)).astype(np.float32)


# parallel: parallel_step
MICRO = 2


def accumulate(w, x, y):
    def body(carry, part):
        return jax.tree.map(jnp.add, carry, jax.value_and_grad(loss_fn)(w, *part)), None

    parts = x.reshape(MICRO, -1, x.shape[-1]), y.reshape(MICRO, -1)
    sums, _ = lax.scan(body, (jnp.zeros(()).astype(w.dtype), jnp.zeros_like(w)), parts)
    loss, grads = jax.tree.map(lambda s: s / MICRO, sums)
    loss = lax.pmean(loss, "dp")
    grads = lax.pmean(grads, "dp")
    return w - 0.3 * grads, loss


p_accumulate = jax.pmap(accumulate, axis_name="dp", in_axes=(None, 0, 0), out_axes=None)


def parallel_step(w, x, y):
    devices = jax.local_devices()
    count = len(devices)
    split = [a.reshape(count, a.shape[0] // count, *a.shape[1:]) for a in (x, y)]
    return p_accumulate(w, *split)
