"""Flax Linen with batch normalisation: the layer synchronises its statistics over the axis it names. Proved.

jax-pmap gen batchnorm.py::train_step --inputs batchnorm.py::example_inputs
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training import train_state


class TrainState(train_state.TrainState):
    """Beside the parameters, the running mean and variance of every layer."""

    batch_stats: Any


class Classifier(nn.Module):
    """One hidden layer, normalised."""

    axis_name: str | None = None

    @nn.compact
    def __call__(self, x, train):
        """Logits, `(batch, 5)`."""
        x = nn.Dense(16)(x)
        x = nn.BatchNorm(use_running_average=not train, axis_name=self.axis_name)(x)
        return nn.Dense(5)(nn.relu(x))


def train_step(state, images, labels):
    """One step; normalises by the mean and variance of the batch and keeps a running average of them."""

    def loss_fn(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, updates = state.apply_fn(variables, images, train=True, mutable=["batch_stats"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.mean(), updates["batch_stats"]

    (loss, batch_stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=batch_stats), loss


def evaluate(state, images, labels):
    """Accuracy; normalised by the running averages, every example on its own."""
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    logits = state.apply_fn(variables, images, train=False)
    return jnp.mean(jnp.argmax(logits, axis=-1) == labels)


def example_inputs(seed=0, axis_name="batch"):
    """A fresh state and 48 labelled images of 8 pixels."""
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(48, 8)).astype(np.float32)
    labels = rng.integers(0, 5, size=48).astype(np.int32)
    model = Classifier(axis_name)
    variables = model.init(jax.random.key(seed), images, train=False)
    state = TrainState.create(apply_fn=model.apply, tx=optax.sgd(0.1, momentum=0.9), **variables)
    return state, images, labels


def example_without_axis(seed=0):
    """The same with a layer that names no axis: it is told the one of the devices."""
    return example_inputs(seed, axis_name=None)
