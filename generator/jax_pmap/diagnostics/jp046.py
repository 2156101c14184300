"""JP046: this backend cannot express the plan."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP046",
    title="this backend cannot express the plan",
    exit_code=1,
    meaning=(
        "The plan is sound, but the chosen backend has no way to write it. The message names a "
        "backend that has."
    ),
    why=(
        "For example, `shard_map` needs jax 0.7 or newer, and under `jit` there is no named axis "
        "for collectives that the function or a layer it calls already contains."
    ),
    cure="Repeat the command with the backend named in the message.",
    example="""\
import jax
import jax.numpy as jnp


def mean(x):
    return jax.lax.pmean(jnp.mean(x), axis_name="batch")
""",
    command="jax-pmap gen ops.py::mean --backend jit",
    fixed="$ jax-pmap gen ops.py::mean --backend pmap",
    fixed_language="console",
)
