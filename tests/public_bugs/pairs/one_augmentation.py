"""The workers that augment the data start from one seed, and repeat each other.

source: https://github.com/pytorch/pytorch/pull/56488
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


def augmented(x, key):
    flip_key, noise_key = jax.random.split(key)
    flipped = jax.random.bernoulli(flip_key, 0.5, (x.shape[0], 1))
    x = jnp.where(flipped, x[:, ::-1], x)
    return x + 0.1 * jax.random.normal(noise_key, x.shape)


def reference(w, x, key):
    return jnp.tanh(augmented(x, key) @ w)


@functools.partial(jax.pmap, in_axes=(None, 0, 0))
def forward(w, x, key):
    return jnp.tanh(augmented(x, key) @ w)


def shard(x):
    count = jax.local_device_count()
    return x.reshape(count, -1, x.shape[-1])


def right(w, x, key):
    keys = jax.random.split(key, jax.local_device_count())
    return forward(w, shard(x), keys).reshape(-1)


# wrong
def wrong(w, x, key):
    keys = jnp.stack([key] * jax.local_device_count())
    return forward(w, shard(x), keys).reshape(-1)
