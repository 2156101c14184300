"""JP001: target file not found."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP001",
    title="target file not found",
    exit_code=2,
    meaning=("The part of the target before `::` (or the module before `:`) names a file that is not there."),
    why=(
        "Nothing can be read, so nothing can be planned. Relative paths start from the folder you "
        "are in, modules from the project root (the folder that holds pyproject.toml or .git)."
    ),
    cure=("Check the path, or give the bare function name and let jax-pmap look through the project."),
    example="$ jax-pmap gen trian.py::train_step",
    fixed="""\
$ jax-pmap gen train.py::train_step
$ jax-pmap gen train_step
""",
    fixed_language="console",
)
