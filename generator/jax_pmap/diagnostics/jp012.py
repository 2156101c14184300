"""JP012: the worker process ended unexpectedly."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP012",
    title="the worker process ended unexpectedly",
    exit_code=2,
    meaning=(
        "The process that runs your code went away in the middle: `sys.exit`, `os._exit`, a crash "
        "in native code of jax or of a package (`SIGABRT`, `SIGSEGV`), or a signal from outside."
    ),
    why="Whatever it had shown up to then is incomplete, so it counts for nothing.",
    cure=(
        "Look for an exit in the module or in the function, for example a script that parses its "
        "command line at import time. What the process printed last is shown with the message. A "
        "`SIGKILL` that nobody sent is usually the system running out of memory. After a crash, run the "
        "command again; what crashes in plain Python too is an error of the package that crashes."
    ),
    example="""\
import sys

import jax.numpy as jnp

if len(sys.argv) < 2:
    sys.exit("usage: train.py DATA")


def mean(x):
    return jnp.mean(x)
""",
    command="jax-pmap gen train.py::mean",
    fixed="""\
import sys

import jax.numpy as jnp


def mean(x):
    return jnp.mean(x)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: train.py DATA")
""",
)
