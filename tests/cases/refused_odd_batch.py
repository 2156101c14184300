# flags: gen f --inputs this::inputs --devices 7
import jax
import jax.numpy as jnp
import numpy as np


def f(x):
    return jnp.mean(x)


def inputs(seed):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(24, 5)).astype("float32"),)
# refused JP041 line 7: `x` has shape (24, 5): its batch of 24 does not divide over 7 devices
