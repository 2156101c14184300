"""JP018: bad option value."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP018",
    title="bad option value",
    exit_code=2,
    meaning="An option has a value it cannot take, or two options contradict each other.",
    why=("The value would reach the emitted code or decide a role, so it is checked before anything is run."),
    cure=(
        "`--devices` takes a count (`4`) or device ids (`0,2,4`; one id: `2,`), `--axis-name` an "
        "identifier, `--backend` one of pmap, shard_map, jit, `--memory` a size such as `8G`, "
        "`--timeout` a positive number of seconds, `--shard` a name and, after a colon, an axis: "
        "`tokens:1`."
    ),
    example="$ jax-pmap gen train.py::train_step --devices 0-3",
    fixed="$ jax-pmap gen train.py::train_step --devices 0,1,2,3",
    fixed_language="console",
)
