"""JP068: fails on a device's share."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP068",
    title="fails on a device's share",
    exit_code=1,
    meaning=(
        "The function runs on the whole batch and raises on the share that one of several devices "
        "has, or inside a map over devices whatever the batch. The message has the error and the "
        "line that fails, or the one behind which it does."
    ),
    why=(
        "Most often a size of the whole batch is written into the function, as the length of a constant "
        "or in a library's module. Where the function itself, or a function or method of yours that it runs, "
        "says the rows of the batch, they become those of the share; another number does not, nor does one "
        "in a method that uses `super()` or whose class stands in a function."
    ),
    cure=(
        "Take the size from a shape (`x.shape[0]`). If an argument was split that all devices "
        "need whole, say so: `--replicate NAME`. Where one argument has two rows for each row of another, as "
        "answers chosen and rejected beside one score for each pair (DPO), give both an axis of as many "
        "examples: the answers as `(2, B, ...)`. Or use `--backend jit`, where every device sees "
        "the whole program."
    ),
    example="""\
import jax.numpy as jnp


def pairs(x):
    return jnp.mean(x.reshape(24, 2, -1), axis=1)
""",
    command="jax-pmap gen pairs.py::pairs --arg 'x=f32[48,3]'",
    fixed="""\
import jax.numpy as jnp


def pairs(x):
    return jnp.mean(x.reshape(-1, 2, x.shape[1]), axis=1)
""",
)
