"""JP055: nothing to parallelise."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP055",
    title="nothing to parallelise",
    exit_code=1,
    meaning=(
        "No output depends on an argument that could be split, so every device would compute the same "
        "result. Or the function is parallel already: it calls a `pmap` or `shard_map`, or one that "
        "`--in-place` changed calls it on every device."
    ),
    why=(
        "More devices would cost more and give nothing. Often it means that the wrong function "
        "was named, or that the data comes from a global instead of an argument."
    ),
    cure="Make the batch an argument, and make sure that the result uses it.",
    example="""\
import jax.numpy as jnp

DATA = jnp.arange(24.0)


def loss(w):
    return jnp.mean((DATA * w) ** 2)
""",
    command="jax-pmap gen train.py::loss --arg 'w=f32[]'",
    fixed="""\
import jax.numpy as jnp


def loss(w, data):
    return jnp.mean((data * w) ** 2)
""",
)
