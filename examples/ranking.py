"""A gain that depends on the order of all scores of the batch: refused (JP043), with the line of the sort.

jax-pmap gen ranking.py::discounted_gain --inputs ranking.py::example_inputs
"""

import jax.numpy as jnp
import numpy as np


def discounted_gain(scores, relevance):
    """DCG of one query, whose documents are the batch; where a document stands depends on all others."""
    ranks = jnp.argsort(jnp.argsort(-scores))
    return jnp.sum(relevance / jnp.log2(ranks + 2.0))


def example_inputs(seed=0):
    """Scores and relevance of 24 documents."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=24).astype(np.float32)
    relevance = rng.integers(0, 4, size=24).astype(np.float32)
    return scores, relevance
