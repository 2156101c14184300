"""Gradients accumulated over microbatches by `lax.scan`; the batch is the second axis: proved.

jax-pmap gen accumulate.py::train_step --inputs accumulate.py::example_inputs
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

optimizer = optax.adam(1e-2)


def loss_fn(params, x, y):
    """Mean squared error of a network with one hidden layer."""
    predictions = jnp.tanh(x @ params["hidden"]) @ params["out"]
    return jnp.mean((predictions - y) ** 2)


def train_step(params, opt_state, x, y):
    """One update from all microbatches; `x` is `(microbatches, batch, features)`."""

    def accumulate(carry, microbatch):
        total_loss, total_grads = carry
        loss, grads = jax.value_and_grad(loss_fn)(params, *microbatch)
        return (total_loss + loss, jax.tree.map(jnp.add, total_grads, grads)), None

    start = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
    (loss, grads), _ = jax.lax.scan(accumulate, start, (x, y))
    loss, grads = jax.tree.map(lambda total: total / x.shape[0], (loss, grads))
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def example_inputs(seed=0):
    """Five microbatches of 48 examples."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    params = {"hidden": normal(6, 8) / 2, "out": normal(8, 2) / 2}
    return params, optimizer.init(params), normal(5, 48, 6), normal(5, 48, 2)
