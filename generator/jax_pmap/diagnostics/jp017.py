"""JP017: plan file unusable."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP017",
    title="plan file unusable",
    exit_code=2,
    meaning=(
        "The file given with `--plan` cannot be read, is not a plan of this version, or was made "
        "for another function or an older text of this one."
    ),
    why=(
        "A plan names lines and columns of the source it was made from. Applied to other text, it "
        "would put collectives in the wrong places."
    ),
    cure=(
        "Make the plan again from the present source. Hand edits are welcome as long as the file "
        "still fits the published schema, plan.schema.json."
    ),
    example="""\
$ jax-pmap plan train.py::train_step --output-format json > plan.json
$ sed -i '1i import math' train.py
$ jax-pmap gen train.py::train_step --plan plan.json
""",
    fixed="""\
$ jax-pmap plan train.py::train_step --output-format json > plan.json
$ jax-pmap gen train.py::train_step --plan plan.json
""",
    fixed_language="console",
)
