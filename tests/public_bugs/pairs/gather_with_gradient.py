"""The gradient goes through a gather, of a loss that every device has whole, and is summed.

source: https://github.com/mlfoundations/open_clip/issues/616
class: gradients through a gather
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def inputs(seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=(3, 2)).astype(np.float32), random.normal(size=(24, 3)).astype(np.float32)


def spread(z):
    """How near the rows of `z` are to each other, in the mean over all pairs."""
    return jnp.mean(jnp.exp(-((z[:, None] - z) ** 2).sum(-1)))


def reference(w, x):
    return jax.value_and_grad(lambda w: spread(x @ w))(w)


def whole(w, x):
    return spread(jax.lax.all_gather(x @ w, "batch", tiled=True))


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0), out_axes=None)
def right(w, x):
    return jax.lax.pmean(jax.value_and_grad(whole)(w, x), "batch")


# wrong
@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0), out_axes=None)
def wrong(w, x):
    loss, grad = jax.value_and_grad(whole)(w, x)
    return loss, jax.lax.psum(grad, "batch")
