"""JP151: generated file was edited by hand."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP151",
    title="generated file was edited by hand",
    exit_code=1,
    meaning=("The text of a generated file is not the one that was sealed when it was written."),
    why=(
        "The evidence in the header is about another text. Editing is welcome; what was edited is proved "
        "again before the header may speak of it."
    ),
    cure=(
        "`jax-pmap check --accept FILE` proves the edited code with the inputs in its header and records "
        "that: from then on `check` holds this text against the source. Or give up the edits: the command in "
        "the header with `--force`."
    ),
    example="""\
$ jax-pmap gen train.py::train_step -o train_pmap.py
$ sed -i 's/pmean/psum/' train_pmap.py
$ jax-pmap check train_pmap.py
""",
    fixed="""\
$ jax-pmap check --accept train_pmap.py
""",
    fixed_language="console",
)
