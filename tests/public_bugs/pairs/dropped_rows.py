"""Rows that the devices do not share evenly are left out of the evaluation.

source: https://github.com/google/flax/issues/264
class: rows are left out
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def inputs(seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=3).astype(np.float32), random.normal(size=(24, 3)).astype(np.float32)


def reference(w, x):
    return jnp.mean((x @ w) > 0)


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0), out_axes=None)
def mean(w, x):
    return jax.lax.pmean(jnp.mean((x @ w) > 0), "batch")


def right(w, x):
    count = jax.local_device_count()
    if len(x) % count:
        raise ValueError(f"{len(x)} rows do not divide over {count} devices")
    return mean(w, x.reshape(count, -1, 3))


# wrong
def wrong(w, x):
    count = jax.local_device_count()
    share = len(x) // count
    return mean(w, x[: share * count].reshape(count, share, 3))
