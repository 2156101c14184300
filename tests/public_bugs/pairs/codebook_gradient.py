"""A codebook that is learnt by gradients is left out of their synchronisation.

source: https://github.com/lucidrains/vector-quantize-pytorch/issues/222
class: no synchronisation
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def inputs(seed=0):
    random = np.random.default_rng(seed)
    params = {
        "codes": random.normal(size=(4, 2)).astype(np.float32),
        "w": random.normal(size=(3, 2)).astype(np.float32),
    }
    return params, random.normal(size=(24, 3)).astype(np.float32)


def loss_fn(params, x):
    z = x @ params["w"]
    nearest = jnp.argmin(((z[:, None] - params["codes"]) ** 2).sum(-1), axis=1)
    return jnp.mean((z - params["codes"][nearest]) ** 2)


def descend(params, grads):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def reference(params, x):
    return descend(params, jax.grad(loss_fn)(params, x))


@functools.partial(jax.pmap, axis_name="batch")
def right(params, x):
    return descend(params, jax.lax.pmean(jax.grad(loss_fn)(params, x), "batch"))


# wrong
@functools.partial(jax.pmap, axis_name="batch")
def wrong(params, x):
    grads = jax.grad(loss_fn)(params, x)
    return descend(params, {"codes": grads["codes"], "w": jax.lax.pmean(grads["w"], "batch")})
