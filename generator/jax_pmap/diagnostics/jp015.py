"""JP015: the function itself fails on these inputs."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP015",
    title="the function itself fails on these inputs",
    exit_code=2,
    meaning=(
        "The unchanged function raised an exception on the example inputs, on one device. Its "
        "traceback is shown with the message."
    ),
    why="There is no single-device answer to hold the parallel version against.",
    cure=(
        "Most often a shape or a dtype in `--arg` is off, or an integer label is out of range "
        "(bound it: `i32[64]<10`). If the inputs are right, the function has a bug that has "
        "nothing to do with devices."
    ),
    example="""\
def predict(params, x):
    return x @ params
""",
    command="jax-pmap gen model.py::predict --arg 'params=f32[3,2]' --arg 'x=f32[24,4]'",
    fixed="$ jax-pmap gen model.py::predict --arg 'params=f32[4,2]' --arg 'x=f32[24,4]'",
    fixed_language="console",
)
