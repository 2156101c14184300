# flags: gen f --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


CALLS = 0


def f(x):
    global CALLS
    CALLS += 1
    return x * 2


def inputs(seed):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(24, 5)).astype("float32"),)
# refused JP049 line 10: `f` assigns `CALLS` outside itself; on devices that happens once, while tracing
