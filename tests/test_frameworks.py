"""Steps of the libraries people write training code with, through the real command."""

import subprocess
import sys
import textwrap
from typing import Any

import jax
import pytest
from project import simulated

from jax_pmap.emit.header import ADDED
from jax_pmap.session import Session
from jax_pmap.worker.protocol import Observe


def proved(project, code, name, *options, inputs="inputs"):
    """The file that is written for a function that has to be proved."""
    project.write("steps.py", textwrap.dedent(code))
    result = project.run("gen", f"steps.py::{name}", "--inputs", f"steps.py::{inputs}", *options)
    assert result.exit_code == 0, result.stderr
    assert "# Proved: " in result.stdout
    return result.stdout


def run_on_devices(project, code):
    """Run a program beside the project's files, on four simulated devices."""
    project.write("compare.py", code)
    subprocess.run([sys.executable, "compare.py"], check=True, env=simulated(4))


# --- leaves that are no arrays ------------------------------------------------------------

EQUINOX = """
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    class State(eqx.Module):
        model: eqx.Module
        opt_state: optax.OptState
        step: jax.Array
        name: str


    def loss(params, static, x, y):
        return jnp.mean((jax.vmap(eqx.combine(params, static))(x) - y) ** 2)


    @eqx.filter_jit(donate="all-except-first")
    def step(batch, state, optim):
        x, y = batch
        params, static = eqx.partition(state.model, eqx.is_inexact_array)
        value, grads = jax.value_and_grad(loss)(params, static, x, y)
        updates, opt_state = optim.update(grads, state.opt_state, params)
        model = eqx.combine(eqx.apply_updates(params, updates), static)
        return State(model, opt_state, state.step + 1, state.name), {"loss": value}


    def inputs(seed=0):
        keys = jax.random.split(jax.random.key(seed))
        layers = [eqx.nn.Linear(4, 8, key=keys[0]), eqx.nn.Lambda(jnp.tanh), eqx.nn.Linear(8, 2, key=keys[1])]
        model = eqx.nn.Sequential([*layers, eqx.nn.Dropout(0.5, inference=True)])
        rng = np.random.default_rng(seed)
        batch = rng.normal(size=(24, 4)).astype("f"), rng.normal(size=(24, 2)).astype("f")
        optim = optax.adam(1e-2)
        opt_state = optim.init(eqx.filter(model, eqx.is_inexact_array))
        return batch, State(model, opt_state, jnp.array(0), "run"), optim
"""


OPTIMIZER_GIVEN = """
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    def loss(model, x):
        return jnp.mean(jax.vmap(model)(x) ** 2)

    @eqx.filter_jit
    def step(model, optimizer, state, x):
        value, grads = eqx.filter_value_and_grad(loss)(model, x)
        updates, state = optimizer.update(grads, state, model)
        return eqx.apply_updates(model, updates), state, value

    @eqx.filter_jit
    def applied(model, optimizer, state, x):
        grads = eqx.filter_grad(loss)(model, x)
        made, state = optimizer.update(grads, state, model)
        return loss(eqx.apply_updates(model, made), x), state

    def inputs(optimizer=optax.adam(0.1)):
        model = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))
        state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
        return model, optimizer, state, np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
"""
OTHER_OPTIMIZER = """
import numpy as np
import optax
import step_pmap, steps

given = steps.inputs(optax.sgd(0.3, momentum=0.9))
model, _, value = step_pmap.step(*given)
want, _, wanted = steps.step(*given)
assert np.allclose(value, wanted)
assert np.allclose(model.layers[0].weight, want.layers[0].weight)
"""


def test_equinox_step_takes_any_optimizer_unless_the_batch_meets_what_it_gives(project):
    pytest.importorskip("equinox")
    (project.folder / "step_pmap.py").write_text(proved(project, OPTIMIZER_GIVEN, "step", "--no-run"))
    run_on_devices(project, OTHER_OPTIMIZER)
    words = project.run("gen", "steps.py::applied", "--inputs", "steps.py::inputs", "--no-run").words
    assert "`optimizer` is static; the emitted function takes no " in words


def test_equinox_module_is_partitioned_as_equinox_does(project):
    pytest.importorskip("equinox")
    code = proved(project, EQUINOX, "step", "--backend", "shard_map")
    assert "state, state_static = eqx.partition(state, eqx.is_array)" in code
    assert "return eqx.combine(state, state_static), result_1" in code
    # Inside, the constants come from the function around: shard_map takes arrays alone.
    assert "def per_device(batch, state):" in code
    assert "def partition" not in code
    # In training the dropout would be the same on all devices.
    assert """        if flags(state) != {"inference=True"}:\n            raise ValueError(""" in code


SETTINGS = """
    import jax.numpy as jnp
    import numpy as np


    def apply(settings, x):
        out = x @ settings["w"]
        if settings["mode"] == "mean":
            return jnp.mean(out), settings
        return jnp.sum(out), settings


    def call(settings, x):
        return jnp.mean(settings["function"](x @ settings["w"]))


    def keep(batch):
        return jnp.mean(batch["x"])


    def inputs(seed=0, **more):
        rng = np.random.default_rng(seed)
        return {"w": rng.normal(size=(4, 2)), "mode": "mean", **more}, rng.normal(size=(24, 4))


    def with_function():
        return inputs(function=jnp.tanh)


    def with_names():
        return ({"x": np.arange(24.0), "names": np.array(["cat", "dog"] * 12)},)
"""


