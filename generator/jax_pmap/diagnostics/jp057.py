"""JP057: an argument that is no tree."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP057",
    title="an argument that is no tree",
    exit_code=1,
    meaning=(
        "An argument is a graph of objects: one Flax NNX variable is reached by two paths (tied weights, "
        "an optimiser that holds its model), or the installed Flax has no pytree form of its objects."
    ),
    why=(
        "jax hands arguments to devices as trees of arrays. A shared variable would arrive as two, which "
        "get separate gradients and drift apart, without any error."
    ),
    cure=(
        "Keep the shared variable in one module and hand that module to both uses. With Flax before 0.12, "
        "upgrade, or pass `nnx.split(model)` and merge inside the function."
    ),
    example="""\
import jax.numpy as jnp
from flax import nnx


class Tied(nnx.Module):
    def __init__(self, rngs):
        self.encode = nnx.Linear(4, 4, rngs=rngs)
        self.decode = self.encode


def apply(model, x):
    return model.decode(model.encode(x))


def make_inputs():
    return Tied(nnx.Rngs(0)), jnp.ones((24, 4))
""",
    command="jax-pmap gen model.py::apply --inputs model.py::make_inputs",
    fixed="""\
class Tied(nnx.Module):
    def __init__(self, rngs):
        self.both = nnx.Linear(4, 4, rngs=rngs)


def apply(model, x):
    return model.both(model.both(x))
""",
)
