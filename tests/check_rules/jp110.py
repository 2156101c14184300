"""What JP110 finds and what it leaves alone, besides its own example."""

INVALID = (
    """\
import jax

pairs = jax.pmap(lambda x: (x, x), out_axes=(0, {"last": -1}))
""",
)
VALID = (
    """\
import jax

rows = jax.vmap(lambda x: x, out_axes=-1)
last = jax.pmap(lambda x: x[-1], out_axes=(None, 0))
""",
)
