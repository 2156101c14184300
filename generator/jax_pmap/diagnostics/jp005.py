"""JP005: syntax error in your file."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP005",
    title="syntax error in your file",
    exit_code=2,
    meaning="The file does not parse as Python.",
    why=(
        "A file that Python cannot read has no functions to work on. The generator parses with "
        "its own Python, so syntax newer than that fails too."
    ),
    cure=(
        "Fix the line shown. If your program runs with a newer Python than jax-pmap does, install "
        "jax-pmap under that Python."
    ),
    example="""\
def scale(x)
    return x * 2
""",
    command="jax-pmap gen ops.py::scale",
    fixed="""\
def scale(x):
    return x * 2
""",
)
