"""JP051: random numbers of two kinds that come from one key at one place."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP051",
    title="a key whose draws cannot be kept apart",
    exit_code=1,
    meaning=(
        "Numbers drawn for examples need a key that is another on every device, and numbers drawn for "
        "parameters one that is the same. At the place named here one key serves both, perhaps in different "
        "rounds of a loop, or draws and shares cannot be matched."
    ),
    why=(
        "With one key everywhere, all devices draw the same dropout mask for other examples: eight devices "
        "give one eighth of the randomness, and nothing looks wrong. With other keys for the parameters' "
        "noise, the copies of the parameters drift apart. A key is folded with the device's index only where "
        "all that is drawn from it belongs to examples."
    ),
    cure=(
        "Split the key with `jax.random.split` and use one part for the examples alone; of Flax NNX, give "
        "each its own stream (`nnx.Rngs(params=0, dropout=1, noise=2)`). A key for every "
        "example, made outside and passed like data, works too, and then even the numbers are those of one "
        "device."
    ),
    example="""\
import jax


def jitter(key, w, x):
    def noisy(value):
        return value + jax.random.normal(key, value.shape)

    return noisy(w), noisy(x)
""",
    command="jax-pmap gen data.py::jitter --arg 'key=key' --arg 'w=f32[7]' --arg 'x=f32[24,5]'",
    fixed="""\
import jax


def jitter(key, w, x):
    def noisy(key, value):
        return value + jax.random.normal(key, value.shape)

    key_w, key_x = jax.random.split(key)
    return noisy(key_w, w), noisy(key_x, x)
""",
)
