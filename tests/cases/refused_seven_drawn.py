# flags: gen step --inputs this::inputs --shard rows
import jax
import jax.numpy as jnp
import numpy as np


def step(w, key, x):
    rows = jax.random.randint(key, (7,), 0, x.shape[0])
    return w - jax.grad(lambda w: jnp.mean((x[rows] @ w) ** 2))(w)


def inputs():
    return np.ones(5, "float32"), jax.random.key(0), np.ones((40, 5), "float32")
# refused JP041 line 8: `rows` has 7 rows, which no two numbers of devices share evenly
