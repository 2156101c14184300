"""JP053: a callable argument decides the reduction."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP053",
    title="a callable argument decides the reduction",
    exit_code=1,
    meaning=(
        "The function reduces over the batch with a function it was given, so which collective is "
        "right depends on the caller."
    ),
    why=(
        "`jnp.mean` needs `pmean`, `jnp.sum` needs `psum`, `jnp.median` has none. Code proved "
        "with one would be wrong with another."
    ),
    cure="Call the reduction by name in the body, with one function per reduction.",
    example="""\
import jax.numpy as jnp


def summarise(x, reduce=jnp.mean):
    return reduce(x**2)
""",
    command="jax-pmap gen ops.py::summarise",
    fixed="""\
import jax.numpy as jnp


def summarise(x):
    return jnp.mean(x**2)
""",
)