COUNTED = """
    import equinox as eqx
    import jax
    import jax.numpy as jnp


    class Noise(eqx.Module):
        seen: eqx.nn.StateIndex

        def __init__(self):
            self.seen = eqx.nn.StateIndex(jnp.array(False))

        def __call__(self, x, state, key):
            noise = jax.random.normal(key, x.shape)
            return jnp.mean(jnp.tanh(x + noise)), state.set(self.seen, jnp.array(True))


    @eqx.filter_jit
    def step(model, state, x, key):
        return model(x, state, key)


    def inputs():
        return *eqx.nn.make_with_state(Noise)(), jnp.ones((24, 3)), jax.random.key(0)
"""


def test_a_library_that_fails_inside_any_map_is_named_as_that(project):
    pytest.importorskip("equinox")
    # Equinox holds the type of a constant against that of an argument, which lies on the mesh of the map.
    project.write("noisy.py", COUNTED)
    words = ("noisy.py::step", "--inputs", "noisy.py::inputs")
    if project.run("gen", *words).exit_code == 0:
        pytest.skip("these versions of jax and Equinox do not")
    says = ("does not run inside jax.pmap or jax.shard_map", "Try --backend jit", "noisy.py:14:")
    project.refused("JP068", "gen", *words, says=says, exit_code=1)
    made = project.run("gen", *words, "--backend", "jit")
    assert made.exit_code == 0 and "derived for all inputs" in made.stderr, made.stderr


def test_a_library_that_fails_where_the_emitted_code_runs_is_named_as_that(project, monkeypatch):
    # While code is looked for, nothing lies on a mesh.
    project.write(
        "converted.py",
        """
        import jax
        import jax.numpy as jnp


        def converted(x):
            if not jax.typeof(x).sharding.mesh.empty:
                raise ValueError("Closure-converted function called with different dynamic arguments")
            return jnp.tanh(x)


        def structured(x):
            made, given = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.eval_shape(jnp.tanh, x)
            if made != given:
                raise ValueError(f"input and output must be alike, not {made} and {given}")
            return jnp.tanh(x)


        def step(x):
            return jnp.mean(converted(x))


        def operator(x):
            return jnp.mean(structured(x))


        def ranks(x):
            return jnp.argsort(converted(x), axis=0)


        def drawn(w):
            return jnp.argsort(converted(jax.random.normal(jax.random.key(0), (24, 16)) @ w), axis=0)
        """,
    )
    says = ("does not run inside jax.pmap or jax.shard_map, whatever the batch", "Try --backend jit")
    # Also where no collectives were found: none would help.
    for name in ("step", "operator", "ranks"):
        words = (f"converted.py::{name}", "--arg", "x=f32[24,3]", "--backend", "shard_map")
        project.refused("JP068", "gen", *words, says=says, exit_code=1)
    asked: list[Any] = []
    ask = Session.ask

    def noted(self: Session, request: Any, *doing: Any) -> Any:
        asked.append(request)
        return ask(self, request, *doing)

    monkeypatch.setattr(Session, "ask", noted)
    words = ("converted.py::drawn", "--arg", "w=f32[16,16]", "--backend", "shard_map")
    project.refused("JP068", "gen", *words, says=says, exit_code=1)
    # Parts of the parameters would fail in it, too.
    assert not any(each.roles.axes for each in asked if isinstance(each, Observe))


def test_a_string_beside_arrays_is_compared_in_the_emitted_file(project):
    code = proved(project, SETTINGS, "apply")
    assert """if settings["mode"] != "mean":""" in code
    assert "settings, settings_static = partition(settings)" in code


def test_a_function_in_a_dict_is_told_from_others_unless_accepted(project):
    project.write("steps.py", textwrap.dedent(SETTINGS))
    words = ("gen", "steps.py::call", "--inputs", "steps.py::with_function")
    assert "settings['function'] is not proved_" in project.run(*words).stdout.replace('"', "'")
    result = project.run(*words, "--static", "settings")
    assert result.exit_code == 0, result.stderr
    assert "`settings['function']`, `settings['mode']` are no array and static" in result.words
    assert "is not proved_" not in result.stdout


TABLE_IN_A_FIELD = """
    import dataclasses

    import jax
    import jax.numpy as jnp
    import numpy as np


    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Embedded:
        scale: jax.Array
        table: np.ndarray = dataclasses.field(metadata={"static": True})


    def score(model, x):
        return jnp.mean(jnp.abs(x - model.scale * model.table))


    def inputs(seed=0):
        rng = np.random.default_rng(seed)
        table = np.sin(np.arange(4.0)).astype("f")
        return Embedded(rng.normal(size=4).astype("f"), table), rng.normal(size=(24, 4)).astype("f")
"""


def test_models_whose_form_holds_an_array_are_not_compared(project):
    # jax raises where it has to compare the arrays of two such models: other inputs come in the first one.
    assert "jax.lax.pmean" in proved(project, TABLE_IN_A_FIELD, "score")


def test_an_array_of_strings_is_refused(project):
    project.write("steps.py", textwrap.dedent(SETTINGS))
    words = ("gen", "steps.py::keep", "--inputs", "steps.py::with_names")
    project.refused("JP059", *words, says=("`batch['names']` is a ndarray",), exit_code=1)


# --- objects that are changed in place ----------------------------------------------------

