"""JP062: another function when traced."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP062",
    title="another function when it is traced",
    exit_code=1,
    meaning=(
        "Your function is called without `jax.jit`, so its Python sees floats and NumPy arrays. On several "
        "devices it is traced: the same Python sees tracers, and jax computes in 32 bits. Here that changes "
        "what the function does: a test of types, or a caught error, takes the other side; an array of the "
        "caller's is changed in place; a variable of the module that other code changes later, or an "
        "attribute of an object in one, stays what it was; or digits are lost that the result depends on."
    ),
    why=(
        "Nothing raises. The traced function, and so every parallel version, silently gives other numbers "
        "than the call does."
    ),
    cure=(
        "Do before the call what depends on the type or on 64 bits. Pass as an argument what changes between "
        "calls. An argument that chooses is static: "
        "`--static NAME`. If you only ever call the function compiled, say so: put `@jax.jit` on it."
    ),
    example="""\
import jax.numpy as jnp
import numpy as np


def brightness(images):
    if isinstance(images, np.ndarray):
        images = images / 255.0
    return jnp.mean(images)
""",
    command="jax-pmap gen train.py::brightness",
    fixed="""\
import jax.numpy as jnp


def brightness(images):
    if images.dtype == jnp.uint8:
        images = images / 255.0
    return jnp.mean(images)
""",
)
