"""JP051: random numbers that belong to examples."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP051",
    title="random numbers that belong to examples",
    exit_code=1,
    meaning=(
        "The function draws noise with the shape of the batch from a key that is the same on every device."
    ),
    why=(
        "With one key everywhere, all devices draw the same dropout mask and the same noise: "
        "eight devices give one eighth of the randomness, and nothing looks wrong. With a key per "
        "device the numbers differ from the single-device ones, so equality cannot be shown."
    ),
    cure=(
        "Give every example its own key and split the keys with the batch: make them outside with "
        "`jax.random.split(key, batch_size)` and draw with `jax.vmap`. The result then does not "
        "depend on the number of devices."
    ),
    example="""\
import jax


def augment(key, x):
    return x + jax.random.normal(key, x.shape)
""",
    command="jax-pmap gen data.py::augment --arg 'key=key' --arg 'x=f32[24,5]'",
    fixed="""\
import jax


def augment(keys, x):
    def one(key, row):
        return row + jax.random.normal(key, row.shape)

    return jax.vmap(one)(keys, x)
""",
)
