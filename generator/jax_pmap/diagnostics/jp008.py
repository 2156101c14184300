"""JP008: your module fails to import."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP008",
    title="your module fails to import",
    exit_code=2,
    meaning=("Importing the target's file raised an exception. Its own traceback is shown with the message."),
    why=(
        "The function is observed by running it, which starts with the import. The module was "
        "imported under your interpreter with `JAX_PLATFORMS=cpu` and simulated devices set in "
        "the environment."
    ),
    cure=(
        "Run `python -c 'import MODULE'` with the same interpreter and fix what it prints. A "
        "missing package usually means another interpreter: name yours with `--python`. Put work "
        'that only a script should do under `if __name__ == "__main__":`.'
    ),
    example="""\
import jax.numpy as jnp

DATA = open("/data/train.bin", "rb").read()


def mean(x):
    return jnp.mean(x)
""",
    command="jax-pmap gen train.py::mean",
    fixed="""\
import jax.numpy as jnp


def mean(x):
    return jnp.mean(x)


if __name__ == "__main__":
    DATA = open("/data/train.bin", "rb").read()
""",
)
