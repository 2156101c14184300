"""Dropout with a key that every step splits, behind a function that reshapes the batch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def loss_fn(w, x, y, key):
    keep = jax.random.bernoulli(key, 0.8, x.shape)
    return jnp.mean((jnp.where(keep, x / 0.8, 0.0) @ w - y) ** 2)


def step(w, key, x, y):
    key, drop = jax.random.split(key)
    loss, grads = jax.value_and_grad(loss_fn)(w, x, y, drop)
    return w - 0.1 * grads, key, loss


def inputs(seed=0):
    random = np.random.default_rng(seed)
    x, y = random.normal(size=(24, 4)).astype(np.float32), random.normal(size=24).astype(np.float32)
    return random.normal(size=4).astype(np.float32), jax.random.key(seed), x, y


# parallel: parallel_step
@functools.partial(jax.pmap, axis_name="i", in_axes=(None, None, 0, 0), out_axes=(None, None, None))
def p_step(w, key, x, y):
    key, drop = jax.random.split(key)
    drop = jax.random.fold_in(drop, jax.lax.axis_index("i"))
    loss, grads = jax.value_and_grad(loss_fn)(w, x, y, drop)
    grads = jax.lax.pmean(grads, "i")
    return w - 0.1 * grads, key, jax.lax.pmean(loss, "i")


def parallel_step(w, key, x, y):
    n = jax.local_device_count()
    return p_step(w, key, x.reshape(n, -1, *x.shape[1:]), y.reshape(n, -1))
