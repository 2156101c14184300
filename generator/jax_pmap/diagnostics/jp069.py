"""JP069: no one set of collectives fits."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP069",
    title="no one set of collectives fits",
    exit_code=1,
    meaning=(
        "A place in the code would need one collective in one call and another in the next: a "
        "helper that decides by a size which belongs to the batch once and not the other time, or "
        "a call that runs methods of several classes. Or collectives were tried round after round "
        "and none made the result whole."
    ),
    why=("The emitted code has one text for each function; it cannot do both."),
    cure=(
        "Decide outside and pass the decision (a bool), call two functions, or give the methods "
        "different names. Split a function in which no progress is made, so that each reduced "
        "value has a statement of its own."
    ),
    example="""\
import jax.numpy as jnp


def centred(x):
    if len(x) > 12:
        return x - jnp.mean(x, axis=0)
    return x


def both(x, table):
    return centred(x), centred(table)
""",
    command="jax-pmap gen both.py::both --arg 'x=f32[24,3]' --arg 'table=f32[5,3]' --shard x",
    fixed="""\
import jax.numpy as jnp


def centred(x):
    return x - jnp.mean(x, axis=0)


def both(x, table):
    return centred(x), table
""",
)
