"""Arrays that shard_map code has in parts: gathered, with their gradients scattered, and proved so."""

from __future__ import annotations

import json
import subprocess
import sys

import jsonschema
import pytest
from project import Project, simulated

from jax_pmap.report.as_json import schema

STEPS = """\
import jax
import jax.numpy as jnp
import numpy as np


def loss_fn(params, x):
    return jnp.mean(jnp.tanh(x @ params["up"]) @ params["down"])


def step(params, x):
    loss, grads = jax.value_and_grad(loss_fn)(params, x)
    return {"params": jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), "loss": loss}


def in_one(params, x):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss_fn)(params, x))


def predict(params, x):
    return jnp.tanh(x @ params["up"]) @ params["down"]


def by_norm(params, x):
    grads = jax.grad(loss_fn)(params, x)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    return jax.tree.map(lambda p, g: p - 0.1 * g / norm, params, grads)


def unless_infinite(params, x):
    grads = jax.grad(loss_fn)(params, x)
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)]))
    return jax.tree.map(lambda p, g: jnp.where(finite, p - 0.1 * g, p), params, grads)


def of_one(params, x):
    loss, grads = jax.value_and_grad(lambda params: jnp.mean(x[:, :1] * params["down"][:, 0]))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def inputs():
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.normal(size=shape).astype("float32")
    return {"up": normal(6, 64), "down": normal(64, 2)}, normal(24, 6)
"""
RULES = ("--spec", "params.up=None,data", "--spec", "params.down=data")
WORDS = ("--inputs", "steps.py::inputs", "--backend", "shard_map", "--mesh", "data=4", *RULES)
GATHERED = ("gather_parts", "params")


@pytest.fixture
def steps(shared: Project) -> Project:
    shared.write("steps.py", STEPS)
    return shared


@pytest.mark.parametrize(
    ("name", "syncs", "kinds"),
    [
        (
            "step",
            [GATHERED, ("pmean", "loss"), ("pmean_scatter", "grads")],
            {"all-gather", "all-reduce", "reduce-scatter"},
        ),
        (
            "in_one",
            [GATHERED, ("pmean_scatter", "jax.grad(loss_fn)(params, x)")],
            {"all-gather", "reduce-scatter"},
        ),
        ("predict", [("gather_parts", 'params["down"]'), ("gather_parts", 'params["up"]')], {"all-gather"}),
    ],
)
def test_parts_are_gathered_and_gradients_scattered(
    steps: Project, name: str, syncs: list[tuple[str, str]], kinds: set[str]
) -> None:
    made = steps.run("gen", f"steps.py::{name}", *WORDS, "--output-format", "json")
    assert made.exit_code == 0, made.stderr
    document = json.loads(made.stdout)
    jsonschema.validate(document["plan"], schema("plan"))
    evidence = document["evidence"]
    assert evidence["derivation"]["complete"]
    assert {check["devices"] for check in evidence["checks"]} == {4}
    assert sorted((row["op"], row["value"]) for row in document["plan"]["syncs"]) == sorted(syncs)
    assert {row["kind"] for row in evidence["collectives"]} == kinds
    assert not [note for note in evidence["notes"] if "the plan has not" in note]


def test_gradients_of_zero_are_not_said_to_be_none(steps: Project) -> None:
    says = ("not all gradients of what is in parts depend on the batch: `grads['down']` alone",)
    steps.refused("JP046", "gen", "steps.py::of_one", *WORDS, says=says, exit_code=1)


@pytest.mark.parametrize(
    ("name", "place"), [("by_norm", "sum(jnp.sum(g**2)"), ("unless_infinite", "jnp.where(finite, p")]
)
def test_what_couples_the_gradients_is_for_the_compiler(steps: Project, name: str, place: str) -> None:
    says = ("goes on with its own part", place, "Use --backend jit")
    steps.refused("JP046", "gen", f"steps.py::{name}", *WORDS, says=says, exit_code=1)


def test_a_plan_with_parts_is_taken_back(steps: Project) -> None:
    plan = steps.run("plan", "steps.py::step", *WORDS, "--output-format", "json")
    steps.write("plan.json", plan.stdout)
    made = steps.run("gen", "steps.py::step", *WORDS, "--plan", "plan.json", "--no-run")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs on 4 devices" in made.words
    assert 'grads = scattered("params", grads)' in made.stdout


