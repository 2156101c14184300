"""JP043: batch-coupled value."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP043",
    title="batch-coupled value",
    exit_code=1,
    meaning=(
        "At the line shown, every entry of the result depends on other examples of the batch in a "
        "way no sum, mean, max or min over devices can restore: a cumulative sum, a sort, a "
        "median, a top-k or a roll along the batch."
    ),
    why=(
        "Each device sees only its share. A median of medians is not the median; a cumulative sum "
        "starts again from zero on every device. The code would run, and its numbers would be "
        "wrong. Where the examples can be gathered on every device and the rest of the function is "
        "still shared, that is done; here each device would repeat nearly all the work."
    ),
    cure=(
        "If the operation was meant to run along another axis, say so (`axis=1`). Variances, norms, "
        "softmax, covariances and their like are written out as sums, means and maxima for you, in float32 "
        "and float64; in narrower floats the hint shows how. If it must see "
        "the whole batch, keep that step in a function of its own on one device and parallelise "
        "the rest; or use `jax.jit` over `NamedSharding`, where the compiler inserts the "
        "communication."
    ),
    example="""\
import jax.numpy as jnp


def running_total(x):
    return jnp.cumsum(x, axis=0)
""",
    command="jax-pmap gen ops.py::running_total --arg 'x=f32[24,5]' --shard x",
    fixed="""\
import jax.numpy as jnp


def running_total(x):
    return jnp.cumsum(x, axis=1)
""",
)
