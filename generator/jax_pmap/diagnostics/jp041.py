"""JP041: batch too small or not divisible."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP041",
    title="batch too small or not divisible",
    exit_code=1,
    meaning=(
        "The batch axis has fewer entries than there are devices, or does not divide evenly among them. Or "
        "the function is another program for other numbers of rows, and what is shown equal is for batches "
        "unlike the given one."
    ),
    why=(
        "`jax.pmap` and `shard_map` give every device a share of the same shape. Dropping the "
        "remainder loses rows, and padding with zeros changes every mean."
    ),
    cure=(
        "Choose a batch size that is a multiple of the device count: 24 suits 2, 3, 4 and 8. "
        "Otherwise ask for fewer devices with `--devices`. For batches that come uneven, such as the last "
        "one of an epoch, `--remainder pad` or `--remainder drop` emit code that takes any size."
    ),
    example="""\
import jax.numpy as jnp


def mean(x):
    return jnp.mean(x)
""",
    command="jax-pmap gen ops.py::mean --arg 'x=f32[10]' --devices 4",
    fixed="$ jax-pmap gen ops.py::mean --arg 'x=f32[24]' --devices 4",
    fixed_language="console",
)