def test_a_sum_that_is_scattered_as_a_mean_is_found(steps: Project) -> None:
    made = steps.run("gen", "steps.py::step", *WORDS, "--no-run", "-o", "steps_parts.py")
    assert made.exit_code == 0, made.stderr
    code = (steps.folder / "steps_parts.py").read_text(encoding="utf-8")
    assert code.count(" / mesh().shape[AXIS]") == 1
    steps.write("summed.py", code.replace(" / mesh().shape[AXIS]", ""))
    words = ("verify", "summed.py::step", "--against", "steps.py::step", "--inputs", "steps.py::inputs")
    steps.refused("JP045", *words, says=("differs",), exit_code=1)


EQUINOX = """\
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


def loss_fn(model, x):
    return jnp.mean(jax.vmap(model)(x) ** 2)


def step(model, x):
    grads = eqx.filter_grad(loss_fn)(model, x)
    return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads))


def inputs():
    return eqx.nn.MLP(6, 2, 8, 1, key=jax.random.key(0)), np.random.default_rng(0).normal(size=(24, 6))
"""


def test_functions_among_the_leaves_stay_where_they_are(shared: Project) -> None:
    shared.write("filtered.py", EQUINOX)
    words = ("filtered.py::step", "--inputs", "filtered.py::inputs", "--backend", "shard_map")
    rule = ("--mesh", "data=2", "--spec", ".*weight=data")
    made = shared.run("gen", *words, *rule, "--output-format", "json")
    assert made.exit_code == 0, made.stderr
    syncs = json.loads(made.stdout)["plan"]["syncs"]
    assert {row["op"]: row["like"] for row in syncs} == {"gather_parts": "model", "pmean_scatter": "model"}


OPTIMISED = """\
import dataclasses
import functools
from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from steps import inputs, loss_fn


class Optimiser(NamedTuple):
    update: Callable


def scaled(rate):
    return Optimiser(lambda grads: jax.tree.map(lambda g: rate * g, grads))


def by_norm(rate):
    def update(grads):
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        return jax.tree.map(lambda g: rate * g / norm, grads)

    return Optimiser(update)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["params"], meta_fields=["optimiser"])
@dataclasses.dataclass(frozen=True)
class State:
    params: Any
    optimiser: Optimiser


def given(optimiser, params, x):
    updates = optimiser.update(jax.grad(loss_fn)(params, x))
    return jax.tree.map(lambda p, u: p - u, params, updates)


def held(state, x):
    updates = state.optimiser.update(jax.grad(loss_fn)(state.params, x))
    return State(jax.tree.map(lambda p, u: p - u, state.params, updates), state.optimiser)


def for_given(make=scaled):
    return make(0.1), *inputs()


def for_held(make=scaled):
    params, x = inputs()
    return State(params, make(0.1)), x
"""
OTHERS = """\
import jax
import numpy as np
import optimised
from given_parts import given
from held_parts import held

found, wanted = given(*optimised.for_given()), optimised.given(*optimised.for_given())
jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, wanted)
found = held(*optimised.for_held()).params
jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, wanted)
for function, arguments in ((given, optimised.for_given), (held, optimised.for_held)):
    try:
        function(*arguments(optimised.by_norm))
    except ValueError as error:
        print(str(error).partition(" of the run")[0])
"""


def test_where_gradients_are_in_parts_no_other_optimiser_will_do(steps: Project) -> None:
    steps.write("optimised.py", OPTIMISED)
    for name, paths in (("given", "params"), ("held", "state.params")):
        rules = (f"--spec={paths}.up=None,data", f"--spec={paths}.down=data")
        words = (f"optimised.py::{name}", "--inputs", f"optimised.py::for_{name}", "--no-run")
        where = ("--backend", "shard_map", "--mesh", "data=4", *rules)
        made = steps.run("gen", *words, *where, "-o", f"{name}_parts.py")
        assert made.exit_code == 0, made.stderr
    ran = subprocess.run([sys.executable, "-c", OTHERS], env=simulated(4), capture_output=True, text=True)
    assert ran.stdout.splitlines() == [
        "given: `optimiser` is not the Optimiser",
        "held: `state.optimiser` is not the Optimiser",
    ], ran.stderr
