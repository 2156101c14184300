# flags: gen f --arg x=f32[24,3]
import jax.numpy as jnp


def f(x):
    return jnp.mean(x.reshape(12, 2, -1), axis=1)
# refused JP043 line 6: `x.reshape(12, 2, -1)` couples the examples of the batch: with all of them gathered, each of 8 devices would do all the work of one