NNX = """
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from flax import nnx


    class Net(nnx.Module):
        def __init__(self, *, rngs):
            self.linear = nnx.Linear(8, 1, rngs=rngs)
            self.calls = nnx.Variable(jnp.zeros(()))

        def __call__(self, x):
            self.calls.value += 1
            return self.linear(x)


    class Tied(nnx.Module):
        def __init__(self, *, rngs):
            self.encode = nnx.Linear(8, 8, rngs=rngs)
            self.decode = self.encode

        def __call__(self, x):
            return self.decode(self.encode(x))


    @nnx.jit
    def step(model, optimizer, batch):
        def loss_fn(model):
            out = model(batch["x"])
            return jnp.mean((out - batch["y"]) ** 2), out

        (loss, out), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model)
        optimizer.update(model, grads)
        return loss, out


    def count(model, x):
        model.seen.value = model.seen.value + jnp.mean(x)
        return x


    def rank(model, x):
        model.seen.value += jnp.median(x[:, 0])
        return x


    class Counter(nnx.Module):
        def __init__(self):
            self.seen = nnx.Variable(jnp.zeros(()))


    class Noisy(nnx.Module):
        def __init__(self, *, rngs):
            self.weights = nnx.Param(jnp.ones((8,)))
            self.noise = rngs.noise.fork()
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.dropout(x * (self.weights + self.noise.normal((8,))))


    @nnx.jit
    def noisy(model, x):
        return model(x)


    @nnx.jit
    def judged(model, x):
        "In the other mode."
        model.eval()
        return jnp.mean(model(x))


    @nnx.jit
    def judged_late(model, x):
        drawn = jnp.mean(model(x))
        model.eval()
        return drawn, jnp.mean(model(x))


    def noisy_inputs():
        return Noisy(rngs=nnx.Rngs(0)), rows(0)["x"]


    def rows(seed):
        rng = np.random.default_rng(seed)
        return {"x": rng.normal(size=(24, 8)).astype("f"), "y": rng.normal(size=(24, 1)).astype("f")}


    def inputs(seed=0):
        model = Net(rngs=nnx.Rngs(seed))
        return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param), rows(seed)


    def tied():
        model = Tied(rngs=nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param), rows(0)


    def counter():
        return Counter(), rows(0)["x"]
"""


def test_nnx_objects_are_changed_as_the_original_does(project):
    pytest.importorskip("flax")
    code = proved(project, NNX, "step")
    assert "return (loss, out), (model, optimizer)" in code
    assert "nnx.update((model, optimizer), nnx.state(changed))" in code
    assert "return loss, unshard(out)" in code
    project.write("step_pmap.py", code)
    verified = project.run(
        "verify", "step_pmap.py::step", "--against", "steps.py::step", "--inputs", "steps.py::inputs"
    )
    assert verified.exit_code == 0, verified.stderr
    noisy = project.run("gen", "steps.py::noisy", "--inputs", "steps.py::noisy_inputs").stdout
    assert "    with own_draws(model.dropout.rngs):\n        return model(x), model\n" in noisy
    project.write("noisy_pmap.py", noisy)
    run_on_devices(
        project,
        """
        import jax
        import numpy as np
        from flax import nnx
        import steps, step_pmap, noisy_pmap

        one, many = steps.inputs(), steps.inputs()
        for _ in range(3):
            a, b = steps.step(*one), step_pmap.step(*many)
        assert jax.tree.all(jax.tree.map(lambda x, y: abs(x - y).max() < 1e-5, a, b))
        for left, right in zip(one[:2], many[:2]):
            left, right = (nnx.to_pure_dict(nnx.state(each)) for each in (left, right))
            assert jax.tree.all(jax.tree.map(lambda x, y: abs(x - y).max() < 1e-5, left, right))
        assert many[0].calls.value == 3

        model, other = (steps.noisy_inputs()[0] for _ in range(2))
        ones = np.ones((16, 8), "f")
        drawn = [noisy_pmap.noisy(model, ones), noisy_pmap.noisy(model, ones), steps.noisy(other, ones)]
        drawn = [np.asarray(each).reshape(4, 4, 8) for each in drawn]
        assert len({str(masks != 0) for call in drawn for masks in call}) == 12
        # The noise on the weights is one for all devices, and that of one device.
        kept = [np.where(call == 0, np.nan, call) for call in drawn]
        for call in (kept[0], kept[2]):
            assert np.allclose(np.nanmax(call, (0, 1)), np.nanmin(call, (0, 1)))
        assert np.allclose(np.nanmax(kept[0], (0, 1)), np.nanmax(kept[2], (0, 1)))
        assert model.dropout.rngs.count == 2
        assert model.dropout.rngs.key[...] == other.dropout.rngs.key[...]
        model.eval()
        try:
            noisy_pmap.noisy(model, ones)
        except ValueError as error:
            assert "`model` must have deterministic=False, as in the proof, not" in str(error)
        else:
            raise AssertionError("a mode that was not proved")
        """,
    )


MERGED = """
    import functools

    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx


    class Net(nnx.Module):
        def __init__(self, rngs):
            self.dropout = nnx.Dropout(0.5, rngs=rngs)
            self.out = nnx.Linear(8, 1, rngs=rngs)

        def __call__(self, x):
            return self.out(self.dropout(x))


    @jax.jit
    def step(graph, state, x):
        model, optimizer = nnx.merge(graph, state)
        loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - x[:, :1]) ** 2))(model)
        optimizer.update(model, grads)
        return loss, nnx.state((model, optimizer))


    @functools.partial(jax.jit, static_argnames="graph")
    def evaluate(graph, state, x):
        model, _ = nnx.merge(graph, state)
        model.eval()
        return jnp.mean(model(x) ** 2)


    def inputs():
        model = Net(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.sgd(1e-2), wrt=nnx.Param)
        return *nnx.split((model, optimizer)), jax.random.normal(jax.random.key(0), (24, 8))
"""


