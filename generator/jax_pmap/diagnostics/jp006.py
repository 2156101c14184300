"""JP006: `--arg` cannot be read."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP006",
    title="`--arg` cannot be read",
    exit_code=2,
    meaning="The text after `NAME=` is not an input specification.",
    why=("Example inputs decide what is observed, so a half-understood specification is worse than none."),
    cure=(
        "Write dtype and shape as `f32[64,784]`; bound integers with `<`, as in `i32[64]<10`; "
        "nest with `{name: ...}`, `[...]` and `(...)`; write scalars as Python does; a PRNG key "
        "is `key`. Quote the whole option for your shell."
    ),
    example="$ jax-pmap gen train.py::loss --arg batch={x:f32(64,784)}",
    fixed="$ jax-pmap gen train.py::loss --arg 'batch={x: f32[64,784], y: i32[64]<10}'",
    fixed_language="console",
)
