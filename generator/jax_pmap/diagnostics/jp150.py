"""JP150: generated file is stale."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP150",
    title="generated file is stale",
    exit_code=1,
    meaning=(
        "A file that jax-pmap generated is not what the command in its header makes today: its "
        "source, something the source uses, or the tool itself changed. `check --no-run` tells it by the "
        "hashes in the header, of the source and of each function, class and constant of yours that it "
        "reaches by name, and names what changed. Comments, docstrings and layout do not count."
    ),
    why=(
        "The program runs the old function on several devices and the new one on a single one, and "
        "nothing else tells."
    ),
    cure=("Generate it again: `jax-pmap check --fix`, or the command in the header."),
    example="""\
$ jax-pmap gen train.py::train_step -o train_pmap.py
$ sed -i 's/0.1/0.2/' train.py
$ jax-pmap check train_pmap.py
""",
    fixed="""\
$ jax-pmap check --fix train_pmap.py
""",
    fixed_language="console",
)
