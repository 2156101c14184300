"""What JP102 finds and what it leaves alone, besides its own example."""

INVALID = (
    """\
from functools import partial

import jax
from jax import lax

AXIS = "batch"


@partial(jax.pmap, axis_name=AXIS)
def total(x):
    return lax.psum(x.sum(), "btach")
""",
    """\
import jax

total = jax.pmap(lambda x: jax.lax.pmean(x, "i"), "j")
""",
)
VALID = (
    """\
import functools

import jax


@functools.partial(jax.pmap, axis_name="devices")
def both(x):
    def inner(row):
        return jax.lax.psum(row, "examples") + jax.lax.psum(row, ("devices", "examples"))

    return jax.vmap(inner, axis_name="examples")(x)
""",
    """\
import jax


def per_example(x, axis):
    return jax.lax.psum(x, axis)


def outer(x):
    return jax.vmap(inner, axis_name="j")(x)


def inner(x):
    return jax.lax.psum(x, "i")


f = jax.pmap(outer, axis_name="i")
g = jax.pmap(jax.vmap(inner, axis_name="i"), axis_name="k")
h = jax.vmap(inner, axis_name="i")
""",
    """\
import jax
from settings import AXIS


def step(x):
    return jax.pmap(lambda y: jax.lax.psum(y, AXIS), axis_name="batch")


def choose(name):
    return jax.pmap(lambda y: jax.lax.psum(y, "batch"), axis_name=name)
""",
)
