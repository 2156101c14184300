"""JP153: function changed in place is stale."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP153",
    title="function changed in place is stale",
    exit_code=1,
    meaning=(
        "The parallel form of a function that `gen --in-place` changed is not what the command in the "
        "comment above it makes today: a collective or a helper was edited, or a function it was made from "
        "changed and its copy did not."
    ),
    why=(
        "What was proved is another text. The usual case is a loss that was changed, while `p_loss_fn`, its "
        "copy with collectives, still is the old one: training goes on with that."
    ),
    cure=(
        "Make it again: `jax-pmap check --fix`. What you changed inside the mapped function stays. Or delete "
        "the comment above the function: then it is one of your own, and `jax-pmap verify` proves it."
    ),
    example="""\
$ jax-pmap gen train.py::train_step --inputs train.py::inputs --in-place
$ sed -i 's/lax.pmean/lax.psum/' train.py
$ jax-pmap check train.py
""",
    fixed="""\
$ jax-pmap check --fix train.py
""",
    fixed_language="console",
)
