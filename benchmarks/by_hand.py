"""The steps of the models as somebody would write them by hand for several devices.

Each is the body of a mapped function: what one device does with its share of the batch, with as little
communication as there can be.
"""

import jax
import jax.numpy as jnp
import optax

AXIS = "batch"


def mlp(module):
    """One mean of loss and gradients together."""

    def step(params, opt_state, batch):
        loss, grads = jax.value_and_grad(module.loss_fn)(params, batch)
        loss, grads = jax.lax.pmean((loss, grads), AXIS)
        updates, opt_state = module.tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return step


def predict(module):
    """The rows of a share, each alone: nothing is sent."""
    return module.predict


def gpt(module):
    """Sums over the tokens that count, and one sum over the devices of all that comes of them."""

    def step(state, batch):
        def total_loss(params):
            logits = state.apply_fn({"params": params}, batch["tokens"])
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
            return jnp.sum(losses * batch["mask"])

        total, grads = jax.value_and_grad(total_loss)(state.params)
        total, grads, count = jax.lax.psum((total, grads, jnp.sum(batch["mask"])), AXIS)
        return state.apply_gradients(grads=jax.tree.map(lambda g: g / count, grads)), total / count

    return step


def resnet(module):
    """Means of loss, gradients and right answers together; the layers synchronise themselves."""

    def step(state, images, labels):
        def loss_fn(params):
            variables = {"params": params, "batch_stats": state.batch_stats}
            logits, updates = state.apply_fn(variables, images, train=True, mutable=["batch_stats"])
            targets = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1]), 0.1)
            loss = optax.softmax_cross_entropy(logits, targets).mean()
            return loss, (updates["batch_stats"], logits)

        (loss, (batch_stats, logits)), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        accuracy = jnp.mean(jnp.argmax(logits, axis=-1) == labels)
        loss, grads, accuracy = jax.lax.pmean((loss, grads, accuracy), AXIS)
        state = state.apply_gradients(grads=grads, batch_stats=batch_stats)
        return state, {"loss": loss, "accuracy": accuracy}

    return step
