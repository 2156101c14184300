"""JP023: nothing compiles for that machine here."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP023",
    title="nothing compiles for that machine here",
    exit_code=2,
    meaning=(
        "`--target v5e:2x4` compiles the proved code for TPUs that are not there, or works out from shapes "
        "what a chip holds at least. That takes a machine that is known, as many chips as the mesh has, and "
        "a batch that gives each of them a row."
    ),
    why=("What a chip holds depends on how many there are, and on what the compiler for it does."),
    cure=(
        "Write the kind of chip and their arrangement (`v4:2x2x1`, `v5e:16x16`, `v6e:4x4`), and a mesh of "
        "as many. For others, install `libtpu` beside jax (`pip install 'jax[tpu]'` takes the one that "
        "fits). Or leave `--target` out."
    ),
    example="""\
import jax.numpy as jnp


def mean(x):
    return jnp.mean(x)
""",
    command="jax-pmap gen ops.py::mean --arg 'x=f32[24]' --backend jit --target v5e:5x7",
    fixed="$ jax-pmap gen ops.py::mean --arg 'x=f32[24]' --backend jit --target v5e:2x4",
    fixed_language="console",
)
