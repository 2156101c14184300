"""DP-SGD: the gradient of every example is clipped, and noise is added to their sum."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P


def clipped_sum(w, x, y):
    def loss_of(w, row, target):
        return (jnp.tanh(row @ w) - target) ** 2

    grads = jax.vmap(jax.grad(loss_of), (None, 0, 0))(w, x, y)
    norms = jnp.linalg.norm(grads, axis=-1, keepdims=True)
    return jnp.sum(grads * jnp.minimum(1.0, 0.5 / jnp.maximum(norms, 1e-12)), 0)


def step(w, key, x, y):
    key, noise_key = jax.random.split(key)
    noise = 0.1 * jax.random.normal(noise_key, w.shape, w.dtype)
    return w - 0.5 * (clipped_sum(w, x, y) + noise) / x.shape[0], key


def inputs(seed=0):
    random = np.random.default_rng(seed)
    x, y = random.normal(size=(24, 3)).astype(np.float32), random.normal(size=24).astype(np.float32)
    return random.normal(size=3).astype(np.float32), jax.random.key(seed), x, y


# parallel: step_on_mesh
def per_device(w, key, x, y):
    key, noise_key = jax.random.split(key)
    noise = 0.1 * jax.random.normal(noise_key, w.shape, w.dtype)
    total = jax.lax.psum(clipped_sum(w, x, y), "batch")
    rows = x.shape[0] * jax.lax.psum(1, "batch")
    return w - 0.5 * (total + noise) / rows, key


def step_on_mesh(w, key, x, y):
    mesh = Mesh(np.array(jax.devices()), ("batch",))
    mapped = jax.shard_map(
        per_device,
        mesh=mesh,
        in_specs=(P(), P(), P("batch"), P("batch")),
        out_specs=(P(), P()),
        check_vma=False,
    )
    return jax.jit(mapped)(w, key, x, y)
