"""What JP112 finds and what it leaves alone, besides its own example."""

INVALID = (
    """\
import functools

import jax


@jax.jit
@functools.partial(jax.pmap, axis_name="batch")
def step(x):
    return jax.lax.pmean(x, "batch")
""",
    """\
import jax

double = jax.pmap(lambda x: 2 * x)


@jax.jit
def step(x):
    return double(x) + 1
""",
)
VALID = (
    """\
import jax


@jax.pmap
@jax.jit
def step(x):
    return 2 * x


@jax.jit
def other(x):
    return x


def run(x):
    return step(other(x)), jax.jit(lambda y: jax.vmap(other)(y))(x)
""",
)
