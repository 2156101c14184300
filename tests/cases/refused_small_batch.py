# flags: gen f --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def f(x):
    return jnp.mean(x)


def inputs(seed):
    return (np.random.default_rng(seed).normal(size=(4, 3)),)
# refused JP041 line 7: `x` has shape (4, 3): a batch of 4 is smaller than the 8 devices of the proof
