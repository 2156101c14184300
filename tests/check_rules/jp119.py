"""What JP119 finds and what it leaves alone, besides its own example."""

INVALID = (
    """\
import functools

import jax
import jax.numpy as jnp
from model import loss_fn


@functools.partial(jax.pmap, axis_name="batch")
def train_step(w, batch):
    loss, grad = jax.value_and_grad(loss_fn)(w, batch)
    grad = jnp.clip(grad, -1.0, 1.0)
    grad = jax.lax.pmean(grad, axis_name="batch")
    return w - 0.1 * grad
""",
    """\
import functools

import jax
import jax.numpy as jnp
import optax
from model import loss_fn


@functools.partial(jax.pmap, axis_name="batch")
def train_step(params, batch):
    grads = jax.grad(loss_fn)(params, batch)
    norm = optax.global_norm(grads)
    grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / norm), grads)
    grads = jax.lax.pmean(grads, axis_name="batch")
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
""",
)
VALID = (
    """\
import functools

import jax
import jax.numpy as jnp
import optax


@functools.partial(jax.pmap, axis_name="batch")
def values_may_be_clipped(params, batch):
    grads = jax.grad(lambda p: jnp.clip(p * batch, 0, 1).sum())(params)
    grads = jax.lax.pmean(grads, axis_name="batch")
    return grads


@functools.partial(jax.pmap, axis_name="batch")
def a_norm_may_be_logged(params, batch):
    grads = jax.grad(lambda p: (p * batch).sum())(params)
    norm = jnp.minimum(optax.global_norm(grads), 10.0)
    scaled = jax.tree.map(lambda g: 0.5 * g, grads)
    scaled = jax.lax.pmean(scaled, axis_name="batch")
    return scaled, norm
""",
)
