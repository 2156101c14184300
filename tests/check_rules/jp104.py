"""What JP104 finds and what it leaves alone, besides its own example."""

INVALID = (
    """\
import jax
from flax import jax_utils


def train_step(state, batch):
    def loss_fn(params):
        logits = state.apply_fn(params, batch["x"])
        return ((logits - batch["y"]) ** 2).mean(), logits

    grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
    (loss, logits), grads = grad_fn(state.params)
    state = state.apply_gradients(grads=grads)
    return state, jax.lax.pmean({"loss": loss}, "batch")


def main(state, batches):
    state = jax_utils.replicate(state)
    step = jax.pmap(train_step, axis_name="batch")
    for batch in batches:
        state, metrics = step(state, batch)
""",
    """\
import jax
from jax import lax


class Trainer:
    def __init__(self):
        self.step = jax.pmap(self._step, axis_name="i")

    def loss(self, params, x):
        return (params["w"] * x).sum()

    def _step(self, params, x):
        grads = jax.grad(self.loss)(params, x)
        return jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, params, grads)
""",
    """\
import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0))
def train_step(w, x):
    loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    return w - 0.1 * grad, jax.lax.pmean(loss, "batch")
""",
)
VALID = (
    """\
import functools

import jax
import optax
from model import loss_fn

tx = optax.adam(1e-3)


@functools.partial(jax.pmap, axis_name="batch")
def train_step(params, opt_state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    loss, grads = jax.lax.pmean((loss, grads), axis_name="batch")
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss
""",
    """\
import jax
import optax

tx = optax.sgd(0.1)


@jax.pmap
def train_one_member_of_an_ensemble(params, opt_state, batch):
    grads = jax.grad(lambda p: (p * batch).sum())(params)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state
""",
    """\
import functools

import jax
from training import optimizer, sync


@functools.partial(jax.pmap, axis_name="batch")
def helper_synchronises(params, opt_state, batch):
    grads = jax.grad(lambda p: (p * batch).sum())(params)
    grads = sync(grads)
    updates, opt_state = optimizer.update(grads, opt_state)
    return updates, opt_state


@functools.partial(jax.pmap, axis_name="batch")
def updates_are_averaged(params, opt_state, batch):
    grads = jax.grad(lambda p: (p * batch).sum())(params)
    updates, opt_state = optimizer.update(grads, opt_state)
    updates = jax.lax.pmean(updates, "batch")
    return updates, opt_state


@functools.partial(jax.pmap, axis_name="batch")
def mapped_over_leaves(params, opt_state, batch):
    grads = jax.grad(lambda p: (p * batch).sum())(params)
    grads = jax.tree.map(lambda g: jax.lax.pmean(g, "batch"), grads)
    updates, opt_state = optimizer.update(grads, opt_state)
    return updates, opt_state


@functools.partial(jax.pmap, axis_name="batch")
def mapped_with_partial(params, opt_state, batch):
    grads = jax.grad(lambda p: (p * batch).sum())(params)
    grads = jax.tree_util.tree_map(functools.partial(jax.lax.pmean, axis_name="batch"), grads)
    updates, opt_state = optimizer.update(grads, opt_state)
    return updates, opt_state
""",
    """\
import functools

import jax


def average(tree):
    return jax.lax.pmean(tree, "batch")


def loss_fn(w, x):
    return (w * x).sum()


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0))
def by_a_helper(w, x):
    grad = average(jax.grad(loss_fn)(w, x))
    return w - 0.1 * grad


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0))
def after_some_steps(w, xs):
    def one(w, x):
        grad = jax.grad(loss_fn)(w, x)
        return w - 0.1 * grad, None

    w, _ = jax.lax.scan(one, w, xs)
    return average(w)


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, None))
def now_and_then(w, x, step):
    grad = jax.grad(loss_fn)(w, x)
    w = w - 0.1 * grad
    return jax.lax.cond(step % 4 == 0, average, lambda w: w, w)
""",
)
