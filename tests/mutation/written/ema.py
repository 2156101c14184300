"""Gradients are clipped by their global norm, and an average of the parameters is kept."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

tx = optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1, momentum=0.9))


def loss_fn(params, x, y):
    return jnp.mean(jnp.abs(jnp.tanh(x @ params["w"]) + params["b"] - y) ** 1.5)


def step(params, average, opt_state, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    updates, opt_state = tx.update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    average = jax.tree.map(lambda a, p: 0.99 * a + 0.01 * p, average, params)
    return params, average, opt_state, loss


def inputs(seed=0):
    random = np.random.default_rng(seed)
    params = {"w": random.normal(size=3).astype(np.float32), "b": np.float32(0.1)}
    x, y = random.normal(size=(24, 3)).astype(np.float32), random.normal(size=24).astype(np.float32)
    return params, params, tx.init(params), x, y


# parallel: p_step
def replica_step(params, average, opt_state, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    grads = jax.lax.pmean(grads, "batch")
    updates, opt_state = tx.update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    average = jax.tree.map(lambda a, p: 0.99 * a + 0.01 * p, average, params)
    return params, average, opt_state, jax.lax.pmean(loss, "batch")


p_step = jax.pmap(replica_step, axis_name="batch")
