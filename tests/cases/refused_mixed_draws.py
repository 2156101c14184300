# flags: gen jitter --inputs this::inputs
import jax
import numpy as np


def jitter(key, w, x):
    def noisy(value):
        return value + jax.random.normal(key, value.shape)

    return noisy(w), noisy(x)


def inputs(seed):
    return jax.random.key(seed), np.ones(7, "float32"), np.ones((24, 5), "float32")
# refused JP051 line 8: random numbers that belong to examples are drawn from the key `key`, so it has to be another on every device, but numbers that all devices share are drawn from it too
