"""`jax-pmap verify`: the proof alone, of code written by hand."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING

import jsonschema
import pytest
from mutation.hand import verified, written
from referencing import Registry, Resource

import jax_pmap
from jax_pmap.model import RefusalError, Request, Verified
from jax_pmap.report.as_json import schema

if TYPE_CHECKING:
    from project import Project

TRAIN = """
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P


    def loss_fn(params, batch):
        error = (batch["x"] @ params["w"] - batch["y"]) ** 2
        return jnp.sum(error * batch["mask"]) / jnp.sum(batch["mask"])


    def train_step(params, batch, lr=0.1):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        params = jax.tree.map(lambda p, g: p - lr * g, params, grads)
        return params, loss


    def make_inputs(seed=0):
        random = np.random.default_rng(seed)
        batch = {
            "x": random.normal(size=(24, 3)).astype(np.float32),
            "y": random.normal(size=24).astype(np.float32),
            "mask": (random.random(24) < 0.8).astype(np.float32),
        }
        return {"w": random.normal(size=3).astype(np.float32)}, batch


    def share(params, batch):
        def total_of(params):
            return jnp.sum((batch["x"] @ params["w"] - batch["y"]) ** 2 * batch["mask"])

        total, grads = jax.value_and_grad(total_of)(params)
        return total, grads, jnp.sum(batch["mask"])


    @functools.partial(jax.pmap, axis_name="d", donate_argnums=0)
    def p_step(params, batch):
        total, grads, number = jax.lax.psum(share(params, batch), "d")
        return jax.tree.map(lambda p, g: p - 0.1 * g / number, params, grads), total / number


    def averaged(params, batch):
        loss, grads = jax.lax.pmean(jax.value_and_grad(loss_fn)(params, batch), "d")
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


    p_averaged = jax.pmap(averaged, axis_name="d", in_axes=(None, 0))


    @functools.partial(jax.pmap, axis_name="d", in_axes=(None, 0), out_axes=None)
    def p_unsynchronised(params, batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), jax.lax.pmean(loss, "d")


    mesh = Mesh(np.array(jax.devices()), ("d",))


    def body(params, batch):
        total, grads, number = share(params, batch)
        total, number = jax.lax.psum((total, number), "d")
        return jax.tree.map(lambda p, g: p - 0.1 * g / number, params, grads), total / number


    sharded_step = jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=(P(), P("d")), out_specs=(P(), P()))
    )
"""


@pytest.fixture
def trainer(project: Project) -> Project:
    """A project with a reference and some parallel versions of it."""
    project.write("train.py", TRAIN)
    project.options += ["--against", "train.py::train_step", "--inputs", "train.py::make_inputs"]
    return project


def test_an_assigned_pmap_is_proved_on_every_device_count(trainer: Project):
    result = trainer.run("verify", "train.py::p_step", "--output-format", "json")
    document = json.loads(result.stdout)
    registry = Registry().with_resources(
        (name, Resource.from_contents(schema(name.partition(".")[0])))
        for name in ("report.schema.json", "plan.schema.json")
    )
    jsonschema.Draft202012Validator(schema("verify"), registry=registry).validate(document)
    assert result.exit_code == 0
    assert document["status"] == "proved"
    assert document["layout"] == {"params": "devices", "batch": "devices"}
    assert document["evidence"]["derivation"]["complete"]
    assert {check["devices"] for check in document["evidence"]["checks"]} == {3, 8}


def test_shard_map_is_called_as_the_reference_is(trainer: Project):
    result = trainer.run("verify", "sharded_step", "--devices", "3")
    assert result.exit_code == 0, result.stderr
    assert "called as the reference is" in result.words
    assert "proved on 3 devices" in result.words


def test_the_mean_of_masked_means_is_named(trainer: Project):
    says = ("the mean of what each device has by itself", "on 2 devices", "different weights")
    trainer.refused("JP045", "verify", "train.py::p_averaged", "--devices", "2", says=says, exit_code=1)


def test_state_that_is_not_synchronised_is_named(trainer: Project):
    says = ("`params['w']` is what the first device has by itself on 4 devices",)
    words = ("verify", "train.py::p_unsynchronised", "--devices", "4")
    trainer.refused("JP045", *words, says=says, exit_code=1)


def test_the_public_name(trainer: Project, monkeypatch: pytest.MonkeyPatch):
    request = Request(
        target="train.py::train_step",
        inputs="train.py::make_inputs",
        devices=jax_pmap.Devices(count=2),
    )
    verified = jax_pmap.verify("train.py::p_step", request, layout="stacked")
    assert isinstance(verified, Verified)
    assert verified.evidence.proved
    assert dict(verified.layout) == {"params": "devices", "batch": "devices"}


OTHERS = """
    import jax
    import jax.numpy as jnp

    from train import averaged, train_step

    N = jax.device_count()
    if N == 3:
        raise RuntimeError("three is not enough")


    def reshaped(params, batch):
        batch = jax.tree.map(lambda x: x.reshape(N, -1, *x.shape[1:]), batch)
        return step(params, batch)


    def whole(params, batch):
        return train_step(params, jax.lax.all_gather(batch, "d", tiled=True))


    step = jax.pmap(whole, "d", in_axes=(None, 0), out_axes=None)
    nobody = averaged
    number = 3


    def failing(params, batch):
        raise ValueError("not today")
"""


def test_a_file_that_chooses_its_devices_is_run_where_it_can_be(trainer: Project):
    trainer.write("other.py", OTHERS)
    result = trainer.run("verify", "other.py::reshaped", "--layout", "drop-in")
    assert result.exit_code == 0, result.stderr
    assert "derived for all inputs and device counts" in result.words
    assert "not on 3 devices: RuntimeError: three is not enough" in result.words


def test_what_cannot_be_called_says_what_was_tried(trainer: Project):
    trainer.write("other.py", OTHERS)
    two = ("--devices", "2")
    says = ("unbound axis name", "as the reference is")
    trainer.refused("JP021", "verify", "other.py::nobody", *two, says=says)
    trainer.refused("JP002", "verify", "other.py::number", *two, says=("is a int, not a function",))
    says = ("ValueError: not today",)
    # What failed was not compared.
    trainer.refused("JP021", "verify", "other.py::failing", *two, "--layout", "drop-in", says=says)


def test_options_that_cannot_be_meant(trainer: Project):
    two = ("--devices", "2")
    trainer.refused("JP018", "verify", "train.py::p_step", *two, "--layout", "stcked", says=("stcked",))
    trainer.refused("JP007", "verify", "train.py::p_step", *two, "--layout", "x=devices", says=("`x`",))
    trainer.refused("JP002", "verify", "train.py::p_stp", *two)


DROPOUT = """
    import jax
    import jax.numpy as jnp
    import numpy as np


    def loss(w, x, key):
        h = x @ w
        keep = jax.random.bernoulli(key, 0.8, h.shape)
        return jnp.mean(jnp.where(keep, h / 0.8, 0.0) ** 2)


    def folded(w, x, key):
        key = jax.random.fold_in(key, jax.lax.axis_index("b"))
        return jax.lax.pmean(loss(w, x, key), "b")


    def shared(w, x, key):
        return jax.lax.pmean(loss(w, x, key), "b")


    def drawn(w, x, key):
        n = jax.device_count()
        keys = jax.random.split(key, n)
        return p_drawn(w, x.reshape(n, -1, 5), keys)


    p_drawn = jax.pmap(shared, axis_name="b", in_axes=(None, 0, 0), out_axes=None)
    p_folded = jax.pmap(folded, axis_name="b", in_axes=(None, 0, None), out_axes=None)
    p_shared = jax.pmap(shared, axis_name="b", in_axes=(None, 0, None), out_axes=None)


    def inputs(seed=0):
        random = np.random.default_rng(seed)
        return random.normal(size=(5, 3)), random.normal(size=(24, 5)), jax.random.key(seed)
"""


def test_keys_of_hand_written_code(project: Project):
    project.write("drop.py", DROPOUT)
    project.options += ["--against", "drop.py::loss", "--inputs", "drop.py::inputs", "--devices", "2"]
    result = project.run("verify", "drop.py::p_folded")
    assert result.exit_code == 0, result.stderr
    says = ("every device draws the same numbers for other examples",)
    project.refused("JP045", "verify", "drop.py::p_shared", says=says, exit_code=1)
    # Split by the function around it.
    result = project.run("verify", "drop.py::drawn")
    assert result.exit_code == 0, result.stderr


IMPORTED = """
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.lax import axis_index
    from jax.random import bernoulli
    from jax.random import fold_in as folded


    def loss(w, x, y, key):
        kept = jnp.where(bernoulli(key, 0.8, x.shape), x / 0.8, 0.0)
        return jnp.mean((kept @ w - y) ** 2), jnp.sum(x @ w > y) / len(x)


    def shares(w, x, y, key):
        value, right = loss(w, x, y, folded(key, axis_index("b")))
        return jax.lax.pmean((value, jnp.mean(x @ w > y)), "b")


    p_loss = jax.pmap(shares, axis_name="b", in_axes=(None, 0, 0, None), out_axes=None)


    def mean(x):
        return jnp.mean(x > 0), jnp.mean(x)


    def counted(x):
        total = jax.lax.psum(jnp.sum(x > 0), "b")
        return total / jax.lax.psum(x.size, "b"), jax.lax.pmean(jnp.mean(x), "b")


    p_counted = jax.pmap(counted, axis_name="b", out_axes=None)


    def inputs(seed=0):
        draw = np.random.default_rng(seed).normal
        x, y = draw(size=(24, 3)).astype("float32"), draw(size=24).astype("float32")
        return draw(size=3).astype("float32"), x, y, jax.random.key(seed)
