"""Functions that cut their batch into minibatches: each device gets its rows of every one of them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from project import Project, simulated

from jax_pmap.planning.coupling import way_out
from jax_pmap.session import Session
from jax_pmap.worker.protocol import Observe

STEPS = """\
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

optimizer = optax.adam(1e-2)


def loss_fn(w, batch, key):
    kept = jax.random.bernoulli(key, 0.8, batch["x"].shape)
    ratio = jnp.exp(jnp.tanh((batch["x"] * kept) @ w) - batch["old"])
    clipped = jnp.clip(ratio, 0.8, 1.2)
    advantage = batch["y"] - batch["y"].mean()
    return -jnp.sum(batch["mask"] * jnp.minimum(ratio, clipped) * advantage) / jnp.sum(batch["mask"])


def improve(w, state, rollout, key):
    \"\"\"Two epochs of four minibatches, as in PPO, in the order of the rollout.\"\"\"

    def step(carry, given):
        w, state = carry
        loss, grads = jax.value_and_grad(loss_fn)(w, *given)
        updates, state = optimizer.update(grads, state, w)
        return (optax.apply_updates(w, updates), state), loss

    def epoch(carry, key):
        size = rollout["x"].shape[0]
        parts = jax.tree.map(lambda leaf: leaf.reshape(4, size // 4, *leaf.shape[1:]), rollout)
        return jax.lax.scan(step, carry, (parts, jax.random.split(key, 4)))

    (w, state), losses = jax.lax.scan(epoch, (w, state), jax.random.split(key, 2))
    return w, state, losses.mean()


def error(w, x, y):
    return jnp.sqrt(jnp.mean((jnp.tanh(x @ w) - y) ** 2))


def sgd(w, part):
    loss, grads = jax.value_and_grad(error)(w, *part)
    return w - 0.1 * grads, loss


def halves(w, x, y):
    return jax.lax.scan(sgd, w, (x.reshape(2, -1, 5), y.reshape(2, -1)))


def loop(w, x, y):
    n = len(x) // 4

    def body(i, w):
        part = [jax.lax.dynamic_slice_in_dim(leaf, i * n, n) for leaf in (x, y)]
        return w - 0.1 * jax.grad(error)(w, *part)

    return jax.lax.fori_loop(0, 4, body, w)


def shuffled(w, x, y, key):
    order = jax.random.permutation(key, len(x))
    return halves(w, x[order], y[order])


def of_sequences(w, first, x, y, key, size):
    def loss(w, h, x, y):
        _, states = jax.lax.scan(lambda h, x: (jnp.tanh(x @ w + h), h), h, x)
        return jnp.mean((states.sum(-1) - y) ** 2)

    def epoch(w, key):
        order = jax.random.permutation(key, size)
        cut = lambda a: jnp.take(a, order, axis=1).reshape(a.shape[0], 2, -1, *a.shape[2:]).swapaxes(0, 1)
        parts = first[order].reshape(2, -1, 5), cut(x), cut(y)
        return jax.lax.scan(lambda w, part: (w - 0.1 * jax.grad(loss)(w, *part), None), w, parts)

    return jax.lax.scan(epoch, w, jax.random.split(key, 2))[0]


def of_sixteen(w, x, y):
    k = len(x) // 16
    return jax.lax.scan(sgd, w, (x.reshape(k, -1, 5), y.reshape(k, -1)))


@functools.partial(jax.jit, static_argnames="size")
def of_a_size(w, rollout, size):
    count = rollout[0].shape[0] // size
    parts = jax.tree.map(lambda leaf: leaf.reshape((count, size) + leaf.shape[1:]), rollout)
    for x, y in zip(*parts):
        w = w - 0.1 * jax.grad(error)(w, x, y - y.mean())
    return w


def of_24(w, x, y):
    return jax.lax.scan(sgd, w, (x.reshape(-1, 24, 5), y.reshape(-1, 24)))


def rows_back(w, x, y):
    def step(w, part):
        return sgd(w, part)[0], jnp.tanh(part[0] @ w)

    w, rows = jax.lax.scan(step, w, (x.reshape(4, -1, 5), y.reshape(4, -1)))
    return w, rows.reshape(-1)


def policy_loss(w, x, advantage):
    logits = jnp.tanh(x @ w["first"]) @ w["second"]
    return -jnp.mean(jax.nn.log_softmax(logits)[:, 0] * advantage)


def as_wide_as_a_layer(w, rollout):
    parts = jax.tree.map(lambda x: x.reshape((4, x.shape[0] // 4) + x.shape[1:]), rollout)
    for x, advantage in zip(*parts):
        w = jax.tree.map(lambda w, grad: w - 0.1 * grad, w, jax.grad(policy_loss)(w, x, advantage))
    return w


def draw(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype("float32")


def inputs(): return draw(5), draw(192, 5), draw(192)
def with_size(): return draw(5), (draw(192, 5), draw(192)), 24
def with_key(): return *inputs(), jax.random.key(0)
def twelve(): return draw(5), draw(12, 5), draw(12), jax.random.key(0)
def sequences(): return draw(5, 5), draw(16, 5), draw(8, 16, 5), draw(8, 16), jax.random.key(0), 16

def layers(): return {"first": draw(5, 8), "second": draw(8, 3)}, (draw(192, 5), draw(192))


def rollouts():
    rollout = {"x": draw(192, 5), "y": draw(192), "old": draw(192), "mask": np.arange(192) % 3 > 0}
    return draw(5), optimizer.init(draw(5)), rollout, jax.random.key(0)
"""
CALL = """\
import jax
import numpy as np
import steps, steps_pmap

w, x, y = steps.inputs()
for _ in range(2):
    for one, other in zip(steps_pmap.halves(w, x, y), steps.halves(w, x, y), strict=True):
        assert np.allclose(one, other, atol=1e-5)
    # On the devices, as an earlier call leaves them.
    x, y = jax.device_put(steps_pmap.shard(x, y), steps_pmap.sharding(None, "batch"))
    assert x.shape[0] == 2 and len(x.sharding.device_set) == 4
    steps.halves = lambda *_, found=steps.halves(w, *steps.inputs()[1:]): found
try:
    steps_pmap.halves(w, x.reshape(4, 1, *x.shape[1:])[:, 0], y)
except (TypeError, ValueError) as error:
    print("other minibatches:", error)
steps_pmap.halves(w, *(leaf[:100] for leaf in steps.inputs()[1:]))
"""


@pytest.fixture
def steps(project: Project) -> Project:
    project.write("steps.py", STEPS)
    return project


def made(steps: Project, name: str, given: str, *options: str) -> Any:
    """The document of a function that is generated."""
    words = ("gen", f"steps.py::{name}", "--inputs", f"steps.py::{given}", "--output-format", "json")
    ran = steps.run(*words, *options)
    assert ran.exit_code == 0, ran.stderr
    return json.loads(ran.stdout)


def test_no_example_is_sent(steps: Project) -> None:
    """Dropout, a mask, and the mean of each minibatch; twice through the rollout."""
    document = made(steps, "improve", "rollouts")
    plan, evidence = document["plan"], document["evidence"]
    assert (plan["minibatches"], plan["multiple_of"]) == (4, 4)
    assert (evidence["derivation"]["complete"], evidence["derivation"]["multiple"]) == (True, 4)
    assert "in_axes=(None, None, 1, None)" in document["code"]
    assert {each["kind"] for each in evidence["collectives"]} == {"all-reduce"}
    assert evidence["checks"]


def test_minibatches_in_a_loop(steps: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    ask = Session.ask

    def noted(self: Session, request: Any, *doing: Any) -> Any:
        asked.append(request)
        return ask(self, request, *doing)

    monkeypatch.setattr(Session, "ask", noted)
    document = made(steps, "loop", "inputs", "--no-run")
    # What becomes of the batch in one piece, with all of it on every device, is not looked for.
    assert not any("all_gather" in each.tapped.code for each in asked if isinstance(each, Observe))
    assert document["evidence"]["derivation"]["complete"]
    assert document["plan"]["minibatches"] == 4
    assert {sync["op"] for sync in document["plan"]["syncs"]} == {"pmean"}


@pytest.mark.parametrize("backend", ["pmap", "shard_map", "jit"])
def test_the_drop_in(steps: Project, backend: str) -> None:
    document = made(steps, "halves", "inputs", "--backend", backend, "--no-run")
    Path("steps_pmap.py").write_text(document["code"])
    Path("call.py").write_text(CALL)
    ran = subprocess.run([sys.executable, "call.py"], env=simulated(4), capture_output=True, text=True)
    words = " ".join(ran.stderr.split())
    assert "[100, 5]; expected float of rank 2, axis 0 a multiple of 8 (2 for each of the devices)" in words
    assert "other minibatches:" in ran.stdout


def test_minibatches_of_which_larger_batches_have_more(steps: Project) -> None:
    steps.refused("JP043", "plan", "steps.py::of_sixteen", "--inputs", "steps.py::inputs", exit_code=1)


@pytest.mark.parametrize(("name", "given"), [("of_a_size", "with_size"), ("of_24", "inputs")])
def test_minibatches_of_a_given_size_are_divided_where_they_are_made(
    steps: Project, name: str, given: str
) -> None:
    """How many there are is known from all of the batch, which no rows of a device tell."""
    document = made(steps, name, given, "--no-run")
    plan, evidence = document["plan"], document["evidence"]
    assert (plan["minibatches"], plan["made"]) == (1, 24)
    assert evidence["derivation"]["complete"]
    assert {sync["op"] for sync in plan["syncs"]} == {"own_share", "pmean"}


def test_minibatches_of_as_many_sequences_as_these_have_steps(steps: Project) -> None:
    """What a reshape makes of 16 sequences of 8 steps: 8 in each of two minibatches."""
    document = made(steps, "of_sequences", "sequences", "--no-run")
    assert document["evidence"]["derivation"]["complete"]
    shares = {(sync["op"], sync["axis"]) for sync in document["plan"]["syncs"]} - {("pmean", None)}
    assert shares == {("own_share", 1), ("own_share", 2)}


def test_minibatches_with_as_many_rows_as_a_layer_has_columns(steps: Project) -> None:
    """Another size of the batch tells rows from columns: devices have rows of every minibatch of it."""
    document = made(steps, "as_wide_as_a_layer", "layers", "--no-run")
    assert document["evidence"]["derivation"]["complete"]
    assert document["plan"]["minibatches"] == 4
    assert {sync["op"] for sync in document["plan"]["syncs"]} == {"pmean"}


def test_rows_in_an_order_that_is_drawn_are_gathered(steps: Project) -> None:
    words = ("steps.py::shuffled", "--inputs", "steps.py::with_key", "--output-format", "json")
    ran = steps.run("plan", *words)
    assert ran.exit_code == 0, ran.stderr
    plan = json.loads(ran.stdout)["plan"]
    assert plan["minibatches"] == 1
    assert "all_gather" in {sync["op"] for sync in plan["syncs"]}


def test_rows_are_repeated_until_devices_share_what_is_shuffled(steps: Project) -> None:
    """Halves of 6 rows are shared by 3 devices, and not by as many as a plan is looked for with."""
    document = made(steps, "shuffled", "twelve", "--no-run")
    assert document["evidence"]["derivation"]["complete"]
    assert document["plan"]["multiple_of"] == 2
    Path("steps_pmap.py").write_text(document["code"])
    call = """
import numpy as np, steps, steps_pmap
given = steps.twelve()
for one, other in zip(steps_pmap.shuffled(*given), steps.shuffled(*given), strict=True):
    assert np.allclose(one, other, atol=1e-5)
"""
    ran = subprocess.run([sys.executable, "-c", call], env=simulated(3), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


RECURRENT = """\
import jax
import jax.numpy as jnp
import numpy as np


def values(w, hidden, obs):
    def cell(h, x):
        h = jnp.tanh(h @ w["h"] + x @ w["x"])
        return h, h @ w["out"]

    return jax.lax.scan(cell, hidden, obs)[1]


def loss_fn(w, hidden, obs, returns):
    return jnp.mean((values(w, hidden[0], obs) - returns) ** 2)


def improve(w, hidden, rollout, key):
    def minibatch(w, part):
        loss, grads = jax.value_and_grad(loss_fn)(w, *part)
        return jax.tree.map(lambda w, grad: w - 0.1 * grad, w, grads), loss

    def epoch(carry, _):
        w, key = carry
        key, now = jax.random.split(key)
        order = jax.random.permutation(now, rollout[1].shape[1])
        shuffled = jax.tree.map(lambda x: jnp.take(x, order, axis=1), (hidden[None], *rollout))
        parts = jax.tree.map(
            lambda x: jnp.swapaxes(x.reshape(x.shape[0], 4, -1, *x.shape[2:]), 0, 1), shuffled
        )
        w, losses = jax.lax.scan(minibatch, w, parts)
        return (w, key), losses

    (w, _), losses = jax.lax.scan(epoch, (w, key), None, 2)
    return w, losses.mean()


def rollouts(size):
    draw = lambda *shape: np.random.default_rng(len(shape)).normal(size=shape).astype("float32")
    w = {"h": draw(7, 7), "x": draw(5, 7), "out": draw(7)}
    return w, draw(size, 7), (draw(6, size, 5), draw(6, size)), jax.random.key(0)


def of_96(): return rollouts(96)
def of_24(): return rollouts(24)
"""


@pytest.mark.parametrize(("given", "rows"), [("of_96", 24), ("of_24", 6)])
def test_environments_that_are_shuffled_are_divided_where_minibatches_are_made(
    project: Project, given: str, rows: int
) -> None:
    """As in PPO with a recurrent policy: time first, and an order of the environments is drawn."""
    project.write("steps.py", RECURRENT)
    document = made(project, "improve", given, "--no-run")
    plan = document["plan"]
    assert plan["made"] == rows
    assert [sync["op"] for sync in plan["syncs"]] == ["own_share", "pmean", "pmean"]
    assert plan["syncs"][0]["value"].startswith("x.reshape(x.shape[0], 4, -1")
    assert document["evidence"]["derivation"]["complete"]


def test_what_comes_back_row_by_row_alone_is_gathered(steps: Project) -> None:
    """A device has rows of each minibatch, which no caller could put together."""
    document = made(steps, "rows_back", "inputs", "--no-run")
    plan = document["plan"]
    gathers = [(sync["value"], sync["joined"]) for sync in plan["syncs"] if sync["op"] == "all_gather"]
    assert (plan["minibatches"], gathers) == (4, [("rows.reshape(-1)", [4, "rows.shape[1]"])])
    assert document["evidence"]["derivation"]["complete"]


def test_an_edited_file_leads_back(steps: Project) -> None:
    made = steps.run("gen", "steps.py::halves", "--inputs", "steps.py::inputs", "--in-place", "--no-run")
    assert made.exit_code == 0, made.stderr
    assert "    x, y = merged((x, y))\n    return jax.lax.scan(p_sgd, w," in Path("steps.py").read_text()
    found = steps.run("check", "steps.py")
    assert (found.exit_code, "nothing found" in found.words) == (0, True), found.stderr


def test_another_look_derives_it_too(steps: Project) -> None:
    """The file refuses batches that do not divide, and rows of one minibatch draw together."""
    Path("steps_pmap.py").write_text(made(steps, "improve", "rollouts", "--no-run")["code"])
    against = ("--against", "steps.py::improve", "--inputs", "steps.py::rollouts")
    found = steps.run("verify", "steps_pmap.py::improve", *against, "--output-format", "json")
    assert found.exit_code == 0, found.stderr
    evidence = json.loads(found.stdout)["evidence"]
    assert evidence["derivation"]["complete"]
    assert evidence["equal_draws"]
    assert [note for note in evidence["notes"] if note.startswith("batches of 8 and 16 fail on 8 devices")]


ALL_BUT_A_FEW = """\
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def improve(w, x, y):
    n = x.shape[0] // 5
    xs, ys = x[: n * 5].reshape(n, 5, 5), y[: n * 5].reshape(n, 5)

    def step(w, batch):
        x, y = batch
        return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w), None

    return lax.scan(step, w, (xs, ys))[0]


def inputs():
    return np.ones(5, np.float32), np.ones((24, 5), np.float32), np.ones(24, np.float32)
"""


def test_a_batch_that_we_made_larger_is_not_said_to_fail(project: Project) -> None:
    """Of 192 rows of `x` beside 24 of `y`, which a search for minibatches has, nothing is said."""
    project.write("steps.py", ALL_BUT_A_FEW)
    project.refused("JP043", "plan", "steps.py::improve", "--inputs", "steps.py::inputs", exit_code=1)


@pytest.mark.parametrize(
    ("text", "called", "picks"),
    [
        ("x[order]", "", True),
        ("batch['x'][order]", "", True),
        ("jnp.take(x, order, axis=0)", "jax.numpy.take", True),
        ("jax.random.permutation(key, x)", "jax.random.permutation", True),
        ("x[1:]", "", False),
        ("x[..., 0]", "", False),
        ("batch['x']", "", False),
        ("jnp.sort(x)", "jax.numpy.sort", False),
    ],
)
def test_who_shuffles_a_batch_is_told_to_generate_the_step_on_one_minibatch(
    text: str, called: str, picks: bool
) -> None:
    assert ("the step on one minibatch" in way_out(text, called)) is picks
