"""Parameters divided along an axis beside that of the batch in shard_map code: derived, run, or refused."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from project import Project, Result

from jax_pmap.report.as_json import schema

STEPS = """\
import jax
import jax.numpy as jnp
import numpy as np
import optax

tx = optax.adam(1e-2)
clipping = optax.chain(optax.clip_by_global_norm(1.0), tx)


def loss_fn(params, batch):
    hidden = jax.nn.relu(batch["x"] @ params["up"]["kernel"] + params["up"]["bias"])
    logits = hidden @ params["down"]["kernel"] + params["down"]["bias"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    return jnp.sum(losses * batch["mask"]) / jnp.sum(batch["mask"])


def step(params, opt_state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def clipped(params, opt_state, batch):
    grads = jax.grad(loss_fn)(params, batch)
    updates, opt_state = clipping.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


def dropped(params, key, batch):
    def loss(params):
        out = hidden(params, batch) @ params["down"]["kernel"]
        keep = jax.random.bernoulli(key, 0.9, out.shape)
        return jnp.mean(jnp.where(keep, out / 0.9, params["down"]["bias"]) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def hidden(params, batch):
    return jax.nn.relu(batch["x"] @ params["up"]["kernel"] + params["up"]["bias"])


def tall(params, batch):
    kernel = params["up"]["kernel"].reshape(16, 64)
    return jnp.tanh(batch["x"] @ kernel) @ params["down"]["kernel"]


def turned(params, batch):
    def loss(params):
        heads = hidden(params, batch).reshape(len(batch["x"]), -1, 4)
        even, odd = heads[..., ::2], heads[..., 1::2]
        heads = jnp.stack([even - odd, even * odd], -1).reshape(len(batch["x"]), -1)
        return jnp.mean((heads @ params["down"]["kernel"] + params["down"]["bias"]) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def grouped(params, batch):
    h = hidden(params, batch)
    h = h.reshape(len(h), min(16, h.shape[-1] // 8), -1)
    h = h * jax.lax.rsqrt(jnp.mean(h**2, -1, keepdims=True) + 1e-5)
    return jnp.mean((h.reshape(len(h), -1) @ params["down"]["kernel"]) ** 2)


def rated(params, batch):
    grads = jax.grad(loss_fn)(params, batch)
    return jax.tree.map(lambda p, g: p - (0.1 if max(p.shape) < 100 else 0.01) * g, params, grads)


def deep(layers, batch):
    def layer(x, p):
        x = x + jax.nn.softmax(x @ p["up"]) @ p["down"]
        return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True)) * p["scale"], None

    def loss(layers):
        return jnp.mean(jax.lax.scan(jax.checkpoint(layer), batch["x"], layers)[0] ** 3)

    return jax.tree.map(lambda p, g: p - 0.1 * g, layers, jax.grad(loss)(layers))


def normal(rng, *shape):
    return rng.normal(size=shape).astype("float32") / 4


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    up = {"kernel": normal(rng, 16, 64), "bias": normal(rng, 64)}
    params = {"up": up, "down": {"kernel": normal(rng, 64, 10), "bias": normal(rng, 10)}}
    batch = {"x": normal(rng, 24, 16), "label": rng.integers(10, size=24), "mask": np.arange(24) % 5 != 0}
    return params, batch


def with_state(seed=0):
    params, batch = inputs(seed)
    return params, tx.init(params), batch


def keyed(seed=0):
    params, batch = inputs(seed)
    return params, jax.random.key(seed), batch


def with_clipping(seed=0):
    params, batch = inputs(seed)
    return params, clipping.init(params), batch


def stacked(seed=0):
    rng = np.random.default_rng(seed)
    layers = {"up": normal(rng, 3, 16, 64), "down": normal(rng, 3, 64, 16), "scale": normal(rng, 3, 16)}
    return layers, {"x": normal(rng, 24, 16)}
"""
LINEN = """\
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.relu(nn.Dense(32)(x)))


def step(state, x):
    def loss_fn(params):
        return jnp.mean(state.apply_fn({"params": params}, x) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def inputs(seed=0):
    net, x = Net(), np.random.default_rng(seed).normal(size=(24, 8)).astype("float32")
    params = net.init(jax.random.key(seed), x)["params"]
    return TrainState.create(apply_fn=net.apply, params=params, tx=optax.adam(1e-2)), x
"""
RULES = (
    *("--spec", ".*up.kernel=None,model"),
    *("--spec", ".*up.bias=model"),
    *("--spec", ".*down.kernel=model"),
)
FORM = ("--backend", "shard_map")


@pytest.fixture
def steps(shared: Project) -> Project:
    shared.write("steps.py", STEPS)
    return shared


def made(project: Project, name: str, inputs: str, *words: str, mesh: str = "data=2,model=2") -> Result:
    asked = ("gen", f"steps.py::{name}", "--inputs", f"steps.py::{inputs}", *FORM, "--mesh", mesh)
    result = project.run(*asked, *(words or RULES), "--output-format", "json")
    assert result.exit_code == 0, result.stderr
    return result


def syncs(document: Any) -> list[tuple[str, str, list[str]]]:
    """Kind, value, and along which axes, of each collective; that of the batch is ``""``."""
    return sorted((row["op"], row["value"], row["along"]) for row in document["plan"]["syncs"])


def test_products_are_summed_along_the_axis_that_they_contract(steps: Project) -> None:
    document = json.loads(made(steps, "step", "with_state").stdout)
    jsonschema.validate(document["plan"], schema("plan"))
    assert syncs(document) == [
        ("psum", "grads", ["", "model"]),
        ("psum", 'hidden @ params["down"]["kernel"]', ["model"]),
        ("psum", 'jnp.sum(batch["mask"])', [""]),
        ("psum", "loss", [""]),
    ]
    evidence = document["evidence"]
    assert evidence["derivation"]["complete"]
    assert {check["devices"] for check in evidence["checks"]} == {4}
    # No parameter is put together, and no more goes along `model` than activations and their derivatives.
    assert {row["kind"] for row in evidence["collectives"]} == {"all-reduce"}
    along = {tuple(row["axes"]): row["bytes"] for row in evidence["collectives"]}
    assert along.keys() == {("data",), ("model",), ("data", "model")}
    assert along["data", "model"] == 40  # The bias that both axes have whole.


def test_layers_of_a_scan_work_with_their_parts(steps: Project) -> None:
    rules = ("--spec", ".*up=None,None,model", "--spec", ".*down=None,model", "--no-run")
    document = json.loads(made(steps, "deep", "stacked", *rules, mesh="data=4,model=2").stdout)
    assert document["evidence"]["derivation"]["complete"]
    value = 'jax.nn.softmax(x @ p["up"])'
    assert syncs(document) == [
        ("pmean", "jax.grad(loss)(layers)", ["", "model"]),
        ("psum", f'{value} @ p["down"]', ["model"]),
        ("softmax", value, ["model"]),
    ]


def test_devices_with_the_same_rows_drop_the_same_of_them(steps: Project) -> None:
    document = json.loads(made(steps, "dropped", "keyed").stdout)
    assert document["evidence"]["derivation"]["complete"] and document["evidence"]["checks"]
    assert {op: along for op, _, along in syncs(document)} == {
        "fold_in": [""],
        "psum": ["model"],
        "pmean": ["", "model"],
    }


def test_a_result_in_parts_is_put_together(steps: Project) -> None:
    document = json.loads(made(steps, "hidden", "inputs").stdout)
    [(op, _, along)] = syncs(document)
    assert (op, along, document["evidence"]["derivation"]["complete"]) == ("all_gather", ["model"], True)


@pytest.mark.parametrize("name", ["grouped", "rated"])
def test_what_decides_by_a_size_of_which_devices_have_a_part_is_held_to_it(steps: Project, name: str) -> None:
    # 128 columns or more are 16 groups, and 100 are another rate: devices have 64 and 50 of them there.
    document = json.loads(made(steps, name, "inputs", *RULES, "--no-run").stdout)
    assert document["evidence"]["derivation"]["complete"]
    said = "the code checks that axis 0 of `params['down']['kernel']` is as long as it is here"
    assert said in document["plan"]["notes"] or said in document["evidence"]["notes"]
    assert 'params, ("float", None), ("float", 64 // mesh().shape["model"], None)' in " ".join(
        document["code"].split()
    )


def test_where_parts_do_not_do_they_are_gathered_and_the_report_says_so(steps: Project) -> None:
    document = json.loads(made(steps, "tall", "inputs", *RULES, "--no-run").stdout)
    assert {(op, tuple(along)) for op, _, along in syncs(document)} == {("gather_parts", ("model",))}
    assert document["evidence"]["derivation"]["complete"]
    [note] = [note for note in document["plan"]["notes"] if "along `model`" in note]
    for words in ("work is repeated", "cannot reshape", "steps.py:43", "`--backend jit`"):
        assert words in note, note


def test_layers_that_hold_their_parameters_to_a_size_get_them_whole(steps: Project) -> None:
    steps.write("linen.py", LINEN)
    rules = ("--spec", ".*Dense_0.kernel=None,model", "--spec", ".*Dense_1.kernel=model")
    asked = (
        "gen",
        "linen.py::step",
        "--inputs",
        "linen.py::inputs",
        *FORM,
        "--mesh",
        "data=4,model=2",
        *rules,
    )
    document = json.loads(steps.run(*asked, "--output-format", "json").stdout)
    evidence = document["evidence"]
    assert evidence["derivation"]["complete"] and {row["devices"] for row in evidence["checks"]} == {8}
    assert ("gather_parts", "state.params", ["model"]) in syncs(document)
    assert any("ScopeParamShapeError" in note for note in document["plan"]["notes"])


def test_parts_along_both_axes_are_gathered_along_one(steps: Project) -> None:
    rules = ("--spec", ".*up.kernel=data,model", "--spec", ".*down.kernel=model,data")
    bias = ("--spec", ".*up.bias=model", "--no-run")
    document = json.loads(made(steps, "step", "with_state", *rules, *bias).stdout)
    assert document["evidence"]["derivation"]["complete"]
    assert {op: along for op, value, along in syncs(document) if value in ("params", "grads")} == {
        "gather_parts": [""],
        "psum_scatter": ["", "model"],
    }


def test_what_couples_parts_in_a_library_is_for_the_compiler(steps: Project) -> None:
    words = ("gen", "steps.py::clipped", "--inputs", "steps.py::with_clipping", *FORM, *RULES)
    says = ("Use --backend jit", "clipping.update(grads, opt_state, params)", "steps.py:25")
    steps.refused("JP046", *words, "--mesh", "data=2,model=2", says=says, exit_code=1)
    rule = ("--spec", ".*up.kernel=None,(data,model)")
    one = ("gen", "steps.py::step", "--inputs", "steps.py::with_state", *FORM, *rule)
    says = ("is divided along `data` and `model`", "Use --backend jit")
    steps.refused("JP046", *one, "--mesh", "data=2,model=2", says=says, exit_code=1)


def test_gradients_that_a_callee_takes_are_for_the_compiler(steps: Project) -> None:
    steps.write(
        "callee.py",
        """
        import jax
        import jax.numpy as jnp
        from steps import hidden, inputs


        def error(params, batch):
            return jnp.mean((hidden(params, batch) @ params["down"]["kernel"]) ** 2)


        def updated(loss, params, batch):
            grads = jax.grad(loss)(params, batch)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


        def step(params, batch):
            return updated(error, params, batch)
        """,
    )
    words = ("gen", "callee.py::step", "--inputs", "callee.py::inputs", "--backend", "shard_map")
    says = ("gradients of `params`", "callee.py:11", "Take them in the function itself")
    for form in (
        ("--mesh", "data=2,model=2", *RULES),
        ("--mesh", "data=4", "--spec", ".*up.kernel=None,data"),
    ):
        steps.refused("JP046", *words, *form, says=says, exit_code=1)


def test_a_plan_is_taken_back_and_held_to_its_mesh(steps: Project) -> None:
    words = ("steps.py::step", "--inputs", "steps.py::with_state", *FORM, "--mesh", "data=2,model=2", *RULES)
    plan = steps.run("plan", *words, "--output-format", "json")
    steps.write("plan.json", plan.stdout)
    again = steps.run("gen", *words, "--plan", "plan.json", "--no-run")
    assert again.exit_code == 0, again.stderr
    assert "derived for all inputs on 4 devices" in again.words
    document = json.loads(plan.stdout)
    document["plan"]["syncs"][0]["along"] = ["tensor"]
    steps.write("other.json", json.dumps(document))
    steps.refused("JP017", "gen", *words, "--plan", "other.json", says=("the mesh does not have",))


def test_faults_are_found(steps: Project) -> None:
    words = ("steps.py::deep", "--inputs", "steps.py::stacked")
    rules = ("--spec", ".*up=None,None,model", "--spec", ".*down=None,model", "--no-run")
    gen = steps.run("gen", *words, *FORM, "--mesh", "data=2,model=2", *rules)
    assert gen.exit_code == 0, gen.stderr
    for name, before, after in (
        ("share", 'leaf = leaf / mesh().shape["model"]', "pass"),
        ("mean", 'for axis in (AXIS, "model")', "for axis in (AXIS,)"),
    ):
        assert gen.stdout.count(before) == 1
        steps.write(f"no_{name}.py", gen.stdout.replace(before, after))
        verified = ("verify", f"no_{name}.py::deep", "--against", *words, "--devices", "4")
        steps.refused("JP045", *verified, says=("differ",), exit_code=1)


def test_heads_of_a_number_of_columns_ask_for_no_multiple_of_rows(steps: Project) -> None:
    document = json.loads(made(steps, "turned", "inputs", *RULES, "--no-run").stdout)
    assert document["evidence"]["derivation"]["complete"]
    assert document["plan"]["multiple_of"] == 1
    assert {("psum", "model")} <= {(row["op"], *row["along"]) for row in document["plan"]["syncs"]}


@pytest.mark.parametrize("mode", ["pad", "drop"])
def test_uneven_batches_are_shared_along_the_axis_of_the_batch(steps: Project, mode: str) -> None:
    made(steps, "step", "with_state", *RULES, "--remainder", mode)


def test_a_batch_of_too_few_rows_for_its_axis_is_said_to_be_one(shared: Project) -> None:
    shared.write(
        "queued.py",
        """
        import jax
        import jax.numpy as jnp


        def step(w, queue, at, x):
            def loss(w):
                z = x @ w
                return jnp.mean(z**2), z

            (value, z), grad = jax.value_and_grad(loss, has_aux=True)(w)
            return w - 0.1 * grad, jax.lax.dynamic_update_slice(queue, z[:8], (at, 0)), value
        """,
    )
    given = ("w=f32[6,8]", "queue=f32[48,8]", "at=i32[]", "x=f32[24,6]")
    words = ("gen", "queued.py::step", *(word for each in given for word in ("--arg", each)), *FORM)
    mesh = ("--mesh", "data=4,model=2", "--spec", "w=None,model", "--no-run")
    shared.refused("JP041", *words, *mesh, says=("the 4 devices along `data`",), exit_code=1)
