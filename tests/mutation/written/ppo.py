"""A PPO update whose advantages are normalised over all devices."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def policy(w, batch, advantage):
    logp = jax.nn.log_softmax(batch["obs"] @ w)
    chosen = jnp.take_along_axis(logp, batch["action"][:, None], 1)[:, 0]
    ratio = jnp.exp(chosen - batch["logp"])
    clipped = jnp.clip(ratio, 0.8, 1.2)
    gain = jnp.minimum(ratio * advantage, clipped * advantage)
    entropy = -jnp.sum(jnp.exp(logp) * logp, -1)
    return -jnp.mean(gain + 0.01 * entropy), jnp.mean(jnp.abs(ratio - 1.0) > 0.2)


def update(w, batch):
    advantage = batch["advantage"]
    advantage = (advantage - jnp.mean(advantage)) / (jnp.std(advantage) + 1e-8)
    (loss, clipped), grads = jax.value_and_grad(policy, has_aux=True)(w, batch, advantage)
    return w - 0.1 * grads, loss, clipped


def inputs(seed=0):
    random = np.random.default_rng(seed)
    batch = {
        "obs": random.normal(size=(24, 4)).astype(np.float32),
        "action": random.integers(0, 3, 24),
        "logp": np.log(random.uniform(0.2, 0.6, 24)).astype(np.float32),
        "advantage": (random.normal(size=24) * 2 + 1).astype(np.float32),
    }
    return random.normal(size=(4, 3)).astype(np.float32), batch


# parallel: p_update
def replica_update(w, batch):
    advantage = batch["advantage"]
    mean = lax.pmean(jnp.mean(advantage), axis_name="batch")
    square = lax.pmean(jnp.mean((advantage - mean) ** 2), axis_name="batch")
    advantage = (advantage - mean) / (jnp.sqrt(square) + 1e-8)
    (loss, clipped), grads = jax.value_and_grad(policy, has_aux=True)(w, batch, advantage)
    loss, clipped, grads = lax.pmean((loss, clipped, grads), axis_name="batch")
    return w - 0.1 * grads, loss, clipped


p_update = jax.pmap(replica_update, axis_name="batch", in_axes=(None, 0), out_axes=(None, None, None))
