# flags: gen f --arg x=f32[24,3]
import jax.numpy as jnp


def f(x):
    return jnp.mean(x.reshape(12, 2, -1), axis=1)
# refused JP068 line 6: on one device's share of the batch the function fails after line 6: TypeError: cannot reshape array of shape (3, 3) (size 9) into shape (12, 2, -1) because the product of specified axis sizes (24) does not evenly divide 9
