"""The normaliser of observations is updated from each device's own, and drifts.

source: https://github.com/leggedrobotics/rsl_rl/pull/226
class: state drifts
"""

import functools

import jax
import numpy as np


def inputs(seed=0):
    random = np.random.default_rng(seed)
    state = {"count": np.float32(10), "mean": np.zeros(3, np.float32)}
    return state, (1 + random.normal(size=(24, 3))).astype(np.float32)


def updated(state, number, total):
    count = state["count"] + number
    mean = state["mean"] + (total - number * state["mean"]) / count
    return {"count": count, "mean": mean}


def reference(state, x):
    state = updated(state, x.shape[0], x.sum(0))
    return state, x - state["mean"]


@functools.partial(jax.pmap, axis_name="batch")
def right(state, x):
    number, total = jax.lax.psum((x.shape[0], x.sum(0)), "batch")
    state = updated(state, number, total)
    return state, x - state["mean"]


# wrong
@functools.partial(jax.pmap, axis_name="batch")
def wrong(state, x):
    state = updated(state, x.shape[0], x.sum(0))
    return state, x - state["mean"]
