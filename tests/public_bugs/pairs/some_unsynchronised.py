"""Some parameters are left out of the synchronisation, and drift.

source: https://github.com/pytorch/pytorch/issues/104336
class: no synchronisation
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def inputs(seed=0):
    random = np.random.default_rng(seed)
    params = {"w": random.normal(size=3).astype(np.float32), "b": np.float32(0.5)}
    x = random.normal(size=(24, 3)).astype(np.float32)
    return params, x, random.normal(size=24).astype(np.float32)


def loss_fn(params, x, y):
    return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


def descend(params, grads):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def reference(params, x, y):
    return descend(params, jax.grad(loss_fn)(params, x, y))


@functools.partial(jax.pmap, axis_name="batch")
def right(params, x, y):
    return descend(params, jax.lax.pmean(jax.grad(loss_fn)(params, x, y), "batch"))


# wrong
@functools.partial(jax.pmap, axis_name="batch")
def wrong(params, x, y):
    grads = jax.grad(loss_fn)(params, x, y)
    grads = {**grads, "w": jax.lax.pmean(grads["w"], "batch")}
    return descend(params, grads)