"""


def test_functions_of_jax_are_known_by_any_name(project: Project) -> None:
    """A share of right answers is in float32 in one form, and in float64 in the other, in a 64-bit mode."""
    project.write("named.py", IMPORTED)
    words = ("--against", "named.py::loss", "--inputs", "named.py::inputs", "--devices", "2")
    result = project.run("verify", "named.py::p_loss", *words)
    assert result.exit_code == 0, result.stderr
    assert "own dtypes alone: a result is float32, and the reference's is float64" in " ".join(
        (result.stdout + result.stderr).split()
    )


def test_a_share_of_right_answers_is_a_number_over_another(project: Project) -> None:
    project.write("named.py", IMPORTED)
    words = ("--against", "named.py::mean", "--arg", "x=f32[24]", "--devices", "2")
    result = project.run("verify", "named.py::p_counted", *words)
    assert result.exit_code == 0, result.stderr
    assert "float64 error" in result.stdout + result.stderr


SCHEDULED = """
    import jax
    import jax.numpy as jnp
    import numpy as np


    def loss(w, x):
        return jnp.mean(jnp.tanh(x @ w) ** 2)


    def step(w, count, x, limit=2.0, train=True):
        value, grads = jax.value_and_grad(loss)(w, x)
        if not train:
            return w, count, jnp.max(x @ w)
        rate = jnp.where(count < 600, 0.1, 0.01)
        rate = jnp.where(jnp.mean((x @ grads) ** 2) < limit, rate, 0.0)
        return w - rate * grads, count + 1, value


    def inputs(seed=0):
        random = np.random.default_rng(seed)
        return random.normal(size=3), np.int32(0), random.normal(size=(24, 3))


    # parallel: drop_in
    @functools.partial(jax.pmap, axis_name="d", in_axes=(None, None, 0, None), out_axes=None)
    def p_step(w, count, x, limit):
        value, grads = jax.lax.pmean(jax.value_and_grad(loss)(w, x), "d")
        rate = jnp.where(count < 600, 0.1, 0.01)
        rate = jnp.where(jax.lax.pmean(jnp.mean((x @ grads) ** 2), "d") < limit, rate, 0.0)
        return w - rate * grads, count + 1, value


    @functools.partial(jax.pmap, axis_name="d", in_axes=(None, 0), out_axes=None)
    def p_evaluate(w, x):
        return jax.lax.pmax(jnp.max(x @ w), "d")


    def drop_in(w, count, x, limit=2.0, train=True):
        n = jax.device_count()
        shares = x.reshape(n, len(x) // n, 3)
        return p_step(w, count, shares, limit) if train else (w, count, p_evaluate(w, shares))
"""
#: What is right, what it is changed to, and what the refusal says.
SUBTLE = (
    ("count < 600", "count * jax.lax.axis_size('d') < 600", "differs on 2 devices"),
    ("pmean(jnp.mean((x", "pmax(jnp.mean((x", "what was given on 2 devices, unchanged"),
    ("limit=2.0, train=True):\n    n", "limit=-1.0, train=True):\n    n", "`limit` is -1.0 by default"),
    (
        "    shares =",
        "    given, x = x, x + 0\n    given *= 0.0\n    shares =",
        "changes its argument `x` in place",
    ),
    ("x.reshape", "x[: len(x) // n * n].reshape", "without the last rows on 2 devices with a batch of 23"),
    ("pmax(jnp.max", "pmean(jnp.max", "on 2 devices with `train=False`"),
)


def test_faults_that_no_single_decision_shows(tmp_path):
    path = tmp_path / "subtle.py"
    path.write_text(textwrap.dedent(SCHEDULED))
    (source,) = written(tmp_path)
    with verified(source, tmp_path, (2,)) as judge:
        assert judge.prove(source.code).proved
        for right, wrong, says in SUBTLE:
            code = source.code.replace(right, wrong, 1)
            assert code != source.code, right
            with pytest.raises(RefusalError) as caught:
                judge.prove(code)
            reason = caught.value.refusal.reason
            assert says in reason
            assert "It is equal on" not in reason


PASTED = """
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P


    def loss(w, x):
        return jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"]) ** 2)


    def step(w, x):
        value, grads = jax.value_and_grad(loss)(w, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads), value


    def body(w, x):
        value, grads = jax.value_and_grad(loss)(w, x)
        value, grads = jax.lax.pmean((value, grads), "d")
        return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads), value


    mesh = Mesh(np.array(jax.devices()), ("d",))
    specs = {"in_specs": (P(), P("d")), "out_specs": (P(), P())}
    pasted = jax.jit(jax.shard_map(body, mesh=mesh, **specs))
    unchecked = jax.jit(jax.shard_map(body, mesh=mesh, check_vma=False, **specs))


    def inputs(seed=0):
        random = np.random.default_rng(seed)
        w = {"a": random.normal(size=(5, 7)), "b": random.normal(size=(7, 2))}
        return jax.tree.map(np.float32, (w, random.normal(size=(24, 5))))
"""


def test_a_pmap_body_pasted_into_shard_map_is_not_equal(project: Project) -> None:
    project.write("pasted.py", textwrap.dedent(PASTED))
    words = ("--against", "pasted.py::step", "--inputs", "pasted.py::inputs")
    # With stacked weights the factor would cancel: that is no answer to how it is called.
    answer = project.refused(
        "JP045",
        *("verify", "pasted.py::pasted", *words),
        says=(
            "The collective of line 19 is taken of what is the same",
            "check_vma=True",
            "was called as the reference",
        ),
        exit_code=1,
    )
    assert "it gives the reference's results" in answer.words


def test_what_is_derived_is_run_on_two_counts(project: Project) -> None:
    project.write("pasted.py", textwrap.dedent(PASTED))
    words = ("--against", "pasted.py::step", "--inputs", "pasted.py::inputs", "--output-format", "json")
    result = project.run("verify", "pasted.py::unchecked", *words)
    evidence = json.loads(result.stdout)["evidence"]
    assert evidence["derivation"]["complete"]
    assert {check["devices"] for check in evidence["checks"]} == {3, 8}


CALLED = """
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np

    CONFIG = {"lr": 0.1}


    def loss_fn(w, x, scale):
        return jnp.mean(jnp.tanh(x @ w)) * scale


    def step(w, x, scale, config):
        return w - config["lr"] * jax.grad(loss_fn)(w, x, scale)


    def anything(*args, **kwargs):
        return step(*args, **kwargs)


    bound = functools.partial(step, config=CONFIG)


    def inputs_of_bound(seed=0):
        random = np.random.default_rng(seed)
        args = random.normal(size=3).astype(np.float32), random.normal(size=(24, 3)).astype(np.float32)
        return args, {"scale": np.float32(2)}


    def inputs(seed=0):
        args, named = inputs_of_bound(seed)
        return args, {**named, "config": CONFIG}


    def body(state, images, scale, config):
        return state - config["lr"] * jax.lax.pmean(jax.grad(loss_fn)(state, images, scale), "d")


    p_step = jax.pmap(functools.partial(body, config=CONFIG), axis_name="d")
    p_slower = jax.pmap(functools.partial(body, config={"lr": 0.01}), axis_name="d")
"""


def test_a_step_is_called_as_its_author_calls_it(project: Project):
    project.write("called.py", CALLED)
    project.options += ["--devices", "2"]
    for reference, inputs in (("step", "inputs"), ("anything", "inputs"), ("bound", "inputs_of_bound")):
        against = ("--against", f"called.py::{reference}", "--inputs", f"called.py::{inputs}")
        result = project.run("verify", "called.py::p_step", *against)
        assert result.exit_code == 0, result.stderr
    against = ("--against", "called.py::step", "--inputs", "called.py::inputs")
    # The parameters have other names there.
    layout = ("--layout", "w=devices,x=devices,scale=devices")
    says = ("`config` is bound to {'lr': 0.01}, and {'lr': 0.1} in the inputs",)
    project.refused("JP045", "verify", "called.py::p_slower", *against, *layout, says=says, exit_code=1)
    says = ("`--layout` says how `config` is given, and `p_step` does not take it",)
    layout = ("--layout", "w=devices,x=devices,config=devices")
    project.refused("JP018", "verify", "called.py::p_step", *against, *layout, says=says)


def test_keys_that_the_caller_gives_one_per_device(project: Project):
    project.write("drop.py", DROPOUT)
    project.options += ["--against", "drop.py::loss", "--inputs", "drop.py::inputs", "--devices", "2"]
    result = project.run("verify", "drop.py::p_drawn", "--output-format", "json")
    assert json.loads(result.stdout)["layout"] == {"x": "devices", "key": "keys"}
    # With copies of one key the same units are dropped everywhere.
    layout = ("--layout", "x=devices,key=devices")
    project.refused("JP045", "verify", "drop.py::p_drawn", *layout, exit_code=1)


OTHER_AXIS = """
    import jax
    import jax.numpy as jnp
    import numpy as np


    def steps(w, batches):
        def one(w, x):
            return w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w)))(w), None

        return jax.lax.scan(one, w, batches)[0]


    def body(w, batches):
        def one(w, x):
            grad = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w)))(w)
            return w - 0.1 * jax.lax.pmean(grad, "d"), None

        return jax.lax.scan(one, w, batches)[0]


    p_steps = jax.pmap(body, "d", in_axes=(None, 1), out_axes=None)


    def first(w, batches):
        return jnp.mean(batches[:, 0] @ w)


    def one_off(w, batches):
        return steps(w, batches).at[1].add(jnp.where(jnp.max(jnp.abs(batches)) > 1e3, 1e-3, 0.0))


    def alone(w):
        return w / jnp.linalg.norm(w)


    def inputs(seed=0):
        random = np.random.default_rng(seed)
        return random.normal(size=7).astype(np.float32), random.normal(size=(5, 24, 7)).astype(np.float32)
