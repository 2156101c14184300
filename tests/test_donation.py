"""Donated arguments: kept where the original donates, or asked for; nothing else of the caller's is taken."""

import dataclasses
import json
import subprocess
import sys

import pytest

from jax_pmap.emit.unit import emit

FUNCTIONS = """
import functools

import jax
import jax.numpy as jnp


def loss_fn(w, batch):
    return jnp.mean((batch["x"] @ w - batch["y"]) ** 2)


@functools.partial(jax.jit, donate_argnums=(0,), donate_argnames="momentum")
def step(w, momentum, batch):
    loss, grad = jax.value_and_grad(loss_fn)(w, batch)
    momentum = 0.9 * momentum + grad
    return w - 0.1 * momentum, momentum, loss


def plain(w, momentum, batch):
    loss, grad = jax.value_and_grad(loss_fn)(w, batch)
    momentum = 0.9 * momentum + grad
    return w - 0.1 * momentum, momentum, loss


fast = jax.jit(plain, donate_argnums=1)


def rebound(w, momentum, batch):
    loss, grad = jax.value_and_grad(loss_fn)(w, batch)
    return w - 0.1 * grad, momentum, loss


rebound = jax.jit(rebound, donate_argnums=(0,))


def make(seed=0):
    key = jax.random.key(seed)
    x = jax.random.normal(key, (24, 3))
    return x[0], x[1], {"x": x, "y": x[:, 1]}
"""
#: Calls the emitted function on placed inputs and prints which arrays are gone.
PROGRAM = """
import importlib, json, sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import fns
mesh = Mesh(np.array(jax.devices()), ("batch",))
gone = []
for place in ("first", "all"):
    w, momentum, batch = fns.make()
    if place == "all":
        w, momentum = jax.device_put((w, momentum), NamedSharding(mesh, P()))
        batch = jax.device_put(batch, NamedSharding(mesh, P("batch")))
    function = getattr(importlib.import_module("out"), sys.argv[1])
    for _ in range(2):
        result = function(w.copy(), momentum.copy(), batch)
    function(w, momentum, batch)
    gone.append([x.is_deleted() for x in (w, momentum, batch["x"], batch["y"])])
print(json.dumps(gone))
"""


def gone(project, name):
    """For inputs on the first and on all devices: whether w, momentum, x and y are deleted by a call."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, name],
        cwd=project.folder,
        env={"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("backend", ["pmap", "shard_map", "jit"])
def test_what_the_original_donates_is_donated_and_nothing_else(project, backend):
    project.write("fns.py", FUNCTIONS)
    result = project.run(
        "gen", "fns.py::step", "--inputs", "fns.py::make", "--backend", backend, "-o", "out.py"
    )
    assert result.exit_code == 0, result.stderr
    assert "donate_argnums=(0, 1)" in (project.folder / "out.py").read_text()
    for w, momentum, x, y in gone(project, "step"):
        assert (w, momentum, x, y) == (True, True, False, False)


def test_an_original_that_does_not_donate_keeps_all_arrays(project):
    project.write("fns.py", FUNCTIONS)
    result = project.run("gen", "fns.py::plain", "--inputs", "fns.py::make", "-o", "out.py")
    assert "donate" not in (project.folder / "out.py").read_text()
    assert "`fast` donates `momentum`, `plain` does not; --donate momentum would" in result.words
    assert gone(project, "plain") == [[False] * 4, [False] * 4]


def test_donation_that_is_asked_for_or_made_by_rebinding_the_name(project):
    project.write("fns.py", FUNCTIONS)
    words = ("--inputs", "fns.py::make", "-o", "out.py")
    result = project.run("gen", "fns.py::plain", *words, "--donate", "w")
    assert "`w` is donated: the arrays passed for it cannot be used again" in result.words
    assert [row[0] for row in gone(project, "plain")] == [True, True]
    project.run("gen", "fns.py::rebound", *words)
    assert "donate_argnums=0" in (project.folder / "out.py").read_text()
    project.refused("JP007", "gen", "fns.py::plain", "--donate", "params", says=("`params`",))


def test_emitted_code_that_takes_other_arrays_is_caught(project, monkeypatch):
    """Code that donates more than the plan says does not get through."""

    def emit_more(target, plan, *rest):
        arguments = tuple(dataclasses.replace(each, donated=True) for each in plan.arguments)
        return emit(target, dataclasses.replace(plan, arguments=arguments), *rest)

    monkeypatch.setattr("jax_pmap.emit.unit.emit", emit_more)
    project.write("fns.py", FUNCTIONS.replace("(0,), donate_argnames", "(), donate_argnames"))
    result = project.run("gen", "fns.py::step", "--inputs", "fns.py::make", "--backend", "jit")
    assert result.exit_code == 1
    assert "deletes the caller's `w`, which is not donated" in result.words
