"""JP047: static argument is not hashable."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP047",
    title="static argument is not hashable",
    exit_code=1,
    meaning=(
        "An argument that has to be a compile-time constant holds a list, a dict, an array or "
        "another value without a hash."
    ),
    why=(
        "JAX keeps one compiled program per static value and finds it by hash and equality. "
        "Without a hash there is nothing to look up."
    ),
    cure=(
        "Pass a tuple for a list, a frozen dataclass for a dict of settings. If the value is "
        "really an array or a number, do not make it static: a static number recompiles for every "
        "new value."
    ),
    example="""\
import jax.numpy as jnp


def moments(x, orders=[1, 2]):
    return [jnp.mean(x**order) for order in orders]
""",
    command="jax-pmap gen ops.py::moments --static orders",
    fixed="""\
import jax.numpy as jnp


def moments(x, orders=(1, 2)):
    return [jnp.mean(x**order) for order in orders]
""",
)
