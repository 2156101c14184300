"""JP048: axis name conflict."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP048",
    title="axis name conflict",
    exit_code=1,
    meaning=(
        "The function already has collectives over one axis name, in its own body or in a layer or "
        "function it calls, and another was asked for or there are several."
    ),
    why=(
        'A collective only sees the axis it names. Under any other name JAX raises "unbound axis '
        'name", and collectives over several axes need a mesh of several axes.'
    ),
    cure=(
        "Leave `--axis-name` away: the name that is there is used. If the function mixes names, make them "
        "one."
    ),
    example="""\
import jax
import jax.numpy as jnp


def total(x):
    return jax.lax.psum(jnp.sum(x), axis_name="devices")
""",
    command="jax-pmap gen ops.py::total --axis-name batch",
    fixed="$ jax-pmap gen ops.py::total --axis-name devices",
    fixed_language="console",
)
