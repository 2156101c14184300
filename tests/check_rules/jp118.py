"""What JP118 finds and what it leaves alone, besides its own example."""

INVALID = ()
VALID = (
    """\
import jax

p_step = jax.pmap(lambda s, b: s, donate_argnums=(0,))


def train(state, batches):
    if batches is None:
        result = p_step(state, 1)
        return result
    result = p_step(state, batches[0])
    state = result
    print(state)
    return state
""",
)
