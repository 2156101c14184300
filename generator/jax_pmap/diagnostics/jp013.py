"""JP013: the `--inputs` callable is unusable."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP013",
    title="the `--inputs` callable is unusable",
    exit_code=2,
    meaning=(
        "The callable named by `--inputs` does not exist, raises, or returns arguments the target "
        "cannot be called with."
    ),
    why="The example inputs are what the function is observed and proved on.",
    cure=(
        "Return the tuple of positional arguments, a dict of all arguments by name, or `(args, kwargs)`; "
        "one argument is still a tuple: `return (x,)`. If the callable takes a `seed`, it is called again "
        "with fresh seeds."
    ),
    example="""\
import jax.numpy as jnp


def loss(params, x):
    return jnp.mean((x @ params) ** 2)


def make_inputs(seed):
    return jnp.ones((8, 4))
""",
    command="jax-pmap gen train.py::loss --inputs train.py::make_inputs",
    fixed="""\
import jax
import jax.numpy as jnp


def loss(params, x):
    return jnp.mean((x @ params) ** 2)


def make_inputs(seed):
    a, b = jax.random.split(jax.random.key(seed))
    return jax.random.normal(a, (4,)), jax.random.normal(b, (24, 4))
""",
)
