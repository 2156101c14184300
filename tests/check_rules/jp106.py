"""What JP106 finds and what it leaves alone, besides its own example."""

INVALID = (
    """\
import jax
from jax import random

key = random.PRNGKey(0)


@jax.pmap
def drop(x):
    mask = random.bernoulli(key, 0.5, x.shape)
    return x * mask
""",
    """\
import functools

import jax


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, None))
def train_step(params, x, rng):
    return model.apply(params, x, rngs={"dropout": rng})
""",
    """\
import equinox as eqx
import jax
import jax.numpy as jnp


def loss_fn(model, x, y, key):
    keys = jax.random.split(key, x.shape[0])
    return jnp.mean((jax.vmap(model)(x, key=keys) - y) ** 2)


@eqx.filter_pmap(axis_name="i", in_axes=(None, 0, 0, None), out_axes=None)
def train_step(model, x, y, key):
    loss, grads = eqx.filter_value_and_grad(loss_fn)(model, x, y, key)
    return jax.lax.pmean(loss, "i"), jax.lax.pmean(grads, "i")
""",
    """\
import functools

import equinox as eqx
import jax


def noisy(model, x, key):
    return model(x + jax.random.normal(key, x.shape))


step = eqx.filter_pmap(noisy, in_axes=dict(model=None, key=None))
""",
    """\
import jax
import jax.numpy as jnp


@jax.pmap
def add_noise(key, x):
    return x + jax.random.normal(key, x.shape)


def run(key, x):
    keys = jnp.stack([key] * jax.local_device_count())
    return add_noise(keys, x)
""",
    """\
import jax
import jax.numpy as jnp


def noise(key, shape):
    return jax.random.normal(key, shape)


def copies(key):
    keys = jnp.stack([key] * jax.local_device_count())
    return keys


@jax.pmap
def add_noise(x, key):
    return x + noise(key, x.shape)


def run(key, x):
    return add_noise(x, key=copies(key))
""",
)
VALID = (
    """\
import jax


@jax.pmap
def one_key_per_device(key, x):
    return x + jax.random.normal(key, x.shape)


def parameters_are_the_same_everywhere(key):
    return jax.random.normal(key, (8, 8))


init = jax.pmap(parameters_are_the_same_everywhere, in_axes=None, axis_size=8)
""",
    """\
import functools

import equinox as eqx
import jax
import jax.numpy as jnp


@eqx.filter_pmap(in_axes=(None, 0, 0))
def a_key_for_each(model, x, key):
    return jax.vmap(model)(x, key=jax.random.split(key, x.shape[0]))


@jax.pmap
def add_noise(key, x):
    return x + jax.random.normal(key, x.shape)


@jax.pmap
def the_same_parameters(key):
    return jax.random.normal(key, (3, 3))


@functools.partial(jax.pmap, in_axes=(None, 0))
def the_same_order_on_all_devices(key, x):
    return jax.random.permutation(key, x)


def run(key, x):
    n = jax.local_device_count()
    params = the_same_parameters(jnp.stack([key] * n))
    return params, add_noise(jnp.stack([jax.random.fold_in(key, i) for i in range(n)]), x)
""",
)
