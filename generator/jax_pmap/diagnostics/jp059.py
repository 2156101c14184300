"""JP059: an argument mixes arrays with other things."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP059",
    title="an argument mixes arrays with other things",
    exit_code=1,
    meaning=(
        "One argument holds arrays and, beside them as leaves, functions, strings or other objects. "
        "`pmap`, `shard_map` and `jit` take arrays and numbers only."
    ),
    why=(
        "Such a leaf can neither be put on a device nor made static while the arrays around it are "
        "traced. Equinox modules are the common case: their activation functions are leaves, which "
        "is why Equinox has filtered transformations of its own."
    ),
    cure=(
        "Split the argument: pass the arrays, and keep the rest at module level or in an argument of "
        "its own (it becomes static). For an Equinox module, `eqx.partition(model, eqx.is_array)` "
        "gives both halves and `eqx.combine` joins them inside the function."
    ),
    example="""\
import jax.numpy as jnp


def apply(layer, x):
    return layer["act"](x @ layer["w"])


def make_inputs():
    return {"w": jnp.ones((5, 3)), "act": jnp.tanh}, jnp.arange(120.0).reshape(24, 5)
""",
    command="jax-pmap gen model.py::apply --inputs model.py::make_inputs",
    fixed="""\
def apply(w, x):
    return jnp.tanh(x @ w)
""",
)