def test_the_streams_of_a_state_that_is_merged_and_returned_are_as_they_were(project):
    pytest.importorskip("flax")
    project.write("step_pmap.py", proved(project, MERGED, "step"))
    run_on_devices(
        project,
        """
        import jax
        import steps, step_pmap

        graph, state, x = steps.inputs()
        (_, one), (_, many) = steps.step(graph, state, x), step_pmap.step(graph, state, x)
        one, many = ({jax.tree_util.keystr(path): leaf for path, leaf in
            jax.tree_util.tree_leaves_with_path(each)} for each in (one, many))
        assert one.keys() == many.keys()
        streams = [path for path in one if "rngs" in path]
        assert len(streams) == 2 and all(one[path] == many[path] for path in streams)
        """,
    )


def test_a_static_graph_is_told_from_others(project):
    pytest.importorskip("flax")
    project.write("evaluate_pmap.py", proved(project, MERGED, "evaluate"))
    run_on_devices(
        project,
        """
        from flax import nnx
        import steps, evaluate_pmap

        graph, state, x = steps.inputs()
        for _ in range(2):
            assert abs(steps.evaluate(graph, state, x) - evaluate_pmap.evaluate(graph, state, x)) < 1e-6
            graph, state, x = steps.inputs()
        other, state = nnx.split((steps.Net(nnx.Rngs(0)), nnx.Linear(1, 1, rngs=nnx.Rngs(0))))
        try:
            evaluate_pmap.evaluate(other, state, x)
        except ValueError as error:
            assert "`graph` is not the GraphDef of the run" in str(error)
        else:
            raise AssertionError("another graph was taken")
        """,
    )


CHANGED_IN_HELPERS = """
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx


    class Tracker(nnx.Module):
        def __init__(self):
            self.total = nnx.Variable(jnp.zeros(()))
            self.count = nnx.Variable(jnp.zeros((), jnp.int32))

        def update(self, losses):
            self.total[...] += losses.sum()
            self.count[...] += losses.shape[0]


    def losses(model, x):
        return jnp.mean((model(x) - x[:, :1]) ** 2, -1)


    def train(model, optimizer, tracker, x):
        def loss_fn(model):
            each = losses(model, x)
            return each.mean(), each

        (loss, each), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model)
        optimizer.update(model, grads)
        tracker.update(each)
        return loss


    @nnx.jit
    def returned(model, optimizer, tracker, x):
        return train(model, optimizer, tracker, x)


    @nnx.jit
    def used_after(model, optimizer, tracker, x):
        loss = train(model, optimizer, tracker, x)
        return loss, optax.global_norm(nnx.state(model, nnx.Param)), losses(model, x)


    @nnx.jit
    def in_one_argument(state, x):
        model, optimizer, tracker = state
        for _ in range(2):
            loss = train(model, optimizer, tracker, x)
        return loss


    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))
    def one_step(carry, x):
        return carry, train(*carry, x)


    @nnx.jit
    def scanned(model, optimizer, tracker, xs):
        _, out = one_step((model, optimizer, tracker), xs)
        return out


    @nnx.jit
    def scanned_inside(model, optimizer, tracker, xs):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))
        def step(carry, x):
            model, optimizer, tracker = carry
            loss, grads = nnx.value_and_grad(lambda model: losses(model, x).mean())(model)
            optimizer.update(model, grads)
            return (model, optimizer, tracker), loss

        return step((model, optimizer, tracker), xs)[1]


    class Trainer:
        def __init__(self):
            self.objects = inputs()[:3]

        def step(self, x):
            return returned(*self.objects, x)


    def trainer():
        return Trainer(), inputs()[3]


    def inputs():
        model = nnx.Linear(8, 1, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
        return model, optimizer, Tracker(), jax.random.normal(jax.random.key(0), (24, 8))


    def tied():
        *objects, x = inputs()
        return tuple(objects), x


    def batches():
        *objects, x = inputs()
        return *objects, jnp.stack([x, x + 1, -x])
"""
GRADIENTS_AVERAGED = "loss, grads = jax.lax.pmean((loss, grads), axis_name=AXIS)\n    optimizer.update("


@pytest.mark.parametrize(
    ("name", "inputs"),
    [("returned", "inputs"), ("used_after", "inputs"), ("in_one_argument", "tied"), ("scanned", "batches")],
)
def test_what_a_helper_changes_in_place_is_made_whole_in_it(project, name, inputs):
    pytest.importorskip("flax")
    code = proved(project, CHANGED_IN_HELPERS, name, inputs=inputs)
    assert GRADIENTS_AVERAGED in code
    assert "self.total[...] += jax.lax.psum(losses.sum(), axis_name=AXIS)" in code
    assert "self.count[...] += jax.lax.psum(losses.shape[0], axis_name=AXIS)" in code
    assert "all_gather" not in code


