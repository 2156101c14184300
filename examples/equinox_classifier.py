"""An Equinox model with its activation functions among its leaves, trained by optax."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))


class Classifier(eqx.Module):
    """A small network; the functions in `layers` are leaves that are no arrays."""

    layers: list

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.layers = [
            eqx.nn.Linear(8, 16, key=first),
            jax.nn.gelu,
            eqx.nn.Linear(16, 4, key=second),
            jax.nn.log_softmax,
        ]

    def __call__(self, x):
        """Log-probabilities of the four classes for one example of shape ``(8,)``."""
        for layer in self.layers:
            x = layer(x)
        return x


@eqx.filter_value_and_grad(has_aux=True)
def compute_loss(model, x, y):
    """Mean cross-entropy of the batch, and beside it the share that is classified right."""
    log_probabilities = jax.vmap(model)(x)
    chosen = jnp.take_along_axis(log_probabilities, y[:, None], axis=1)
    return -jnp.mean(chosen), jnp.mean(jnp.argmax(log_probabilities, axis=1) == y)


@eqx.filter_jit
def make_step(model, opt_state, x, y):
    """One clipped AdamW step: the new model, the new optimiser state, loss and accuracy."""
    (loss, accuracy), grads = compute_loss(model, x, y)
    updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_array))
    model = eqx.apply_updates(model, updates)
    return model, opt_state, loss, accuracy


def example_inputs(seed=0):
    """Arguments for `make_step`: a fresh model and a batch of 48 examples."""
    model = Classifier(jax.random.key(seed))
    opt_state = optimizer.init(eqx.filter(model, eqx.is_array))
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(48, 8)).astype(np.float32)
    return model, opt_state, x, rng.integers(0, 4, size=48)
