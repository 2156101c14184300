"""A small training step for one device: `jax-pmap gen` turns it into one for all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

optimizer = optax.adam(1e-2)


def loss_fn(params, batch):
    """Mean cross-entropy of a two-layer network over the batch."""
    hidden = jnp.tanh(batch["x"] @ params["w1"] + params["b1"])
    logits = hidden @ params["w2"] + params["b2"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()


def train_step(params, opt_state, batch):
    """One clipped Adam step: the new parameters, the new optimiser state and two metrics."""
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    # The norm of the whole batch's gradient decides how much is clipped.
    norm = optax.global_norm(grads)
    grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / (norm + 1e-6)), grads)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    return params, opt_state, {"loss": loss, "grad_norm": norm}


def example_inputs(seed=0):
    """Arguments for `train_step`: fresh parameters and a batch of 48 examples."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    params = {
        "w1": normal(8, 16) / 3,
        "b1": np.zeros(16, np.float32),
        "w2": normal(16, 4) / 4,
        "b2": np.zeros(4, np.float32),
    }
    batch = {"x": normal(48, 8), "label": rng.integers(0, 4, size=48).astype(np.int32)}
    return params, optimizer.init(params), batch
