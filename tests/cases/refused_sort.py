# flags: gen f --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def f(x):
    y = x * 2
    z = jnp.sort(y, axis=0)
    return z + 1


def inputs(seed):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(24, 5)).astype("float32"),)
# refused JP043 line 9: `jnp.sort(y, axis=0)` couples the examples of the batch: with all of them gathered, each of 8 devices would do all the work of one
