"""Layers that normalise by the batch: synchronised over the axis they name, or named in the refusal."""

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from jax_pmap import pipeline
from jax_pmap.model import Backend, Generated, Refusal, Request
from jax_pmap.worker import prove, units

pytest.importorskip("flax")
pytest.importorskip("haiku")
pytest.importorskip("equinox")

OTHERS = """
    from typing import NamedTuple

    import equinox as eqx
    import flax.linen as nn
    import haiku as hk
    import jax
    import jax.numpy as jnp
    import numpy as np
    from flax import nnx

    x = np.random.default_rng(0).normal(size=(24, 3)).astype("f")


    @hk.transform_with_state
    def net(x):
        normed = hk.BatchNorm(True, True, 0.9)(x, is_training=True)
        return normed, hk.nets.VectorQuantizerEMA(3, 4, 0.25, 0.9)(normed, is_training=True)["quantize"]


    def haiku_step(params, state, x):
        (y, z), state = net.apply(params, state, None, x)
        return jnp.mean(y**2 + z, axis=0), state


    def haiku_inputs():
        return *net.init(jax.random.key(0), x), x


    def nnx_step(layers, x):
        return jnp.mean(layers[0](x) ** 2, axis=0)


    def nnx_inputs():
        return nnx.List([nnx.BatchNorm(3, use_running_average=False, rngs=nnx.Rngs(0))]), x


    class Classifier(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.BatchNorm(3, rngs=rngs)
            self.out = nnx.Linear(3, 4, rngs=rngs)

        def __call__(self, x):
            return self.out(jnp.tanh(self.norm(x)))


    @nnx.jit
    def counted_step(model, metrics, x, labels):
        def loss_fn(model):
            logits = model(x)
            return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels]), logits

        (loss, logits), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model)
        metrics.update(loss=loss, logits=logits, labels=labels)
        return grads


    def counted_inputs():
        metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
        return Classifier(nnx.Rngs(0)), metrics, x, np.arange(24) % 4


    def merged_step(graph, state, x):
        model = nnx.merge(graph, state)
        loss, grads = nnx.value_and_grad(lambda model: jnp.mean(model(x)[:, 0] ** 2))(model)
        return loss, grads, nnx.state(model, nnx.BatchStat)


    def merged_inputs():
        return *nnx.split(Classifier(nnx.Rngs(0))), x


    class State(NamedTuple):
        params: dict
        statistics: dict
        slow: jax.Array


    def stateful_step(state, x):
        def loss_fn(params):
            variables = {"params": params, "batch_stats": state.statistics}
            y, updates = nn.BatchNorm(use_running_average=False).apply(variables, x, mutable=["batch_stats"])
            return jnp.mean(jnp.tanh(y)), updates["batch_stats"]

        (loss, statistics), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        return state._replace(params=grads, statistics=statistics), loss


    def stateful_inputs():
        made = nn.BatchNorm(use_running_average=False).init(jax.random.key(0), x)
        return State(made["params"], made["batch_stats"], jnp.arange(16.0)), x


    def equinox_step(layer, state, x):
        over_rows = jax.vmap(layer, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        y, state = over_rows(x, state)
        return jnp.mean(y**2, axis=0), state


    def equinox_inputs(axis_name="batch", mode="batch"):
        return *eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, axis_name, mode=mode), x


    def equinox_ema():
        return equinox_inputs(mode="ema")


    class Rows(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.BatchNorm(use_running_average=False, axis_name="rows")(nn.Dense(4)(x))


    over_rows = nn.vmap(
        Rows,
        in_axes=0,
        variable_axes={"params": None, "batch_stats": None},
        split_rngs={"params": False},
        axis_name="rows",
    )()


    def in_map_step(variables, x):
        y, updates = over_rows.apply(variables, x, mutable=["batch_stats"])
        return jnp.mean(jnp.tanh(y), axis=0), updates


    def in_map_inputs():
        return over_rows.init(jax.random.key(0), x), x


    def two_axes():
        return equinox_inputs(("batch", "devices"))


    def three_axes():
        return equinox_inputs(("batch", "devices", "hosts"))


    def make_scale():
        class Scale:
            def __call__(self, x):
                mean = x.mean(axis=0)
                return x - mean

        return Scale()


    scale = make_scale()


    def own_step(x):
        return jnp.mean(jnp.tanh(scale(x)), axis=0)


    def own_inputs():
        return (x,)


    def equinox_training(layer, state, x):
        def loss_fn(layer):
            over_rows = jax.vmap(layer, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
            y, new = over_rows(x, state)
            y, new = over_rows(jnp.tanh(y), new)
            return jnp.mean(jnp.tanh(y) ** 2), new

        (loss, state), grads = eqx.filter_value_and_grad(loss_fn, has_aux=True)(layer)
        return loss, grads, state


    def equinox_gathered(layer, state, wanted, key):
        def loss_fn(layer):
            over_rows = jax.vmap(layer, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
            y, new = over_rows(jax.random.normal(key, wanted.shape), state)
            for _ in range(9):
                y = jnp.tanh(y @ jnp.ones((3, 200)) @ jnp.ones((200, 3)))
            return jnp.mean((y - wanted) ** 2), new

        (loss, state), grads = eqx.filter_value_and_grad(loss_fn, has_aux=True)(layer)
        return loss, grads, state


    def noise_inputs():
        return *equinox_inputs()[:2], x, jax.random.key(0)


    alone = hk.without_apply_rng(hk.transform_with_state(lambda x: hk.BatchNorm(True, True, 0.9)(x, True)))


    def of_tasks(params, state, tasks):
        def loss(params):
            y, new = jax.vmap(alone.apply, in_axes=(None, None, 0))(params, state, tasks)
            return jnp.mean(jnp.tanh(y) ** 2), jax.tree.map(lambda each: each.mean(axis=0), new)

        (loss, state), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return loss, grads, state


    def task_inputs():
        tasks = jax.random.normal(jax.random.key(3), (24, 5, 3))
        return *alone.init(jax.random.key(0), tasks[0]), tasks


    def of_ensemble(params, state, x):
        def loss(params):
            y, new = jax.vmap(alone.apply, in_axes=(0, 0, None))(params, state, x)
            return jnp.mean(jnp.tanh(y) ** 2), new

        (loss, state), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return loss, grads, state


    def ensemble_inputs():
        params, state = jax.vmap(lambda key: alone.init(key, x))(jax.random.split(jax.random.key(0), 2))
        return params, state, x
"""

