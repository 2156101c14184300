"""JP009: interpreter cannot be used."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP009",
    title="interpreter cannot be used",
    exit_code=2,
    meaning=(
        "The Python that should run your code is missing, does not start, is older than 3.10, "
        "has no jax or no numpy, or a jax older than 0.6.2."
    ),
    why=(
        "jax-pmap never imports jax itself: it runs your function under your interpreter, where "
        "your packages are."
    ),
    cure=(
        "Name the interpreter you train with: `--python .venv/bin/python`, or `python = "
        '".venv/bin/python"` under `[tool.jax-pmap]` in pyproject.toml. Otherwise `$VIRTUAL_ENV`, '
        "`./.venv` and the running interpreter are tried, in this order."
    ),
    example="$ jax-pmap gen train.py::train_step --python /usr/bin/python3",
    fixed="$ jax-pmap gen train.py::train_step --python .venv/bin/python",
    fixed_language="console",
)
