"""PPO's clipped loss, with advantages normalised over the batch: proved.

jax-pmap gen ppo.py::update --inputs ppo.py::example_inputs
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

CLIP, VALUE_COST, ENTROPY_BONUS = 0.2, 0.5, 0.01
optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-4))


def ppo_loss(params, batch):
    """Clipped policy loss, value loss and entropy bonus."""
    hidden = jnp.tanh(batch["observation"] @ params["hidden"])
    log_policy = jax.nn.log_softmax(hidden @ params["policy"])
    value = (hidden @ params["value"])[:, 0]
    advantage = batch["advantage"]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    log_prob = jnp.take_along_axis(log_policy, batch["action"][:, None], axis=1)[:, 0]
    ratio = jnp.exp(log_prob - batch["log_prob"])
    clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
    policy_loss = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
    value_loss = ((value - batch["target"]) ** 2).mean()
    entropy = -jnp.sum(jnp.exp(log_policy) * log_policy, axis=-1).mean()
    return policy_loss + VALUE_COST * value_loss - ENTROPY_BONUS * entropy


def update(params, opt_state, batch):
    """One step on one minibatch."""
    loss, grads = jax.value_and_grad(ppo_loss)(params, batch)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def example_inputs(seed=0):
    """An actor-critic and 48 steps of some policy."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    params = {"hidden": normal(4, 16) / 2, "policy": normal(16, 3) / 4, "value": normal(16, 1) / 4}
    batch = {
        "observation": normal(48, 4),
        "action": rng.integers(0, 3, size=48).astype(np.int32),
        "log_prob": np.log(rng.uniform(0.2, 0.6, size=48)).astype(np.float32),
        "advantage": 1 + 2 * normal(48),
        "target": normal(48),
    }
    return params, optimizer.init(params), batch
