"""`--backend auto`: the better of the forms that are proved, and why."""

from __future__ import annotations

import json

import pytest
from project import Project

from jax_pmap.model import Backend, Check, Collective, Evidence, Generated, Plan
from jax_pmap.proof.choice import choose

MODULE = """\
import jax
import jax.numpy as jnp


def roots(x):
    def root(a):
        def more(s):
            return jnp.abs(s * s - a) > 1e-5 * a

        return jax.lax.while_loop(more, lambda s: 0.5 * (s + a / s), a)

    return jax.vmap(root)(x)


def ranks(x):
    return jnp.argsort(jnp.argsort(x))


def powers(x):
    return jax.lax.fori_loop(0, 5, lambda _, y: y * jnp.mean(y), x)
"""
WAITS = "each round of a loop"


@pytest.fixture
def module(project: Project) -> Project:
    project.write("module.py", MODULE)
    return project


def test_devices_that_wait_in_loops_decide_for_written_collectives(module: Project) -> None:
    words = ("gen", "module.py::roots", "--arg", "x=f32[96]>0", "--output-format", "json")
    made = module.run(*words, "--backend", "auto")
    assert made.exit_code == 0, made.stderr
    document = json.loads(made.stdout)
    assert "jax.shard_map" in document["code"] and "--backend shard_map" in document["code"]
    assert any("took shard_map" in note and WAITS in note for note in document["evidence"]["notes"])
    asked = json.loads(module.run(*words, "--backend", "jit").stdout)
    assert any(WAITS in note for note in asked["evidence"]["notes"])


def test_a_loop_of_known_length_makes_no_device_wait(module: Project) -> None:
    made = module.run("gen", "module.py::powers", "--arg", "x=f32[96]", "--backend", "jit")
    assert made.exit_code == 0 and WAITS not in made.words, made.stderr
    assert "compiled to 1 all-reduce (4 B; 5 times a call in loops, 20 B)" in made.words


def test_what_is_sent_in_every_round_of_a_loop_decides() -> None:
    def form(backend: Backend, row: Collective) -> Generated:
        checks = (Check(8, "as given", 24, 2, 0.0, 1e-6),)
        evidence = Evidence(checks, "0.10.2", "3.11", True, collectives=(row,))
        return Generated("", Plan("a.py::f", "batch", (), (), None, ()), backend, evidence)

    often = form(Backend.SHARD_MAP, Collective("all-reduce", 1, 8, times=12, moved=96))
    once = form(Backend.JIT, Collective("all-gather", 1, 24, times=1, moved=24))
    best = choose([often, once], [])
    assert best.backend is Backend.JIT
    assert "communicates 24 B on a device, that of shard_map 96 B" in best.evidence.notes[0]


def test_the_only_form_that_is_proved_is_taken(module: Project) -> None:
    made = module.run("gen", "module.py::ranks", "--arg", "x=f32[96]", "--backend", "auto")
    assert made.exit_code == 0, made.stderr
    assert "took jit: the other form is refused (JP043)" in made.words


PRIVATE = """\
import jax
import jax.numpy as jnp
import numpy as np
import optax

TX = optax.contrib.dpsgd(learning_rate=0.1, l2_norm_clip=1.0, noise_multiplier=0.5, seed=0)


def error(w, x, y):
    return jnp.sum((jnp.tanh(x @ w) - y) ** 2)


def step(w, state, x, y):
    gradients = jax.vmap(jax.grad(error), in_axes=(None, 0, 0))(w, x, y)
    updates, state = TX.update(gradients, state, w)
    return optax.apply_updates(w, updates), state


def inputs():
    w, x, y = (np.random.default_rng(0).normal(size=s).astype("f4") for s in ((8, 6), (24, 8), (24, 6)))
    return w, TX.init(w), x, y
"""


def test_sums_in_a_library_are_left_to_the_compiler(project: Project) -> None:
    """Written out, all gradients are gathered for a library that clips, sums and adds noise in one call."""
    project.write("private.py", PRIVATE)
    words = ("gen", "private.py::step", "--inputs", "private.py::inputs")
    made = project.run(*words)
    assert "of the work of one; --backend auto looks whether the compiler finds less" in made.words
    made = project.run(*words, "--backend", "auto")
    assert made.exit_code == 0, made.stderr
    assert "took jit: its compiled program communicates" in made.words
    assert "compiled to 1 all-reduce" in made.words


PAIRS = """\
import jax
import jax.numpy as jnp


def signs(p, x, y):
    a, b = x @ p, y @ p
    scores = a @ b.T
    labels = 2 * jnp.eye(len(x)) - 1
    return -jnp.mean(jnp.sum(jax.nn.log_sigmoid(labels * scores), axis=-1))


def both_ways(p, x, y):
    logits = (x @ p) @ (y @ p).T
    labels = jnp.eye(len(x))
    return jnp.sum(labels * (jax.nn.log_softmax(logits) + jax.nn.log_softmax(logits.T)))
"""


@pytest.mark.parametrize(("name", "gathers"), [("signs", 1), ("both_ways", 2)])
def test_of_two_sides_one_is_gathered_where_no_pairs_are(project: Project, name: str, gathers: int) -> None:
    """Each device scores its rows against all others, unless what all score is wanted by columns, too."""
    project.write("pairs.py", PAIRS)
    given = ("--arg", "p=f32[4,3]", "--arg", "x=f32[48,4]", "--arg", "y=f32[48,4]", "--output-format", "json")
    planned = project.run("plan", f"pairs.py::{name}", *given)
    assert planned.exit_code == 0, planned.stderr
    syncs = json.loads(planned.stdout)["plan"]["syncs"]
    assert [sync["op"] for sync in syncs].count("all_gather") == gathers
    assert all(sync["bytes"] <= 48 * 4 * 4 for sync in syncs if sync["op"] == "all_gather")
