"""The key that was split off for the evaluation becomes the one of the model, and the reverse.

source: https://github.com/mlcommons/algorithmic-efficiency/pull/848
class: swapped keys
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
    return jnp.mean(jnp.tanh((x + jax.random.normal(key, x.shape)) @ w))


def reference(w, x, key):
    eval_key, model_key = jax.random.split(key)
    return forward(w, x, eval_key), model_key


def own(key):
    return jax.random.fold_in(key, jax.lax.axis_index("batch"))


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, None), out_axes=None)
def right(w, x, key):
    eval_key, model_key = jax.random.split(key)
    return jax.lax.pmean(forward(w, x, own(eval_key)), "batch"), model_key


# wrong
@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, None), out_axes=None)
def wrong(w, x, key):
    model_key, eval_key = jax.random.split(key)
    return jax.lax.pmean(forward(w, x, own(eval_key)), "batch"), model_key
