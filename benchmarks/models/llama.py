"""A Llama-like model of a billion parameters in plain JAX: a scan over layers, each computed again backwards.

RMSNorm, rotary embeddings, grouped queries, SwiGLU, activations in bfloat16, Adafactor.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

LLAMA_1B = {
    "layers": 16,
    "width": 2048,
    "heads": 32,
    "groups": 8,
    "hidden": 8192,
    "vocabulary": 128_256,
    "length": 2048,
}
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adafactor(1e-3))


class Layer(NamedTuple):
    """Weights of one layer, or of all stacked."""

    attention_norm: jax.Array
    query: jax.Array
    key: jax.Array
    value: jax.Array
    out: jax.Array
    norm: jax.Array
    gate: jax.Array
    up: jax.Array
    down: jax.Array


def rms_norm(x, scale):
    """`x` at a root mean square of one, in float32, times `scale`."""
    wide = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + 1e-5)
    return (wide * inverse * scale).astype(x.dtype)


def rotated(x):
    """Queries or keys `(batch, length, …, head)`, turned by their positions."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * 500_000.0 ** (-jnp.arange(half) / half)
    angles = angles.reshape(x.shape[1], *[1] * (x.ndim - 3), half)
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = [a * jnp.cos(angles) - b * jnp.sin(angles), a * jnp.sin(angles) + b * jnp.cos(angles)]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def attend(x, layer, mask):
    """Attention of several query heads to each head of keys and values."""
    query = rotated(jnp.einsum("btd,dgqh->btgqh", x, layer.query.astype(x.dtype)))
    key = rotated(jnp.einsum("btd,dgh->btgh", x, layer.key.astype(x.dtype)))
    value = jnp.einsum("btd,dgh->btgh", x, layer.value.astype(x.dtype))
    scores = jnp.einsum("btgqh,bsgh->bgqts", query, key).astype(jnp.float32) / query.shape[-1] ** 0.5
    weights = jax.nn.softmax(jnp.where(mask[:, None, None], scores, -1e9), axis=-1).astype(x.dtype)
    mixed = jnp.einsum("bgqts,bsgh->btgqh", weights, value)
    return jnp.einsum("btgqh,gqhd->btd", mixed, layer.out.astype(x.dtype))


def forward(params, tokens, valid):
    """Logits of the token that follows each, `(batch, length, vocabulary)`."""
    length = tokens.shape[1]
    mask = jnp.tril(jnp.ones((length, length), bool)) & valid[:, None, :]
    x = params["embedding"][tokens].astype(jnp.bfloat16)

    @jax.checkpoint
    def one(x, layer):
        x = x + attend(rms_norm(x, layer.attention_norm), layer, mask)
        y = rms_norm(x, layer.norm)
        y = jax.nn.silu(y @ layer.gate.astype(x.dtype)) * (y @ layer.up.astype(x.dtype))
        return x + y @ layer.down.astype(x.dtype), None

    x, _ = jax.lax.scan(one, x, params["layers"])
    x = rms_norm(x, params["norm"])
    return (x @ params["embedding"].T.astype(x.dtype)).astype(jnp.float32)


def loss_fn(params, tokens, targets, valid):
    """Cross entropy, its mean over the tokens that are no padding."""
    losses = optax.softmax_cross_entropy_with_integer_labels(forward(params, tokens, valid), targets)
    return jnp.sum(losses * valid) / jnp.sum(valid)


def train_step(params, opt_state, tokens, targets, valid):
    """One step on a batch of padded texts."""
    loss, grads = jax.value_and_grad(loss_fn)(params, tokens, targets, valid)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def inputs(seed=0, batch=24, layers=2, width=16, heads=4, groups=2, hidden=32, vocabulary=64, length=8):
    """Fresh parameters, the optimizer's state, and texts of different lengths."""
    weights, words, ends = jax.random.split(jax.random.key(seed), 3)
    head = width // heads
    shapes = Layer(
        attention_norm=(width,),
        query=(width, groups, heads // groups, head),
        key=(width, groups, head),
        value=(width, groups, head),
        out=(groups, heads // groups, head, width),
        norm=(width,),
        gate=(width, hidden),
        up=(width, hidden),
        down=(hidden, width),
    )
    keys = jax.random.split(weights, len(shapes) + 1)
    stacked = [
        jnp.ones((layers, *shape)) if len(shape) == 1 else 0.02 * jax.random.normal(key, (layers, *shape))
        for key, shape in zip(keys, shapes, strict=False)
    ]
    embedding = 0.02 * jax.random.normal(keys[-1], (vocabulary, width))
    params = {"embedding": embedding, "layers": Layer(*stacked), "norm": jnp.ones(width)}
    text = jax.random.randint(words, (batch, length + 1), 0, vocabulary)
    valid = jnp.arange(length) < jax.random.randint(ends, (batch, 1), length // 2, length + 1)
    return params, optimizer.init(params), text[:, :-1], text[:, 1:], valid


def abstract_inputs(**sizes):
    """Shapes alone, of a billion parameters where nothing else is said."""
    return jax.eval_shape(partial(inputs, **(LLAMA_1B | sizes)))
