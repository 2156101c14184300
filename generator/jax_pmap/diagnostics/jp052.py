"""JP052: Python control flow on a traced value."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP052",
    title="Python control flow on a traced value",
    exit_code=1,
    meaning=(
        "An `if`, `while`, `assert`, `bool(...)` or a format such as `{loss:.3f}` asks for the value of an "
        "array that is only known when the program runs."
    ),
    why=(
        "Called directly, the function works, because arrays have values then. Under `jax.pmap`, "
        "as under `jax.jit`, the body is traced once for all values and JAX raises "
        "`TracerBoolConversionError`."
    ),
    cure=(
        "Use `jnp.where` for a choice between values, `jax.lax.cond` or `jax.lax.while_loop` for "
        "control flow, and `jax.debug.print` to print. If the branch depends on an option, not on data, make "
        "it static: `--static NAME`."
    ),
    example="""\
import jax.numpy as jnp


def loss(x):
    value = jnp.mean(x**2)
    if value > 1.0:
        value = jnp.sqrt(value)
    return value
""",
    command="jax-pmap gen train.py::loss",
    fixed="""\
import jax.numpy as jnp


def loss(x):
    value = jnp.mean(x**2)
    return jnp.where(value > 1.0, jnp.sqrt(value), value)
""",
)
