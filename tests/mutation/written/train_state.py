"""A flax TrainState with Adam, copied to every device, as the tutorials of 2021 have it."""

import functools

import flax.linen as nn
import jax
import numpy as np
import optax
from flax.training import train_state


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.tanh(nn.Dense(4)(x)))


def loss_fn(params, batch):
    logits = Net().apply({"params": params}, batch["image"])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    return losses.mean(), logits


def train_step(state, batch):
    (loss, logits), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params, batch)
    right = (logits.argmax(-1) == batch["label"]).mean()
    return state.apply_gradients(grads=grads), {"loss": loss, "accuracy": right}


def inputs(seed=0):
    random = np.random.default_rng(seed)
    params = Net().init(jax.random.key(seed), np.ones((1, 5)))["params"]
    state = train_state.TrainState.create(apply_fn=None, params=params, tx=optax.adam(1e-2))
    image = random.normal(size=(24, 5)).astype(np.float32)
    return state, {"image": image, "label": random.integers(0, 3, 24)}


# parallel: p_train_step
@functools.partial(jax.pmap, axis_name="batch")
def p_train_step(state, batch):
    (loss, logits), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params, batch)
    grads = jax.lax.pmean(grads, axis_name="batch")
    metrics = {"loss": loss, "accuracy": (logits.argmax(-1) == batch["label"]).mean()}
    metrics = jax.lax.pmean(metrics, axis_name="batch")
    return state.apply_gradients(grads=grads), metrics
