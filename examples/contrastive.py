"""A CLIP-like loss, every image against every text of the whole batch (all_gather): proved.

jax-pmap gen contrastive.py::train_step --inputs contrastive.py::example_inputs
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

optimizer = optax.sgd(0.1)


def embed(weights, features):
    """Unit vectors, `(batch, dimension)`."""
    vectors = features @ weights
    return vectors / jnp.linalg.norm(vectors, axis=-1, keepdims=True)


def contrastive_loss(params, images, texts):
    """Symmetric cross entropy; the pairs lie on the diagonal."""
    image_vectors = embed(params["image"], images)
    text_vectors = embed(params["text"], texts)
    logits = jnp.exp(params["log_scale"]) * image_vectors @ text_vectors.T
    labels = jnp.arange(logits.shape[0])
    to_text = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    to_image = optax.softmax_cross_entropy_with_integer_labels(logits.T, labels)
    return jnp.mean(to_text + to_image) / 2


def train_step(params, opt_state, images, texts):
    """One step of gradient descent."""
    loss, grads = jax.value_and_grad(contrastive_loss)(params, images, texts)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def example_inputs(seed=0):
    """Two linear encoders and 24 pairs."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    params = {"image": normal(10, 4), "text": normal(6, 4), "log_scale": np.float32(1.0)}
    return params, optimizer.init(params), normal(24, 10), normal(24, 6)