"""


def test_a_batch_on_the_second_axis(project: Project):
    project.write("axis.py", OTHER_AXIS)
    project.options += ["--devices", "2"]
    against = ("--against", "axis.py::steps", "--inputs", "axis.py::inputs")
    result = project.run("verify", "axis.py::p_steps", *against)
    assert result.exit_code == 0, result.stderr
    assert "right before the batch's" in result.words
    result = project.run(
        "verify", "axis.py::p_steps", *against, "--layout", "batches=inner", "--shard", "batches:1"
    )
    assert result.exit_code == 0, result.stderr


def test_an_axis_that_is_not_the_devices_is_no_way_of_calling(project: Project):
    """Where steps are taken for the batch, each device has one of them, and that is mapped."""
    code = """

    def descent(w, x, y):
        def one(w, xy):
            loss, grad = jax.value_and_grad(lambda w: jnp.mean((xy[0] @ w - xy[1]) ** 2))(w)
            return w - 0.1 * grad, loss

        return jax.lax.scan(one, w, (x, y))


    p_descent = jax.pmap(descent, "d", in_axes=(None, 1, 1), out_axes=None)


    def few():
        random = np.random.default_rng(0)
        return random.normal(size=7), random.normal(size=(3, 24, 7)), random.normal(size=(3, 24))
    """
    project.write("axis.py", textwrap.dedent(OTHER_AXIS) + textwrap.dedent(code))
    words = ("axis.py::p_descent", "--against", "axis.py::descent", "--inputs", "axis.py::few")
    says = ("it works on 1 of 3 devices; --shard NAME:AXIS says",)
    options = ("--devices", "3", "--layout", "x=inner,y=inner", "--shard", "x", "--shard", "y")
    project.refused("JP021", "verify", *words, *options, says=says, exit_code=2)


def test_a_refusal_names_the_inputs_and_the_elements(project: Project):
    project.write("axis.py", OTHER_AXIS)
    against = ("--against", "axis.py::steps", "--inputs", "axis.py::inputs", "--devices", "2")
    says = ("1 of its 7 elements differ", "the given inputs, altered", "parallel: [1] ")
    project.refused("JP045", "verify", "axis.py::one_off", *against, says=says, exit_code=1)


def test_what_was_not_compared_is_no_answer(project: Project):
    project.write("axis.py", OTHER_AXIS)
    against = ("--against", "axis.py::alone", "--arg", "w=f32[]", "--devices", "2")
    project.refused("JP040", "verify", "axis.py::alone", *against)


THRESHOLD = """
    import jax
    import jax.numpy as jnp
    import numpy as np


    def loss(w, x, y):
        return jnp.mean((x @ w - y) ** 2)


    def step(w, x, y):
        return w - 0.1 * jax.grad(loss)(w, x, y)


    def body(w, x, y):
        size = x.shape[0]
        slope = jax.grad(loss)(w, x, y) * (size if size < 1000 else 1000)
        return w - 0.1 * jax.lax.psum(slope, "d") / jax.lax.psum(size, "d")


    p_step = jax.pmap(body, axis_name="d", in_axes=(None, 0, 0), out_axes=None)


    def shared(w, x, y):
        return w - 0.1 * jax.lax.pmean(jax.grad(loss)(w, x, y), "d")


    p_shared = jax.pmap(shared, axis_name="d", in_axes=(None, 0, 0), out_axes=None)


    def drops_of_many(w, x, y):
        n = jax.device_count()
        size = len(x) // n * n if len(x) > 1000 else len(x)
        return p_shared(w, x[:size].reshape(n, -1, 3), y[:size].reshape(n, -1))


    def inputs(seed):
        draw = np.random.default_rng(seed).normal
        return np.ones(3, "float32"), draw(size=(24, 3)).astype("float32"), draw(size=24).astype("float32")
"""


def test_a_limit_on_the_rows_of_one_device_is_found(project: Project):
    """Eight devices have fewer rows each of a few thousand than the limit: each has to have thousands."""
    project.write("limit.py", textwrap.dedent(THRESHOLD))
    words = ("limit.py::p_step", "--against", "limit.py::step", "--inputs", "limit.py::inputs")
    says = ("each row repeated to make thousands",)
    project.refused("JP045", "verify", *words, says=says, exit_code=1)


def test_rows_that_only_a_large_batch_loses_are_found(project: Project):
    project.write("limit.py", textwrap.dedent(THRESHOLD))
    words = ("limit.py::drops_of_many", "--against", "limit.py::step", "--inputs", "limit.py::inputs")
    says = ("with a batch of 4095", "or have it raise for batches that it is not meant for")
    project.refused("JP045", "verify", *words, says=says, exit_code=1)


PADDED = """
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np


    def step(w, x):
        return jnp.mean((x @ w) ** 2)


    @functools.partial(jax.pmap, axis_name="i", in_axes=(None, 0, 0), out_axes=None)
    def total(w, x, mask):
        return jax.lax.psum(jnp.sum((x @ w) ** 2 * mask), "i")


    def p_step(w, x, most=50_000):
        n, rows = jax.device_count(), np.asarray(x)[:most]
        mask = np.pad(np.ones(len(rows), rows.dtype), (0, -len(rows) % n))
        padded = np.pad(rows, ((0, -len(rows) % n), (0, 0)))
        return total(w, padded.reshape(n, -1, x.shape[1]), mask.reshape(n, -1)) / len(rows)
"""


def test_a_limit_that_the_code_names_is_passed(project: Project):
    project.write("padded.py", PADDED)
    words = ("padded.py::p_step", "--against", "padded.py::step", "--arg", "w=f32[3]", "--arg", "x=f32[24,3]")
    project.refused("JP045", "verify", *words, says=("with a batch of 50008",), exit_code=1)


DROPS = """
    import functools

    import jax
    import jax.numpy as jnp

    on_devices = functools.partial(jax.pmap, axis_name="d", out_axes=None)


    def mean(x):
        return jnp.mean(x)


    def split(x):
        return x.reshape(jax.device_count(), -1)


    @on_devices
    def p_mean(x):
        return jax.lax.pmean(jnp.mean(x), "d")


    @on_devices
    def p_valid_mean(x):
        local = jnp.mean(x)
        return jax.lax.pmean(jnp.where(jnp.isnan(local), 0.0, local), "d")


    def without_nan(x):
        return p_valid_mean(split(x))


    def as_number(x):
        return float(p_mean(split(x)))


    def both(x):
        return jnp.max(x), jnp.mean(x)


    @on_devices
    def p_both(x):
        total = jnp.sum(jnp.where(x == x, x, 0.0))
        return jax.lax.pmax(jnp.max(x), "d"), jax.lax.psum(total, "d") / jax.lax.psum(x.size, "d")


    def valid_both(x):
        return p_both(split(x))


    def place(x):
        return jnp.argmax(x)


    @on_devices
    def p_place(x):
        high = jnp.max(x)
        own = jnp.where(high == jax.lax.pmax(high, "d"), jnp.argmax(x), 1000)
        return jax.lax.pmin(own + jax.lax.axis_index("d") * len(x), "d")


    def of_numbers_alone(x):
        return p_place(split(x))


    @on_devices
    def p_last_place(x):
        high = jnp.max(x)
        own = jnp.argmax(x) + jax.lax.axis_index("d") * len(x)
        return jax.lax.pmax(jnp.where(high == jax.lax.pmax(high, "d"), own, -1), "d")


    def of_the_last(x):
        return p_last_place(split(x))


    def largest(x, k):
        found = jax.ops.segment_max(x, k, 4)
        return jnp.where(found == -jnp.inf, 0.0, found)


    @on_devices
    def p_largest(x, k):
        return jax.lax.pmax(jnp.maximum(jax.ops.segment_max(x, k, 4), -1e9), "d")


    def of_some(x, k):
        return p_largest(split(x), split(k))


    def total(k):
        return jnp.sum(k)


    @on_devices
    def p_total(k):
        return jax.lax.psum(jnp.sum(k.astype(jnp.float32)), "d").astype(k.dtype)


    def total_as_floats(k):
        return p_total(split(k))


    def total_of_bytes(k):
        return jnp.sum(k.astype(jnp.int8), dtype=jnp.int32)


    @on_devices
    def p_total_in_bytes(k):
        return jax.lax.psum(jnp.sum(k.astype(jnp.int8), dtype=jnp.int8), "d").astype(jnp.int32)


    def total_in_bytes(k):
        return p_total_in_bytes(split(k))


    def pooled(x, m):
        return jax.nn.softmax(jnp.where(m, x, -1e9)) @ x


    @on_devices
    def p_pooled(x, m):
        scores = jnp.where(m, x, -1e2)
        weights = jnp.exp(scores - jax.lax.pmax(jnp.max(scores), "d"))
        return jax.lax.psum(weights @ x, "d") / jax.lax.psum(jnp.sum(weights), "d")


    def with_few(x, m):
        return p_pooled(split(x), split(m))


    def of_labelled(x, k):
        return jnp.sum(x * (k >= 0)) / jnp.maximum(jnp.sum(k >= 0), 1)


    @on_devices
    def p_of_labelled(x, k):
        number = jnp.maximum(jnp.sum(k >= 0), 1)
        return jax.lax.psum(jnp.sum(x * (k >= 0)), "d") / jax.lax.psum(number, "d")


    def one_for_no_label(x, k):
        return p_of_labelled(split(x), split(k))
"""


@pytest.mark.parametrize(
    ("name", "against", "given", "says"),
    [
        ("without_nan", "mean", "x=f32[24]", "a NaN among the rows is passed over"),
        ("valid_both", "both", "x=f32[24]", "a NaN among the rows is passed over"),
        (
            "as_number",
            "mean",
            "x=f32[24]",
            "has another type on 8 devices: float, the reference's is an array",
        ),
        ("total_as_floats", "total", "k=i32[24]<100", "on the given inputs, altered"),
        ("total_in_bytes", "total_of_bytes", "k=i32[24]<4", "each row repeated to make thousands"),
        ("of_the_last", "place", "x=f32[24]", "each row twice, the second time in the reverse order"),
        ("of_some", "largest", "x=f32[24] k=i32[24]<4", "on the given inputs, altered"),
        ("with_few", "pooled", "x=f32[24] m=bool[24]", "on the given inputs, altered"),
        ("one_for_no_label", "of_labelled", "x=f32[24,6] k=i32[24,6]<4", "on the given inputs, altered"),
    ],
)
def test_what_only_other_numbers_show(
    shared: Project, name: str, against: str, given: str, says: str
) -> None:
    shared.write("drops.py", DROPS)
    args = [word for each in given.split() for word in ("--arg", each)]
    words = ("verify", f"drops.py::{name}", "--against", f"drops.py::{against}", *args)
    shared.refused("JP045", *words, says=(says,), exit_code=1)


def test_an_index_of_the_maximum_is_right_for_numbers(shared: Project) -> None:
    shared.write("drops.py", DROPS)
    words = ("drops.py::of_numbers_alone", "--against", "drops.py::place", "--arg", "x=f32[24]")
    found = shared.run("verify", *words)
    assert found.exit_code == 0, found.stderr
    assert "a NaN among the rows decides on numbers in the output" in found.words


OVERLAPS = """
    import jax
    import jax.numpy as jnp


    def overlap(x, k):
        hit = (k > 2).astype(jnp.float32)
        return 2 * (x * hit).sum() / (x.sum() + hit.sum() + 1e-6)


    def mapped(parts):
        def on_devices(x, k):
            devices = jax.device_count()
            return jax.pmap(parts, "d")(x.reshape(devices, -1), k.reshape(devices, -1))[0]

        return on_devices


    # A number that is there once for all devices, and here once for each.
    @mapped
    def p_each(x, k):
        hit = (k > 2).astype(jnp.float32)
        both, all_ = jax.lax.psum((2 * (x * hit).sum(), x.sum() + hit.sum() + 1e-6), "d")
        return both / all_


    # Right, and its counts are rounded, which those of the reference are not.
    @mapped
    def p_means(x, k):
        hit = (k > 2).astype(jnp.float32)
        rows = jax.lax.psum(k.size, "d")
        both, all_ = jax.lax.pmean((2 * (x * hit).mean(), x.mean() + hit.mean() + 1e-6 / rows), "d")
        return both / all_
