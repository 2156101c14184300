"""Sums, counts, extremes, a ratio and what belongs to examples, all in one evaluation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def evaluate(w, x, label):
    scores = x @ w
    best = jnp.argmax(scores, 1)
    margin = jnp.max(scores, 1) - jnp.take_along_axis(scores, label[:, None], 1)[:, 0]
    confusion = jnp.zeros((3, 3), jnp.int32).at[label, best].add(1)
    hits = jnp.sum((best == label) & (label == 1))
    recall = hits / jnp.maximum(jnp.sum(label == 1), 1)
    return {
        "loss": jnp.mean(jax.nn.logsumexp(scores, 1) - jnp.take_along_axis(scores, label[:, None], 1)[:, 0]),
        "confusion": confusion,
        "recall": recall,
        "worst": jnp.max(margin),
        "smallest": jnp.min(jnp.sum(x**2, 1)),
        "prediction": best,
    }


def inputs(seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(24, 4)).astype(np.float32)
    return random.normal(size=(4, 3)).astype(np.float32), x, random.integers(0, 3, 24)


# parallel: p_evaluate
@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0))
def p_evaluate(w, x, label):
    scores = x @ w
    best = jnp.argmax(scores, 1)
    picked = jnp.take_along_axis(scores, label[:, None], 1)[:, 0]
    confusion = jax.lax.psum(jnp.zeros((3, 3), jnp.int32).at[label, best].add(1), "batch")
    hits = jax.lax.psum(jnp.sum((best == label) & (label == 1)), "batch")
    present = jax.lax.psum(jnp.sum(label == 1), "batch")
    return {
        "loss": jax.lax.pmean(jnp.mean(jax.nn.logsumexp(scores, 1) - picked), "batch"),
        "confusion": confusion,
        "recall": hits / jnp.maximum(present, 1),
        "worst": jax.lax.pmax(jnp.max(jnp.max(scores, 1) - picked), "batch"),
        "smallest": jax.lax.pmin(jnp.min(jnp.sum(x**2, 1)), "batch"),
        "prediction": best,
    }
