"""Derivatives by the rows of a batch: of a mean over a device's own, they are as many times too large."""

import json
from pathlib import Path

import pytest
from project import Project

MODEL = """\
import jax
import jax.numpy as jnp
import numpy as np


def loss(w, x, y):
    return jnp.mean((jnp.tanh(x @ w).sum(-1) - y) ** 2)


def moved(w, x, y):
    return x - 0.1 * jax.grad(loss, argnums=1)(w, x, y)


def saliency(w, x, y):
    value, by_rows = jax.value_and_grad(loss, argnums=1)(w, x, y)
    return value, jnp.abs(by_rows).max(-1)


def both(w, x, y):
    grads, by_rows = jax.grad(loss, argnums=(0, 1))(w, x, y)
    return w - 0.1 * grads, x + 0.1 * by_rows


def signs(w, x, y):
    return x + 0.1 * jnp.sign(jax.grad(loss, argnums=1)(w, x, y))


def sized(w, x, y):
    return x / len(x) + 1.0


def of_a_sum(w, x, y):
    return jax.grad(lambda x: loss(w, x, y) * len(x))(x) + 1.0


def by_integers(w, x, y):
    by_rows, by_labels = jax.grad(loss, argnums=(1, 2), allow_int=True)(w, x, jnp.sign(y).astype(int))
    return x - by_rows


def of_batch(params, batch):
    return loss(params["w"], batch["x"], batch["y"])


def of_a_dict(params, batch):
    return jax.grad(of_batch, argnums=1)(params, batch)["x"]


def ascended(params, batch):
    by_rows = jax.grad(lambda batch: of_batch(params, batch))(batch)
    batch = jax.tree.map(lambda rows, each: rows + 0.1 * each, batch, by_rows)
    return jax.grad(of_batch)(params, batch)


def penalised(params, batch):
    def total(params):
        by_rows = jax.grad(of_batch, argnums=1)(params, batch)
        return jnp.mean(jnp.sum(by_rows["x"] ** 2, -1))

    return jax.grad(total)(params)


def both_of_dicts(params, batch):
    grads = jax.grad(of_batch, argnums=(0, 1))(params, batch)
    return grads[0], grads[1]["x"] ** 2


def integrated(params, batch):
    def at(part):
        return jax.grad(lambda batch: of_batch(params, batch))(jax.tree.map(lambda x: part * x, batch))

    return jax.vmap(at)(jnp.linspace(0, 1, 3))


def by_positions(params, batch):
    x, y = batch["x"].reshape(4, -1, 8), batch["y"] * jnp.arange(len(batch["y"]))
    return jax.grad(of_batch)(params, {"x": x[0], "y": y.reshape(4, -1)[0]})


def dicts():
    # As many hidden units as devices could share: that is no batch.
    rng = np.random.default_rng(0)
    made = [rng.normal(size=shape).astype("float32") for shape in ((8, 16), (24, 8), (24,))]
    return {"w": made[0]}, {"x": made[1], "y": made[2]}


def inputs():
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype("float32") for shape in ((5, 4), (24, 5), (24,))]
"""


@pytest.mark.parametrize(
    ("name", "syncs"),
    [
        ("moved", {"divide jax.grad(loss, argnums=1)(w, x, y)"}),
        ("saliency", {"divide by_rows", "pmean value"}),
        ("both", {"divide by_rows", "pmean grads"}),
        # No number of times changes a sign.
        ("signs", set()),
        ("sized", {"psum len(x)"}),
        ("of_a_sum", set()),
    ],
)
def test_they_are_divided_by_the_number_of_devices(shared: Project, name: str, syncs: set[str]) -> None:
    shared.write("model.py", MODEL)
    words = (
        "gen",
        f"model.py::{name}",
        "--inputs",
        "model.py::inputs",
        "--output-format",
        "json",
        "--no-run",
    )
    ran = shared.run(*words)
    assert ran.exit_code == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert {f"{sync['op']} {sync['value']}" for sync in found["plan"]["syncs"]} == syncs
    assert found["evidence"]["derivation"]["complete"]


