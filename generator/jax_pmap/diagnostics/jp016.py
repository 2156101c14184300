"""JP016: output path cannot be written."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP016",
    title="output path cannot be written",
    exit_code=2,
    meaning=(
        "The file named by `-o` is a folder, is read-only, lies in a folder that does not exist, was "
        "changed by hand since it was generated, or holds the target itself. Or that named by `--report` is "
        "one of the first three, or is there and no report."
    ),
    why="Nothing of yours is overwritten unless you say so, and nothing is written in part.",
    cure=(
        "Keep hand edits and prove them with `jax-pmap check --accept FILE`. See what would change with "
        "`--diff`; choose another path, or give up the hand edits with `--force`."
    ),
    example="$ jax-pmap gen train.py::train_step -o train_pmap.py",
    fixed="""\
$ jax-pmap gen train.py::train_step -o train_pmap.py --diff
$ jax-pmap gen train.py::train_step -o train_pmap.py --force
""",
    fixed_language="console",
)
