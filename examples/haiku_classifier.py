"""Haiku with `transform_with_state`: inputs centred by the running mean of the batches before. Proved.

jax-pmap gen haiku_classifier.py::train_step --inputs haiku_classifier.py::example_inputs
"""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax


def network(images):
    """Logits, `(batch, 5)`; the state is the running mean of the images."""
    mean = hk.get_state("mean", images.shape[1:], init=jnp.zeros)
    hk.set_state("mean", 0.9 * mean + 0.1 * images.mean(axis=0))
    return hk.nets.MLP([16, 5])(images - mean)


model = hk.transform_with_state(network)
optimizer = optax.adam(1e-2)


@jax.jit
def train_step(params, state, opt_state, images, labels):
    """One step; the new state holds the mean of this batch too."""

    def loss_fn(params):
        logits, new_state = model.apply(params, state, None, images)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.mean(), new_state

    (loss, state), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    updates, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(params, updates), state, opt_state, loss


def example_inputs(seed=0):
    """Fresh parameters and states, and 48 labelled images of 8 pixels."""
    rng = np.random.default_rng(seed)
    images = rng.normal(1.0, size=(48, 8)).astype(np.float32)
    labels = rng.integers(0, 5, size=48).astype(np.int32)
    params, state = model.init(jax.random.key(seed), images)
    return params, state, optimizer.init(params), images, labels