METRICS = """
    import functools

    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx, struct

    def masked_mean(x, mask):
        return jnp.sum(x * mask) / jnp.sum(mask)

    def regression(model, batch):
        error, mask = model(batch["x"])[:, 0] - batch["y"], batch["mask"]
        out = {f"moment{k}": jnp.sum(jnp.abs(error) ** k * mask) for k in range(1, 17)}
        out |= {"largest": jnp.max(error), "smallest": jnp.min(error), "longest": jnp.max(mask)}
        out |= {"total": jnp.sum(error**2 * mask), "count": jnp.sum(mask)}
        return out | {"mean": masked_mean(error, mask)}

    @struct.dataclass
    class Loss:
        total: jax.Array
        count: jax.Array
        metrics: dict

        def mean(self):
            return self.total / jnp.maximum(self.count, 1.0)

    def fit(model, optimizer, batch):
        def objective(model):
            out = regression(model, batch)
            return out["total"], Loss(out["total"], out["count"], out)

        (_, loss), grads = nnx.value_and_grad(objective, has_aux=True)(model)
        grads = jax.tree.map(lambda g: g / loss.count, grads)
        optimizer.update(model, grads)
        return loss.mean(), loss

    def step(model, optimizer, batch):
        return fit(model, optimizer, batch)

    class Trainer:
        def __init__(self, metrics):
            self.metrics = metrics

        def fit(self, model, optimizer, batch):
            @functools.wraps(self.metrics)
            def objective(model, *args):
                out = self.metrics(model, *args)
                return out["total"], out

            (_, out), grads = nnx.value_and_grad(objective, has_aux=True)(model, batch)
            grads = jax.tree.map(lambda g: g / out["count"], grads)
            optimizer.update(model, grads)
            return out["total"] / out["count"], out

    trainer = Trainer(regression)

    def trained(model, optimizer, batch):
        return trainer.fit(model, optimizer, batch)

    def inputs(seed):
        keys = jax.random.split(jax.random.key(seed), 3)
        model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
        batch = {"x": jax.random.normal(keys[0], (24, 3)), "y": jax.random.normal(keys[1], (24,))}
        batch["mask"] = jax.random.uniform(keys[2], (24,))
        return model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param), batch
"""


def test_many_metrics_beside_a_loss_some_of_them_extremes_are_made_whole(project):
    """A maximum that is differentiated along with the loss, and nothing but a metric, is a constant there."""
    code = proved(project, METRICS, "trained")
    assert 'jax.lax.stop_gradient(out["largest"])' in code


def test_a_count_that_is_whole_is_not_summed_again(project):
    """The metrics are made whole behind the gradients, and what these are divided by is one of them."""
    code = proved(project, METRICS, "step")
    assert "psum(loss.count" not in code
    assert code.count("psum(g") == 1


def test_a_function_under_a_decorator_that_runs_it_again_and_again_is_opened(project):
    pytest.importorskip("flax")
    code = proved(project, CHANGED_IN_HELPERS, "scanned_inside", inputs="batches")
    assert f"    {GRADIENTS_AVERAGED}".replace("\n", "\n    ") in code


def test_what_a_scan_inside_carries_on_is_whole_in_each_round(project):
    pytest.importorskip("flax")
    code = proved(
        project,
        """
        import jax
        import jax.numpy as jnp
        from flax import nnx


        @nnx.jit
        def products(xs):
            @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))
            def step(carry, x):
                carry = carry * jnp.mean(x**2) + 1
                return carry, carry

            return step(jnp.float32(1.0), xs)


        def inputs():
            return (jax.random.normal(jax.random.key(0), (3, 24, 8)),)
        """,
        "products",
    )
    assert "        carry = jax.lax.pmean(carry, axis_name=AXIS)\n        return carry, carry\n" in code


@pytest.mark.parametrize("kind", ["nnx.Dict", "nnx.data"])
def test_dicts_in_modules_that_a_function_goes_through_are_not_taken_sorted(project, kind):
    pytest.importorskip("flax")
    project.write(
        "steps.py",
        f"""
        import jax
        import jax.numpy as jnp
        from flax import nnx


        class Net(nnx.Module):
            def __init__(self, rngs):
                self.layers = {kind}({{name: nnx.Linear(3, 3, rngs=rngs) for name in ("in", "mid", "head")}})


        def step(net, x):
            for layer in net.layers.values():
                x = jnp.tanh(layer(x))
            return jnp.mean(x)


        def inputs():
            return Net(nnx.Rngs(0)), jax.random.normal(jax.random.key(0), (24, 3))
        """,
    )
    asked = ("gen", "steps.py::step", "--inputs", "steps.py::inputs")
    project.refused("JP062", *asked, says=["in the order in which its keys were put"], exit_code=1)


#: Flax has other words for a module that is differentiated than for one that is changed.
DIFFERENTIATED = """
    import jax.numpy as jnp
    from flax import nnx


    class Trainer:
        def __init__(self):
            self.net = nnx.Linear(3, 1, rngs=nnx.Rngs(0))

        def step(self, x):
            loss, grads = nnx.value_and_grad(lambda net: jnp.mean(net(x)))(self.net)
            return loss


    def trainer():
        return Trainer(), jnp.ones((24, 3))
"""


@pytest.mark.parametrize("text", [CHANGED_IN_HELPERS, DIFFERENTIATED], ids=["changed", "differentiated"])
def test_objects_that_a_method_is_not_given_are_to_be_arguments(project, text):
    pytest.importorskip("flax")
    project.write("steps.py", textwrap.dedent(text))
    asked = ("gen", "steps.py::Trainer.step", "--inputs", "steps.py::trainer", "--in-place")
    project.refused(
        "JP015", *asked, says=("fails when it is traced", "or name the function that is given the object")
    )


