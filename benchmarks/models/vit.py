"""A vision transformer in Flax Linen: dropout with a key for each step, AdamW on a cosine schedule."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

VIT_B16 = {"layers": 12, "width": 768, "heads": 12, "size": 224, "patch": 16, "classes": 1000}


class EncoderLayer(nn.Module):
    """Attention among the patches of an image, then two dense layers."""

    heads: int
    dropout: float

    @nn.compact
    def __call__(self, x, train):
        """`(batch, patches, width)` to the same."""
        drop = nn.Dropout(self.dropout, deterministic=not train)
        attention = nn.MultiHeadDotProductAttention(
            self.heads, dropout_rate=self.dropout, broadcast_dropout=False, deterministic=not train
        )
        width = x.shape[-1]
        x = x + drop(attention(nn.LayerNorm()(x)))
        hidden = drop(nn.gelu(nn.Dense(4 * width)(nn.LayerNorm()(x))))
        return x + drop(nn.Dense(width)(hidden))


class ViT(nn.Module):
    """Patches and one token for the class, through a stack of layers."""

    layers: int
    width: int
    heads: int
    patch: int
    classes: int
    dropout: float = 0.1

    @nn.compact
    def __call__(self, images, train):
        """Logits, `(batch, classes)`."""
        patch = (self.patch, self.patch)
        x = nn.Conv(self.width, patch, patch, padding="VALID")(images)
        x = x.reshape(x.shape[0], -1, self.width)
        first = self.param("class", nn.initializers.zeros, (1, 1, self.width))
        x = jnp.concatenate([jnp.tile(first, (x.shape[0], 1, 1)), x], axis=1)
        x = x + self.param("positions", nn.initializers.normal(0.02), (1, *x.shape[1:]))
        x = nn.Dropout(self.dropout, deterministic=not train)(x)
        for _ in range(self.layers):
            x = EncoderLayer(self.heads, self.dropout)(x, train)
        return nn.Dense(self.classes)(nn.LayerNorm()(x)[:, 0])


def train_step(state, images, labels, key):
    """One step; the dropout masks are those of the step's own key."""
    key = jax.random.fold_in(key, state.step)

    def loss_fn(params):
        logits = state.apply_fn({"params": params}, images, train=True, rngs={"dropout": key})
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def inputs(seed=0, batch=24, layers=1, width=16, heads=2, size=16, patch=8, classes=10):
    """A fresh state, a batch of labelled images and a key."""
    key, pixels, classed, dropout = jax.random.split(jax.random.key(seed), 4)
    images = jax.random.normal(pixels, (batch, size, size, 3))
    labels = jax.random.randint(classed, (batch,), 0, classes)
    model = ViT(layers, width, heads, patch, classes)
    params = model.init(key, images, train=False)["params"]
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10_000, 300_000)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.1))
    return TrainState.create(apply_fn=model.apply, params=params, tx=tx), images, labels, dropout


def abstract_inputs(**sizes):
    """Shapes alone, of ViT-B/16 on images of 224 x 224 where nothing else is said."""
    return jax.eval_shape(partial(inputs, **(VIT_B16 | sizes)))
