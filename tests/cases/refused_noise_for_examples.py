# flags: gen f --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def f(key, x):
    noise = jax.random.normal(key, x.shape)
    return x + noise


def inputs(seed):
    return jax.random.key(seed), np.ones((24, 5), "float32")
# refused JP051 line 8: `jax.random.normal(key, x.shape)` draws random numbers whose shape depends on the batch: each device would draw the same ones for other examples
