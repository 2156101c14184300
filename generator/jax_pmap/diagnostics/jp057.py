"""JP057: an argument that is no tree."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP057",
    title="an argument that is no tree",
    exit_code=1,
    meaning=(
        "An argument is a graph of objects that no assignment could put together again: one Flax NNX object "
        "stands in a tuple twice, or the installed Flax has no pytree form of its objects."
    ),
    why=(
        "jax hands arguments to devices as trees of arrays, in which a shared object arrives as two. "
        "Elsewhere the emitted code joins them, `optimizer.model = model`; a tuple cannot be changed, and "
        "two objects would get separate gradients and drift apart, without any error."
    ),
    cure=(
        "Pass a list in place of the tuple, or the objects as arguments of their own. With Flax before 0.12, "
        "upgrade, or pass `nnx.split(model)` and merge inside the function."
    ),
    example="""\
import jax.numpy as jnp
from flax import nnx


def apply(models, x):
    first, second = models
    return second(first(x))


def make_inputs():
    layer = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
    return (layer, layer), jnp.ones((24, 4))
""",
    command="jax-pmap gen model.py::apply --inputs model.py::make_inputs",
    fixed="""\
def apply(first, second, x):
    return second(first(x))
""",
)
