"""JP151: generated file was edited by hand."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP151",
    title="generated file was edited by hand",
    exit_code=1,
    meaning=("The text of a generated file is not the one that was sealed when it was written."),
    why=(
        "The evidence in the header is about another text. Editing is welcome, but the header has to "
        "go then, or it claims what nobody showed."
    ),
    cure=(
        "Prove the edited code with `jax-pmap verify` and delete the header, or generate the file "
        "again with `--force`."
    ),
    example="""\
$ jax-pmap gen train.py::train_step -o train_pmap.py
$ sed -i 's/pmean/psum/' train_pmap.py
$ jax-pmap check train_pmap.py
""",
    fixed="""\
$ jax-pmap verify train_pmap.py::train_step --against train.py::train_step
""",
    fixed_language="console",
)
