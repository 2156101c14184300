"""JP059: an argument holds something that is neither an array nor a constant."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP059",
    title="an argument holds what is neither array nor constant",
    exit_code=1,
    meaning=(
        "One argument holds, beside its arrays, something that is no array and cannot be hashed: an "
        "array of strings, a set, an object of a class with an equality and no hash."
    ),
    why=(
        "Functions, flags and strings beside arrays (the activation functions of an Equinox module) "
        "are passed on as compile-time constants. jax looks such a constant up in its cache of "
        "compiled functions, so it has to be hashable."
    ),
    cure=(
        "Leave it out of the argument, or make it hashable: a tuple in place of an array of strings, "
        "a frozenset, a frozen dataclass. What differs from batch to batch, such as the examples' "
        "names, should not go into the function at all: every new value would be compiled anew."
    ),
    example="""\
import jax.numpy as jnp
import numpy as np


def mean(batch):
    return jnp.mean(batch["x"])


def make_inputs():
    return ({"x": np.arange(24.0), "names": np.array(["cat", "dog"] * 12)},)
""",
    command="jax-pmap gen model.py::mean --inputs model.py::make_inputs",
    fixed="""\
def mean(x):
    return jnp.mean(x)
""",
)
