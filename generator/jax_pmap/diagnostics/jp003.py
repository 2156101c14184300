"""JP003: ambiguous function name."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP003",
    title="ambiguous function name",
    exit_code=2,
    meaning=("A bare name is defined in more than one file of the project, or more than once in one file."),
    why="Choosing for you would sooner or later parallelise the wrong function.",
    cure=(
        "Repeat the command with one of the candidates listed with the message. Where one file "
        "defines the name twice, rename one of them: only the last definition is live."
    ),
    example="$ jax-pmap gen train_step",
    fixed="$ jax-pmap gen examples/mnist.py::train_step",
    fixed_language="console",
)
