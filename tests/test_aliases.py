"""Flax NNX objects that are one object in the proof, or two, and not in a later call."""

import subprocess
import sys
from pathlib import Path

import pytest
from project import Project, simulated

pytest.importorskip("flax.nnx")

MODEL = """\
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


class Net(nnx.Module):
    def __init__(self):
        self.inner, self.outer = (nnx.Linear(n, 4, rngs=nnx.Rngs(n)) for n in (5, 4))

    def __call__(self, x):
        return self.outer(nnx.relu(self.inner(x)))[:, 0]


def step(model, average, x, y):
    loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
    new = jax.tree.map(lambda a, b: a - 0.1 * b, nnx.state(model, nnx.Param), grads)
    nnx.update(model, new)
    old = nnx.state(average, nnx.Param)
    nnx.update(average, jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, old, new))
    return loss


def given(model, average):
    rng = np.random.default_rng(0)
    return model, average, *(rng.normal(size=size).astype(np.float32) for size in ((24, 5), 24))


def two():
    return given(Net(), Net())


def one():
    model = Net()
    return given(model, model)


def parts():
    model, average = Net(), Net()
    average.inner = model.inner
    return given(model, average)
"""
CALL = """\
import model, {name}

for inputs in (model.one, model.two, model.parts):
    try:
        {name}.step(*inputs())
        print(inputs.__name__, "runs")
    except ValueError as error:
        print(inputs.__name__, error)
"""


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("one", "`average` has to be `model` itself"),
        ("two", "`model` and `average` have variables in common"),
        ("parts", "generate again with inputs that have"),
    ],
)
def test_other_calls_are_refused(shared: Project, name: str, others: str) -> None:
    shared.write("model.py", MODEL)
    made = shared.run(
        "gen", "model.py::step", "--inputs", f"model.py::{name}", "--no-run", "-o", f"{name}_pmap.py"
    )
    assert made.exit_code == 0, made.stderr
    call = [sys.executable, "-c", CALL.format(name=f"{name}_pmap")]
    ran = subprocess.run(call, env=simulated(4), capture_output=True, text=True, cwd=Path.cwd())
    assert ran.returncode == 0, ran.stderr
    said = dict(line.split(" ", 1) for line in ran.stdout.splitlines())
    assert said.pop(name) == "runs"
    assert all(others in words for words in said.values()), said
