"""JP008: your module fails to import."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP008",
    title="your module fails to import",
    exit_code=2,
    meaning=(
        "Importing the target's file raised an exception, and so did loading only what the target needs of "
        "it: the definitions, assignments and imports that it reaches through names. The message says by "
        "which names the target needs the line that fails; the exception's own traceback is shown with it."
    ),
    why=(
        "The function is observed by running it, which starts with the import. The module was "
        "imported under your interpreter with `JAX_PLATFORMS=cpu` and simulated devices set in "
        "the environment."
    ),
    cure=(
        "Run `python -c 'import MODULE'` with the same interpreter and fix what it prints. A "
        "missing package usually means another interpreter: name yours with `--python`. Put work "
        'that only a script should do under `if __name__ == "__main__":`, or pass what it makes to the '
        "target as an argument. What the target does not need may fail: it is left out."
    ),
    example="""\
import jax.numpy as jnp

SCALE = float(open("/data/scale.txt").read())


def mean(x):
    return jnp.mean(x) * SCALE
""",
    command="jax-pmap gen train.py::mean",
    fixed="""\
import jax.numpy as jnp


def mean(x, scale):
    return jnp.mean(x) * scale
""",
)
