"""JP058: a part of the batch may be missing unseen."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP058",
    title="a part of the batch may be missing unseen",
    exit_code=1,
    meaning=(
        "The function asks whether the batch has a part, as in `batch.get('mask')` or `'mask' in batch`, "
        "where nothing can raise for the answer that the example inputs never gave: in a function beside "
        "the target, or of what is made of the batch. (Where the target itself asks its argument, as "
        "`batch.get('weight', 1.0)` or `getattr(batch, 'weight', None)`, the emitted code takes batches with "
        "the parts of the example alone.) Or it looks up by a size what to call, as in "
        "`{3: f}.get(x.shape[1], g)(x)`."
    ),
    why=(
        "A reduction that nobody saw would be left per device, or get the wrong collective. Branches and the "
        "sides of `A if TEST else B` that no input took raise in the emitted code instead; a call that "
        "returns one thing or another has no place for that."
    ),
    cure=(
        "Index the part (`batch['mask']`), decide it with an `if` statement in the function itself, or pass "
        "the part as an argument of its own."
    ),
    example="""\
import jax.numpy as jnp


def weight_of(batch):
    return batch.get("weight", 1.0)


def weighted(batch):
    return jnp.sum(batch["x"] * weight_of(batch))


def make_inputs():
    return ({"x": jnp.arange(24.0)},)
""",
    command="jax-pmap gen model.py::weighted --inputs model.py::make_inputs",
    fixed="""\
def weighted(batch):
    if "weight" in batch:
        return jnp.sum(batch["x"] * batch["weight"])
    return jnp.sum(batch["x"])
""",
)
