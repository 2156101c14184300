# flags: gen f --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def f(x):
    if x.mean() > 0:
        return x
    return -x


def inputs(seed):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(24, 5)).astype("float32"),)
# refused JP052 line 8: `f` needs the value of a traced array: Attempted boolean conversion of traced array with shape bool[].
