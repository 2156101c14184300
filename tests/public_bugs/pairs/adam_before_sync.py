"""The optimiser runs on every device's own gradients, and the updates are averaged.

source: https://github.com/google-deepmind/optax/issues/474
class: state drifts
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

tx = optax.adam(0.1)


def inputs(seed=0):
    random = np.random.default_rng(seed)
    w = random.normal(size=3).astype(np.float32)
    x = random.normal(size=(24, 3)).astype(np.float32)
    return w, tx.init(w), x, random.normal(size=24).astype(np.float32)


def loss_fn(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def reference(w, state, x, y):
    updates, state = tx.update(jax.grad(loss_fn)(w, x, y), state, w)
    return optax.apply_updates(w, updates), state


@functools.partial(jax.pmap, axis_name="batch")
def right(w, state, x, y):
    grad = jax.lax.pmean(jax.grad(loss_fn)(w, x, y), "batch")
    updates, state = tx.update(grad, state, w)
    return optax.apply_updates(w, updates), state


# wrong
@functools.partial(jax.pmap, axis_name="batch")
def wrong(w, state, x, y):
    updates, state = tx.update(jax.grad(loss_fn)(w, x, y), state, w)
    return optax.apply_updates(w, jax.lax.pmean(updates, "batch")), state