OWN_STATISTICS = """
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx


    class Centred(nnx.Module):
        def __init__(self):
            self.mean = nnx.BatchStat(jnp.zeros(8))
            self.count = nnx.BatchStat(jnp.zeros(()))

        def __call__(self, x):
            self.mean[...] = 0.9 * self.mean[...] + 0.1 * x.mean(0)
            self.count[...] += x.shape[0]
            return x - self.mean[...]


    class Net(nnx.Module):
        def __init__(self, rngs):
            self.centred, self.out = Centred(), nnx.Linear(8, 1, rngs=rngs)

        def __call__(self, x):
            return self.out(self.centred(x))


    @nnx.jit
    def step(model, optimizer, x):
        loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - x[:, :1]) ** 2))(model)
        optimizer.update(model, grads)
        return loss


    def inputs():
        model = Net(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
        return model, optimizer, jax.random.normal(jax.random.key(0), (24, 8))
"""


def test_statistics_that_a_layer_of_ones_own_keeps_are_those_of_the_whole_batch(project):
    pytest.importorskip("flax")
    code = proved(project, OWN_STATISTICS, "step")
    assert "mean = jax.lax.pmean(x.mean(0), axis_name=AXIS)\n" in code
    assert "self.count[...] += jax.lax.psum(x.shape[0], axis_name=AXIS)\n" in code
    assert "loss, grads = jax.lax.pmean((loss, grads), axis_name=AXIS)\n" in code


USED_ONCE = """
    import equinox as eqx
    import jax
    import jax.numpy as jnp


    class Count(eqx.Module):
        index: eqx.nn.StateIndex
        mean: eqx.nn.StateIndex

        def __init__(self):
            self.index = eqx.nn.StateIndex(jnp.zeros(()))
            self.mean = eqx.nn.StateIndex(jnp.zeros(4))

        def __call__(self, x, state):
            calls = state.get(self.index) + 1
            return x / calls, state.set(self.index, calls)


    def step(model, state, x):
        y, state = model(x, state)
        return jnp.mean(y), state


    def inputs():
        return *eqx.nn.make_with_state(Count)(), jax.random.normal(jax.random.key(0), (24, 4))


    def inputs_of_one():
        model = Count()
        return model, eqx.nn.State(model), jax.random.normal(jax.random.key(0), (24, 4))
"""


@pytest.mark.parametrize("inputs", ["inputs", "inputs_of_one"])
def test_state_that_lets_itself_be_used_once(project, inputs):
    # The keys of a state that is made of a model are objects without an order.
    pytest.importorskip("equinox")
    project.write("counts.py", textwrap.dedent(USED_ONCE))
    made = project.run("gen", "counts.py::step", "--inputs", f"counts.py::{inputs}")
    assert made.exit_code == 0, made.stderr
    assert "return jax.lax.pmean(jnp.mean(y), axis_name=AXIS), state" in made.stdout


SELECTED = """
    import equinox as eqx
    import jax
    import jax.numpy as jnp


    class Net(eqx.Module):
        w: jax.Array
        mean: jax.Array
        scale: jax.Array


    def step(net, x):
        def kept(net):
            return [net.mean, net.scale]

        largest = lambda net: net.scale
        y = x @ net.w
        net = eqx.tree_at(where=largest, pytree=net, replace_fn=lambda scale: scale * jnp.max(y))
        return eqx.tree_at(kept, net, [0.9 * net.mean + 0.1 * jnp.mean(y, axis=0), net.scale + 1])


    def inputs():
        keys = jax.random.split(jax.random.key(0))
        net = Net(jax.random.normal(keys[0], (4, 3)), jnp.zeros(3), jnp.ones(()))
        return net, jax.random.normal(keys[1], (24, 4))
"""


def test_what_says_which_parts_are_meant_is_left_as_it_is(project):
    pytest.importorskip("equinox")
    project.write("selected.py", textwrap.dedent(SELECTED))
    made = project.run("gen", "selected.py::step", "--inputs", "selected.py::inputs")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs" in made.stderr
    text = " ".join(made.stdout.split())
    # What is whole already is not sent beside the new mean.
    assert "mean = jax.lax.pmean(jnp.mean(y, axis=0), axis_name=AXIS) return eqx.tree_at(" in text
    assert "eqx.tree_at(kept, net, [0.9 * net.mean + 0.1 * mean, net.scale + 1])" in text


SHARED = """
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from flax import nnx


    class Net(nnx.Module):
        def __init__(self, rngs, body=None):
            self.body = nnx.Embed(11, 8, rngs=rngs) if body is None else body
            self.layers = nnx.List([nnx.Linear(8, 8, rngs=rngs)] * 2)
            self.out = self.body

        def __call__(self, tokens):
            x = self.body(tokens)
            for layer in self.layers:
                x = jnp.tanh(layer(x))
            return self.out.attend(x)


    @nnx.jit
    def step(model, target, optimizer, tokens):
        wanted = jax.nn.softmax(target(tokens))

        def loss_fn(model):
            return optax.softmax_cross_entropy(model(tokens), wanted).mean()

        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(grads)
        return loss


    def both(models, tokens):
        return models[0](tokens) + models[1](tokens)


    def objects():
        rngs = nnx.Rngs(0)
        model = Net(rngs)
        target = Net(rngs, model.body)
        tokens = np.random.default_rng(0).integers(0, 11, size=(24, 3))
        return model, target, nnx.ModelAndOptimizer(model, optax.adam(1e-1)), tokens


    def pair():
        model = Net(nnx.Rngs(0))
        return (model, model), objects()[-1]
"""
SAME_STEPS = """
import jax, numpy as np, steps, steps_pmap
given, others = steps.objects(), steps.objects()
for _ in range(3):
    np.testing.assert_allclose(steps_pmap.step(*others), steps.step(*given), rtol=1e-5)
for one, other in zip(jax.tree.leaves(others), jax.tree.leaves(given), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
model, target, optimizer, _ = others
assert optimizer.model is model and target.body is model.body is model.out
assert model.layers[0] is model.layers[1]
"""


