"""JP160: snippet fails."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP160",
    title="snippet fails",
    exit_code=1,
    meaning=(
        "A Python block of a page, or an example of a docstring, raises an error when it is run on "
        "simulated devices after the blocks before it."
    ),
    why=(
        "Readers copy what a page shows. A block that no longer runs costs each of them the time it "
        "takes to find out."
    ),
    cure=(
        "Mend the block, or say that it is meant: `<!-- jax-pmap: expect-error -->` before a block "
        "that is to fail, `<!-- jax-pmap: skip -->` before one that cannot run alone, `<!-- jax-pmap:"
        " devices=4 -->` for another number of devices than 8."
    ),
    example="""\
$ printf '~~~python\\nimport jax\\njax.pmap(axis_name=1)\\n~~~\\n' > page.md
$ jax-pmap check page.md
""",
    fixed="""\
$ printf '~~~python\\nimport jax\\nf = jax.pmap(abs)\\n~~~\\n' > page.md
$ jax-pmap check page.md
""",
    fixed_language="console",
)
