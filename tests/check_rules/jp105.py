"""What JP105 finds and what it leaves alone, besides its own example."""

INVALID = (
    """\
import functools

import jax


@functools.partial(jax.pmap, axis_name="batch")
def train_step(state, x):
    def loss_fn(params):
        loss = state.apply_fn(params, x).sum()
        loss = jax.lax.psum(loss, "batch")
        return loss, {"loss": loss}

    (loss, aux), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    grads = jax.lax.psum(grads, "batch")
    return state.apply_gradients(grads=grads), loss
""",
    """\
import jax


def objective(w, x):
    return jax.lax.pmean(((x @ w) ** 2).mean(), axis_name="n")


def train(w, x):
    grad = jax.grad(objective)(w, x)
    return w - 0.1 * grad


p_train = jax.pmap(train, axis_name="n", in_axes=(None, 0), out_axes=None)
""",
    """\
import jax
import optax

tx = optax.sgd(0.1)


def train_step(params, opt_state, x, y):
    grads = jax.grad(lambda p: jax.lax.pmean(((x @ p - y) ** 2).mean(), "i"))(params)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


step = jax.pmap(train_step, axis_name="i", in_axes=(None, None, 0, 0), out_axes=None)
""",
    """\
import functools

import jax

average = functools.partial(jax.lax.pmean, axis_name="batch")


def synced_loss(w, x, rate):
    loss = (rate * (x @ w) ** 2).mean()
    return average(loss)


def compute_gradient(w, x):
    return jax.value_and_grad(functools.partial(synced_loss, rate=0.5))(w, x)


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0), out_axes=None)
def train_step(w, x):
    loss, grad = compute_gradient(w, x)
    return w - 0.1 * grad, loss
""",
    """\
import jax


def make_step(loss_fn):
    def train_step(params, batch):
        grads = jax.grad(loss_fn)(params, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    return train_step


def mapped(body):
    return jax.pmap(body, axis_name="i", in_axes=(None, 0), out_axes=None)


def total_loss(params, batch):
    return jax.lax.psum((params["w"] * batch).sum(), "i")


step = mapped(make_step(total_loss))
""",
    """\
import jax
from jax.sharding import PartitionSpec as P
from model import mesh


def step(w, x):
    return w - 0.1 * jax.grad(lambda v: jax.lax.pmean(((x @ v) ** 2).mean(), "i"))(w)


sharded = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("i")), out_specs=P(), check_vma=False)
""",
)
VALID = (
    """\
import functools

import jax


@functools.partial(jax.pmap, axis_name="batch")
def the_mean_of_the_gradients_makes_it_right(state, x):
    def loss_fn(params):
        return jax.lax.psum(state.apply_fn(params, x).sum(), "batch")

    grads = jax.grad(loss_fn)(state.params)
    grads = jax.lax.pmean(grads, "batch")
    return state.apply_gradients(grads=grads)


@functools.partial(jax.pmap, axis_name="batch")
def statistics_are_no_loss(state, x):
    def loss_fn(params):
        mean = jax.lax.pmean(x.mean(0), "batch")
        return state.apply_fn(params, x - mean).mean()

    grads = jax.lax.pmean(jax.grad(loss_fn)(state.params), "batch")
    return state.apply_gradients(grads=grads)
""",
    """\
import functools

import jax


def local_loss(w, x):
    return ((x @ w) ** 2).mean()


def make_step(loss_fn, average):
    def train_step(w, x):
        return w - 0.1 * average(jax.grad(lambda v: loss_fn(v, x))(w))

    return train_step


def averaged(tree):
    return jax.tree.map(lambda leaf: jax.lax.pmean(leaf, "i"), tree)


def mapped(body):
    return jax.pmap(body, axis_name="i", in_axes=(None, 0), out_axes=None)


step = mapped(make_step(local_loss, averaged))
other = mapped(make_step(local_loss, functools.partial(jax.lax.pmean, axis_name="i")))
""",
)