#: Arguments that are split and that are not: one assignment is enough to look at.
ROLES = {
    "train_step": (("images", "labels"), ("state",)),
    "evaluate": (("images", "labels"), ("state",)),
    "haiku_step": (("x",), ("params", "state")),
    "nnx_step": (("x",), ("layers",)),
    "merged_step": (("x",), ("state",)),
    "counted_step": (("x", "labels"), ("model", "metrics")),
    "equinox_step": (("x",), ("layer", "state")),
    "equinox_training": (("x",), ("layer", "state")),
    "equinox_gathered": (("wanted",), ("layer", "state")),
    "in_map_step": (("x",), ("variables",)),
    "stateful_step": ((), ()),
    "own_step": (("x",), ()),
    "of_tasks": (("tasks",), ("params", "state")),
    "of_ensemble": (("x",), ("params", "state")),
}

Ask = Callable[..., Generated | Refusal]


@pytest.fixture(scope="module")
def ask(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Generate from the example, or from a file with the other libraries, all in one worker."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copy(repository / "examples" / "batchnorm.py", folder)
    (folder / "pyproject.toml").write_text("")
    (folder / "others.py").write_text(textwrap.dedent(OTHERS))

    def request(target: str, inputs: str, **options: object) -> Request:
        return Request(
            target,
            inputs=f"{target.partition('::')[0]}::{inputs}",
            directory=folder,
            python=Path(sys.executable),
            **options,
        )

    with pipeline.start(request("others.py::nnx_step", "nnx_inputs")) as session:

        def ask(*words: str, **options: object) -> Generated | Refusal:
            session.renew()
            shard, replicate = ROLES[words[0].partition("::")[2]]
            asked = request(*words, shard=shard, replicate=replicate, **options)
            return pipeline.generate(asked, session=session)

        yield ask


def refused(answer: Generated | Refusal, code: str) -> str:
    """Reason and hint of a refusal that has to have `code`."""
    assert isinstance(answer, Refusal)
    assert answer.code == code, answer.reason
    return f"{answer.reason} -> {answer.hint}"


@pytest.mark.parametrize(
    ("target", "inputs", "library", "in_maps", "backend"),
    [
        ("batchnorm.py::train_step", "example_without_axis", "flax.linen", False, Backend.PMAP),
        ("others.py::haiku_step", "haiku_inputs", "haiku", False, Backend.SHARD_MAP),
        ("others.py::nnx_step", "nnx_inputs", "flax.nnx", False, Backend.PMAP),
        ("others.py::merged_step", "merged_inputs", "flax.nnx", False, Backend.SHARD_MAP),
        ("others.py::equinox_training", "equinox_inputs", "equinox.nn", True, Backend.PMAP),
        ("others.py::in_map_step", "in_map_inputs", "flax.linen", True, Backend.PMAP),
    ],
)
def test_a_layer_without_axis_is_told_the_axis(
    ask: Ask, target: str, inputs: str, library: str, in_maps: bool, backend: Backend
) -> None:
    answer = ask(target, inputs, axis_name="i", backend=backend)
    assert isinstance(answer, Generated), answer.reason
    assert (answer.plan.layers, answer.plan.in_maps) == ((library,), in_maps)
    assert answer.evidence.proved and {check.devices for check in answer.evidence.checks} >= {3, 8}
    assert "@over_devices" in answer.code
    assert any(f"layers of {library} that name no axis" in note for note in answer.plan.notes)


def test_a_layer_that_is_called_for_each_example_is_told_nothing(ask: Ask) -> None:
    """As in meta-learning, where the examples are tasks. Members of an ensemble see the batch."""
    answer = ask("others.py::of_tasks", "task_inputs")
    assert isinstance(answer, Generated), answer.reason
    assert answer.plan.layers == () and answer.evidence.derived
    answer = ask("others.py::of_ensemble", "ensemble_inputs")
    assert isinstance(answer, Generated), answer.reason
    assert answer.plan.layers == ("haiku",) and answer.evidence.derived


def test_layers_are_told_beside_metrics_that_add_up_and_state_that_could_be_split(ask: Ask) -> None:
    answer = ask("others.py::counted_step", "counted_inputs")
    assert isinstance(answer, Generated), answer.reason
    assert answer.plan.layers == ("flax.nnx",)
    assert answer.evidence.derived and {sync.op for sync in answer.plan.syncs} == {"pmean", "psum"}
    # What is returned as it came divides over devices, and is no batch for that.
    answer = ask("others.py::stateful_step", "stateful_inputs")
    assert isinstance(answer, Generated), answer.reason
    assert answer.plan.layers == ("flax.linen",)
    assert answer.evidence.derived


def test_the_mode_of_a_layer_that_fails_inside_any_map_is_named(ask: Ask) -> None:
    said = refused(ask("others.py::equinox_step", "equinox_ema"), "JP068")
    assert 'Give `eqx.nn.BatchNorm` mode="batch"' in said and "--backend jit" in said


def test_where_a_map_inside_has_the_name_of_the_axis_that_of_the_devices_has_another(ask: Ask) -> None:
    answer = ask("others.py::equinox_step", "equinox_inputs")
    assert isinstance(answer, Generated), answer.reason
    assert answer.plan.axis_name == "devices" and answer.evidence.derived
    # One that was asked for would be the inner one inside that map.
    said = refused(ask("others.py::equinox_step", "equinox_inputs", axis_name="batch"), "JP048")
    assert 'equinox.nn.BatchNorm (others.py:96) takes its statistics over the axis "batch" of a map' in said
    assert "give another: --axis-name devices" in said
    by_compiler = ask("others.py::equinox_step", "equinox_inputs", axis_name="batch", backend=Backend.JIT)
    assert isinstance(by_compiler, Generated), by_compiler.reason


def test_a_layer_that_cannot_be_told_is_named_with_the_way_out(ask: Ask) -> None:
    said = refused(ask("others.py::own_step", "own_inputs"), "JP067")
    assert "`mean = x.mean(axis=0)` (others.py:" in said and "is taken over the examples" in said
    assert 'over the axis "batch"' in said and "of a mean by `jax.lax.pmean`" in said


def test_the_axis_of_a_layer_is_that_of_the_plan(ask: Ask) -> None:
    said = refused(ask("batchnorm.py::train_step", "example_inputs", axis_name="i"), "JP048")
    assert "over the axis 'batch', not 'i'" in said
    assert "--axis-name batch" in said
    said = refused(ask("batchnorm.py::train_step", "example_inputs", backend=Backend.JIT), "JP046")
    assert "--backend pmap" in said
    said = refused(ask("others.py::equinox_step", "three_axes"), "JP048")
    assert "several axes, 'devices', 'hosts'" in said
    answer = ask("others.py::equinox_step", "two_axes", backend=Backend.SHARD_MAP)
    assert isinstance(answer, Generated)
    assert answer.evidence is not None and answer.evidence.proved
    assert answer.plan.axis_name == "devices"
    assert any('only inside a map over the axis "devices" (line 96' in note for note in answer.plan.notes)


def test_a_training_step_averages_over_its_own_map_and_the_devices(ask: Ask) -> None:
    # The derivative of the mean is repeated for each row before it is added up over the devices.
    answer = ask("others.py::equinox_training", "two_axes")
    assert isinstance(answer, Generated), answer.reason
    assert answer.evidence.derived
    # What a layer of its own axis alone is given is not gathered: every device would do all the work.
    answer = ask("others.py::equinox_gathered", "noise_inputs")
    assert isinstance(answer, Generated), answer.reason
    assert {sync.op for sync in answer.plan.syncs} == {"pmean", "fold_in"}


def test_running_averages_need_no_axis(ask: Ask) -> None:
    answer = ask("batchnorm.py::evaluate", "example_inputs")
    assert isinstance(answer, Generated)
    assert len(answer.plan.syncs) == 1
    assert answer.plan.notes == ()


def test_rounding_is_measured_where_numbers_are_drawn() -> None:
    """A gradient that cancels may move by what rounding leaves of it; bfloat16 gives no leave to the rest."""
    zero, value = 1e-17 * np.array([1.0, -2.0]), np.array([1.0, 3.0])
    trial = SimpleNamespace(results=[[zero, value]])

    def bounds(moved: list[np.ndarray], eps: float) -> list[float]:
        near, own = [SimpleNamespace(results=[moved])], units.Rounding(eps)
        allowed = prove.jittered_bounds(trial, near, eps, own)
        return prove.tightened(allowed, trial, near)[0]

    assert 1e-17 < bounds([zero + 1e-17, value], 2**-52)[0] < 1e-15
    assert bounds([zero + 1e-17, value * (1 + 2**-8)], 2**-8)[1] < 0.2
    # Weights kept in wider floats than the gradients: no rounding inside moves them much.
    assert bounds([zero + 1e-17, value], 2**-8)[1] < 1e-14
