"""JP064: the run in several processes compared nothing."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP064",
    title="the run in several processes compared nothing",
    exit_code=1,
    meaning=(
        "`--processes` asks for code that is right in several processes, and the run that is to show it did "
        "not get to a comparison: the inputs are shapes alone, the batch has too few rows for the devices of "
        "all processes, or the collectives between processes are wrong on this machine by themselves."
    ),
    why=(
        "Whether each process takes its own rows, and whether results agree between processes, shows only "
        "where there are several. Before that, sums of whole numbers are taken twenty times over all "
        "processes: a transport that gets these wrong would make right code look wrong, or the reverse."
    ),
    cure=(
        "Give example inputs as arrays, with a batch of at least twice as many rows as there are devices. "
        "Where the transport is wrong, use another jaxlib, or leave `--processes` out."
    ),
    example="""\
import jax.numpy as jnp


def mean(x):
    return jnp.mean(x)
""",
    command="jax-pmap gen ops.py::mean --arg 'x=f32[10]' --processes 8",
    fixed="$ jax-pmap gen ops.py::mean --arg 'x=f32[48]' --processes 2",
    fixed_language="console",
)
