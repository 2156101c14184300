"""The last window of an accumulation has fewer micro-batches, and is divided as a full one.

source: https://github.com/modelscope/ms-swift/pull/10084
class: divided by a fixed number
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

#: Rows of a micro-batch, and how many of these make a window.
ROWS, WINDOW = 3, 2


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


def gradients(w, x, y):
    if x.shape[0] % ROWS:
        raise ValueError(f"a device's rows are a multiple of {ROWS}, not {x.shape[0]}")
    micro = (x.reshape(-1, ROWS, 3), y.reshape(-1, ROWS))
    return jax.lax.map(lambda each: jax.value_and_grad(loss_fn)(w, *each), micro)


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0), out_axes=None)
def right(w, x, y):
    losses, grads = gradients(w, x, y)
    loss, grad = jax.lax.pmean((jnp.mean(losses), jnp.mean(grads, axis=0)), "batch")
    return w - 0.1 * grad, loss


# wrong
@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0), out_axes=None)
def wrong(w, x, y):
    losses, grads = gradients(w, x, y)
    grad = jax.lax.pmean(jnp.sum(grads, axis=0) / WINDOW, "batch")
    return w - 0.1 * grad, jax.lax.pmean(jnp.mean(losses), "batch")