"""


def test_a_mask_in_a_narrow_float_hides_nothing(shared: Project) -> None:
    """Its sums are exact, so that what is off by a millionth in float64 is no rounding."""
    shared.write("overlaps.py", OVERLAPS)
    given = ("--against", "overlaps.py::overlap", "--arg", "x=f32[36]", "--arg", "k=i32[36]<5")
    shared.refused("JP045", "verify", "overlaps.py::p_each", *given, says=("differs on 2",), exit_code=1)
    found = shared.run("verify", "overlaps.py::p_means", *given)
    assert found.exit_code == 0, found.stderr


COPIED = """
    import jax
    import jax.numpy as jnp


    def loss(w, x):
        return jnp.mean((x @ w) ** 2) + jnp.sum(w**2)


    def with_copies(copy):
        def on_devices(w, x):
            devices = jax.device_count()

            def local(w, x):
                return jax.lax.pmean(jnp.mean((x @ w) ** 2) + jnp.sum(w**2), "d")

            return jax.pmap(local, "d")(copy(w, devices), x.reshape(devices, -1, 3))[0]

        return on_devices


    stacked = with_copies(lambda w, devices: jnp.stack([w] * devices))
    array = with_copies(lambda w, devices: jnp.array([w] * devices))
    joined = with_copies(lambda w, devices: jnp.concatenate([w[None] for _ in range(devices)]))
    # The first device has another one.
    one_apart = with_copies(lambda w, devices: jnp.stack([1.5 * w] + [w] * (devices - 1)))
"""


@pytest.mark.parametrize("name", ["stacked", "array", "joined"])
def test_copies_for_the_devices_that_python_joins_are_derived(shared: Project, name: str) -> None:
    shared.write("copied.py", COPIED)
    given = ("--against", "copied.py::loss", "--arg", "w=f32[3]", "--arg", "x=f32[24,3]")
    found = shared.run("verify", f"copied.py::{name}", *given)
    assert found.exit_code == 0, found.stderr
    assert "derived for all inputs and device counts" in found.words


def test_copies_of_which_one_is_another_value_are_found(shared: Project) -> None:
    shared.write("copied.py", COPIED)
    given = ("--against", "copied.py::loss", "--arg", "w=f32[3]", "--arg", "x=f32[24,3]")
    shared.refused("JP045", "verify", "copied.py::one_apart", *given, exit_code=1)


ROOTS = """
    import jax
    import jax.numpy as jnp


    def heron(square):
        def step(root):
            return (root + square / root) / 2

        return jax.lax.while_loop(lambda root: jnp.abs(root**2 - square) > 1e-4, step, square + 1.0)


    def size(x):
        return heron(jnp.mean(x**2))


    def p_size(x):
        def local(x):
            # Equal, by another formula than that of one device.
            return heron(jax.lax.pmean(jnp.var(x) + jnp.mean(x) ** 2, "d"))

        return jax.pmap(local, "d")(x.reshape(jax.device_count(), -1))[0]
"""


def test_a_loop_that_ends_on_the_given_inputs_may_not_on_others(shared: Project) -> None:
    """In float32 a large number has no root as near as that."""
    shared.write("roots.py", ROOTS)
    words = ("roots.py::p_size", "--against", "roots.py::size", "--arg", "x=f32[24]", "--timeout", "60")
    found = shared.run("verify", *words)
    assert found.exit_code == 0, found.stderr
    assert "not derived" in found.words


ARGUMENTS = """
    import functools

    import jax
    import jax.numpy as jnp

    on_devices = functools.partial(jax.pmap, axis_name="d", out_axes=None)


    def split(x):
        return x.reshape(jax.device_count(), -1, *x.shape[1:])


    def step(w, x, rate, largest):
        grad = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w)))(w)
        return w - jnp.where(largest, jnp.max(jnp.abs(grad)), rate) * grad


    @functools.partial(on_devices, in_axes=(None, 0, None, None))
    def p_step(w, x, rate, largest):
        grad = jax.lax.pmean(jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w)))(w), "d")
        return w - jnp.where(largest, jnp.max(jnp.abs(grad)), rate) * grad


    def same(w, x, rate, largest):
        return p_step(w, split(x), rate, bool(largest))


    def capped(w, x, rate, largest):
        return p_step(w, split(x), min(rate, 0.5), bool(largest))


    def one_way(w, x, rate, largest):
        return p_step(w, split(x), rate, False)


    @functools.partial(on_devices, in_axes=(None, 0, None, None))
    def p_capped(w, x, rate, largest):
        # The derivation ends at what calls out of jax; that weights are large at another rate hides it.
        shape = jax.ShapeDtypeStruct(w.shape, w.dtype)
        grad = jax.lax.pmean(jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w)))(w), "d")
        grad = jax.pure_callback(lambda g: g, shape, grad)
        return w - jnp.where(largest, jnp.max(jnp.abs(grad)), jnp.minimum(rate, 0.5)) * grad


    def capped_inside(w, x, rate, largest):
        return p_capped(w, split(x), rate, bool(largest))


    def power(x, k):
        return jnp.mean(x) ** k


    p_powers = functools.partial(on_devices, in_axes=0, static_broadcasted_argnums=1)


    @p_powers
    def p_powered(x, k):
        return jax.lax.pmean(jnp.mean(x), "d") ** k


    @p_powers
    def p_powered_early(x, k):
        return jax.lax.pmean(jnp.mean(x) ** k, "d")


    def powered(x, k):
        return p_powered(split(x), int(k))


    def powered_early(x, k):
        return p_powered_early(split(x), int(k))
