"""JP020: the target is called only while jax traces."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP020",
    title="the target is called only while jax traces",
    exit_code=2,
    meaning=(
        "Every call of the target was made inside `jax.vmap`, `jax.checkpoint`, `jax.eval_shape` or another "
        "transformation, with placeholders for its arguments. Without jit (`jax.disable_jit`), which shows "
        "the values inside `jit` and `scan`, it was the same."
    ),
    why="A placeholder has a shape and no value, so there is nothing to observe and prove on.",
    cure=(
        "Name the function that makes the transformed call instead: it sees the whole batch. Or give "
        "arguments yourself with `--inputs`."
    ),
    example="""\
import jax
import jax.numpy as jnp


def one(w, x):
    return jnp.sum(w * x)


def main():
    print(jax.vmap(one, in_axes=(None, 0))(jnp.ones(4), jnp.ones((24, 4))))


if __name__ == "__main__":
    main()
""",
    command='jax-pmap plan train.py::one --run "python train.py"',
    fixed="""\
import jax
import jax.numpy as jnp


def one(w, x):
    return jnp.sum(w * x)


def every(w, x):
    return jax.vmap(one, in_axes=(None, 0))(w, x)


def main():
    print(every(jnp.ones(4), jnp.arange(96.0).reshape(24, 4)))


if __name__ == "__main__":
    main()
""",
)
