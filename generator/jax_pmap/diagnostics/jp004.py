"""JP004: target is not a function."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP004",
    title="target is not a function",
    exit_code=2,
    meaning="The name exists, but it is a class, a variable, a lambda or an import.",
    why=(
        "Only a function written with `def` has a body whose values can be observed and a "
        "signature that a drop-in can keep."
    ),
    cure=(
        "Name the function itself: the module that defines an imported one, a method as "
        "`Class.method`. Turn a lambda, or a call such as `step = jax.jit(f)`, into a `def`, or "
        "point at `f`."
    ),
    example="""\
import jax.numpy as jnp

scale = lambda x: x * jnp.float32(2)
""",
    command="jax-pmap gen ops.py::scale",
    fixed="""\
import jax.numpy as jnp


def scale(x):
    return x * jnp.float32(2)
""",
)