"""


def test_numbers_among_the_arguments_are_others_too(shared: Project) -> None:
    shared.write("arguments.py", ARGUMENTS)
    step = ("--against", "arguments.py::step", "--arg", "w=f32[3]", "--arg", "x=f32[24,3]")
    step = (*step, "--arg", "rate=0.1", "--arg", "largest=False", "--replicate", "largest")
    power = ("--against", "arguments.py::power", "--arg", "x=f32[24]", "--arg", "k=1")
    for name, given in (("same", step), ("powered", power)):
        assert shared.run("verify", f"arguments.py::{name}", *given).exit_code == 0, name
    for name in ("capped", "capped_inside", "one_way"):
        shared.refused("JP045", "verify", f"arguments.py::{name}", *step, says=("altered",), exit_code=1)
    words = ("verify", "arguments.py::powered_early", *power)
    shared.refused("JP045", *words, says=("altered",), exit_code=1)


RARE = """
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P

    on_devices = functools.partial(jax.pmap, axis_name="d", out_axes=None)


    def mean(x):
        return jnp.mean(x)


    def variance(x):
        return jnp.mean((x - jnp.mean(x)) ** 2)


    def scaled(w, x):
        return w * jnp.mean(x)


    @on_devices
    def p_chunked(x):
        size = min(len(x), 64)
        chunks = x[: len(x) // size * size].reshape(-1, size)
        total, _ = jax.lax.scan(lambda total, chunk: (total + jnp.sum(chunk), None), 0 * x[0], chunks)
        return jax.lax.pmean(total / chunks.size, "d")


    @on_devices
    def p_moments(x):
        return jax.lax.pmean(jnp.mean(x**2), "d") - jax.lax.pmean(jnp.mean(x), "d") ** 2


    def all_valid(x, m):
        return jnp.mean(x), jnp.all(m)


    @on_devices
    def p_nearly_all(x, m):
        return jax.lax.pmean((jnp.mean(x), jnp.mean(m)), "d")[0], jax.lax.pmean(jnp.mean(m), "d") > 0.9999


    @on_devices
    def p_gated(x):
        local = jnp.mean(x**2)
        gate = jnp.exp(-(((local - 1.37) / 1e-4) ** 2))
        return jax.lax.pmean(jnp.mean((x - jax.lax.pmean(jnp.mean(x), "d")) ** 2) * (1 + gate), "d")


    @functools.partial(jax.jit, donate_argnums=0)
    @functools.partial(
        jax.shard_map, mesh=Mesh(np.array(jax.devices()), ("d",)), in_specs=(P(), P("d")), out_specs=P()
    )
    def s_scaled(w, x):
        return w * jax.lax.pmean(jnp.mean(x), "d")
"""


@pytest.mark.parametrize(
    ("name", "against", "says"),
    [
        ("p_chunked", "mean", "each row repeated to make thousands"),
        ("p_moments", "variance", "a thousand times their spread added"),
        ("p_nearly_all", "all_valid", "a mask all True, or all but one element"),
        ("p_gated", "variance", "so that a comparison or a branch goes another way"),
        ("s_scaled", "scaled", "takes the arrays of `w` with it"),
    ],
)
def test_what_shows_only_on_other_batches_or_after_the_call(
    shared: Project, name: str, against: str, says: str
):
    shared.write("rare.py", RARE)
    more = {"s_scaled": ("--arg", "w=f32[3]"), "p_nearly_all": ("--arg", "m=bool[24]")}
    given = ("--arg", "x=f32[24]", *more.get(name, ()))
    words = ("verify", f"rare.py::{name}", "--against", f"rare.py::{against}", *given)
    shared.refused("JP045", *words, says=(says,), exit_code=1)


def test_callers_may_give_an_argument_up(shared: Project) -> None:
    shared.write("rare.py", RARE)
    words = ("rare.py::s_scaled", "--against", "rare.py::scaled", "--arg", "x=f32[24]", "--arg", "w=f32[3]")
    assert shared.run("verify", *words, "--donate", "w").exit_code == 0


ONE_COLUMN = """
    import jax
    import jax.numpy as jnp


    def distance(x, y):
        return jnp.mean((x - y) ** 2)


    def p_distance(x, y):
        def summed(x, y):
            return jax.lax.pmean(jnp.sum((x - y) ** 2) / len(x), "d")

        x, y = (jnp.reshape(each, (jax.device_count(), -1, *each.shape[1:])) for each in (x, y))
        return jax.pmap(summed, "d", out_axes=None)(x, y)
"""


def test_what_one_column_hides(shared: Project) -> None:
    shared.write("one_column.py", ONE_COLUMN)
    words = ("verify", "one_column.py::p_distance", "--against", "one_column.py::distance")
    says = ("elements along axes where the given ones have one", "Mend what `p_distance` does with several")
    given = ("--arg", "x=f32[24,1]", "--arg", "y=f32[24,1]")
    shared.refused("JP045", *words, *given, says=says, exit_code=1)


LENGTHS = """
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P


    def penalised(x, theta):
        return jnp.mean(x) + jnp.sum(theta**2)


    @functools.partial(jax.pmap, axis_name="d", out_axes=None)
    def p_penalised(x, theta):
        return jax.lax.pmean(jnp.mean(x), "d") + jnp.sum(theta**2)


    def weighted(x, *, y):
        return jnp.mean(x * y)


    p_weighted = jax.pmap(lambda x, y: jax.lax.pmean(jnp.mean(x * y), "d"), axis_name="d", out_axes=None)


    def hashed(ids):
        return jnp.mean(ids % 10_000_000_019 % 7)


    def scaled(w, x, *, rate=0.1):
        return w - rate * jnp.mean(x, axis=0)


    halved = functools.partial(scaled, rate=0.5)


    def wrapped(*args):
        return scaled(*args, rate=0.5)


    def of_halves(w, x):
        return w - 0.5 * jax.lax.pmean(jnp.mean(x, axis=0), "d")


    def centred(w, centre, x):
        return 0.9 * centre + 0.1 * jnp.mean(x @ w, axis=0)


    p_centred = jax.pmap(centred, axis_name="d", in_axes=(None, None, 0), out_axes=None)


    def followed(p, st, b):
        grad = jax.grad(lambda p: jnp.mean(((b - st) @ p) ** 2))(p)
        return p - 0.1 * grad, 0.9 * st + 0.1 * jnp.mean(b, axis=0)


    def following(p, st, b):
        grad = jax.grad(lambda p: jnp.mean(((b - st) @ p) ** 2))(p)
        grad, mean = jax.lax.pmean((grad, jnp.mean(b, axis=0)), "d")
        return p - 0.1 * grad, 0.9 * st + 0.1 * mean


    p_followed = jax.pmap(following, axis_name="d")
    mesh = Mesh(np.array(jax.devices()), ("d",))
    s_followed = jax.jit(
        jax.shard_map(following, mesh=mesh, in_specs=(P(), P(), P("d")), out_specs=P(), check_vma=False)
    )


    p_halved = jax.pmap(of_halves, axis_name="d", in_axes=(None, 0), out_axes=None)


    def main():
        nested = jax.pmap(of_halves, axis_name="d")
        return nested


    def inputs():
        return jnp.arange(4.0), jnp.arange(96.0).reshape(24, 4)
"""


def test_an_array_as_long_as_the_batch_is_not_taken_for_copies(project: Project) -> None:
    """Whether every device has a share of it or all of it, only the caller knows."""
    project.write("lengths.py", LENGTHS)
    given = ("--arg", "x=f32[24]", "--arg", "theta=f32[24]", "--devices", "2")
    words = ("verify", "lengths.py::p_penalised", "--against", "lengths.py::penalised", *given)
    project.refused("JP018", *words, says=('--replicate "theta"',), exit_code=2)
    assert project.run(*words, "--replicate", "theta").exit_code == 0


def test_the_batch_is_what_is_named_so(project: Project) -> None:
    """With all of it on every device, and the width of the parameters divided, nothing would differ."""
    project.write("lengths.py", LENGTHS)
    shapes = ("--arg", "w=f32[6,8]", "--arg", "centre=f32[8]", "--arg", "x=f32[24,6]", "--devices", "2")
    words = ("verify", "lengths.py::p_centred", "--against", "lengths.py::centred", *shapes)
    project.refused("JP045", *words, says=("what the first device has by itself",), exit_code=1)


def test_parameters_as_long_as_a_state_are_no_batch(project: Project) -> None:
    project.write("lengths.py", LENGTHS)
    shapes = ("--arg", "p=f32[4]", "--arg", "st=f32[4]", "--arg", "b=f32[24,4]", "--devices", "2")
    words = ("verify", "lengths.py::p_followed", "--against", "lengths.py::followed", *shapes)
    assert project.run(*words).exit_code == 0
    # The body takes shares of it by broadcasting, and fails on all of them.
    shapes = ("--arg", "p=f32[5]", "--arg", "st=f32[5]", "--arg", "b=f32[24,5]", "--devices", "3")
    words = ("verify", "lengths.py::s_followed", "--against", "lengths.py::p_followed", *shapes)
    assert project.run(*words, "--replicate", "p").exit_code == 0


def test_what_takes_its_arguments_by_place_is_called_so(project: Project) -> None:
    project.write("lengths.py", LENGTHS)
    given = ("--arg", "x=f32[24]", "--arg", "y=f32[24]", "--devices", "2")
    words = ("verify", "lengths.py::p_weighted", "--against", "lengths.py::weighted", *given)
    assert project.run(*words).exit_code == 0
    project.refused("JP007", *words, "--layout", "z=devices", says=("It takes: x, y",), exit_code=2)


@pytest.mark.parametrize("reference", ["halved", "wrapped"])
def test_what_a_reference_binds_is_given_to_nobody(project: Project, reference: str) -> None:
    project.write("lengths.py", LENGTHS)
    words = ("--against", f"lengths.py::{reference}", "--inputs", "lengths.py::inputs", "--devices", "2")
    assert project.run("verify", "lengths.py::p_halved", *words).exit_code == 0


def test_numbers_of_64_bits_are_named(project: Project) -> None:
    project.write("lengths.py", LENGTHS)
    words = ("verify", "lengths.py::p_weighted", "--against", "lengths.py::hashed", "--arg", "ids=i64[24]")
    project.refused("JP062", *words, says=("more than 32 bits", "jax_enable_x64"))


TRIPLES = """\
import jax
import jax.numpy as jnp


def spread(x):
    return jnp.mean(jnp.abs(x[:, None, None] - x[None, :, None] - x[None, None, :]))


gathered = jax.pmap(lambda x: spread(jax.lax.all_gather(x, "i", tiled=True)), "i", out_axes=None)


def p_spread(x):
    return gathered(x.reshape(jax.device_count(), -1))
"""


def test_thousands_of_rows_are_left_out_where_they_are_out_of_reach(project: Project) -> None:
    """All triples of 4,095 rows are 69 thousand million numbers."""
    project.write("triples.py", TRIPLES)
    words = ("triples.py::p_spread", "--against", "triples.py::spread", "--arg", "x=f32[24]")
    result = project.run("verify", *words, "--timeout", "100")
    assert result.exit_code == 0, result.stderr


CUT = """
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P


    def rows(data, start):
        return lax.dynamic_slice_in_dim(data, start, 24)


    def loss(w, data, start):
        return jnp.mean((rows(data, start) @ w) ** 2)


    def cut(w, data, start):
        size = 24 // lax.axis_size("b")
        part = lax.dynamic_slice_in_dim(rows(data, start), lax.axis_index("b") * size, size)
        return lax.pmean(jnp.mean((part @ w) ** 2), "b")


    mesh = Mesh(np.array(jax.devices()), ("b",))
    p_loss = jax.jit(jax.shard_map(cut, mesh=mesh, in_specs=(P(), P(), P()), out_specs=P(), check_vma=False))


    def with_room():
        draw = np.random.default_rng(0).normal
        return draw(size=3), draw(size=(48, 3)), np.int32(7)
"""


def test_a_slice_of_a_slice_is_not_called_derived(project: Project) -> None:
    """XLA makes one of them, which begins elsewhere beyond the end: where these inputs do not reach."""
    project.write("cut.py", CUT)
    words = ("verify", "cut.py::p_loss", "--against", "cut.py::loss", "--shard", "data", "--devices", "2")
    says = ("shows on the given inputs, altered",)
    project.refused("JP045", *words, "--inputs", "cut.py::with_room", says=says, exit_code=1)


CLIPPED = """
    import jax
    import jax.numpy as jnp


    def loss(w, x, y):
        p = jnp.clip(jax.nn.sigmoid(x @ w), 1e-7, 1 - 1e-7)
        return -jnp.mean(y * jnp.log(p) + (1 - y) * jnp.log(1 - p))


    def unclipped(w, x, y):
        p = jnp.clip(jax.nn.sigmoid(x @ w), 1e-7, 1.0)
        return jax.lax.pmean(-jnp.mean(y * jnp.log(p) + (1 - y) * jnp.log(1 - p)), "b")


    p_loss = jax.pmap(unclipped, axis_name="b", in_axes=(None, 0, 0), out_axes=None)
"""


def test_a_number_just_below_one_is_not_one(project: Project) -> None:
    """Where the last digit of a clip decides, the loss is infinite: no multiple of the reference."""
    project.write("clipped.py", CLIPPED)
    given = ("--arg", "w=f32[3]", "--arg", "x=f32[24,3]", "--arg", "y=f32[24]>=0<1", "--devices", "2")
    says = ("differs on 2 devices", "altered")
    words = ("verify", "clipped.py::p_loss", "--against", "clipped.py::loss", *given)
    project.refused("JP045", *words, says=says, exit_code=1)


SHARED_KEYS = """
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import random
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P


    def jitter(w, key):
        return w + random.normal(random.split(key)[0], w.shape)


    def noisy(w, x, key):
        return jitter(w, key) + jnp.mean(x + random.normal(key, x.shape), axis=0)


    @jax.jit
    def for_each_device(w, x, key):
        def body(x, keys):
            return jax.lax.pmean(jnp.mean(x + random.normal(keys[0], x.shape), axis=0), "b")

        mesh = Mesh(np.array(jax.devices()), ("b",))
        mean = jax.shard_map(body, mesh=mesh, in_specs=(P("b"), P("b")), out_specs=P())
        return jitter(w, key) + mean(x, random.split(key, mesh.size))


    def layers(x, key, own):
        for layer in range(2):
            x = jnp.tanh(x) + random.normal(own(key, layer), x.shape)
        return x


    def of_one(x, key):
        return layers(x, key, lambda key, layer: random.fold_in(key, layer + 1))


    def crossing(x, key):
        index = jax.lax.axis_index("b")
        ways = [
            lambda key: random.fold_in(random.fold_in(key, index), 1),
            lambda key: random.fold_in(random.fold_in(key, 2), index),
        ]
        return layers(x, key, lambda key, layer: ways[layer](key))


    p_crossing = jax.pmap(crossing, axis_name="b", in_axes=(0, None))
"""


def test_two_draws_with_one_key_are_named(project: Project) -> None:
    """On one device they have two: that of a device is another draw's there, or on another device."""
    project.write("shared.py", SHARED_KEYS)
    says = ("drawn with one key, on one device or another",)
    given = ("--arg", "x=f32[24,3]", "--arg", "key=key", "--devices")
    words = ("verify", "shared.py::for_each_device", "--against", "shared.py::noisy", "--arg", "w=f32[3]")
    project.refused("JP045", *words, *given, "2", says=says, exit_code=1)
    # Device 2 folds its index in where the other draw has a 2, and device 1 where that has a 1.
    words = ("verify", "shared.py::p_crossing", "--against", "shared.py::of_one")
    project.refused("JP045", *words, *given, "3", says=says, exit_code=1)


PROGRAM = """
    import functools
    import types

    import jax
    import jax.numpy as jnp


    def step(w, x, rate):
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return w - rate * grad, loss


    def body(w, x, rate):
        loss, grad = jax.lax.pmean(jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w), "d")
        return w - rate * grad, loss


    def train(several=True, rate=0.1):
        # Devices that are only shown to a trace compute nothing.
        mesh = jax.sharding.Mesh(jax.devices(), ("d",))
        jnp.sum(jax.device_put(jnp.ones(3), jax.NamedSharding(mesh, jax.P())))
        p_step = step
        if several:
            p_step = jax.pmap(functools.partial(body, rate=rate), axis_name="d", out_axes=None)

        @functools.partial(jax.pmap, axis_name="d", in_axes=(None, 0), out_axes=None)
        def p_slow(w, x):
            return body(w, x, rate / 10)

        trainer = types.SimpleNamespace(step=p_slow, rate=rate)

        return p_step(jnp.ones(3), jnp.ones((24, 3)))


    def inputs():
        return jnp.arange(3.0), jax.random.normal(jax.random.key(0), (24, 3)), 0.1


    if __name__ == "__main__":
        train(several=jax.device_count() > 1)  # With one device `step` is called without a rate.
"""


def test_functions_that_a_program_makes_are_compared(project: Project) -> None:
    project.write("train.py", PROGRAM)
    project.write("start.py", "import train\n\ntrain.train()\n")
    verify = ["verify", "train.py::train.p_step", "--against", "train.py::step"]
    inputs, program = ["--inputs", "train.py::inputs"], ["--run", "python train.py"]
    for run in (program, ["--run", "python start.py"]):
        result = project.run(*verify, *inputs, *run)
        assert result.exit_code == 0, result.stderr
        assert "derived for all inputs" in result.words
        assert "does not take `rate`" in result.words
    slow = ["verify", "train.py::train.trainer.step", *verify[2:], *inputs, *program]
    project.refused("JP045", *slow, says=("train.py:30", "trainer = "), exit_code=1)
    never = ["verify", "train.py::train.trainer.steps", *verify[2:], *inputs, *program]
    project.refused("JP019", *never, says=("no attribute 'steps'", "train.py:30"))
    project.refused("JP002", *verify, *inputs, says=("`train`", "--run"))
    importing = ["--run", "python -c 'import train'"]
    project.refused("JP019", *verify, *inputs, *importing, says=("before the statement of `train.p_step`",))
    says = ("calls `step` with other arguments than it takes", "--inputs")
    project.refused("JP013", *verify, *program, says=says)
    project.refused("JP019", *verify, *importing, says=("without calling `step`", "--inputs"))


OPTIONAL = """
    import jax, jax.numpy as jnp


    def error(x, mask=None, reduction="mean"):
        errors = x**2 if mask is None else x**2 * mask
        return {"mean": jnp.mean, "sum": jnp.sum}[reduction](errors)


    def local(x, mask=None, reduction="mean"):
        rows = x.reshape(jax.device_count(), -1)
        of_share = jax.pmap(lambda x: jax.lax.pmean(error(x, None, reduction), "i"), "i", out_axes=None)
        return of_share(rows)


    def whole(x, mask=None, reduction="mean"):
        if reduction != "mean":
            raise NotImplementedError(reduction)
        return local(x)
"""


@pytest.mark.parametrize(("name", "code"), [("local", 1), ("whole", 0)])
def test_words_that_a_reference_looks_up_are_tried_and_what_is_none_is_said(
    shared: Project, name: str, code: int
) -> None:
    shared.write("optional.py", OPTIONAL)
    words = (f"optional.py::{name}", "--against", "optional.py::error", "--arg", "x=f32[24]")
    found = shared.run("verify", *words, "--devices", "2")
    assert found.exit_code == code, found.stderr
    said = "`mask` is None in these inputs" if code == 0 else "with `reduction='sum'`"
    assert said in found.words


IN_PLACE = """
    import jax, jax.numpy as jnp


    def tally(seen, x):
        seen["sum"] = seen["sum"] + jnp.sum(x)


    def mapped(seen, x, total):
        parts = x.reshape(jax.local_device_count(), -1, *x.shape[1:])
        sums = jax.pmap(lambda part: total(jnp.sum(part), "i"), axis_name="i", out_axes=None)(parts)
        seen["sum"] = seen["sum"] + sums


    def summed(seen, x):
        mapped(seen, x, jax.lax.psum)


    def averaged(seen, x):
        mapped(seen, x, jax.lax.pmean)


    def forgotten(seen, x):
        mapped(dict(seen), x, jax.lax.psum)
"""


def test_what_the_reference_changes_in_place_is_compared(shared: Project) -> None:
    shared.write("tally.py", IN_PLACE)
    given = ("--against", "tally.py::tally", "--arg", "seen={sum: f32[]}", "--arg", "x=f32[24,3]")
    result = shared.run("verify", "tally.py::summed", *given)
    assert result.exit_code == 0, result.stderr
    assert "derived for all inputs" in result.words
    assert "3 chained steps" in result.words
    for name in ("averaged", "forgotten"):
        says = ("`seen['sum']` ",)
        shared.refused("JP045", "verify", f"tally.py::{name}", *given, says=says, exit_code=1)


HANDED = """
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = Mesh(np.array(jax.devices()), ("d",))
    shard_map = functools.partial(jax.shard_map, mesh=mesh, check_vma=False)


    def slope(x, y):
        return jnp.mean(x * y)


    def halved(x, y):
        return x / 2


    mapped = {"in_specs": (P("d"), P("d")), "out_specs": P()}
    plain = jax.jit(shard_map(lambda x, y: lax.pmean(slope(x, y), "d"), **mapped))
    divided = NamedSharding(mesh, P("d"))
    # Takes with it only what is divided already.
    giving = jax.jit(halved, in_shardings=(divided, divided), donate_argnums=0)


    def is_concrete(x):
        return isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)


    def doubled(x, y):
        return plain(2 * x if is_concrete(x) else x, y)


    def reversed_when_divided(x, y):
        return plain(x[::-1] if is_concrete(x) and len(x.devices()) > 1 else x, y)


    def decay(x, y):
        return x - 0.1 * jnp.mean(x.sum() * y)


    def local_decay(x, y):
        return x - 0.1 * lax.pmean(jnp.mean(x.sum() * y), "d")


    step = jax.jit(shard_map(local_decay, in_specs=(P(), P("d")), out_specs=P()))


    def step_of_placed(x, y):
        return step(2 * x if is_concrete(x) and len(x.devices()) > 1 and not is_concrete(y) else x, y)


    def two(params, y):
        return {"a": params["a"] - jnp.mean(y), "b": params["b"] - jnp.mean(y**2)}


    def moments(y):
        return lax.pmean([y.mean(), (y**2).mean()], "d")


    means = jax.jit(shard_map(moments, in_specs=P("d"), out_specs=P()))


    def in_any_order(params, y):
        return {key: params[key] - mean for key, mean in zip(sorted(params), means(y))}


    def in_their_order(params, y):
        return {key: value - mean for (key, value), mean in zip(params.items(), means(y))}


    kept = {}


    def placed_once(x, y):
        if id(x) not in kept:
            kept.clear()
            kept[id(x)] = x, jax.device_put(x, divided)
        return plain(kept[id(x)][1], y)


    def of_numpy(x, y):
        if is_concrete(x):
            raise TypeError("NumPy, please")
        return plain(x, y)
"""
PAIR = ("--arg", "x=f32[24]", "--arg", "y=f32[24]")


@pytest.mark.parametrize(
    ("name", "against", "says"),
    [
        ("doubled", "slope", "It shows on arrays of jax"),
        ("reversed_when_divided", "slope", "It shows on arrays that are divided over the devices"),
        ("placed_once", "slope", "in which the caller has put other numbers since the call before"),
        ("giving", "halved", "takes the arrays of `x` with it"),
    ],
)
def test_arrays_of_jax_are_handed_over_as_well(shared: Project, name: str, against: str, says: str) -> None:
    shared.write("handed.py", HANDED)
    words = ("verify", f"handed.py::{name}", "--against", f"handed.py::{against}", *PAIR)
    shared.refused("JP045", *words, says=(says,), exit_code=1)


def test_keys_of_a_dict_may_be_in_another_order(shared: Project) -> None:
    shared.write("handed.py", HANDED)
    words = ("--against", "handed.py::two", "--arg", "params={a: f32[], b: f32[]}", "--arg", "y=f32[24]")
    assert shared.run("verify", "handed.py::in_any_order", *words).exit_code == 0
    says = (
        "It shows on dicts whose keys were put in in another order",
        "go through dicts with `jax.tree.map`",
    )
    shared.refused("JP045", "verify", "handed.py::in_their_order", *words, says=says, exit_code=1)


def test_a_step_that_minds_where_its_own_results_lie_is_said_to(shared: Project) -> None:
    shared.write("handed.py", HANDED)
    words = ("--against", "handed.py::decay", "--arg", "x=f32[5]", "--arg", "y=f32[24]")
    says = ("call 2", "It shows on results of the call before, handed over as arrays of jax")
    refused = shared.refused("JP045", "verify", "handed.py::step_of_placed", *words, says=says, exit_code=1)
    assert "witnesses" not in refused.words


MOMENTS = """
    import functools
    import jax
    import jax.numpy as jnp
    from jax import lax


    def variance(x):
        return jnp.var(x)


    @functools.partial(jax.pmap, axis_name="i", out_axes=None)
    def spread(x):
        return lax.pmean(jnp.mean(x**2), "i") - lax.pmean(jnp.mean(x), "i") ** 2
"""


def test_digits_that_cancel_are_told_from_a_collective_that_is_missing(shared: Project) -> None:
    shared.write("moments.py", MOMENTS)
    words = ("verify", "moments.py::spread", "--against", "moments.py::variance", "--arg", "x=f32[48]")
    says = ("digits are lost where numbers are large beside their spread", "no collective is missing")
    shared.refused("JP045", *words, says=says, exit_code=1)


def test_what_takes_arrays_of_numpy_alone_is_no_error(shared: Project) -> None:
    shared.write("handed.py", HANDED)
    found = shared.run("verify", "handed.py::of_numpy", "--against", "handed.py::slope", *PAIR)
    assert found.exit_code == 0, found.stderr
    assert "given arrays of jax it fails: TypeError: NumPy, please" in found.words
    assert (
        "fails" not in shared.run("verify", "handed.py::plain", "--against", "handed.py::slope", *PAIR).words
    )


CONSTANTS = """
    import jax
    import jax.numpy as jnp
    from jax import lax


    def reduced(x, mode="mean", times=2):
        for _ in range(times):
            x = jnp.tanh(x)
        if mode == "mean":
            return jnp.mean(x)
        return jnp.max(x)


    def mapped(function, x):
        rows = x.reshape(jax.device_count(), -1)
        return jax.pmap(function, axis_name="i", out_axes=None)(rows)


    def averaged(x, mode="mean", times=2):
        return mapped(lambda x: lax.pmean(reduced(x, mode, times), "i"), x)


    def right(x, mode="mean", times=2):
        over_devices = lax.pmean if mode == "mean" else lax.pmax
        return mapped(lambda x: over_devices(reduced(x, mode, times), "i"), x)


    def twice(x, mode="mean", times=2):
        return right(x, mode, 2)


    def only(x, times=2):
        return mapped(lambda x: lax.pmean(reduced(x, "mean", times), "i"), x)
"""


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("averaged", 1, "with `mode='no_mean_mean'`"),
        ("right", 0, ""),
        ("twice", 0, "it is equal for `times=2`, and nothing is said of others"),
        ("only", 0, "does not take `mode`"),
    ],
)
def test_constants_that_nothing_names_are_tried(shared: Project, name: str, code: int, says: str) -> None:
    shared.write("constants.py", CONSTANTS)
    words = ("verify", f"constants.py::{name}", "--against", "constants.py::reduced", "--arg", "x=f32[24]")
    found = shared.run(*words, "--static", "mode", "--static", "times")
    assert found.exit_code == code, found.stderr
    assert says in found.words
    assert says or "nothing is said" not in found.words


