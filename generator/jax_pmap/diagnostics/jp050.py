"""JP050: target needs the running program."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP050",
    title="target needs the running program",
    exit_code=1,
    meaning=(
        "The target is a method whose object is not given, or a function nested in another one whose "
        "variables it uses. It does not exist until your program has run so far."
    ),
    why=(
        "Importing the module does not create the object or the enclosing variables, so the "
        "function can be neither run nor imported by the emitted code."
    ),
    cure=(
        "Return the object of a method with its arguments, first of them, from the function that "
        "`--inputs` names: `(agent, batch)`. Or move the function to the top level of its module and pass "
        "what it took from `self` or from the enclosing function as arguments. Of a function that "
        "another one makes, make one at the top level (`step = make_step(0.1)`) and name that. Or "
        "have a program that calls it run (`--run`), and the function changed where it stands "
        "(`--in-place`); what it reads from its object or from the enclosing function must not change "
        "later, because compiled code keeps it."
    ),
    example="""\
import jax.numpy as jnp


def make_step(rate):
    def step(w, x):
        return w - rate * jnp.mean(x, axis=0)

    return step
""",
    command="jax-pmap gen train.py::make_step.step",
    fixed="""\
import jax.numpy as jnp


def step(w, x, rate):
    return w - rate * jnp.mean(x, axis=0)
""",
)
