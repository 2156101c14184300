"""JP061: neither derived nor run."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP061",
    title="neither derived nor run",
    exit_code=1,
    meaning=(
        "The parallel version is derived equal operation by operation, for all inputs and device counts. "
        "Here the derivation ended early, at the operation and the line in the message, and the code was "
        "not run either: by `--no-run`, because the inputs are shapes alone, or because a run takes more "
        "memory or time than there is."
    ),
    why="What is neither derived nor run may be anything. Without equality nothing is written.",
    cure=(
        "Leave out `--no-run`, or give smaller inputs as arrays: the code is then tried on several device "
        "counts. Or write the operation that is named in another way."
    ),
    example="""\
import jax
import jax.numpy as jnp


def mean_of_host_values(x):
    y = jax.pure_callback(lambda a: 2 * a, x, x, vmap_method="expand_dims")
    return jnp.mean(y, axis=0)
""",
    command="jax-pmap gen data.py::mean_of_host_values --arg 'x=f32[24,3]' --no-run",
    fixed="$ jax-pmap gen data.py::mean_of_host_values --arg 'x=f32[24,3]'",
    fixed_language="console",
)