WINDOWED = """
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx


    class Windowed(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(8, 8, rngs=rngs)
            self.windows = nnx.data([3, 0])
            self.scale = nnx.data(0.5)
            self.shift = nnx.data(jnp.ones(8))

        def __call__(self, x):
            for window in self.windows:
                if window > 0:
                    x = x.at[:, :window].add(self.shift[:window])
                x = jnp.tanh(self.linear(x)) * self.scale
            return x


    @nnx.jit
    def step(model, optimizer, x):
        def loss_fn(model):
            return jnp.mean((model(x) - x) ** 2)

        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return loss


    def inputs(seed=0):
        model = Windowed(nnx.Rngs(0))
        x = jax.random.normal(jax.random.key(seed), (24, 8))
        return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param), x
    """


def test_numbers_that_no_variable_of_an_nnx_module_has_are_constants_as_for_nnx_jit(project):
    pytest.importorskip("flax", minversion="0.12")
    code = proved(project, WINDOWED, "step")
    assert "return loss, (partition(model)[0], optimizer)" in code
    assert "nnx.update((model, optimizer), nnx.state(changed))" in code
    project.write("steps_pmap.py", code)
    run_on_devices(
        project,
        """
        import jax
        from flax import nnx
        import steps, steps_pmap

        one, many = steps.inputs(), steps.inputs()
        for _ in range(3):
            assert abs(steps.step(*one) - steps_pmap.step(*many)) < 1e-5
        left, right = (nnx.to_pure_dict(nnx.state(each[0], nnx.Param)) for each in (one, many))
        assert jax.tree.all(jax.tree.map(lambda x, y: abs(x - y).max() < 1e-5, left, right))
        assert list(many[0].windows) == [3, 0] and many[0].scale == 0.5
        """,
    )


