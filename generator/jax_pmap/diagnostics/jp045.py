"""JP045: not equal to the original."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP045",
    title="not equal to the original",
    exit_code=1,
    meaning=(
        "The parallel version was run beside the original on several simulated device counts, and "
        "at least one output differed by more than rounding, or in dtype, shape or structure. The "
        "message names the output, the device count and the error."
    ),
    why="Code that is nearly right trains a different model. Without equality nothing is written.",
    cure=(
        "Follow the likeliest cause in the message. The usual ones: a parameter whose first "
        "dimension equals the batch size was split (`--replicate NAME`); data was kept whole "
        "(`--shard NAME`); the function depends on the order of the batch, on time or on global "
        "state. If neither applies, please report it as a bug, with the function."
    ),
    example="""\
import jax.numpy as jnp


def apply(w, x):
    return jnp.mean(x @ w)
""",
    command="jax-pmap gen model.py::apply --arg 'w=f32[24]' --arg 'x=f32[24,24]' --shard w",
    fixed="$ jax-pmap gen model.py::apply --arg 'w=f32[24]' --arg 'x=f32[24,24]' --replicate w",
    fixed_language="console",
)
