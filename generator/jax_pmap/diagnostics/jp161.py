"""JP161: snippet prints something else."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP161",
    title="snippet prints something else",
    exit_code=1,
    meaning=("A page shows what its block prints, and the block prints something else."),
    why=("What is shown is what readers compare their own output with."),
    cure=("Put the output that the message shows into the page, or take the shown output out."),
    example="""\
$ printf '>>> 1 + 1\\n3\\n' > page.md
$ jax-pmap check page.md
""",
    fixed="""\
$ printf '>>> 1 + 1\\n2\\n' > page.md
$ jax-pmap check page.md
""",
    fixed_language="console",
)