CAPACITY = """
    import functools

    import jax
    import jax.numpy as jnp
    from jax import lax


    def kept(x, capacity=1000.0):
        \"\"\"The mean of the first positive rows, as many as there is room for.\"\"\"
        positive = (x > 0).astype(x.dtype)
        return jnp.mean(x * positive * (jnp.cumsum(positive) <= capacity))


    @functools.partial(jax.pmap, axis_name="d", out_axes=None)
    def p_kept(x):
        return lax.pmean(kept(x), "d")
"""


def test_a_capacity_that_few_rows_do_not_fill(shared: Project) -> None:
    shared.write("capacity.py", CAPACITY)
    words = ("verify", "capacity.py::p_kept", "--against", "capacity.py::kept", "--arg", "x=f32[24]")
    shared.refused("JP045", *words, says=("with a batch of 32792",), exit_code=1)


@pytest.mark.parametrize("line", ["import that_is_not_there", "raise RuntimeError('no data here')"])
def test_why_a_file_cannot_be_imported_is_said_where_its_reference_needs_less_of_it(
    project: Project, line: str
) -> None:
    project.write(
        "in_part.py",
        f"""
        import jax
        import jax.numpy as jnp


        def mean(x):
            return jnp.mean(x)


        {line}
        p_mean = jax.pmap(lambda x: jax.lax.pmean(jnp.mean(x), "i"), axis_name="i")
        """,
    )
    words = ("--against", "in_part.py::mean", "--arg", "x=f32[24,3]")
    done = project.run("verify", "in_part.py::p_mean", *words)
    assert done.exit_code == 2
    assert "JP008" in done.stderr and line in done.stderr, done.stderr


