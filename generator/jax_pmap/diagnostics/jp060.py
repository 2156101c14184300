"""JP060: an uneven batch cannot be made even."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP060",
    title="an uneven batch cannot be made even",
    exit_code=1,
    meaning=(
        "`--remainder pad` adds rows to a batch that the devices do not share evenly. Here they would change "
        "the result: something counts every row, or a run on such a batch differed from the original."
    ),
    why=(
        "A mean over a padded batch is the mean of other data, and nothing shows it. Only where every output "
        "belongs to one example, so that added ones can be cut off again, or where a mask or weight of zero "
        "leaves a row out of every sum, is padding neutral."
    ),
    cure=(
        "Give the function a mask or weights (an argument or entry of the batch called `mask`, `weights`, "
        "`valid` or `w`, or as in `loss_mask`, 0 for rows that do not count), multiply by it and "
        "divide by its sum. The emitted function fills it with zeros. "
        "Or leave the last rows out knowingly with `--remainder drop`."
    ),
    example="""\
import jax.numpy as jnp


def mean(x):
    return jnp.mean(x)
""",
    command="jax-pmap gen ops.py::mean --arg 'x=f32[24]' --remainder pad",
    fixed="""\
import jax.numpy as jnp


def mean(x, mask):
    return jnp.sum(x * mask) / jnp.sum(mask)
""",
)
