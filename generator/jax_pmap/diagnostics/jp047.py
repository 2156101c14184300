"""JP047: static argument is not hashable."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP047",
    title="static argument is not hashable",
    exit_code=1,
    meaning=(
        "An argument that has to be a compile-time constant is an array, or something else without a hash of "
        "which nothing can be read that would tell it from another one."
    ),
    why=(
        "JAX keeps one compiled program per static value and finds it by hash and equality. "
        "A dict, a list or a configuration without a hash is told by what it holds; an array would take a "
        "compilation for every new one."
    ),
    cure=(
        "Leave out `--static`: an array is passed to every device whole, or split. Of other values pass what "
        "can be hashed, a tuple or a frozen dataclass."
    ),
    example="""\
import jax.numpy as jnp


def weighted(x, weights=jnp.ones(5)):
    return jnp.mean(x @ weights)
""",
    command="jax-pmap gen ops.py::weighted --arg 'x=f32[24,5]' --static weights",
    fixed="""\
import jax.numpy as jnp

WEIGHTS = jnp.ones(5)


def weighted(x):
    return jnp.mean(x @ WEIGHTS)
""",
)
