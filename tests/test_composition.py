"""The drop-in under jax's own transformations, as the original is: they go through what is mapped."""

from __future__ import annotations

import subprocess
import sys

import pytest
from project import Project, simulated

MODEL = """\
import jax
import jax.numpy as jnp


def step(w, x, y):
    def loss(w):
        predict = jax.checkpoint(lambda w, x: jnp.tanh(x @ w))
        return jnp.mean((predict(w, x) - y) ** 2)

    value, grads = jax.value_and_grad(loss)(w)
    return w - 0.1 * grads, value
"""
#: Of the drop-in and of the original: an ensemble, a gradient through the step, curvature, a loop of steps.
USES = """\
import jax, jax.numpy as jnp, numpy as np
import made, model

draw = np.random.default_rng(0)
w, x, y, many = (jnp.asarray(draw.normal(size=s), "float32") for s in ((4,), (96, 4), (96,), (5, 4)))
uses = {
    "vmap": lambda f: jax.vmap(f, (0, None, None))(many, x, y),
    "vmap of batches": lambda f: jax.vmap(f)(many, *(jnp.stack([each] * 5) for each in (x, y))),
    "grad": lambda f: jax.grad(lambda w: f(w, x, y)[1])(w),
    "jit of grad": lambda f: jax.jit(jax.grad(lambda w: f(w, x, y)[0].sum()))(w),
    "jvp of grad": lambda f: jax.jvp(jax.grad(lambda w: f(w, x, y)[1]), (w,), (w,)),
    "scan": lambda f: jax.lax.scan(lambda w, _: f(w, x, y), w, None, length=3),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(lambda w: f(w, x, y)[1]))(w),
}
for name, use in uses.items():
    for one, other in zip(jax.tree.leaves(use(made.step)), jax.tree.leaves(use(model.step)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=name)
"""


@pytest.mark.parametrize(
    "form", [("pmap",), ("shard_map", "--accumulate", "2"), ("jit",)], ids=lambda f: f[0]
)
def test_transformations_go_through_the_drop_in(project: Project, form: tuple[str, ...]) -> None:
    project.write("model.py", MODEL)
    given = ("--arg", "w=f32[4]", "--arg", "x=f32[96,4]", "--arg", "y=f32[96]")
    words = ("gen", "model.py::step", *given, "--no-run", "--backend", *form, "-o", "made.py")
    made = project.run(*words)
    assert made.exit_code == 0, made.stderr
    subprocess.run([sys.executable, "-c", USES], env=simulated(8), check=True, timeout=300)


OWN = """\
import functools
import jax
import jax.numpy as jnp
import jax.scipy.sparse.linalg as solvers


def own(forward, backward):
    rule = jax.custom_vjp(forward)
    rule.defvjp(lambda x: (forward(x), x), lambda x, g: (backward(x, g),))
    return functools.wraps(forward)(rule)


def clipped(x):
    return x


clipped = own(clipped, lambda x, g: jnp.clip(g, -0.05, 0.05))
straight_through = own(lambda x: jnp.round(x), lambda x, g: g)
reversed_and_scaled = own(lambda x: x, lambda x, g: -g * jnp.cos(x))


def f(w, x):
    return {} * 3
"""
MEAN = "(jnp.mean(jnp.tanh(x @ w) ** 2))"
SOLVED = "solvers.{}(lambda v: x.T @ (x @ v) / len(x) + v, x.mean(0) * w)[0]"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (f"clipped{MEAN}", "clipped"),
        (f"straight_through{MEAN}", ""),
        (f"reversed_and_scaled{MEAN}", ""),
        (f"jnp.sum(jax.grad(lambda w: clipped({MEAN}))(w))", ""),
        (SOLVED.format("gmres"), "custom_linear_solve"),
        (SOLVED.format("cg"), ""),
    ],
)
def test_rules_that_make_other_gradients_outside_are_named(project: Project, value: str, told: str) -> None:
    project.write("model.py", OWN.format(value))
    given = ("--arg", "w=f32[4]", "--arg", "x=f32[96,4]", "--no-run")
    made = project.run("gen", "model.py::f", *given)
    assert made.exit_code == 0, made.stderr
    assert (f"by the backward rule of `{told}`" in made.words) is bool(told), made.stderr
    assert ("taken from outside" in made.words) is bool(told)
    assert "taken from outside" not in project.run("gen", "model.py::f", *given, "--backend", "jit").words
