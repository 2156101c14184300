"""A physics-informed network for the heat equation; the residual has second derivatives: proved.

jax-pmap gen pinn.py::train_step --inputs pinn.py::example_inputs
"""

import jax
import jax.numpy as jnp
import numpy as np

DIFFUSIVITY, RATE = 0.1, 1e-2


def temperature(params, t, x):
    """The network at one point of time and space."""
    hidden = jnp.tanh(jnp.stack([t, x]) @ params["in"] + params["bias"])
    return hidden @ params["out"]


def residual(params, t, x):
    """How far the network is from solving the equation at one point."""
    u_t = jax.grad(temperature, argnums=1)(params, t, x)
    u_xx = jax.grad(jax.grad(temperature, argnums=2), argnums=2)(params, t, x)
    return u_t - DIFFUSIVITY * u_xx


def loss_fn(params, t, x):
    """Mean squared residual inside, and mean squared error at time zero."""
    inside = jax.vmap(residual, in_axes=(None, 0, 0))(params, t, x)
    start = jax.vmap(temperature, in_axes=(None, None, 0))(params, 0.0, x)
    return jnp.mean(inside**2) + jnp.mean((start - jnp.sin(jnp.pi * x)) ** 2)


def train_step(params, t, x):
    """One step of gradient descent on a batch of points."""
    loss, grads = jax.value_and_grad(loss_fn)(params, t, x)
    return jax.tree.map(lambda p, g: p - RATE * g, params, grads), loss


def example_inputs(seed=0):
    """A small network and 48 points."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    params = {"in": normal(2, 8), "bias": normal(8), "out": normal(8) / 4}
    return params, *rng.random((2, 48), dtype=np.float32)
