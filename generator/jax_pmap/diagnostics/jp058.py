"""JP058: one side of a conditional expression was never taken."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP058",
    title="one side of a conditional expression was never taken",
    exit_code=1,
    meaning=(
        "The example inputs always take the same side of an `A if TEST else B`, and other inputs "
        "may take the other one, in which no value was ever compared."
    ),
    why=(
        "A reduction on the side nobody saw would be left per device, or get the wrong collective. "
        "An `if` statement is guarded instead: its unseen branch raises in the emitted code. An "
        "expression has no room for that."
    ),
    cure=(
        "Write it as an `if` statement, decide it outside and pass a bool or a string (both values "
        "are then tried), or give inputs that take the other side."
    ),
    example="""\
import jax.numpy as jnp


def pooled(x, sizes):
    return jnp.sum(x) if len(sizes) > 3 else jnp.mean(x)


def make_inputs():
    return jnp.arange(120.0).reshape(24, 5), (1.0, 2.0)
""",
    command="jax-pmap gen model.py::pooled --inputs model.py::make_inputs",
    fixed="""\
def pooled(x, total: bool):
    if total:
        return jnp.sum(x)
    return jnp.mean(x)
""",
)
