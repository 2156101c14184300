"""JP053: a callable or object argument can change the reduction."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP053",
    title="a callable or object can change the reduction",
    exit_code=1,
    meaning=(
        "The function was given a function or an object (such as a configuration), so which "
        "collective is right may depend on the caller, and the emitted file cannot tell another "
        "value from the one that was tried."
    ),
    why=(
        "`jnp.mean` needs `pmean`, `jnp.sum` needs `psum`, `jnp.median` has none. Code proved "
        "with one would be silently wrong with another. Numbers, strings and a parameter's own "
        "default are compared in the emitted file, which takes no other value, and so is what the body reads "
        "of a configuration (`config.rate`), where it does nothing else with it. Functions, lambdas, "
        "partials and objects are told from others by their code and by what they hold. A callable that is "
        "only called with what is the same on every device, such as an optimiser, is taken as it is. What is "
        "left is written in C, or holds something that is: nothing can be read of it."
    ),
    cure=(
        "Make the value the parameter's default, call the function by name in the body, or accept "
        "that the proof holds for this value alone: `--static NAME`."
    ),
    example="""\
import operator

import jax.numpy as jnp


def summarise(x, reduce):
    return reduce(x**2)


def make_inputs():
    return jnp.arange(120.0).reshape(24, 5), operator.methodcaller("mean")
""",
    command="jax-pmap gen ops.py::summarise --inputs ops.py::make_inputs",
    fixed="""\
import jax.numpy as jnp


def summarise(x, reduce=jnp.mean):
    return reduce(x**2)
""",
)
