"""A mean of the devices' means, where each has another number of valid elements.

source: https://github.com/google/flax/issues/2417
class: average of averages
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


def normalised(x, mean, variance):
    return (x - mean) / jnp.sqrt(variance + 1e-5)


def reference(w, x, y, mask):
    mean = (mask[:, None] * x).sum(0) / mask.sum()
    variance = (mask[:, None] * (x - mean) ** 2).sum(0) / mask.sum()
    return normalised(x, mean, variance) @ w - y


PMAP = functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0, 0))


@PMAP
def right(w, x, y, mask):
    total, count = jax.lax.psum(((mask[:, None] * x).sum(0), mask.sum()), "batch")
    mean = total / count
    variance = jax.lax.psum((mask[:, None] * (x - mean) ** 2).sum(0), "batch") / count
    return normalised(x, mean, variance) @ w - y


# wrong
@PMAP
def wrong(w, x, y, mask):
    count = mask.sum()
    mean = jax.lax.pmean((mask[:, None] * x).sum(0) / count, "batch")
    variance = jax.lax.pmean((mask[:, None] * (x - mean) ** 2).sum(0) / count, "batch")
    return normalised(x, mean, variance) @ w - y