MODES = """
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, PartitionSpec as P


    def dropped(x, key, train):
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0) if train else x


    def loss(w, x, key, train=False):
        return jnp.mean((dropped(x, key, train) @ w) ** 2)


    def body(w, x, key, train, fold):
        key = jax.random.fold_in(key, jax.lax.axis_index("i")) if fold else key
        return jax.lax.pmean(loss(w, x, key, train), "i")


    mapped = functools.partial(
        jax.pmap, axis_name="i", in_axes=(None, 0, None, None), out_axes=None, static_broadcasted_argnums=3
    )
    folded = mapped(functools.partial(body, fold=True))
    alike = mapped(functools.partial(body, fold=False))


    def make_inputs(seed=0):
        random = np.random.default_rng(seed)
        return random.normal(size=3), random.normal(size=(24, 3)), jax.random.key(seed), False


    def guarded(x, mask):
        return jnp.sum(x * mask) / jnp.maximum(jnp.sum(mask), 1)


    @functools.partial(jax.pmap, axis_name="i", out_axes=None)
    def p_guarded(x, mask):
        total, number = jax.lax.psum((jnp.sum(x * mask), jnp.maximum(jnp.sum(mask), 1)), "i")
        return total / number


    def picked(logits, labels):
        logits = jax.nn.log_softmax(logits)
        return -jnp.mean(jnp.take_along_axis(logits, labels[:, None], 1))


    def of_own(logits, labels, more=0):
        size = logits.shape[1]
        most = jax.lax.pmax(logits.max(1), "v")
        scale = jnp.log(jax.lax.psum(jnp.exp(logits - most[:, None]).sum(1), "v")) + most
        own = labels - jax.lax.axis_index("v") * size
        inside = (own >= 0) & (own < size + more)
        mine = jnp.take_along_axis(logits, jnp.clip(own, 0, size - 1)[:, None], 1)[:, 0]
        return jnp.mean(scale - jax.lax.psum(jnp.where(inside, mine, 0), "v"))


    classes = functools.partial(
        jax.shard_map,
        mesh=Mesh(np.array(jax.devices()), ("v",)),
        in_specs=(P(None, "v"), P()),
        out_specs=P(),
    )
    p_picked = jax.jit(classes(of_own))
    # A label that is the first of a device is taken for the last of the one before, too.
    p_edge = jax.jit(classes(functools.partial(of_own, more=1)))


    def labelled(seed=0):
        random = np.random.default_rng(seed)
        return random.normal(size=(24, 48)), random.integers(0, 48, 24)


    def odd_labels():
        # None of them is the first of a device.
        return np.random.default_rng(0).normal(size=(7, 48)), np.arange(19, 5, -2)


    def weighed(lr, eps, x):
        return lr + jnp.mean(jnp.tanh(eps @ x.T))


    p_weighed = jax.pmap(
        lambda lr, eps, x: jax.lax.pmean(weighed(lr, eps, x), "i"),
        axis_name="i",
        in_axes=(None, 0, None),
        out_axes=None,
    )


    def chosen(params, candidates, x):
        scores = jnp.mean((x @ candidates.T) ** 2, 0)
        return params + jax.nn.softmax(scores) @ candidates


    def among_all(params, candidates, x):
        scores = jnp.mean((x @ candidates.T) ** 2, 0)
        powers = jnp.exp(scores - jax.lax.pmax(scores.max(), "i"))
        total, number = jax.lax.psum((powers @ candidates, powers.sum()), "i")
        return params + total / number


    by_candidates = functools.partial(jax.pmap, axis_name="i", in_axes=(None, 0, None), out_axes=None)
    p_chosen = by_candidates(among_all)
    p_of_each = by_candidates(lambda *args: jax.lax.pmean(chosen(*args), "i"))


    def both(w, x, unlabelled):
        sure = (jnp.abs(unlabelled @ w) > 0.5).astype(w.dtype)
        return jnp.mean((x @ w) ** 2) + jnp.sum(sure * (unlabelled @ w)) / jnp.maximum(jnp.sum(sure), 1)


    def summed_both(w, x, unlabelled):
        sure = (jnp.abs(unlabelled @ w) > 0.5).astype(w.dtype)
        total, number = jax.lax.psum((jnp.sum(sure * (unlabelled @ w)), jnp.sum(sure)), "i")
        return jax.lax.pmean(jnp.mean((x @ w) ** 2), "i") + total / jnp.maximum(number, 1)


    of_two = functools.partial(jax.pmap, axis_name="i", in_axes=(None, 0, 0), out_axes=None)
    p_both = of_two(summed_both)
    p_means = of_two(lambda *args: jax.lax.pmean(both(*args), "i"))
    p_stacked = jax.pmap(lambda *args: jax.lax.pmean(both(*args), "i"), axis_name="i")


    # An activation among the leaves, which is returned.
    def activated(model, x, labels):
        def loss_fn(w):
            scores = jax.nn.log_softmax(model["activation"](x @ w))
            return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], 1))

        return {**model, "w": model["w"] - 0.1 * jax.grad(loss_fn)(model["w"])}


    def p_activated(model, x, labels):
        def own(w, x, labels):
            return activated({**model, "w": w}, x, labels)["w"]

        n = jax.device_count()
        after = jax.pmap(own, in_axes=(None, 0, 0))(
            model["w"], x.reshape(n, -1, *x.shape[1:]), labels.reshape(n, -1)
        )
        return {**model, "w": after[0]}


    def with_activation(seed=0):
        random = np.random.default_rng(seed)
        model = {"w": random.normal(size=(3, 4)), "activation": jnp.tanh}
        return model, random.normal(size=(24, 3)), random.integers(0, 4, 24)


    def in_rounds(w, x, sync):
        def step(w, number):
            return w - 0.1 * sync(jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w), number), None

        return jax.lax.scan(step, w, jnp.arange(4))[0]


    def rounds(w, x):
        return in_rounds(w, x, lambda grads, number: grads)


    def mostly(grads, number):
        return jax.lax.cond(number % 8 < 7, lambda g: jax.lax.pmean(g, "i"), lambda g: g, grads)


    def with_default(w, x, activation=jnp.tanh):
        return jnp.mean(activation(x @ w))


    def logged(step, w, x):
        return jnp.where(step % 5 == 0, jnp.mean((x @ w) ** 2), -1.0)


    of_rounds = functools.partial(jax.pmap, axis_name="i", in_axes=(None, 0), out_axes=None)
    p_often = of_rounds(lambda w, x: in_rounds(w, x, lambda grads, number: jax.lax.pmean(grads, "i")))
    p_default = of_rounds(lambda w, x: jax.lax.pmean(with_default(w, x), "i"))
    p_mostly = of_rounds(lambda w, x: in_rounds(w, x, mostly))
    p_logged = jax.pmap(
        lambda step, w, x: jax.lax.cond(
            step % 5 == 0, lambda x: jax.lax.pmean(jnp.mean((x @ w) ** 2), "i"), lambda x: jnp.float32(-1), x
        ),
        axis_name="i",
        in_axes=(None, None, 0),
        out_axes=None,
    )


    def in_one(w, batch):
        return both(w, batch["x"], batch["unlabelled"])


    of_one = functools.partial(jax.pmap, axis_name="i", in_axes=(None, 0), out_axes=None)
    p_in_one = of_one(lambda w, batch: summed_both(w, batch["x"], batch["unlabelled"]))
    p_one_means = of_one(lambda *args: jax.lax.pmean(in_one(*args), "i"))
    explicit = jax.make_mesh((jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    total = jax.shard_map(
        lambda w, x: jax.lax.pmean(jnp.mean(x @ w), "i"), mesh=explicit, in_specs=(P(), P("i")), out_specs=P()
    )


    def total_of(w, x):
        return jnp.mean(x @ w)
"""
#: What looks like the batch, `x`, is whole on every device there.
TWO = ("w=f32[3]", "x=f32[24,3]", "unlabelled=f32[72,3]")
ROUNDS = ("w=f32[3]", "x=f32[24,3]")
IN_ONE = ("w=f32[3]", "batch={x: f32[24,3], unlabelled: f32[72,3]}")
CHOSEN = ("params=f32[5]", "candidates=f32[24,5]", "x=f32[48,5]")


