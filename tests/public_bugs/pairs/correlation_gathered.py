"""A cross-correlation is summed over the devices with no gradient through the sum.

source: https://github.com/lightly-ai/lightly/issues/1977
class: gradients through a gather
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def inputs(seed=0):
    random = np.random.default_rng(seed)
    w = random.normal(size=(3, 2)).astype(np.float32)
    x = random.normal(size=(24, 3)).astype(np.float32)
    return w, x, random.normal(size=(24, 3)).astype(np.float32)


def redundancy(correlation):
    return jnp.sum((correlation - jnp.eye(2)) ** 2)


def correlated(w, x, y):
    return (x @ w).T @ (y @ w) / x.shape[0]


def reference(w, x, y):
    return jax.value_and_grad(lambda w: redundancy(correlated(w, x, y)))(w)


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0), out_axes=None)
def right(w, x, y):
    correlation, pull = jax.vjp(lambda w: correlated(w, x, y), w)
    loss, slope = jax.value_and_grad(redundancy)(jax.lax.pmean(correlation, "batch"))
    return loss, jax.lax.pmean(pull(slope)[0], "batch")


# wrong
@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0), out_axes=None)
def wrong(w, x, y):
    def loss_fn(w):
        own = correlated(w, x, y)
        others = jax.lax.psum(jax.lax.stop_gradient(own), "batch") - jax.lax.stop_gradient(own)
        return redundancy((own + others) / jax.lax.psum(1, "batch"))

    return jax.lax.pmean(jax.value_and_grad(loss_fn)(w), "batch")
