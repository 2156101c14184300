"""Rows of zeros that fill the batch up to the devices count in the mean.

source: https://github.com/mlcommons/algorithmic-efficiency/issues/119
class: padding counts
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def inputs(seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=3).astype(np.float32), random.normal(size=(24, 3)).astype(np.float32)


def reference(w, x):
    return jnp.mean(jax.nn.sigmoid(x @ w))


def shard(x):
    count = jax.device_count()
    padded = np.pad(x, ((0, -len(x) % count), (0, 0)))
    valid = np.arange(len(padded)) < len(x)
    return padded.reshape(count, -1, 3), valid.reshape(count, -1)


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0), out_axes=None)
def sums(w, x, valid):
    values = jnp.where(valid, jax.nn.sigmoid(x @ w), 0)
    return jax.lax.psum((jnp.sum(values), jnp.sum(valid)), "batch")


def right(w, x):
    total, number = sums(w, *shard(x))
    return total / number


# wrong
@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0), out_axes=None)
def mean(w, x):
    return jax.lax.pmean(jnp.mean(jax.nn.sigmoid(x @ w)), "batch")


def wrong(w, x):
    return mean(w, shard(x)[0])
