# flags: gen mixup --inputs this::inputs
import jax
import numpy as np


def mixup(key, x):
    order = jax.random.permutation(key, x.shape[0])
    return 0.7 * x + 0.3 * x[order]


def inputs(seed):
    return jax.random.key(seed), np.random.default_rng(seed).normal(size=(24, 5)).astype("float32")
# refused JP043 line 7: `jax.random.permutation(key, x.shape[0])` couples the examples of the batch: on shards it is neither a share of the whole value nor a mean, sum, maximum or minimum of it
