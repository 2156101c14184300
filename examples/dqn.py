"""A DQN update with a target network and a Huber loss: proved.

jax-pmap gen dqn.py::update --inputs dqn.py::example_inputs
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

DISCOUNT = 0.99
optimizer = optax.adam(1e-3)


def q_values(params, observations):
    """Value of every action, `(batch, actions)`."""
    return jnp.tanh(observations @ params["hidden"]) @ params["out"]


def td_loss(params, target_params, batch):
    """Mean Huber loss of the temporal differences."""
    values = q_values(params, batch["observation"])
    chosen = jnp.take_along_axis(values, batch["action"][:, None], axis=1)[:, 0]
    following = q_values(target_params, batch["next_observation"]).max(axis=1)
    wanted = batch["reward"] + DISCOUNT * (1 - batch["done"]) * following
    return optax.huber_loss(chosen, jax.lax.stop_gradient(wanted)).mean()


def update(params, target_params, opt_state, batch):
    """One step; the target network follows slowly."""
    loss, grads = jax.value_and_grad(td_loss)(params, target_params, batch)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    target_params = optax.incremental_update(params, target_params, 0.01)
    return params, target_params, opt_state, loss


def example_inputs(seed=0):
    """Two networks and a batch of 48 transitions."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    params = {"hidden": normal(4, 16) / 2, "out": normal(16, 3) / 4}
    target_params = {"hidden": normal(4, 16) / 2, "out": normal(16, 3) / 4}
    batch = {
        "observation": normal(48, 4),
        "action": rng.integers(0, 3, size=48).astype(np.int32),
        "reward": normal(48),
        "done": (rng.random(48) < 0.2).astype(np.float32),
        "next_observation": normal(48, 4),
    }
    return params, target_params, optimizer.init(params), batch
