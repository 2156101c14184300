"""What JP122 finds and what it leaves alone, besides its own example."""

INVALID = (
    """\
import jax


def loss(w, x):
    error = x @ w
    return (error**2).sum()


p_loss = jax.pmap(loss, in_axes=(None, 0), out_axes=None)
""",
    """\
import jax


def error(w, x):
    return x @ w


def loss(w, x):
    found = error(w, x)
    return {"loss": (found**2).sum()}


p_loss = jax.pmap(loss, in_axes=(None, 0), out_axes=None)
""",
)
VALID = (
    """\
import functools

import jax
import jax.numpy as jnp
from model import synced_loss


@functools.partial(jax.pmap, axis_name="batch", out_axes=None)
def another_file_may_hold_the_collective(x):
    return synced_loss(x)


@functools.partial(jax.pmap, in_axes=(None, 0), out_axes=None)
def nothing_of_the_shares_is_returned(w, x):
    return jnp.sum(w) * x.shape[0]


@functools.partial(jax.pmap, out_axes=None)
def a_method_may_hold_it(model, x):
    return model.loss(x)


unreplicate = jax.pmap(lambda copies: copies, out_axes=None)


@functools.partial(jax.pmap, in_axes=(0, None), out_axes=None)
def the_first_of_equal_copies(params, name):
    return params


@functools.partial(jax.pmap, in_axes=(None, 0), out_axes=None)
def a_norm_of_equal_copies(scale, params):
    return scale * jnp.sum(params["w"] ** 2)


@jax.pmap
def one_for_each_device(x):
    return jnp.mean(x)
""",
    """\
import functools

import jax
import jax.numpy as jnp
from model import synced_loss


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0), out_axes=None)
def the_loss_may_hold_a_collective(w, x):
    return jax.grad(synced_loss)(w, x)


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0), out_axes=None)
def a_loop_holds_it(w, x):
    def one(carry, _):
        return jax.lax.pmean(carry + x, "batch"), None

    last, _ = jax.lax.scan(one, w, None, length=3)
    return last


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0), out_axes=None)
def the_whole_batch(w, x):
    return jnp.mean(jax.lax.all_gather(x, "batch") @ w)


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0), out_axes=None)
def nothing_but_the_shape(w, x):
    return jnp.zeros_like(x), len(x)
""",
)
