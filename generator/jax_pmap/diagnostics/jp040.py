"""JP040: no batch axis found."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP040",
    title="no batch axis found",
    exit_code=1,
    meaning="No argument has an axis along which the function's work can be split.",
    why=(
        "Data parallelism gives every device a share of the batch. Without one, every device "
        "would repeat the same work."
    ),
    cure=(
        "If there is a batch, say where: `--shard x`, or `--shard tokens:1` for time-major data. "
        "A batch that the function makes itself is divided where it is made, if that can be shown right; "
        "`--shard rows` names its variable. "
        "If the function handles one example, wrap it in `jax.vmap` and parallelise the wrapper."
    ),
    example="""\
import jax.numpy as jnp


def normalise(image):
    return image / jnp.linalg.norm(image)
""",
    command="jax-pmap gen ops.py::normalise --arg 'image=f32[28,28]'",
    fixed="""\
import jax
import jax.numpy as jnp


def normalise(image):
    return image / jnp.linalg.norm(image)


def normalise_all(images):
    return jax.vmap(normalise)(images)
""",
)
