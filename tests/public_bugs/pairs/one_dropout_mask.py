"""Every device drops the same units, as all draw with one key.

source: https://github.com/tenstorrent/tt-metal/pull/16823
class: one key for all devices
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def inputs(seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(24, 3)).astype(np.float32)
    return random.normal(size=3).astype(np.float32), x, jax.random.key(seed)


def forward(w, x, key):
    kept = jax.random.bernoulli(key, 0.5, x.shape)
    return jnp.mean(jnp.tanh((jnp.where(kept, x, 0) / 0.5) @ w))


def reference(w, x, key):
    return jax.value_and_grad(forward)(w, x, key)


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, None), out_axes=None)
def right(w, x, key):
    key = jax.random.fold_in(key, jax.lax.axis_index("batch"))
    return jax.lax.pmean(jax.value_and_grad(forward)(w, x, key), "batch")


# wrong
@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, None), out_axes=None)
def wrong(w, x, key):
    return jax.lax.pmean(jax.value_and_grad(forward)(w, x, key), "batch")
