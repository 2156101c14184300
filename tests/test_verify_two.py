"""`jax-pmap verify` against a reference that is parallel itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import jsonschema
import pytest
from referencing import Registry, Resource

from jax_pmap.proof import verify
from jax_pmap.report.as_json import schema

if TYPE_CHECKING:
    from project import Project

STEPS = """
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = Mesh(np.array(jax.devices()), ("i",))
    shard_map = functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("i")), check_vma=False)


    def loss_fn(w, batch):
        error = (batch["x"] @ w - batch["y"]) ** 2
        return jnp.sum(error * batch["mask"]) / jnp.sum(batch["mask"])


    # A step that takes parameters with a device axis by broadcasting, though it is not meant to.
    def broadcast_loss(w, batch):
        return jnp.mean((batch["x"] @ w[..., None, :, None]) ** 2)


    @functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0), out_axes=None)
    def p_broadcast(w, batch):
        loss, grads = jax.lax.pmean(jax.value_and_grad(broadcast_loss)(w, batch), "batch")
        return w - 0.1 * grads, loss


    @jax.jit
    @functools.partial(shard_map, out_specs=P())
    def s_broadcast(w, batch):
        loss, grads = jax.lax.pmean(jax.value_and_grad(broadcast_loss)(w, batch), "i")
        return w - 0.1 * grads, loss


    # What most tutorials show: with a mask, not the step of one device.
    @functools.partial(jax.pmap, axis_name="batch", donate_argnums=0)
    def p_averaged(w, batch):
        loss, grads = jax.lax.pmean(jax.value_and_grad(loss_fn)(w, batch), "batch")
        return w - 0.1 * grads, loss


    @jax.jit
    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("i")), out_specs=P())
    def s_averaged(w, batch):
        mean = lambda w: jax.lax.pmean(loss_fn(w, batch), "i")
        loss, grads = jax.value_and_grad(mean)(w)
        return w - 0.1 * grads, loss


    # The body of `p_averaged`, pasted: shard_map has summed the gradients by then.
    @jax.jit
    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("i")), out_specs=P())
    def s_pasted(w, batch):
        loss, grads = jax.lax.pmean(jax.value_and_grad(loss_fn)(w, batch), "i")
        return w - 0.1 * grads, loss


    def share(w, batch):
        return jnp.sum((batch["x"] @ w - batch["y"]) ** 2 * batch["mask"])


    def weighted(w, batch):
        total, grads = jax.value_and_grad(share)(w, batch)
        total, grads, number = jax.lax.psum((total, grads, jnp.sum(batch["mask"])), "i")
        return w - 0.1 * grads / number, total / number


    def scaled(w, batch):
        # A rate for each device, as for a sum.
        after, loss = weighted(w, batch)
        return w + (after - w) * jax.device_count(), loss


    p_weighted = jax.pmap(weighted, axis_name="i", in_axes=(None, 0))
    p_replicated = jax.pmap(weighted, axis_name="i", in_axes=(None, 0), out_axes=None)
    s_weighted = jax.jit(shard_map(weighted, out_specs=P()))
    s_scaled = jax.jit(shard_map(scaled, out_specs=P()))


    def train_step(w, batch):
        loss, grads = jax.value_and_grad(loss_fn)(w, batch)
        return w - 0.1 * grads, loss


    sharding = NamedSharding(mesh, P()), NamedSharding(mesh, P("i"))
    j_weighted = jax.jit(train_step, in_shardings=sharding)


    def drop_in(w, batch):
        n = jax.device_count()
        return p_replicated(w, jax.tree.map(lambda x: x.reshape(n, len(x) // n, *x.shape[1:]), batch))


    def make(function):
        mapped = shard_map(function, out_specs=P())
        def step(w, batch):
            return mapped(w, batch)
        return jax.jit(step)


    made = make(weighted)


    def doubled(function):
        @functools.wraps(function)
        def step(w, batch):
            after, loss = function(w, batch)
            return after, 2 * loss
        return step


    # What is imported to be found, as only one device runs it: no reference.
    twice = {"step": doubled(train_step)}["step"]
    p_twice = {"step": doubled(p_replicated)}["step"]


    # Each device has a running mean of its own.
    def running(state, batch):
        mean = 0.9 * state["mean"] + 0.1 * jnp.mean(batch["x"], 0)
        grads = jax.grad(lambda w: jnp.mean(((batch["x"] - mean) @ w) ** 2))(state["w"])
        return {"mean": mean, "w": state["w"] - 0.1 * jax.lax.pmean(grads, "i")}


    p_running = jax.pmap(running, axis_name="i")
    s_one_mean = jax.jit(shard_map(running, out_specs=P()))
    own = {"mean": P("i"), "w": P()}


    @jax.jit
    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P("i"), P("i")), out_specs=P("i"), check_vma=False)
    def s_running(state, batch):
        state = running(jax.tree.map(lambda x: x[0], state), batch)
        return jax.tree.map(lambda x: x[None], state)


    def dropout(w, x, key):
        def loss(w):
            h = x @ w
            return jnp.mean(jnp.where(jax.random.bernoulli(key, 0.8, h.shape), h / 0.8, 0.0) ** 2)

        return jax.lax.pmean(jax.grad(loss)(w), "i")


    def folded(w, x, key):
        return dropout(w, x, jax.random.fold_in(key, jax.lax.axis_index("i")))


    p_dropout = jax.pmap(dropout, axis_name="i")
    p_folded = jax.pmap(folded, axis_name="i", in_axes=(None, 0, None))
    keyed = {"mesh": mesh, "out_specs": P(), "check_vma": False}
    s_folded = jax.jit(jax.shard_map(folded, in_specs=(P(), P("i"), P()), **keyed))
    s_unfolded = jax.jit(jax.shard_map(dropout, in_specs=(P(), P("i"), P()), **keyed))


    @jax.jit
    @functools.partial(jax.shard_map, in_specs=(P(), P("i"), P("i")), **keyed)
    def s_dropout(w, x, keys):
        return dropout(w, x, keys[0])


    def make_inputs(seed=0):
        random = np.random.default_rng(seed)
        batch = {
            "x": random.normal(size=(24, 3)).astype(np.float32),
            "y": random.normal(size=24).astype(np.float32),
            "mask": (random.random(24) < 0.8).astype(np.float32),
        }
        return random.normal(size=3).astype(np.float32), batch


    def make_state(seed=0):
        w, batch = make_inputs(seed)
        return {"mean": np.zeros(3, np.float32), "w": w}, {"x": batch["x"]}


    def make_keys(seed=0):
        w, batch = make_inputs(seed)
        return w, batch["x"], jax.random.PRNGKey(seed)
"""
#: New, old, inputs, layouts of both.
EQUAL = [
    ("s_averaged", "p_averaged", "make_inputs", {}, {"w": "devices", "batch": "devices"}),
    ("p_averaged", "s_averaged", "make_inputs", {"w": "devices", "batch": "devices"}, {}),
    ("s_running", "p_running", "make_state", {"state": "devices"}, {"state": "devices", "batch": "devices"}),
    (
        "s_dropout",
        "p_dropout",
        "make_keys",
        {"key": "keys"},
        {"w": "devices", "x": "devices", "key": "keys"},
    ),
    ("s_folded", "p_folded", "make_keys", {}, {"x": "devices"}),
]
DERIVED = [
    ("s_weighted", "p_weighted", {}, {"batch": "devices"}),
    ("p_replicated", "s_weighted", {"batch": "devices"}, {}),
    ("p_weighted", "p_replicated", {"batch": "devices"}, {"batch": "devices"}),
    ("j_weighted", "p_weighted", {}, {"batch": "devices"}),
    ("s_weighted", "drop_in", {}, {}),
    ("made", "p_weighted", {}, {"batch": "devices"}),
    ("s_broadcast", "p_broadcast", {}, {"batch": "devices"}),
]
#: New, old, inputs, what the refusal says.
WRONG = [
    ("s_pasted", "p_averaged", "make_inputs", "`w - 0.1 * grads` differs on 3 devices"),
    ("s_weighted", "p_averaged", "make_inputs", "`w - 0.1 * grads` differs on 3 devices"),
    ("s_scaled", "p_weighted", "make_inputs", "differs on 3 devices"),
    ("s_one_mean", "p_running", "make_state", "each device of `p_running` has one of its own there"),
    ("s_unfolded", "p_folded", "make_keys", "differs on 3 devices"),
    ("s_folded", "p_dropout", "make_keys", "differs on 3 devices"),
]


@pytest.fixture
def steps(shared: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with steps in several styles, asked about on two counts of devices."""
    monkeypatch.setattr(verify, "COUNTS", verify.SECOND)
    shared.write("steps.py", STEPS)
    return shared


def question(new: str, old: str, inputs: str) -> tuple[str, ...]:
    """The command line of one question."""
    return ("verify", f"steps.py::{new}", "--against", f"steps.py::{old}", "--inputs", f"steps.py::{inputs}")


def asked(steps: Project, *words: str) -> dict[str, object]:
    """The document of a question that is answered yes."""
    result = steps.run(*words, "--output-format", "json")
    assert result.exit_code == 0, result.stderr
    document: dict[str, object] = json.loads(result.stdout)
    registry = Registry().with_resources(
        (name, Resource.from_contents(schema(name.partition(".")[0])))
        for name in ("report.schema.json", "plan.schema.json")
    )
    jsonschema.Draft202012Validator(schema("verify"), registry=registry).validate(document)
    assert document["status"] == "proved"
    return document


@pytest.mark.parametrize(("new", "old", "layout", "against"), DERIVED)
def test_one_step_replaces_another_and_it_is_derived(steps: Project, new, old, layout, against):
    document = asked(steps, *question(new, old, "make_inputs"))
    assert (document["layout"], document["against_layout"]) == (layout, against)
    assert document["evidence"]["derivation"]["complete"]
    assert {check["devices"] for check in document["evidence"]["checks"]} == {3, 8}


@pytest.mark.parametrize(("new", "old", "inputs", "layout", "against"), EQUAL)
def test_a_step_need_not_be_that_of_one_device(steps: Project, new, old, inputs, layout, against):
    document = asked(steps, *question(new, old, inputs))
    assert (document["layout"], document["against_layout"]) == (layout, against)
    assert not document["evidence"]["derivation"] or not document["evidence"]["derivation"]["complete"]


@pytest.mark.parametrize(("new", "old", "inputs", "says"), WRONG)
def test_a_step_that_is_another_is_refused(steps: Project, new, old, inputs, says):
    steps.refused("JP045", *question(new, old, inputs), says=(says,), exit_code=1)


def test_both_layouts_are_honoured_and_said(steps: Project):
    words = question("s_weighted", "p_weighted", "make_inputs")
    result = steps.run(*words, "--layout", "drop-in", "--against-layout", "batch=devices")
    assert result.exit_code == 0, result.stderr
    assert "batch as one device takes it every array has a device axis" in result.words
    result = steps.run(*question("s_weighted", "drop_in", "make_inputs"))
    assert "both are called with the same arguments" in result.words


def test_an_object_that_reading_does_not_follow_is_imported(steps: Project):
    asked = question("s_weighted", "p_twice", "make_inputs")
    steps.refused("JP045", *asked, says=("0.5 × the reference",), exit_code=1)
    # What its wrapper does on one device is not known.
    steps.refused("JP004", *question("s_weighted", "twice", "make_inputs"), says=("`twice` is a variable",))


def test_a_reference_that_cannot_be_called_so_says_what_was_tried(steps: Project):
    words = question("s_weighted", "p_weighted", "make_inputs")
    says = ("`p_weighted`, the reference, fails in every way", "--against-layout")
    steps.refused("JP021", *words, "--against-layout", "drop-in", says=says)
    steps.refused("JP018", *words, "--against-layout", "rows", says=("`--against-layout rows`",))
    steps.refused("JP007", *words, "--against-layout", "z=devices", says=("--against-layout names `z`",))


TREES = """
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P


    def step(params, velocity, x):
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((x @ p["w"] + p["b"]) ** 2))(params)
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
        return jax.tree.map(lambda p, v: p - 0.1 * v, params, velocity), velocity, loss


    def body(params, velocity, x):
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((x @ p["w"] + p["b"]) ** 2))(params)
        loss, grads = jax.lax.pmean((loss, grads), "d")
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
        return jax.tree.map(lambda p, v: p - 0.1 * v, params, velocity), velocity, loss


    p_step = jax.pmap(body, axis_name="d")


    def nested_loss(params, x, factor):
        out = x @ params["dense"]["kernel"] + factor * params["dense"]["bias"]
        return jax.lax.pmean(jnp.mean(out**2), "d")


    def nested(factor, params, velocity, x):
        loss, grads = jax.value_and_grad(nested_loss)(params, x, factor)
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
        return jax.tree.map(lambda p, v: p - 0.1 * v, params, velocity), velocity, loss


    mesh = Mesh(np.array(jax.devices()), ("d",))
    mapped = functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), P(), P("d")), out_specs=P())
    right = jax.jit(mapped(functools.partial(nested, 1)))
    wrong = jax.jit(mapped(functools.partial(nested, 2)))


    def renamed(params):
        return {"dense": {"kernel": params["w"], "bias": params["b"]}}


    def doubled(params):
        return {"dense": {"kernel": 2 * params["w"], "bias": params["b"]}}


    def by_size(params):
        small, large = sorted(params.values(), key=np.sum)
        return {"dense": {"kernel": large, "bias": small}}


    # A batch that is a pair, as the parameters are.
    def of_pairs(params, batch):
        return jnp.mean((batch[0] @ params[0] + params[1] - batch[1]) ** 2)


    def swapped(pair):
        return pair[1], pair[0]


    over = {"mesh": mesh, "in_specs": (P(), P("d")), "out_specs": P()}
    pairs = jax.jit(jax.shard_map(lambda p, b: jax.lax.pmean(of_pairs(swapped(p), b), "d"), **over))


    def two_pairs():
        params, _, x = inputs(0)
        return (params["w"], params["b"]), (x, x[:, 0])


    def inputs(seed):
        draw = np.random.default_rng(seed).normal
        params = {"w": draw(size=3).astype("f4"), "b": np.float32(draw())}
        return params, jax.tree.map(np.zeros_like, params), draw(size=(24, 3)).astype("f4")
"""


def test_a_tree_of_parameters_with_other_names(project: Project) -> None:
    project.write("trees.py", TREES)
    project.options += ["--inputs", "trees.py::inputs"]
    renamed = ("--convert", "trees.py::renamed")
    one = project.run("verify", "trees.py::right", "--against", "trees.py::step", *renamed)
    assert "derived for all inputs" in one.words, one.stderr
    two = ("trees.py::right", "--against", "trees.py::p_step", "--devices", "2")
    assert project.run("verify", *two, *renamed).exit_code == 0
    wrong = ("verify", "trees.py::wrong", "--against", "trees.py::step", "--devices", "2")
    project.refused("JP045", *wrong, *renamed, says=("['dense']['bias']",), exit_code=1)
    project.refused("JP007", *wrong, "--convert", "z=trees.py::renamed", says=("--convert names `z`",))
    computes = ("does not only move arrays", "['dense']['kernel']")
    project.refused("JP018", *wrong, "--convert", "trees.py::doubled", says=computes)
    depends = ("in other places where their numbers are others",)
    project.refused("JP018", *wrong, "--convert", "trees.py::by_size", says=depends)


def test_a_batch_that_is_made_like_the_parameters_is_not_renamed(project: Project) -> None:
    project.write("trees.py", TREES)
    given = ("--inputs", "trees.py::two_pairs", "--convert", "params=trees.py::swapped")
    found = project.run("verify", "trees.py::pairs", "--against", "trees.py::of_pairs", *given)
    assert "derived for all inputs" in found.words, found.stderr


LIMITED = """
    import functools
    import jax
    import jax.numpy as jnp

    over_devices = functools.partial(jax.pmap, axis_name="i", out_axes=None)


    @over_devices
    def mean(x):
        return jax.lax.pmean(jnp.mean(x), "i")


    @over_devices
    def up_to_eight(x):
        return jax.lax.psum(jnp.mean(x), "i") / min(jax.device_count(), 8)


    @over_devices
    def on_any(x):
        return jax.lax.psum(jnp.mean(x), "i") / jax.device_count()
"""


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("up_to_eight", 1, "8 × the reference on 64 devices"),
        ("on_any", 0, "derived for all inputs and device counts"),
    ],
)
def test_limits_on_the_devices_are_met_beside_a_parallel_version_too(
    shared: Project, name: str, code: int, says: str
) -> None:
    shared.write("limited.py", LIMITED)
    words = ("--against", "limited.py::mean", "--arg", "x=f32[24]")
    found = shared.run("verify", f"limited.py::{name}", *words)
    assert found.exit_code == code, found.stderr
    assert says in found.words
