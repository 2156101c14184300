"""JP074: microbatches would give another result."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP074",
    title="microbatches would give another result",
    exit_code=1,
    meaning=(
        "With --accumulate each device works on its share of the batch in several parts, and adds up "
        "what it makes of each. Here something is needed that no part has by itself: statistics of the "
        "batch (batch norm), random numbers for all of its examples, a clip or another function of a "
        "sum inside of what is differentiated, or a result for each example beside the sums."
    ),
    why=(
        "The mean of the parts' results is then not the result of the batch, and code that takes it for that "
        "trains another model, silently."
    ),
    cure=(
        "Move what needs the whole batch out of the function that is differentiated: clip the gradients "
        "that come out of it; compute a sum that it divides by in the step and pass it. Use norms that "
        "are of each example, and draw random numbers before the step. Or leave --accumulate out."
    ),
    example="""\
import jax
import jax.numpy as jnp


def loss_fn(w, x, y):
    error = jnp.mean((x @ w - y) ** 2)
    return jnp.minimum(error, 1.0)


def step(w, x, y):
    return w - 0.1 * jax.grad(loss_fn)(w, x, y)
""",
    command="jax-pmap gen step.py::step --arg w=f32[3] --arg x=f32[96,3] --arg y=f32[96] --accumulate 2",
    fixed="""\
import jax
import jax.numpy as jnp


def loss_fn(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def step(w, x, y):
    error, gradient = jax.value_and_grad(loss_fn)(w, x, y)
    return jnp.where(error < 1.0, w - 0.1 * gradient, w)
""",
)
