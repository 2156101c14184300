"""A contrastive loss sees the pairs of one device alone.

source: https://github.com/microsoft/UniCL/issues/5
class: examples are coupled over the batch
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def inputs(seed=0):
    random = np.random.default_rng(seed)
    w = random.normal(size=(3, 2)).astype(np.float32)
    x = random.normal(size=(24, 3)).astype(np.float32)
    return w, x, random.normal(size=(24, 2)).astype(np.float32)


def pairs(z, others, first):
    """The mean loss of the pairs of `z` with all `others`; the partner of row 0 is row `first`."""
    logits = jax.nn.log_softmax(z @ others.T)
    rows = jnp.arange(z.shape[0])
    return -jnp.mean(logits[rows, first + rows])


def reference(w, x, t):
    return jax.value_and_grad(lambda w: pairs(x @ w, t, 0))(w)


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0), out_axes=None)
def right(w, x, t):
    others = jax.lax.all_gather(t, "batch", tiled=True)
    first = jax.lax.axis_index("batch") * x.shape[0]
    loss, grad = jax.value_and_grad(lambda w: pairs(x @ w, others, first))(w)
    return jax.lax.pmean((loss, grad), "batch")


# wrong
@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0), out_axes=None)
def wrong(w, x, t):
    loss, grad = jax.value_and_grad(lambda w: pairs(x @ w, t, 0))(w)
    return jax.lax.pmean((loss, grad), "batch")
