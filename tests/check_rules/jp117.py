"""What JP117 finds and what it leaves alone, besides its own example."""

INVALID = ()
VALID = (
    """\
import jax

p_step = jax.pmap(lambda x, mode: x, static_broadcasted_argnums=(1,))


def train(x):
    for mode in ("train", "eval"):
        x = p_step(x, mode)
    return x
""",
)