def test_nnx_objects_that_are_reached_by_two_names_stay_one(project):
    pytest.importorskip("flax")
    code = proved(project, SHARED, "step", inputs="objects")
    for line in ("optimizer.model = model", "target.body = model.body", "model.out = model.body"):
        assert f"    {line}\n" in code
    project.write("steps_pmap.py", code)
    done = subprocess.run(
        [sys.executable, "-c", SAME_STEPS],
        cwd=project.folder,
        env=simulated(3),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    says = ("`models[1]` and `models[0]` are one Net",)
    words = ("gen", "steps.py::both", "--inputs", "steps.py::pair")
    project.refused("JP057", *words, says=says, exit_code=1)


SAME_MODE = """
import numpy as np, steps, steps_pmap
model, other = steps.Noisy(rngs=steps.nnx.Rngs(3)), steps.Noisy(rngs=steps.nnx.Rngs(3))
x = steps.rows(1)["x"]
for _ in range(2):
    np.testing.assert_allclose(steps_pmap.judged(model, x), steps.judged(other, x), rtol=1e-5)
    assert model.dropout.deterministic and other.dropout.deterministic
"""


def test_nnx_modules_are_switched_to_another_mode_for_the_caller_too(project):
    pytest.importorskip("flax")
    project.write("steps.py", textwrap.dedent(NNX))
    made = project.run("gen", "steps.py::judged", "--inputs", "steps.py::noisy_inputs", "-o", "steps_pmap.py")
    assert made.exit_code == 0, made.stderr
    assert "the emitted function raises" not in made.stdout
    done = subprocess.run(
        [sys.executable, "-c", SAME_MODE],
        cwd=project.folder,
        env=simulated(3),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_nnx_objects_that_cannot_be_handed_back_are_refused(project):
    pytest.importorskip("flax")
    project.write("steps.py", textwrap.dedent(NNX))
    words = ("gen", "steps.py::rank", "--inputs", "steps.py::counter")
    project.refused("JP043", *words, says=("jnp.median(x[:, 0])",), exit_code=1)
    words = ("gen", "steps.py::judged_late", "--inputs", "steps.py::noisy_inputs")
    says = ("Call `model.eval()` before `judged_late` too: inside, it then changes nothing",)
    project.refused("JP049", *words, says=says, exit_code=1)
    code = project.run("gen", "steps.py::count", "--inputs", "steps.py::counter").stdout
    assert "model.seen.value = jax.lax.pmean(" in code
    assert "return x, model" in code


AXIS_ARGUMENT = """
    import jax
    import jax.numpy as jnp
    from flax.training.dynamic_scale import DynamicScale

    def library():
        def ratio(x, w, axis_name=None):
            sums = jnp.sum(x * w), jnp.sum(w)
            if axis_name is not None:
                sums = jax.lax.psum(sums, axis_name)
            return sums[0] / sums[1]

        def average_of_ratios(x, w, axis_name=None):
            ratio = jnp.sum(x * w) / jnp.sum(w)
            return ratio if axis_name is None else jax.lax.pmean(ratio, axis_name)

        return {"ratio": ratio, "average": average_of_ratios}

    TABLE = library()

    def scaled(w, scale, x):
        grad_fn = scale.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w)))
        scale, finite, loss, grad = grad_fn(w)
        return jnp.where(finite, w - grad, w), scale, loss

    def masked(w, x, mask):
        return jnp.sum((x @ w) ** 2 * mask) / jnp.sum(mask)

    def scaled_by_mask(w, scale, x, mask):
        grad_fn = scale.value_and_grad(lambda w: masked(w, x, mask))
        scale, finite, loss, grad = grad_fn(w)
        return jnp.where(finite, w - grad, w), scale, loss

    def rows(seed=0):
        x, mask = jax.random.normal(jax.random.PRNGKey(seed), (24, 3)), (jnp.arange(24.0) % 5 > 1) * 1.0
        return jnp.ones(3), DynamicScale(), x, mask

    def inline(w, scale, x):
        return scale.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w)))(w)

    def ratio(x, w):
        return jnp.exp(TABLE["ratio"](x, w))

    def ratio_over(x, w, axis=None):
        return jnp.exp(TABLE["ratio"](x, w, axis_name=axis))

    def average(x, w):
        return jnp.exp(TABLE["average"](x, w))

    def half(seed=0):
        return jnp.ones(3), DynamicScale(), jax.random.normal(jax.random.PRNGKey(seed), (24, 3))

    def weighted(seed=0):
        x, w = jax.random.uniform(jax.random.PRNGKey(seed), (2, 24))
        return x, w
"""


def test_a_library_that_takes_the_name_of_the_axis_is_given_it_where_that_is_right(project):
    pytest.importorskip("flax")
    code = proved(project, AXIS_ARGUMENT, "inline", inputs="half")
    assert "jnp.mean(jnp.tanh(x @ w)), axis_name=AXIS)(" in code
    # What the library is given to differentiate is looked into: its sums are whole before they are divided.
    code = proved(project, AXIS_ARGUMENT, "scaled_by_mask", inputs="rows")
    assert "(jnp.sum((x @ w) ** 2 * mask), jnp.sum(mask)), axis_name=AXIS" in code
    assert "scale.value_and_grad(lambda w: masked(w, x, mask), axis_name=AXIS)" in code
    code = proved(project, AXIS_ARGUMENT, "ratio", inputs="weighted")
    assert 'TABLE["ratio"](x, w, axis_name=AXIS)' in code
    # So it is where it is told that there is none.
    code = proved(project, AXIS_ARGUMENT, "ratio_over", inputs="weighted")
    assert 'TABLE["ratio"](x, w, axis_name=AXIS)' in code
    words = ("gen", "steps.py::average", "--inputs", "steps.py::weighted")
    project.refused("JP067", *words, says=('TABLE["average"](x, w)',), exit_code=1)


def test_a_call_that_is_given_the_name_of_the_axis_in_place_can_be_taken_back(project):
    pytest.importorskip("flax")
    path = project.write("steps.py", textwrap.dedent(AXIS_ARGUMENT))
    project.run("gen", "steps.py::scaled", "--inputs", "steps.py::half", "--in-place")
    text = path.read_text()
    assert "jnp.mean(jnp.tanh(x @ w)), axis_name=AXIS)" in text
    assert f"# {ADDED}" in text


# --- what is around the emitted code ------------------------------------------------------


def test_a_class_that_looks_at_the_shapes_of_its_arrays_is_told_of_another_form(project):
    project.write(
        "dataset.py",
        """
        import jax
        import jax.numpy as jnp


        @jax.tree_util.register_pytree_node_class
        class Dataset:
            def __init__(self, x, y):
                if getattr(x, "ndim", 2) != 2:
                    raise ValueError(f"x has {x.ndim} axes, and should have 2")
                self.x, self.y = x, y

            def tree_flatten(self):
                return (self.x, self.y), None

            @classmethod
            def tree_unflatten(cls, _, children):
                return cls(*children)


        def loss(w, data):
            return jnp.mean((data.x @ w - data.y) ** 2)


        def inputs():
            return jnp.ones(3), Dataset(jnp.arange(72.0).reshape(24, 3) / 72, jnp.arange(24.0))
        """,
    )
    words = ("gen", "dataset.py::loss", "--inputs", "dataset.py::inputs")
    says = ("x has 3 axes", "looks at the shapes of its arrays", "Try --backend shard_map")
    project.refused("JP045", *words, says=says, exit_code=1)
    result = project.run(*words, "--backend", "shard_map")
    assert result.exit_code == 0, result.stderr


@pytest.mark.skipif(not hasattr(jax, "set_mesh"), reason="this jax sets no mesh for all code")
@pytest.mark.parametrize("backend", ["pmap", "jit"])
def test_a_mesh_that_a_package_sets_for_all_code_is_named(project, backend):
    project.write(
        "physics.py",
        """
        import jax
        import numpy as np

        jax.set_mesh(jax.sharding.Mesh(np.array(jax.devices()), ("S",)))
        """,
    )
    project.write(
        "energy.py",
        """
        import jax.numpy as jnp

        import physics


        def energy(w, x):
            return jnp.mean(jnp.tanh(x @ w))


        def inputs():
            return jnp.ones(3), jnp.arange(72.0).reshape(24, 3) / 72
        """,
    )
    words = ("gen", "energy.py::energy", "--inputs", "energy.py::inputs", "--backend", backend)
    says = ("context mesh", "sets a mesh for all that follows", "with jax.set_mesh(mesh):")
    refused = project.refused("JP045", *words, says=says, exit_code=1)
    assert "bug of jax-pmap" not in refused.words
