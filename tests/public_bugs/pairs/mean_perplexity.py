"""The devices' perplexities are averaged, and not the losses under the exponential.

source: https://github.com/ByteDance-Seed/VeOmni/pull/1077
class: nonlinear before the mean
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def inputs(seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(24, 3)).astype(np.float32)
    y = random.normal(size=24).astype(np.float32)
    mask = (random.random(24) < 0.7).astype(np.float32)
    return random.normal(size=3).astype(np.float32), x, y, mask


def loss_of(w, x, y, mask):
    return jnp.sum(mask * jax.nn.softplus(-y * (x @ w))), jnp.sum(mask)


def reference(w, x, y, mask):
    loss, count = loss_of(w, x, y, mask)
    return jnp.exp(loss / count)


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0, 0), out_axes=None)
def right(w, x, y, mask):
    loss, count = jax.lax.psum(loss_of(w, x, y, mask), "batch")
    return jnp.exp(loss / count)


# wrong
@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0, 0), out_axes=None)
def wrong(w, x, y, mask):
    loss, count = loss_of(w, x, y, mask)
    return jax.lax.pmean(jnp.exp(loss / count), "batch")
