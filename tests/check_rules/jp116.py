"""What JP116 finds and what it leaves alone, besides its own example."""

INVALID = ()
VALID = (
    """\
import jax

step = jax.pmap(lambda x, y: x + y)


def run(x, options):
    return step(x, y=x), step(x, **options)
""",
)
