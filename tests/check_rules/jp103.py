"""What JP103 finds and what it leaves alone, besides its own example."""

INVALID = (
    """\
import jax


@jax.pmap
def total(x):
    return jax.lax.psum(x.sum())
""",
    """\
import jax


@jax.pmap
def total(x):
    return jax.lax.psum(x.sum(), "i") + jax.lax.pmax(x.max(), "i")
""",
)
VALID = (
    """\
import jax


@jax.pmap
def nothing_shared(x):
    return x.sum()


def helper(x, axis_name=None):
    return x if axis_name is None else jax.lax.psum(x, axis_name)
""",
    """\
import jax


@jax.pmap
def inner_axis(x):
    return jax.vmap(lambda row: jax.lax.psum(row, "rows"), axis_name="rows")(x)


def pmean(x):
    return x


arguments = (1, "i")
total = jax.lax.psum(*arguments)
""",
)
