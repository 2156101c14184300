"""A GAN: two networks, two optimisers, one step: proved.

jax-pmap gen gan.py::train_step --inputs gan.py::example_inputs
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

generator_optimizer = optax.adam(1e-3, b1=0.5)
critic_optimizer = optax.adam(2e-3, b1=0.5)


def network(params, x):
    """A hidden layer and an output, for the generator and the critic alike."""
    return jax.nn.leaky_relu(x @ params["hidden"]) @ params["out"]


def critic_loss(critic, generator, real, noise):
    """Real samples should score high, generated ones low."""
    fake = network(generator, noise)
    return jnp.mean(jax.nn.softplus(-network(critic, real))) + jnp.mean(
        jax.nn.softplus(network(critic, fake))
    )


def generator_loss(generator, critic, noise):
    """Generated samples should score high."""
    return jnp.mean(jax.nn.softplus(-network(critic, network(generator, noise))))


def train_step(generator, critic, generator_state, critic_state, real, noise):
    """The critic learns first, then the generator from the new critic."""
    loss_c, grads_c = jax.value_and_grad(critic_loss)(critic, generator, real, noise)
    updates, critic_state = critic_optimizer.update(grads_c, critic_state, critic)
    critic = optax.apply_updates(critic, updates)
    loss_g, grads_g = jax.value_and_grad(generator_loss)(generator, critic, noise)
    updates, generator_state = generator_optimizer.update(grads_g, generator_state, generator)
    generator = optax.apply_updates(generator, updates)
    return generator, critic, generator_state, critic_state, {"critic": loss_c, "generator": loss_g}


def example_inputs(seed=0):
    """Two networks, 48 points in the plane and noise for as many."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    generator = {"hidden": normal(3, 8) / 2, "out": normal(8, 2) / 2}
    critic = {"hidden": normal(2, 8) / 2, "out": normal(8, 1) / 2}
    states = generator_optimizer.init(generator), critic_optimizer.init(critic)
    return generator, critic, *states, normal(48, 2), normal(48, 3)
