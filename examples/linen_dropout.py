"""Flax Linen with a TrainState and dropout, its key an argument: proved.

jax-pmap gen linen_dropout.py::train_step --inputs linen_dropout.py::example_inputs
"""

import flax.linen as nn
import jax
import numpy as np
import optax
from flax.training.train_state import TrainState


class Classifier(nn.Module):
    """One hidden layer, half of it dropped."""

    @nn.compact
    def __call__(self, x, train):
        """Logits, `(batch, 5)`."""
        x = nn.relu(nn.Dense(16)(x))
        x = nn.Dropout(0.5, deterministic=not train)(x)
        return nn.Dense(5)(x)


def train_step(state, images, labels, key):
    """One step; the key gives this step's dropout masks."""

    def loss_fn(params):
        logits = state.apply_fn({"params": params}, images, train=True, rngs={"dropout": key})
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def example_inputs(seed=0):
    """A fresh state, 48 labelled images of 8 pixels and a key."""
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(48, 8)).astype(np.float32)
    labels = rng.integers(0, 5, size=48).astype(np.int32)
    model = Classifier()
    params = model.init(jax.random.key(seed), images, train=False)["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.sgd(0.1))
    return state, images, labels, jax.random.key(seed + 1)
