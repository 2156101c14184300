"""JP067: source that jax-pmap cannot read."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP067",
    title="source that jax-pmap cannot read",
    exit_code=1,
    meaning=(
        "What a call gives couples the examples of the batch, and the collectives would have to "
        "go inside the function that it runs. jax-pmap finds functions by the names that modules "
        "and classes hold them under. This one has none: a lambda in a table that changes, what a "
        "decorator of your own returns, or what one call runs by several names."
    ),
    why=(
        "A collective behind the call comes too late: the average of the devices' ratios is not "
        "the ratio of the whole."
    ),
    cure=(
        "Call the function by its own name there, or inside `functools.partial`. Or move what reduces over "
        "the batch into a function of the module, also what a library's function does, into which no "
        "collective goes. Or make it whole where it is computed, with `jax.lax.psum` or `pmean` over the "
        "mapped axis: the message names the line where it is known. Or use `--backend jit`, where the "
        "compiler keeps the global meaning."
    ),
    example="""\
import jax.numpy as jnp

LOSSES = {}
LOSSES["weighted"] = lambda x, w: jnp.sum(x * w) / jnp.sum(w)


def loss(x, w):
    return LOSSES["weighted"](x, w)
""",
    command="jax-pmap gen losses.py::loss --arg 'x=f32[24]' --arg 'w=f32[24]'",
    fixed="""\
import jax.numpy as jnp


def weighted(x, w):
    return jnp.sum(x * w) / jnp.sum(w)


def loss(x, w):
    return weighted(x, w)
""",
)
