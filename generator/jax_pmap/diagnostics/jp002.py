"""JP002: function not found."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP002",
    title="function not found",
    exit_code=2,
    meaning=(
        "The file was read, but it defines no function of that name. A bare name was found in no "
        "file of the project."
    ),
    why=(
        "The tool works from a `def` in your source; a name that only exists at run time cannot be rewritten."
    ),
    cure=(
        "Pick one of the names listed with the message. For a method or a nested function write "
        "the dotted name: `FILE::Class.method`, `FILE::outer.inner`."
    ),
    example="""\
def train_step(params, batch):
    return params, batch
""",
    command="jax-pmap gen train.py::train_stpe",
    fixed="$ jax-pmap gen train.py::train_step",
    fixed_language="console",
)
