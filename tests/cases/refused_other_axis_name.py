# flags: gen f --inputs this::inputs --axis-name batch
import jax
import jax.numpy as jnp
import numpy as np


def f(x):
    return jax.lax.pmean(jnp.mean(x), axis_name="devices")


def inputs(seed):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(24, 5)).astype("float32"),)
# refused JP048 line 8: `pmean` names the axis 'devices', not 'batch'
