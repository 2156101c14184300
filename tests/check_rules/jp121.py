"""What JP121 finds and what it leaves alone, besides its own example."""

INVALID = (
    """\
import jax


def evaluate(losses, batch):
    loss = (losses * batch["weights"]).sum() / batch["weights"].sum()
    return jax.lax.pmean(loss, "i")


p_evaluate = jax.pmap(evaluate, axis_name="i")
""",
    """\
import jax
import jax.numpy as jnp


def cross_entropy(logits, targets, weights=None):
    loss = -jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1)
    normalizer = targets.size
    if weights is not None:
        loss = loss * weights
        normalizer = weights.sum()
    return loss.sum(), normalizer


def train_step(state, batch):
    weights = jnp.where(batch["targets"] > 0, 1, 0).astype(jnp.float32)

    def loss_fn(params):
        logits = state.apply_fn(params, batch["inputs"])
        loss, weight_sum = cross_entropy(logits, batch["targets"], weights)
        return loss / weight_sum, logits

    (_, logits), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    grads = jax.lax.pmean(grads, "batch")
    return state.apply_gradients(grads=grads)


p_train_step = jax.pmap(train_step, axis_name="batch", donate_argnums=(0,))
""",
    """\
import functools

import jax
import jax.numpy as jnp


def sums(values, mask):
    return jnp.sum(values * mask), jnp.maximum(jnp.sum(mask), 1)


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0), out_axes=None)
def evaluate(params, batch):
    loss, count = sums(batch["x"] @ params, batch["mask"])
    return jax.lax.pmean({"loss": loss / count, "count": count}, "batch")
""",
)
VALID = (
    """\
import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.pmap, axis_name="batch")
def of_what_is_the_same_on_all_devices(values, mask):
    count = jax.lax.psum(jnp.sum(mask), "batch")
    return jax.lax.pmean(jnp.sum(values * mask) / count, "batch")


@functools.partial(jax.pmap, axis_name="batch")
def the_mask_is_the_same_everywhere(scores):
    mask = jnp.tril(jnp.ones((8, 8)))
    return jax.lax.pmean(jnp.sum(scores * mask) / jnp.sum(mask), "batch")


@functools.partial(jax.pmap, axis_name="batch")
def a_mask_of_the_parameters(params, x):
    kept = jnp.sum(params["w"] * params["mask"]) / jnp.sum(params["mask"])
    return jax.lax.pmean(x * kept, "batch"), jax.lax.pmean(kept, "batch")


@functools.partial(jax.pmap, axis_name="batch")
def everything_is_gathered_first(values, mask):
    values, mask = jax.lax.all_gather((values, mask), "batch")
    return jax.lax.pmean(jnp.sum(values * mask) / jnp.sum(mask), "batch")


@functools.partial(jax.pmap, axis_name="batch")
def of_a_plain_size(values):
    return jax.lax.pmean(jnp.sum(values) / values.size, "batch")


@functools.partial(jax.pmap, axis_name="batch")
def normalised_for_each_example(values, mask):
    each = (values * mask).sum(-1) / mask.sum(-1)
    return jax.lax.pmean(each.mean(), "batch")


@functools.partial(jax.pmap, axis_name="batch", in_axes=(0, None))
def weights_of_classes(values, class_weights):
    return jax.lax.pmean(jnp.sum(values @ class_weights) / jnp.sum(class_weights), "batch")
""",
    """\
import jax
import jax.numpy as jnp


def cross_entropy(logits, targets, weights=None):
    loss = -jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1)
    normalizer = targets.size
    if weights is not None:
        loss = loss * weights
        normalizer = weights.sum()
    return loss.sum(), normalizer


def without_weights(state, batch):
    def loss_fn(params):
        loss, count = cross_entropy(state.apply_fn(params, batch["inputs"]), batch["targets"])
        return loss / count

    return state.apply_gradients(grads=jax.lax.pmean(jax.grad(loss_fn)(state.params), "batch"))


def summed_first(state, batch):
    def loss_fn(params):
        logits = state.apply_fn(params, batch["inputs"])
        loss, weight_sum = cross_entropy(logits, batch["targets"], batch["weights"])
        return loss / jax.lax.psum(weight_sum, "batch")

    return state.apply_gradients(grads=jax.lax.psum(jax.grad(loss_fn)(state.params), "batch"))


def normalised_for_each_sequence(values, mask):
    each = jax.vmap(lambda value, kept: jnp.sum(value * kept) / jnp.sum(kept))(values, mask)
    return jax.lax.pmean(each.mean(), "batch")


a = jax.pmap(without_weights, axis_name="batch")
c = jax.pmap(normalised_for_each_sequence, axis_name="batch")
b = jax.pmap(summed_first, axis_name="batch")
""",
)
