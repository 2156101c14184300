"""JP162: snippet was expected to fail."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP162",
    title="snippet was expected to fail",
    exit_code=1,
    meaning=(
        "A block is marked with `expect-error`, and runs; or it fails with another error than the one"
        " the marker names."
    ),
    why=("The page explains an error that readers will not see."),
    cure=(
        "Take the marker out, or name the error that is raised: `<!-- jax-pmap: expect-error TypeError -->`."
    ),
    example="""\
$ printf '<!-- jax-pmap: expect-error -->\\n~~~python\\nimport jax\\n~~~\\n' > page.md
$ jax-pmap check page.md
""",
    fixed="""\
$ printf '~~~python\\nimport jax\\n~~~\\n' > page.md
$ jax-pmap check page.md
""",
    fixed_language="console",
)
