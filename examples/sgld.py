"""Stochastic gradient Langevin dynamics: noise on the parameters, the same on every device: proved.

jax-pmap gen sgld.py::sample_step --inputs sgld.py::example_inputs
"""

import jax
import jax.numpy as jnp
import numpy as np

STEP, EXAMPLES = 1e-4, 1000


def energy(weights, x, y):
    """Negative log posterior of a logistic regression, estimated from a batch."""
    logits = x @ weights
    losses = jax.nn.softplus(logits) - y * logits
    return EXAMPLES * jnp.mean(losses) + 0.5 * jnp.sum(weights**2)


def sample_step(weights, x, y, key):
    """Half a step down the gradient and noise; the key belongs to the weights, not to the batch."""
    value, gradient = jax.value_and_grad(energy)(weights, x, y)
    noise = jax.random.normal(key, weights.shape)
    weights = weights - 0.5 * STEP * gradient + jnp.sqrt(STEP) * noise
    return weights, value


def example_inputs(seed=0):
    """Weights of five features, 48 examples and a key."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(48, 5)).astype(np.float32)
    y = (rng.random(48) < 0.5).astype(np.float32)
    return rng.normal(size=5).astype(np.float32), x, y, jax.random.key(seed)
