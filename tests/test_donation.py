"""Donated arguments: kept where the original donates, or asked for; nothing else of the caller's is taken."""

import dataclasses
import json
import subprocess
import sys

from project import simulated

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
#: Calls emitted functions on placed inputs and prints which arrays are gone.
PROGRAM = """
import importlib, json, sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import fns
mesh = Mesh(np.array(jax.devices()), ("batch",))
gone = {}
for each in sys.argv[1:]:
    module, name = each.split(".")
    function = getattr(importlib.import_module(module), name)
    for place in ("first", "all"):
        w, momentum, batch = fns.make()
        if place == "all":
            w, momentum = jax.device_put((w, momentum), NamedSharding(mesh, P()))
            batch = jax.device_put(batch, NamedSharding(mesh, P("batch")))
        for _ in range(2):
            result = function(w.copy(), momentum.copy(), batch)
        function(w, momentum, batch)
        deleted = [x.is_deleted() for x in (w, momentum, batch["x"], batch["y"])]
        gone.setdefault(module, []).append(deleted)
print(json.dumps(gone))
"""
INPUTS = ("--inputs", "fns.py::make")


def gone(project, *functions):
    """By module, for inputs on the first and on all devices: whether w, momentum, x and y are deleted."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *functions],
        cwd=project.folder,
        env=simulated(4),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_the_original_donates_is_donated_and_nothing_else(shared):
    shared.write("fns.py", FUNCTIONS)
    backends = ("pmap", "shard_map", "jit")
    for backend in backends:
        out = f"by_{backend}.py"
        result = shared.run("gen", "fns.py::step", *INPUTS, "--backend", backend, "-o", out)
        assert result.exit_code == 0, result.stderr
        assert "donate_argnums=(0, 1)" in (shared.folder / out).read_text()
    found = gone(shared, *(f"by_{backend}.step" for backend in backends))
    assert found == {f"by_{backend}": [[True, True, False, False]] * 2 for backend in backends}


def test_donation_is_not_made_up_and_can_be_asked_for(shared):
    shared.write("fns.py", FUNCTIONS)
    result = shared.run("gen", "fns.py::plain", *INPUTS, "-o", "plain.py")
    assert "donate" not in (shared.folder / "plain.py").read_text()
    assert "`fast` donates `momentum`, `plain` does not; --donate momentum would" in result.words
    result = shared.run("gen", "fns.py::plain", *INPUTS, "-o", "asked.py", "--donate", "w")
    assert "`w` is donated: the arrays passed for it cannot be used again" in result.words
    found = gone(shared, "plain.plain", "asked.plain")
    assert found["plain"] == [[False] * 4] * 2
    assert [row[0] for row in found["asked"]] == [True, True]
    shared.refused("JP007", "gen", "fns.py::plain", "--donate", "params", says=("`params`",))


def test_donation_made_by_rebinding_the_name(shared):
    shared.write("fns.py", FUNCTIONS)
    result = shared.run("gen", "fns.py::rebound", *INPUTS)
    assert "donate_argnums=0" in result.stdout


def test_emitted_code_that_takes_other_arrays_is_caught(shared, monkeypatch):
    """Code that donates more than the plan says does not get through."""

    def emit_more(target, plan, *rest):
        arguments = tuple(dataclasses.replace(each, donated=True) for each in plan.arguments)
        return emit(target, dataclasses.replace(plan, arguments=arguments), *rest)

    monkeypatch.setattr("jax_pmap.proof.emitted.emit", emit_more)
    shared.write("fewer.py", FUNCTIONS.replace("(0,), donate_argnames", "(), donate_argnames"))
    result = shared.run("gen", "fewer.py::step", "--inputs", "fewer.py::make", "--backend", "jit")
    assert result.exit_code == 1
    assert "deletes the caller's `w`, which is not donated" in result.words
