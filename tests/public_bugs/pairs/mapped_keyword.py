"""An argument that is passed to pmap by keyword is split, where there is a row for each device.

source: https://github.com/jax-ml/jax/issues/912
class: an argument is split by mistake
"""

import jax
import jax.numpy as jnp
import numpy as np


def inputs(seed=0):
    random = np.random.default_rng(seed)
    logits = random.normal(size=(24, 8)).astype(np.float32)
    return random.uniform(0.5, 2, size=8).astype(np.float32), logits


def weighted(logits, weights):
    return jnp.sum(jax.nn.log_softmax(logits) * weights, -1)


def reference(weights, logits):
    return weighted(logits, weights)


def shard(logits):
    return logits.reshape(jax.local_device_count(), -1, 8)


by_position = jax.pmap(weighted, in_axes=(0, None))


def right(weights, logits):
    return by_position(shard(logits), weights).reshape(-1)


# wrong
by_keyword = jax.pmap(weighted)


def wrong(weights, logits):
    return by_keyword(shard(logits), weights=weights).reshape(-1)
