"""A Flax NNX step: model, optimiser and metrics are objects that the step changes in place.

The dropout masks come from a stream of random numbers inside the model.
"""

import numpy as np
import optax
from flax import nnx


class Classifier(nnx.Module):
    """Two linear layers, dropout between them."""

    def __init__(self, *, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(8, 16, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.out = nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, x):
        """Logits of shape ``(batch, 4)``."""
        return self.out(self.dropout(nnx.relu(self.hidden(x))))


def loss_fn(model, batch):
    """Mean cross-entropy, and beside it the logits."""
    logits = model(batch["x"])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    return losses.mean(), logits


@nnx.jit
def train_step(model, optimizer, metrics, batch):
    """One step; loss and accuracy are added up in `metrics`."""
    (loss, logits), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model, batch)
    metrics.update(loss=loss, logits=logits, labels=batch["label"])
    optimizer.update(model, grads)


def example_inputs(seed=0):
    """Arguments for `train_step`: fresh objects and a batch of 48 examples."""
    model = Classifier(rngs=nnx.Rngs(seed))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)
    metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"), accuracy=nnx.metrics.Accuracy())
    rng = np.random.default_rng(seed)
    batch = {"x": rng.normal(size=(48, 8)).astype(np.float32), "label": rng.integers(0, 4, size=48)}
    return model, optimizer, metrics, batch
