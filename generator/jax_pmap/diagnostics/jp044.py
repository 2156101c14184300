"""JP044: output is not an array."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP044",
    title="output is not an array",
    exit_code=1,
    meaning=(
        "The function returns something that is neither an array nor a number: a string, a "
        "function, an object that is not a pytree."
    ),
    why=(
        "Results cross the boundary of `jax.pmap` as arrays. Anything else has no per-device "
        'value, and JAX rejects it as "not a valid JAX type".'
    ),
    cure=(
        "Return arrays from the parallel function and build the rest outside. Register your own "
        "class with `jax.tree_util.register_dataclass` and mark its non-array fields as "
        "`meta_fields`."
    ),
    example="""\
import jax.numpy as jnp


def evaluate(x):
    return jnp.mean(x), "ok"
""",
    command="jax-pmap gen eval.py::evaluate",
    fixed="""\
import jax.numpy as jnp


def evaluate(x):
    return jnp.mean(x)
""",
)
