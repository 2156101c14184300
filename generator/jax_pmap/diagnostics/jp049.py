"""JP049: side effects."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP049",
    title="side effects",
    exit_code=1,
    meaning=(
        "The function changes something outside itself: a `global` or `nonlocal` name, an "
        "attribute, a list or dict it was given, or what an `io_callback` changes. Or it depends on what "
        "changes by itself, as `time.time()` and the numbers of `np.random` do, on an attribute of "
        "its own (`step.calls` in `step`), which the emitted function would not have, or on how many devices "
        "there are (`0.1 * jax.device_count()`)."
    ),
    why=(
        "Under `jax.pmap` the body runs once, while tracing, and never again. The effect would "
        "happen at compile time only, and what is stored would be a tracer instead of a number. A callback "
        "would happen once on each device."
    ),
    cure="Return the new value and let the caller store it.",
    example="""\
import jax.numpy as jnp

HISTORY = []


def loss(x):
    value = jnp.mean(x**2)
    HISTORY.append(value)
    return value
""",
    command="jax-pmap gen train.py::loss",
    fixed="""\
import jax.numpy as jnp


def loss(x):
    return jnp.mean(x**2)
""",
)
