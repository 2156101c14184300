"""How often the target is traced: of a model of real size, that is nearly all of the time an answer takes."""

MODULE = """
import os

import jax
import jax.numpy as jnp


def step(params, x, y, mask):
    with open(os.environ["TRACES"], "a") as file:
        file.write("traced\\n")

    def loss(params):
        errors = jnp.tanh(x @ params["w"] + params["b"]) - y
        return jnp.sum(mask * errors**2) / jnp.sum(mask)

    value, gradients = jax.value_and_grad(loss)(params)
    scale = jnp.minimum(1.0, 1.0 / jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradients))))
    return jax.tree.map(lambda p, g: p - 0.1 * scale * g, params, gradients), value


def inputs():
    params = {"b": jnp.zeros(()), "w": jnp.ones((3,))}
    return params, jnp.ones((48, 3)), jnp.ones(48), jnp.ones(48)
"""
#: As it is called, for all sizes of the batch, and on a share of any size in three rounds.
MOST = 5


def test_a_function_is_traced_as_often_as_a_plan_takes(project, monkeypatch):
    traces = project.folder / "traces.txt"
    monkeypatch.setenv("TRACES", str(traces))
    project.write("train.py", MODULE)
    made = project.run("plan", "train.py::step", "--inputs", "train.py::inputs")
    assert made.exit_code == 0, made.stderr
    assert 0 < len(traces.read_text().splitlines()) <= MOST
