"""Batches are normalised with the moments of one device's share.

source: https://github.com/google/flax/issues/319
class: statistics of one device
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def inputs(seed=0):
    random = np.random.default_rng(seed)
    x = (2 + random.normal(size=(24, 3)) * np.arange(1, 4)).astype(np.float32)
    return random.normal(size=3).astype(np.float32), {"mean": np.zeros(3, np.float32)}, x


def reference(w, stats, x):
    mean, variance = x.mean(0), x.var(0)
    stats = {"mean": 0.9 * stats["mean"] + 0.1 * mean}
    return jnp.mean(jnp.tanh(w * (x - mean) / jnp.sqrt(variance + 1e-5))), stats


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, None, 0), out_axes=None)
def right(w, stats, x):
    mean = jax.lax.pmean(x.mean(0), "batch")
    variance = jax.lax.pmean(((x - mean) ** 2).mean(0), "batch")
    stats = {"mean": 0.9 * stats["mean"] + 0.1 * mean}
    value = jnp.mean(jnp.tanh(w * (x - mean) / jnp.sqrt(variance + 1e-5)))
    return jax.lax.pmean(value, "batch"), stats


# wrong
@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, None, 0), out_axes=None)
def wrong(w, stats, x):
    mean, variance = x.mean(0), x.var(0)
    stats = {"mean": 0.9 * stats["mean"] + 0.1 * jax.lax.pmean(mean, "batch")}
    value = jnp.mean(jnp.tanh(w * (x - mean) / jnp.sqrt(variance + 1e-5)))
    return jax.lax.pmean(value, "batch"), stats
