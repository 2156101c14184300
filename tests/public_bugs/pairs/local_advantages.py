"""Advantages are normalised with the mean and deviation of one device.

source: https://github.com/HorizonRobotics/alf/pull/1642
class: statistics of one device
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def inputs(seed=0):
    random = np.random.default_rng(seed)
    logits = random.normal(size=(24, 4)).astype(np.float32)
    return (0.3 * random.normal(size=4)).astype(np.float32), logits, random.normal(size=24).astype(np.float32)


def loss_fn(w, logits, advantages):
    return -jnp.mean(jax.nn.log_softmax(logits + w)[:, 0] * advantages)


def reference(w, logits, advantages):
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
    return w - 0.1 * jax.grad(loss_fn)(w, logits, advantages)


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0), out_axes=None)
def right(w, logits, advantages):
    mean = jax.lax.pmean(advantages.mean(), "batch")
    variance = jax.lax.pmean(((advantages - mean) ** 2).mean(), "batch")
    advantages = (advantages - mean) / (jnp.sqrt(variance) + 1e-6)
    return w - 0.1 * jax.lax.pmean(jax.grad(loss_fn)(w, logits, advantages), "batch")


# wrong
@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0), out_axes=None)
def wrong(w, logits, advantages):
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
    return w - 0.1 * jax.lax.pmean(jax.grad(loss_fn)(w, logits, advantages), "batch")