@pytest.mark.parametrize(
    ("name", "syncs"),
    [
        ("of_a_dict", {"divide jax.grad(of_batch, argnums=1)(params, batch)"}),
        ("ascended", {"divide by_rows", "pmean jax.grad(of_batch)(params, batch)"}),
        ("penalised", {"divide by_rows", "pmean jax.grad(total)(params)"}),
        ("both_of_dicts", {"divide grads", "pmean grads"}),
        ("integrated", {"divide jax.vmap(at)(jnp.linspace(0, 1, 3))"}),
    ],
)
def test_those_by_a_dict_are_divided_and_the_batch_is(shared: Project, name: str, syncs: set[str]) -> None:
    shared.write("model.py", MODEL)
    words = ("--inputs", "model.py::dicts", "--output-format", "json", "--no-run")
    ran = shared.run("gen", f"model.py::{name}", *words)
    assert ran.exit_code == 0, ran.stderr
    found = json.loads(ran.stdout)
    params, batch = found["plan"]["arguments"]
    assert [leaf["axis"] for leaf in (*params["leaves"], *batch["leaves"])] == [None, 0, 0]
    assert {f"{sync['op']} {sync['value']}" for sync in found["plan"]["syncs"]} == syncs
    assert found["evidence"]["derivation"]["complete"]


def test_parameters_are_not_divided_for_their_derivatives(shared: Project) -> None:
    shared.write("model.py", MODEL)
    made = shared.run("plan", "model.py::by_positions", "--inputs", "model.py::dicts")
    assert made.exit_code == 0, made.stderr
    assert "params replicated" in made.words and "sync divide" not in made.words


def test_those_by_integers_have_nothing_in_them(shared: Project) -> None:
    shared.write("model.py", MODEL)
    ran = shared.run("gen", "model.py::by_integers", "--inputs", "model.py::inputs", "--no-run")
    assert ran.exit_code == 0, ran.stderr


@pytest.mark.parametrize(
    ("name", "given", "line"),
    [
        ("saliency", "inputs", "by_rows = by_rows / jax.lax.psum(1, axis_name=AXIS)"),
        ("of_a_dict", "dicts", "jax.tree.map(\n        lambda part: part / jax.lax.psum(1, axis_name=AXIS),"),
        ("both_of_dicts", "dicts", '"x": grads[1]["x"] / jax.lax.psum(1, axis_name=AXIS),'),
    ],
)
def test_a_division_is_taken_back(project: Project, name: str, given: str, line: str) -> None:
    project.write("model.py", MODEL)
    words = ("--inputs", f"model.py::{given}", "--in-place", "--no-run")
    made = project.run("gen", f"model.py::{name}", *words)
    assert made.exit_code == 0, made.stderr
    assert line in Path("model.py").read_text()
    found = project.run("check", "model.py", "--no-run")
    assert (found.exit_code, "nothing found" in found.words) == (0, True), found.stdout


POSTERIOR = """\
import jax
import jax.numpy as jnp


def log_posterior(w, x, y):
    return jnp.sum(jax.nn.log_sigmoid(y * (x @ w))) - 0.5 * jnp.sum(w**2)


def by_arguments(chains, x, y):
    return chains + 0.1 * jax.vmap(jax.grad(log_posterior), in_axes=(0, None, None))(chains, x, y)


def by_closure(chains, x, y):
    def density(w):
        return log_posterior(w, x, y)

    slopes = jax.vmap(jax.jit(jax.value_and_grad(density)))
    values, grads = slopes(chains)
    return chains + 0.1 * grads, values
"""


@pytest.mark.parametrize("name", ["by_arguments", "by_closure"])
def test_the_density_is_made_whole_whose_derivatives_chains_take_beside_each_other(
    shared: Project, name: str
) -> None:
    """A prior beside the sum over the data is no part of it: no collective behind them is right."""
    shared.write("chains.py", POSTERIOR)
    given = ("--arg", "chains=f32[5,6]", "--arg", "x=f32[24,6]", "--arg", "y=f32[24]", "--no-run")
    ran = shared.run("gen", f"chains.py::{name}", *given, "--output-format", "json")
    assert ran.exit_code == 0, ran.stderr
    found = json.loads(ran.stdout)
    syncs = [(sync["op"], sync["value"]) for sync in found["plan"]["syncs"]]
    assert syncs[0] == ("psum", "jnp.sum(jax.nn.log_sigmoid(y * (x @ w)))")
    assert [op for op, _ in syncs[1:]] == ["pmean"]
    assert found["evidence"]["derivation"]["complete"]
