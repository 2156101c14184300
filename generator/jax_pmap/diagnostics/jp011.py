"""JP011: memory limit reached."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP011",
    title="memory limit reached",
    exit_code=2,
    meaning="Your code asked for more memory than `--memory` allows, and its process was ended.",
    why=(
        "Several simulated devices live in one process and hold a copy each of everything "
        "replicated; a runaway allocation would take your machine with it."
    ),
    cure=(
        "Use a smaller model or smaller example inputs: equality does not depend on their size. "
        "Otherwise raise the limit, for instance `--memory 16G`."
    ),
    example="$ jax-pmap gen train.py::train_step --memory 1G",
    fixed="$ jax-pmap gen train.py::train_step --memory 1G --arg 'batch=f32[16,64]'",
    fixed_language="console",
)
