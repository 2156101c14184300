"""JP021: no way to call the parallel function."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP021",
    title="no way to call the parallel function",
    exit_code=2,
    meaning=(
        "`verify` calls the parallel function with the reference's example inputs: as they are, and with a "
        "device axis in front of the batch's arrays (N, B/N, …) and of copies of the others (N, …), in "
        "every mixture. Each of these calls raised an error, on every device count; or the call that was "
        "chosen raises one on inputs on which the reference runs."
    ),
    why="A function that was not run was not compared.",
    cure=(
        "Read the errors below the message: one of them is from the way the function is meant to be "
        "called. Give inputs it takes (`--inputs`, `--arg`), say which argument holds the batch (`--shard "
        "NAME:AXIS`), or how the function is called: `--layout drop-in`, `--layout stacked` (everything "
        "has a device axis), `--layout batch` (only what is split has one), or `--layout "
        "state=devices,x=devices` by argument. Where it is a parallel reference that fails, "
        "`--against-layout` takes the same words."
    ),
    example="""\
import functools

import jax
import jax.numpy as jnp


def total(x):
    return jnp.sum(x)


@functools.partial(jax.pmap, axis_name="batch")
def p_total(x):
    return jax.lax.psum(total(x), "devices")
""",
    command="jax-pmap verify model.py::p_total --against model.py::total --arg 'x=f32[24,4]'",
    fixed="""\
import functools

import jax
import jax.numpy as jnp


def total(x):
    return jnp.sum(x)


@functools.partial(jax.pmap, axis_name="devices")
def p_total(x):
    return jax.lax.psum(total(x), "devices")
""",
)
