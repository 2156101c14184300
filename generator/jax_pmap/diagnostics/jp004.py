"""JP004: target is not a function."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP004",
    title="target is not a function",
    exit_code=2,
    meaning=(
        "The name is a class or holds no callable; or it is a variable that stands for no one function, and "
        "is to be changed where it stands."
    ),
    why=(
        "Only a function that is written out has a body whose values can be observed and a signature that a "
        "drop-in can keep. Names of such functions are followed through `jax.jit(f)`, `partial(f, cfg)`, "
        "`make_step(model)` and the like. A `vmap` or `grad` of a function, or what else a variable holds, "
        "is called as it is from a file of its own, where no collective has to stand inside it."
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
    command="jax-pmap gen ops.py::scale_rows --in-place",
    fixed="""\
import jax


def scale(x, factor):
    return x * factor


def scale_rows(x, factor):
    return jax.vmap(scale, in_axes=(0, None))(x, factor)
""",
)