@pytest.mark.parametrize(
    ("name", "against", "inputs", "code", "says"),
    [
        ("folded", "loss", "make_inputs", 0, ""),
        (
            "alike",
            "loss",
            "make_inputs",
            1,
            "with `train=True` the draw of shape (24, 3) belongs to examples",
        ),
        ("p_guarded", "guarded", ("x=f32[24]", "mask=mask[24]"), 1, "a limit or a comparison goes by what"),
        ("p_picked", "picked", "labelled", 0, ""),
        ("p_picked", "picked", "odd_labels", 0, ""),
        ("p_edge", "picked", "odd_labels", 1, "It shows on the given inputs, altered"),
        ("p_weighed", "weighed", ("lr=f32[]", "eps=f32[24,5]", "x=f32[7,5]"), 2, "to be `x`: --shard NAME"),
        ("p_chosen", "chosen", CHOSEN, 0, "candidates every array has a device axis"),
        ("p_of_each", "chosen", CHOSEN, 1, "is the mean of what each device has by itself"),
        ("p_both", "both", TWO, 0, "unlabelled its own rows have a device axis"),
        ("p_means", "both", TWO, 1, "a device axis on the rows of `unlabelled`"),
        ("p_stacked", "both", TWO, 2, "unlabelled=parts for parts, or --replicate unlabelled"),
        ("p_in_one", "in_one", IN_ONE, 0, "batch its own rows have a device axis"),
        ("p_one_means", "in_one", IN_ONE, 2, "batch=parts for parts, or --replicate \"batch['x']\""),
        ("p_activated", "activated", "with_activation", 1, "is what the first device has by itself"),
        ("p_often", "rounds", ROUNDS, 0, ""),
        ("p_default", "with_default", ROUNDS, 0, "does not take `activation`"),
        ("p_mostly", "rounds", ROUNDS, 1, "the other way has other collectives"),
        ("p_logged", "logged", ("step=3", *ROUNDS), 0, ""),
        ("total", "total_of", ("w=f32[3]", "x=f32[24,3]"), 2, "a function that puts them there"),
    ],
)
def test_other_modes_and_what_to_type(
    shared: Project, name: str, against: str, inputs: str | tuple[str, ...], code: int, says: str
) -> None:
    shared.write("modes.py", MODES)
    given = ["--inputs", f"modes.py::{inputs}"] if isinstance(inputs, str) else []
    given += [word for each in inputs for word in ("--arg", each)] if not given else []
    found = shared.run("verify", f"modes.py::{name}", "--against", f"modes.py::{against}", *given)
    assert found.exit_code == code, found.words
    assert says in found.words


PIPELINE = """
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, PartitionSpec as P


    def run(layers, batches):
        def through(x):
            return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, layers)[0]

        return jax.vmap(through)(batches)


    @jax.jit
    @functools.partial(
        jax.shard_map,
        mesh=Mesh(np.array(jax.devices()), ("stage",)),
        in_specs=(P("stage"), P()),
        out_specs=P(),
        check_vma=False,
    )
    def piped(layers, batches):
        devices, index, number = jax.lax.axis_size("stage"), jax.lax.axis_index("stage"), len(batches)
        held, out = jnp.zeros_like(batches[0]), jnp.zeros_like(batches)
        for tick in range(number + devices - 1):
            held = jnp.where(index == 0, batches[min(tick, number - 1)], held)
            done = run(layers, held[None])[0]
            if tick >= devices - 1:
                out = out.at[tick - devices + 1].set(done)
            held = jax.lax.ppermute(done, "stage", [(i, (i + 1) % devices) for i in range(devices)])
        return jax.lax.psum(jnp.where(index == devices - 1, out, 0), "stage")
"""


def test_a_loop_over_microbatches_is_not_made_thousands_long(project: Project) -> None:
    project.write("pipe.py", PIPELINE)
    words = ("verify", "pipe.py::piped", "--against", "pipe.py::run", "--timeout", "60")
    found = project.run(*words, "--arg", "layers=f32[24,3,3]", "--arg", "batches=f32[5,2,3]")
    assert found.exit_code == 0, found.words
    assert "not on 8 devices" not in found.words


def test_more_devices_than_rows_are_tried(project: Project) -> None:
    ticks = "range(number + devices - 1)"
    project.write("pipe.py", PIPELINE.replace(ticks, "range(min(number + devices, 2 * number + 2) - 1)"))
    words = ("verify", "pipe.py::piped", "--against", "pipe.py::run")
    found = project.run(*words, "--arg", "layers=f32[24,3,3]", "--arg", "batches=f32[5,2,3]")
    assert found.exit_code == 1, found.words
    assert "differs on 8 devices" in found.words


def test_what_a_reference_changes_in_place_is_said_to_be(project: Project) -> None:
    project.write(
        "counted.py",
        """
        import functools

        import jax
        import jax.numpy as jnp


        def step(state, x):
            state["seen"] = state["seen"] + jnp.mean(x)
            return state["seen"]


        @functools.partial(jax.pmap, axis_name="i", in_axes=(None, 0), out_axes=None)
        def p_step(state, x):
            return state["seen"] + jax.lax.pmean(jnp.mean(x), "i")
        """,
    )
    words = ("verify", "counted.py::p_step", "--against", "counted.py::step", "--arg", "state={seen: f32[]}")
    found = project.run(*words, "--arg", "x=f32[24]")
    assert found.exit_code == 1, found.words
    assert "The reference changes `state` in place" in found.words


RECURRENCE = """
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P


    def joined(before, after):
        return before[0] * after[0], after[0] * before[1] + after[1]


    def recurrence(decay, x):
        return jax.lax.associative_scan(joined, (decay, x))[1]


    @jax.jit
    @functools.partial(
        jax.shard_map,
        mesh=Mesh(np.array(jax.devices()), ("i",)),
        in_specs=(P("i"), P("i")),
        out_specs=P("i"),
        check_vma=False,
    )
    def divided(decay, x):
        products, states = jax.lax.associative_scan(joined, (decay, x))
        ends = jax.lax.all_gather((products[-1], states[-1]), "i")
        state = jnp.zeros_like(states[-1])
        for device in range(jax.lax.axis_size("i") - 1):
            following = ends[0][device] * state + ends[1][device]
            state = jnp.where(device < jax.lax.axis_index("i"), following, state)
        return states + products * state


    def make_inputs(seed=0):
        rng = np.random.default_rng(seed)
        return rng.uniform(0.5, 1, (48, 3)).astype("f"), rng.normal(size=(48, 3)).astype("f")
"""


def test_a_recurrence_whose_results_grow_when_fed_back(project: Project) -> None:
    project.write("scan.py", RECURRENCE)
    words = ("verify", "scan.py::divided", "--against", "scan.py::recurrence")
    given = ("--inputs", "scan.py::make_inputs")
    found = project.run(*words, *given)
    assert found.exit_code == 0, found.words
    project.write("scan.py", RECURRENCE.replace("device < ", "device <= "))
    assert project.run(*words, *given).exit_code == 1
