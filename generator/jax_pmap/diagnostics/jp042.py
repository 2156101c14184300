"""JP042: unknown decorator."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP042",
    title="unknown decorator",
    exit_code=1,
    meaning=(
        "The target wears a decorator that is not known to merely compile, and is to be changed where it "
        "stands, or taken from a program that is run: what the decorator adds to the function is unknown. "
        "Or the file reads what only `jax.jit` makes, as in `step.lower`."
    ),
    why=(
        "Decorators such as `jax.jit` are set aside because they do not change the result. One "
        "that caches, changes arguments or maps an axis does, and it would be lost or run once per "
        "device. One of yours is taken where its wrapper, `def wrapper(*args, **kwargs)`, calls the function "
        "once with just these and returns what comes back; where it gives back the function, as one does "
        "that enters it in a table; or where it is another name for what checks types, as in "
        "`typed = jaxtyped(typechecker=beartype)`. Into a file of its own, a function with any other "
        "decorator is called as it is, where no collective has to stand inside it."
    ),
    cure="Keep the decorator on a thin wrapper and point jax-pmap at the undecorated function.",
    example="""\
import functools

import jax.numpy as jnp


def with_norm(f):
    @functools.wraps(f)
    def wrapped(x):
        return f(x / jnp.linalg.norm(x))

    return wrapped


@with_norm
def energy(x):
    return jnp.sum(x**2)
""",
    command="jax-pmap gen ops.py::energy --in-place",
    fixed="""\
import jax.numpy as jnp


def energy(x):
    x = x / jnp.linalg.norm(x)
    return jnp.sum(x**2)
""",
)
