"""JP056: async or generator function."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP056",
    title="async or generator function",
    exit_code=1,
    meaning="The target is an `async def`, or contains `yield`.",
    why=(
        "`jax.pmap` traces a function from its arguments to its result. A coroutine or a "
        "generator returns before its body has run."
    ),
    cure=(
        "Move the array work into a plain function, parallelise that, and call it from the "
        "coroutine or the generator."
    ),
    example="""\
import jax.numpy as jnp


def losses(batches):
    for batch in batches:
        yield jnp.mean(batch**2)
""",
    command="jax-pmap gen train.py::losses",
    fixed="""\
import jax.numpy as jnp


def loss(batch):
    return jnp.mean(batch**2)
""",
)
