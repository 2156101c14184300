"""JP014: no example inputs."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP014",
    title="no example inputs",
    exit_code=2,
    meaning=(
        "Nothing says what the arguments look like: no `--inputs`, no `--arg`, no annotation or "
        "default that does, and the body leaves it open."
    ),
    why=("Which value needs which collective is found by running the function, and that takes arguments."),
    cure=(
        "If a program calls the function, take its arguments: `--run 'python train.py'`. Else "
        "add the `--arg` line printed with the message and correct the shapes, or write a small "
        "function that returns the arguments and name it with `--inputs`; shapes are enough where the proof "
        "can be derived (`jax.ShapeDtypeStruct`)."
    ),
    example="""\
def apply(model, batch):
    return model(batch)
""",
    command="jax-pmap gen train.py::apply",
    fixed="$ jax-pmap gen train.py::apply --inputs train.py::make_inputs",
    fixed_language="console",
)
