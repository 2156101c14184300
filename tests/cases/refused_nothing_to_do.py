# flags: gen f --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def f(x):
    return jnp.zeros(3)


def inputs(seed):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(24, 5)).astype("float32"),)
# refused JP055 line 7: no output of `f` depends on the batch, so there is nothing to run in parallel
