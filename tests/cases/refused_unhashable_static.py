# flags: gen f --inputs this::inputs --static weights
import jax
import jax.numpy as jnp
import numpy as np


def f(x, weights):
    return jnp.mean(x @ weights)


def inputs(seed):
    return np.random.default_rng(seed).normal(size=(24, 3)), np.ones(3)
# refused JP047 line 7: `weights` has to be static, but a ndarray cannot be hashed
