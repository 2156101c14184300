"""Two players with an optimiser each; the generator's noise belongs to examples."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

g_tx, d_tx = optax.adam(1e-2), optax.rmsprop(1e-2)


def d_loss_fn(d, g, real, z):
    return jnp.mean(jnp.logaddexp(0.0, -jnp.tanh(real) @ d)) + jnp.mean(
        jnp.logaddexp(0.0, jnp.tanh(z @ g) @ d)
    )


def g_loss_fn(g, d, z):
    return jnp.mean(jnp.logaddexp(0.0, -jnp.tanh(z @ g) @ d))


def step(g, d, g_opt, d_opt, key, real):
    z = jax.random.normal(key, (real.shape[0], 2), real.dtype)
    d_loss, grads = jax.value_and_grad(d_loss_fn)(d, g, real, z)
    updates, d_opt = d_tx.update(grads, d_opt)
    d = optax.apply_updates(d, updates)
    g_loss, grads = jax.value_and_grad(g_loss_fn)(g, d, z)
    updates, g_opt = g_tx.update(grads, g_opt)
    g = optax.apply_updates(g, updates)
    return g, d, g_opt, d_opt, {"g": g_loss, "d": d_loss}


def inputs(seed=0):
    random = np.random.default_rng(seed)
    g, d = random.normal(size=(2, 3)).astype(np.float32), random.normal(size=3).astype(np.float32)
    real = random.normal(size=(24, 3)).astype(np.float32)
    return g, d, g_tx.init(g), d_tx.init(d), jax.random.key(seed), real


# parallel: p_step
@functools.partial(
    jax.pmap,
    axis_name="batch",
    in_axes=(None, None, None, None, None, 0),
    out_axes=(None, None, None, None, None),
)
def p_step(g, d, g_opt, d_opt, key, real):
    key = jax.random.fold_in(key, jax.lax.axis_index("batch"))
    z = jax.random.normal(key, (real.shape[0], 2), real.dtype)
    d_loss, grads = jax.value_and_grad(d_loss_fn)(d, g, real, z)
    grads = jax.lax.pmean(grads, "batch")
    updates, d_opt = d_tx.update(grads, d_opt)
    d = optax.apply_updates(d, updates)
    g_loss, grads = jax.value_and_grad(g_loss_fn)(g, d, z)
    grads = jax.lax.pmean(grads, "batch")
    updates, g_opt = g_tx.update(grads, g_opt)
    g = optax.apply_updates(g, updates)
    losses = jax.lax.pmean({"g": g_loss, "d": d_loss}, "batch")
    return g, d, g_opt, d_opt, losses
