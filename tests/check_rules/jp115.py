"""What JP115 finds and what it leaves alone, besides its own example."""

INVALID = (
    """\
import jax


@jax.pmap
def outer(x):
    return jax.pmap(lambda row: 2 * row)(x)
""",
)
VALID = (
    """\
import jax


@jax.pmap
def outer(x):
    return x


def run(x):
    return jax.pmap(lambda row: 2 * row)(outer(x))
""",
)
