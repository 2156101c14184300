"""JP063: an array that the mesh does not divide."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP063",
    title="an array that the mesh does not divide",
    exit_code=1,
    meaning=(
        "`--spec` or `--fsdp` asks for arrays to be divided over the mesh, and that cannot be done: the "
        "pattern fits the path of no array, an array has no such dimension, or its size is no multiple of "
        "the devices along that axis."
    ),
    why=(
        "A rule that fits nothing leaves every array whole on every device, and nothing shows it until "
        "memory runs out. jax places no array in parts of unequal size."
    ),
    cure=(
        "The message names the nearest path, or the array, its size and the nearest mesh that it divides "
        "over. A pattern has to fit a whole path, such as `params.dense.kernel`: `.*kernel` fits every "
        "kernel. `jax-pmap plan TARGET` lists the arrays."
    ),
    example="""\
import jax.numpy as jnp


def predict(params, x):
    return jnp.tanh(x @ params["w"])
""",
    command=(
        "jax-pmap gen ops.py::predict --arg 'params={w: f32[8,6]}' --arg 'x=f32[24,8]' --backend jit "
        "--mesh data=2,model=4 --spec 'params.w=None,model'"
    ),
    fixed=(
        "$ jax-pmap gen ops.py::predict --arg 'params={w: f32[8,6]}' --arg 'x=f32[24,8]' --backend jit "
        "--mesh data=4,model=2 --spec 'params.w=None,model'"
    ),
    fixed_language="console",
)
