"""A GPT in Flax Linen: Adam behind a clip by global norm, cross entropy over the tokens that count."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

#: Sizes by name; `gpt2` is GPT-2 small, 124 million parameters.
SIZES = {
    "tiny": {"layers": 1, "width": 16, "vocabulary": 64, "length": 8},
    "small": {"layers": 2, "width": 64, "vocabulary": 512, "length": 16},
    "medium": {"layers": 4, "width": 256, "vocabulary": 8000, "length": 64},
    "gpt2": {"layers": 12, "width": 768, "vocabulary": 50257, "length": 1024},
}


class Block(nn.Module):
    """Attention to the tokens before, then two dense layers."""

    heads: int

    @nn.compact
    def __call__(self, x, mask):
        """`(batch, length, width)` to the same."""
        width = x.shape[-1]
        x = x + nn.MultiHeadDotProductAttention(self.heads)(nn.LayerNorm()(x), mask=mask)
        hidden = nn.gelu(nn.Dense(4 * width)(nn.LayerNorm()(x)))
        return x + nn.Dense(width)(hidden)


class GPT(nn.Module):
    """A stack of blocks between an embedding and its transpose."""

    layers: int
    width: int
    vocabulary: int

    @nn.compact
    def __call__(self, tokens):
        """Logits of the token that follows each, `(batch, length, vocabulary)`."""
        embed = nn.Embed(self.vocabulary, self.width)
        positions = self.param("positions", nn.initializers.normal(0.02), (tokens.shape[1], self.width))
        x = embed(tokens) + positions
        mask = nn.make_causal_mask(tokens)
        for _ in range(self.layers):
            x = Block(heads=max(1, self.width // 64))(x, mask)
        return embed.attend(nn.LayerNorm()(x))


def train_step(state, batch):
    """One step; tokens where `mask` is 0 do not count."""

    def loss_fn(params):
        logits = state.apply_fn({"params": params}, batch["tokens"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
        return jnp.sum(losses * batch["mask"]) / jnp.sum(batch["mask"])

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def inputs(seed=0, batch=24, layers=1, width=16, vocabulary=64, length=8):
    """A fresh state and a batch of tokens."""
    key, words, counts = jax.random.split(jax.random.key(seed), 3)
    text = jax.random.randint(words, (batch, length + 1), 0, vocabulary)
    tokens, targets = text[:, :-1], text[:, 1:]
    mask = jax.random.bernoulli(counts, 0.9, tokens.shape).astype(jnp.float32)
    model = GPT(layers, width, vocabulary)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(3e-4))
    params = model.init(key, tokens)["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=tx)
    return state, {"tokens": tokens, "targets": targets, "mask": mask}


def abstract_inputs(name="gpt2", **sizes):
    """Shapes alone, of the sizes of that name where nothing else is said."""
    return jax.eval_shape(partial(inputs, **(SIZES[name] | sizes)))
