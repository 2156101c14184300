"""JP007: an option names an argument the function lacks."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP007",
    title="an option names an argument the function lacks",
    exit_code=2,
    meaning=(
        "`--arg`, `--shard`, `--replicate`, `--static`, `--key` or `--donate` names something "
        "that is neither a parameter of the target nor a leaf of one."
    ),
    why="An ignored option would leave you believing the role was set.",
    cure=(
        "Use a parameter's name as the signature spells it, or a leaf path as Python would index "
        "it: `batch['x']`, `state.params`. Quote paths for your shell."
    ),
    example="""\
def loss(params, batch):
    return ((batch @ params) ** 2).mean()
""",
    command="jax-pmap gen train.py::loss --shard data",
    fixed="$ jax-pmap gen train.py::loss --shard batch",
    fixed_language="console",
)
