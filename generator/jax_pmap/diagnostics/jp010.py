"""JP010: time limit reached."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP010",
    title="time limit reached",
    exit_code=2,
    meaning="Loading, planning or proving took more than `--timeout` seconds, and its process was ended.",
    why=(
        "An endless loop, a download at import time or a very large compilation cannot be told "
        "apart from outside."
    ),
    cure=(
        "Use a smaller model or smaller example inputs: equality does not depend on their size. "
        "Move slow work out of import time. If it is merely slow, raise `--timeout`."
    ),
    example="""\
import time

import jax.numpy as jnp

while True:
    time.sleep(1)


def mean(x):
    return jnp.mean(x)
""",
    command="jax-pmap gen train.py::mean --timeout 10",
    fixed="""\
import jax.numpy as jnp


def mean(x):
    return jnp.mean(x)
""",
)
