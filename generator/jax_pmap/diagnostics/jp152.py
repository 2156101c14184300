"""JP152: generated file can no longer be proved."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP152",
    title="generated file can no longer be proved",
    exit_code=1,
    meaning=(
        "The command in a generated file's header, or above a function that was changed in place, is "
        "refused today: the source is gone, or does something now that cannot be shown equal. Or the file "
        "was made with `--no-proof`, which is gone, and was never shown equal."
    ),
    why=("What is on disk was proved against another source. Whether it still fits is unknown."),
    cure=(
        "The message carries the refusal, its code and its place; `jax-pmap explain` says more of it."
        " Change the source, or keep one of the two functions only."
    ),
    example="""\
$ jax-pmap gen train.py::train_step -o train_pmap.py
$ rm train.py
$ jax-pmap check train_pmap.py
""",
    fixed="""\
$ jax-pmap gen training.py::train_step -o train_pmap.py
""",
    fixed_language="console",
)
