"""ResNet-50 in Flax Linen: batch normalisation over all devices, SGD with momentum."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training import train_state

RESNET_50 = {"stages": (3, 4, 6, 3), "width": 64, "size": 224, "classes": 1000}


class TrainState(train_state.TrainState):
    """With the running mean and variance of every layer, beside the parameters."""

    batch_stats: Any


class Bottleneck(nn.Module):
    """Three convolutions around the identity, or around a projection where the shape changes."""

    width: int
    stride: int
    norm: Any

    @nn.compact
    def __call__(self, x):
        """`(batch, height, width, channels)` to `4 * self.width` channels."""
        conv = partial(nn.Conv, use_bias=False)
        y = nn.relu(self.norm()(conv(self.width, (1, 1))(x)))
        y = nn.relu(self.norm()(conv(self.width, (3, 3), self.stride)(y)))
        y = self.norm(scale_init=nn.initializers.zeros)(conv(4 * self.width, (1, 1))(y))
        if x.shape != y.shape:
            x = self.norm()(conv(4 * self.width, (1, 1), self.stride)(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    """Stages of bottlenecks, each but the first at half the resolution of the one before."""

    stages: tuple[int, ...]
    width: int
    classes: int

    @nn.compact
    def __call__(self, x, train):
        """Logits, `(batch, classes)`."""
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9, axis_name="batch")
        x = nn.relu(norm()(nn.Conv(self.width, (7, 7), 2, use_bias=False)(x)))
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        for stage, blocks in enumerate(self.stages):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                x = Bottleneck(self.width * 2**stage, stride, norm)(x)
        return nn.Dense(self.classes)(x.mean(axis=(1, 2)))


def train_step(state, images, labels):
    """One step, with the share of right answers before it."""

    def loss_fn(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, updates = state.apply_fn(variables, images, train=True, mutable=["batch_stats"])
        targets = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1]), 0.1)
        loss = optax.softmax_cross_entropy(logits, targets).mean()
        return loss, (updates["batch_stats"], logits)

    (loss, (batch_stats, logits)), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    state = state.apply_gradients(grads=grads, batch_stats=batch_stats)
    return state, {"loss": loss, "accuracy": jnp.mean(jnp.argmax(logits, axis=-1) == labels)}


def inputs(seed=0, batch=24, stages=(1, 1), width=4, size=16, classes=10):
    """A fresh state and a batch of labelled images."""
    key, pixels, classed = jax.random.split(jax.random.key(seed), 3)
    images = jax.random.normal(pixels, (batch, size, size, 3))
    labels = jax.random.randint(classed, (batch,), 0, classes)
    model = ResNet(stages, width, classes)
    variables = model.init(key, images, train=False)
    tx = optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(0.1, momentum=0.9, nesterov=True))
    return TrainState.create(apply_fn=model.apply, tx=tx, **variables), images, labels


def abstract_inputs(**sizes):
    """Shapes alone, of ResNet-50 on images of 224 x 224 where nothing else is said."""
    return jax.eval_shape(partial(inputs, **(RESNET_50 | sizes)))
