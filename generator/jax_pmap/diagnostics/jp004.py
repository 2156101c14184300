"""JP004: target is not a function."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP004",
    title="target is not a function",
    exit_code=2,
    meaning="The name is a class, an import, or a variable that does not stand for one function.",
    why=(
        "Only a function that is written out has a body whose values can be observed and a signature that a "
        "drop-in can keep. Names of such functions are followed through `jax.jit(f)`, `partial(f, cfg)`, "
        "`make_step(model)` and the like; a `vmap` or `grad` of a function is another function."
    ),
    cure=(
        "Name the function itself: the module that defines an imported one, a method as "
        "`Class.method`. Turn a variable that holds what a call makes into a `def` that makes the call."
    ),
    example="""\
import jax


def scale(x, factor):
    return x * factor


scale_rows = jax.vmap(scale, in_axes=(0, None))
""",
    command="jax-pmap gen ops.py::scale_rows",
    fixed="""\
import jax


def scale(x, factor):
    return x * factor


def scale_rows(x, factor):
    return jax.vmap(scale, in_axes=(0, None))(x, factor)
""",
)
