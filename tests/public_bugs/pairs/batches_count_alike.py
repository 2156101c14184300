"""An evaluation averages its batches, and the last one is shorter.

source: https://github.com/google/flax/issues/527
class: average of averages
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def inputs(seed=0):
    random = np.random.default_rng(seed)
    w = random.normal(size=(3, 4)).astype(np.float32)
    x = random.normal(size=(2, 24, 3)).astype(np.float32)
    y = random.integers(4, size=(2, 24))
    valid = np.stack([np.ones(24), np.arange(24) < 13]).astype(np.float32)
    return w, x, y, valid


def reference(w, x, y, valid):
    correct = jnp.argmax(x @ w, -1) == y
    return jnp.sum(correct * valid) / jnp.sum(valid)


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 1, 1, 1), out_axes=None)
def counts(w, x, y, valid):
    correct = jnp.argmax(x @ w, -1) == y
    return jax.lax.psum((jnp.sum(correct * valid), jnp.sum(valid)), "batch")


def split(x, y, valid):
    shape = (2, jax.device_count(), -1)
    return x.reshape(*shape, 3), y.reshape(shape), valid.reshape(shape)


def right(w, x, y, valid):
    correct, number = counts(w, *split(x, y, valid))
    return correct / number


# wrong
@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 1, 1, 1), out_axes=None)
def accuracies(w, x, y, valid):
    correct = (jnp.argmax(x @ w, -1) == y) * valid
    return jax.lax.psum(correct.sum(1), "batch") / jax.lax.psum(valid.sum(1), "batch")


def wrong(w, x, y, valid):
    return jnp.mean(accuracies(w, *split(x, y, valid)))
