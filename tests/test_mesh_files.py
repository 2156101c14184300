"""Files that were emitted for a mesh, as `check` and `gen --plan` take them."""

from __future__ import annotations

from project import Project

STEP = """\
import jax
import jax.numpy as jnp


def loss_fn(params, x):
    return jnp.mean(jnp.tanh(x @ params["up"]) @ params["down"])


def step(params, x):
    loss, grads = jax.value_and_grad(loss_fn)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss
"""
WORDS = ("--arg", "params={up: f32[6,64], down: f32[64,2]}", "--arg", "x=f32[24,6]", "--backend", "jit")
ASKED = ("--mesh", "data=2,model=2", "--spec", "params.up=None,model", "--spec", "params.down=model")


def test_the_command_in_the_header_makes_the_file_again(project: Project) -> None:
    project.write("step.py", STEP)
    made = project.run("gen", "step.py::step", *WORDS, *ASKED, "-o", "step_mesh.py")
    assert made.exit_code == 0, made.stderr
    checked = project.run("check", "step_mesh.py")
    assert checked.exit_code == 0, checked.stdout + checked.stderr
    plan = project.run("plan", "step.py::step", *WORDS, *ASKED, "--output-format", "json")
    project.write("plan.json", plan.stdout)
    says = ("was made for --mesh data=2,model=2", "Add --mesh data=2,model=2")
    project.refused("JP017", "gen", "step.py::step", *WORDS, "--plan", "plan.json", says=says)
