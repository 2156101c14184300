"""Features are gathered without their gradients, and the rest is averaged.

source: https://github.com/JohnGiorgi/DeCLUTR/pull/212
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


def with_own(z):
    """All rows, of which those of this device alone have a gradient."""
    rows = jax.lax.all_gather(jax.lax.stop_gradient(z), "batch", tiled=True)
    return jax.lax.dynamic_update_slice(rows, z, (jax.lax.axis_index("batch") * z.shape[0], 0))


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0), out_axes=None)
def right(w, x):
    loss, grad = jax.value_and_grad(lambda w: spread(with_own(x @ w)))(w)
    return jax.lax.pmean(loss, "batch"), jax.lax.psum(grad, "batch")


# wrong
@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0), out_axes=None)
def wrong(w, x):
    loss, grad = jax.value_and_grad(lambda w: spread(with_own(x @ w)))(w)
    return jax.lax.pmean((loss, grad), "batch")
