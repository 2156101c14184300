"""The function as its user calls it, uncompiled, and with the settings of jax that its module makes."""

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from project import Project, Result, simulated

from jax_pmap.worker.same_operations import Known, Same

INPUTS = """\
import collections
import dataclasses
import functools

import jax
import numpy as np


def rng(seed):
    return np.random.default_rng(seed)


def rows(seed):
    return (rng(seed).normal(size=(24, 3)).astype("float32"),)


def rows_and_half(seed):
    return *rows(seed), 0.5


def rows_and_count(seed):
    return *rows(seed), 40_000


def rows_and_few(seed):
    return *rows(seed), 5


def times(seed):
    return 2450000 + 4000 * rng(seed).random(24), rng(seed).normal(size=24).astype("float32")


def milliseconds(seed):
    return rng(seed).integers(1_700_000_000_000, 1_700_100_000_000, 24), rows(seed)[0][:, 0]


def ids(seed):
    return rng(seed).integers(0, 1000, 24), rows(seed)[0][:, 0]


def actions(seed):
    return rng(seed).integers(0, 3, 24).astype("int32"), *rows(seed)


def of_numpy(seed):
    x = rows(seed)[0]
    return x[:, 0], x[:, 1]


def of_jax(seed):
    return tuple(map(jax.numpy.asarray, of_numpy(seed)))


def small_ids(seed):
    return ids(seed)[0].astype("int32"), rows(seed)[0][:, 0]


def ids_of_jax(seed):
    return tuple(map(jax.numpy.asarray, small_ids(seed)))


def rows_and_root(seed):
    return jax.random.normal(jax.random.key(seed), (24, 2)), 3**0.5


def doubles(seed):
    return (rng(seed).normal(size=(24, 3)),)


def layers(seed):
    draw = rng(seed)
    return {name: draw.normal(size=(3, 3)) for name in ("in", "mid", "head")}, *doubles(seed)


def default_layers(seed):
    params, x = layers(seed)
    return collections.defaultdict(list, params), x


@functools.partial(jax.tree_util.register_dataclass, data_fields=["layers"], meta_fields=[])
@dataclasses.dataclass
class Model:
    layers: dict


def models(seed):
    params, x = layers(seed)
    return Model(params), x
"""
STEPS = """\
import jax
import jax.numpy as jnp
import numpy as np


def doubled(x, rate):
    if isinstance(rate, float):
        rate = rate * 2
    return jnp.mean(x) * rate


def scaled(images):
    if isinstance(images, np.ndarray):
        images = images / 255.0
    return jnp.mean(images)


def checked(images):
    with jax.named_scope("checks"):
        assert isinstance(images, jax.Array), type(images)
    if not all(
        isinstance(each, jax.Array) for each in (images, images * 2)
    ):
        raise TypeError(images)
    return jnp.mean(images)


def mended(images):
    try:
        assert isinstance(images, jax.Array)
    except AssertionError:
        images = images / 255.0
    return jnp.mean(images)


def logged(x):
    loss = jnp.mean(x**2)
    try:
        loss = loss * (2 if float(loss) > 0 else 1)
    except Exception:
        pass
    return loss


def unlike_in_a_trace(x):
    mean = jnp.mean(x)
    return mean if isinstance(mean, jax.core.Tracer) else mean * 2


def folded(when, y):
    phase = ((when - 2450000.5) / 0.37) % 1.0
    return jnp.mean((jnp.sin(phase) - y) ** 2)


def picked(actions, q):
    return jnp.mean(q[jnp.arange(actions.shape[0]), actions])


def by_second(ms, y):
    return jnp.mean((ms // 1000) % 86400 * y)


def hashed(ids, y):
    return jnp.mean((ids * 7919) % 101 * y)


def squared(x, n):
    return jnp.mean(x) * (n * n % 1000)


def hashed_rows(ids, y):
    return jnp.mean((ids * 7919 % 101)[jnp.arange(len(y))] * y)


def shifted_rows(x):
    x += 1
    return jnp.mean(x[jnp.arange(len(x))])


def shifted(x):
    x += 1
    return jnp.mean(x)


def in_buckets(ids, y):
    return jnp.mean(ids % 1000 * y)


def by_method(x, y):
    try:
        x.setflags(write=False)
        x = x / 255.0
    except AttributeError:
        pass
    return jnp.mean((x - y) ** 2)


def deep(x, rate):
    total = 0.0
    for _ in range(150):
        x = x * (rate * rate / 3.0)
        total = total + jnp.exp(-x)
    return total


CALLS = [0]


def counted(x):
    CALLS[0] += 1
    return jnp.mean(x) * CALLS[0]


def bytes_of_each(x):
    return jnp.mean(x) * x.dtype.itemsize


def through(params, x):
    for w in params.values():
        x = jnp.tanh(x @ w)
    return jnp.mean(x)


def through_model(model, x):
    return through(model.layers, x)


def by_name(params, x):
    for name in ("in", "mid", "head"):
        x = jnp.tanh(x @ params[name])
    return jnp.mean(x) * sum(jnp.mean(w) for w in params.values())


def corrected(x, n):
    return jnp.mean(x) / (1 - 0.999**n)


def relaxed(x, n):
    return jax.lax.fori_loop(0, n, lambda _, x: x - 0.1 * jnp.sin(x), x)


@jax.jit
def compiled(x, rate):
    if isinstance(rate, float):
        rate = rate * 2
    return jnp.mean(x) * rate
"""


@pytest.fixture
def steps(shared: Project) -> Project:
    shared.write("inputs.py", INPUTS)
    shared.write("steps.py", STEPS)
    return shared


def gen(project: Project, name: str, inputs: str) -> Result:
    """What `gen` makes of a function of steps.py, in a file of its name."""
    return project.run("gen", f"steps.py::{name}", "--inputs", f"inputs.py::{inputs}", "-o", f"{name}_4.py")


@pytest.mark.parametrize(
    ("name", "inputs", "says"),
    [
        ("scaled", "rows", "isinstance(…, ndarray)"),
        ("mended", "rows", "isinstance(…, Array)"),
        ("logged", "rows", "catches the ConcretizationTypeError that tracing raises there"),
        ("unlike_in_a_trace", "rows", "isinstance(…, Tracer)"),
        ("folded", "times", "`when` (float64) loses digits"),
        ("by_second", "milliseconds", "`ms` (int64) loses digits"),
        ("shifted", "rows", "changes the NumPy array `x` of its caller in place"),
        ("shifted_rows", "rows", "changes the NumPy array `x` of its caller in place"),
        ("counted", "rows", "reads `CALLS` anew, which line"),
        ("by_method", "of_jax", "is reached only as it is called"),
        ("bytes_of_each", "doubles", "computes in NumPy or Python what jax computes otherwise"),
        ("through", "layers", "goes through a dict in the order in which its keys were put in"),
        ("through", "default_layers", "goes through a dict in the order in which its keys were put in"),
        ("through_model", "models", "goes through a dict in the order in which its keys were put in"),
    ],
)
def test_what_tracing_makes_another_function_is_refused(
    steps: Project, name: str, inputs: str, says: str
) -> None:
    args = ("gen", f"steps.py::{name}", "--inputs", f"inputs.py::{inputs}")
    refused = steps.refused("JP062", *args, says=[says], exit_code=1)
    assert "--> steps.py:" in refused.stderr


def test_arrays_of_numpy_may_be_indexed_by_what_jax_computes(steps: Project) -> None:
    made = gen(steps, "picked", "actions")
    assert made.exit_code == 0, made.stderr
    assert "uncompiled" not in made.words


def test_an_order_of_keys_that_decides_nothing_is_taken(steps: Project) -> None:
    made = gen(steps, "by_name", "layers")
    assert made.exit_code == 0, made.stderr


def test_a_type_may_be_asked_for_where_the_code_raises_for_any_other(steps: Project) -> None:
    made = steps.run("gen", "steps.py::checked", "--arg", "images=f32[24,3]")
    assert made.exit_code == 0, made.stderr


def test_arrays_given_by_shape_may_be_numpys(steps: Project) -> None:
    args = ("gen", "steps.py::scaled", "--arg", "images=f32[24,3]")
    steps.refused("JP062", *args, says=["isinstance(…, ndarray)"], exit_code=1)


def test_a_number_whose_type_is_asked_for_is_static(steps: Project) -> None:
    made = gen(steps, "doubled", "rows_and_half")
    assert made.exit_code == 0, made.stderr
    assert "tells Python numbers from arrays" in made.words
    use = """
        import numpy as np, inputs, steps, doubled_4
        (x,) = inputs.rows(3)
        assert np.allclose(doubled_4.doubled(x, 0.5), steps.doubled(x, 0.5), rtol=1e-5)
        for other in (1, np.float64(0.5), np.float32(0.5)):
            try:
                doubled_4.doubled(x, other)
            except ValueError as error:
                assert "`rate` must be 0.5" in str(error)
            else:
                raise AssertionError(other)
    """
    run_in(steps, use)


def test_integers_that_32_bits_may_not_hold_are_refused_by_the_code(steps: Project) -> None:
    for name, inputs in (("hashed", "ids"), ("hashed_rows", "ids"), ("squared", "rows_and_count")):
        made = gen(steps, name, inputs)
        assert made.exit_code == 0, made.stderr
    use = """
        import numpy as np, inputs, steps, hashed_4, hashed_rows_4, squared_4
        ids, y = inputs.ids(3)
        assert np.allclose(hashed_4.hashed(ids, y), steps.hashed(ids, y), rtol=1e-5)
        assert np.allclose(hashed_rows_4.hashed_rows(ids, y), steps.hashed_rows(ids, y), rtol=1e-5)
        (x,) = inputs.rows(3)
        assert np.allclose(squared_4.squared(x, 39_999), steps.squared(x, 39_999), rtol=1e-5)
        for call in (
            lambda: hashed_4.hashed(ids * 10**9, y),
            lambda: hashed_rows_4.hashed_rows(ids * 10**9, y),
            lambda: squared_4.squared(x, 3_000_000),
        ):
            try:
                call()
            except ValueError as error:
                assert "32 bits" in str(error)
            else:
                raise AssertionError("it computes with what it cannot hold")
    """
    run_in(steps, use)


@pytest.mark.parametrize("inputs", ["small_ids", "ids_of_jax"])
def test_integers_of_64_bits_that_numpy_computes_with_later_are_refused(steps: Project, inputs: str) -> None:
    """The inputs of the proof have 32: what a call computes with them in NumPy is the same in jax."""
    made = gen(steps, "in_buckets", inputs)
    assert made.exit_code == 0, made.stderr
    use = f"""
        import numpy as np, inputs, steps, in_buckets_4 as made
        ids, y = map(np.asarray, inputs.{inputs}(3))
        assert np.allclose(made.in_buckets(ids, y), steps.in_buckets(ids, y), rtol=1e-5)
        try:
            made.in_buckets(ids.astype("int64") + 30_000_000_000, y)
        except ValueError as error:
            assert "`ids` goes above" in str(error)
        else:
            raise AssertionError("it computes in 32 bits")
    """
    run_in(steps, use)


def test_a_count_of_steps_is_not_tried_with_so_many_that_nobody_waits(steps: Project) -> None:
    args = ("--inputs", "inputs.py::rows_and_few", "--timeout", "30", "-o", "relaxed_4.py")
    made = steps.run("gen", "steps.py::relaxed", *args)
    assert made.exit_code == 0, made.stderr
    use = """
        import numpy as np, inputs, steps, relaxed_4
        x, _ = inputs.rows_and_few(3)
        assert np.allclose(relaxed_4.relaxed(x, 9), steps.relaxed(x, 9), rtol=1e-5)
    """
    run_in(steps, use)


@pytest.mark.parametrize(("count", "same"), [(5, True), (2**31 - 1, False)])
def test_python_counts_on_where_32_bits_do_not(count: int, same: bool) -> None:
    traced, called = jax.make_jaxpr(lambda n: n + 1)(count), jax.make_jaxpr(lambda: ())()
    held = Same(dict(zip(traced.jaxpr.invars, (count,), strict=True)), {})
    operations = held.operations(traced, called)
    assert (operations and held.results(traced.jaxpr.outvars, [count + 1])) is same


EXTREME = {
    "float32": [0.0, -0.0, 1.5, -3e38, 3e38, float("inf"), float("-inf"), float("nan"), 1e-30],
    "int32": [0, 1, -1, 7, 2**31 - 1, -(2**31)],
    "uint8": [0, 1, 7, 255],
    "bool": [False, True],
}
FUNCTIONS = [
    *(lambda x, y: x + y, lambda x, y: x * y, lambda x, y: x - y, lambda x, _: -x),
    *(jnp.maximum, jnp.minimum, jnp.less, jnp.less_equal, jnp.greater, jnp.greater_equal),
    *(jnp.equal, jnp.not_equal, lambda x, y: jnp.where(x > y, x, y)),
    *(lambda x, _: x.astype("float32"), lambda x, _: x.astype("int32"), lambda x, _: x.astype("uint8")),
    *(lambda x, y: x & y, lambda x, y: x | y, lambda x, _: ~x),
    *(lambda x, _: x.reshape(2, -1)[:, ::-1].T, lambda x, y: jnp.take(x, 1) * y, lambda x, y: x**2 + y),
]


@pytest.mark.parametrize("dtype", EXTREME)
@pytest.mark.parametrize("function", FUNCTIONS, ids=range(len(FUNCTIONS)))
def test_what_is_known_is_computed_as_jax_computes_it(function: Any, dtype: str) -> None:
    """Each pair of numbers, those that overflow included."""
    x, y = (side.ravel() for side in np.meshgrid(*[np.array(EXTREME[dtype], dtype)] * 2))
    try:
        expected = function(jnp.asarray(x), jnp.asarray(y))
    except TypeError:
        return  # jax has no such operation for this dtype.
    [made] = Known().run(jax.make_jaxpr(function)(x, y), [x, y])
    assert made.dtype == expected.dtype
    np.testing.assert_array_equal(made, expected)


def test_rounding_alone_is_no_other_function(steps: Project) -> None:
    assert gen(steps, "corrected", "rows_and_count").exit_code == 0


def test_where_many_roundings_lead_is_measured_in_time(steps: Project) -> None:
    """Compiled as one program with all of them moved, it takes minutes."""
    found = steps.run("plan", "steps.py::deep", "--inputs", "inputs.py::rows_and_root", "--timeout", "60")
    assert found.exit_code == 0, found.stderr
    assert "not held against" not in found.stdout + found.stderr


def test_a_function_that_is_compiled_is_what_its_trace_is(steps: Project) -> None:
    made = gen(steps, "compiled", "rows_and_half")
    assert made.exit_code == 0, made.stderr
    assert "tells Python numbers" not in made.words


SETTINGS = {
    "by_itself": """\
        import jax

        jax.config.update("jax_enable_x64", True)
        import jax.numpy as jnp


        def centred(x):
            return x - jnp.mean(x)
        """,
    "by_another": """\
        import double  # noqa: F401
        import inputs
        import jax.numpy as jnp


        def centred(x):
            return x - jnp.mean(x)


        def main():
            for seed in range(2):
                centred(*inputs.doubles(seed))


        main()
        """,
}


@pytest.mark.parametrize("module", SETTINGS)
def test_settings_of_jax_come_along(steps: Project, module: str) -> None:
    steps.write("double.py", "import jax\n\njax.config.update('jax_enable_x64', True)\n")
    steps.write(f"{module}.py", SETTINGS[module])
    args = ("--inputs", "inputs.py::doubles", "-o", f"{module}_4.py")
    made = steps.run("gen", f"{module}.py::centred", *args)
    assert made.exit_code == 0, made.stderr
    use = f"""
        import numpy as np, inputs, {module}_4
        (x,) = inputs.doubles(3)
        result = np.asarray({module}_4.centred(x))
        assert result.dtype == np.float64, result.dtype
        assert np.allclose(result, x - x.mean(), rtol=1e-12, atol=1e-12)
    """
    run_in(steps, use)


def test_a_setting_that_the_order_of_imports_decides_is_refused(steps: Project) -> None:
    steps.write(
        "late.py",
        """\
        import os

        os.environ["JAX_ENABLE_X64"] = "1"
        import jax.numpy as jnp


        def mean(x):
            return jnp.mean(x)
        """,
    )
    args = ("gen", "late.py::mean", "--inputs", "inputs.py::doubles")
    steps.refused("JP008", *args, says=["JAX_ENABLE_X64=1"], exit_code=2)


def run_in(project: Project, program: str) -> None:
    """Run a program in the project's folder, in a process of its own with four devices."""
    text = "\n".join(line.removeprefix("        ") for line in program.splitlines())
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=project.folder,
        env={**simulated(4), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


COUNTER = """
import jax.numpy as jnp


class Average:
    def __init__(self):
        self.mean = jnp.zeros(3)

    def add(self, x):
        self.mean = 0.9 * self.mean + jnp.mean(x, 0)
        return jnp.sum(self.mean)


Average().add(jnp.ones((24, 3)))
"""


def test_an_object_that_keeps_what_was_traced_is_refused(shared: Project) -> None:
    """Traced twice, it has what the first trace left in it: values of no number."""
    shared.write("counter.py", COUNTER)
    args = ("counter.py::Average.add", "--run", "python counter.py", "--in-place")
    shared.refused("JP049", "gen", *args, says=("`add` changes `self.mean`",), exit_code=1)


REBOUND = """
import jax
import jax.numpy as jnp


def loss(w, batch):
    batch["y"] = batch["y"] - 1.0
    return jnp.mean((batch["x"] @ w - batch["y"]) ** 2)


def step(w, batch):
    batch["y"] = 2.0 * batch["y"]
    return w - 0.1 * jax.grad(loss)(w, batch)


step = jax.jit(step)


class Agent:
    def update(agent, w, batch):
        return w - 0.1 * jax.grad(loss)(w, batch)

    update = jax.jit(update, static_argnums=0)

    def late(agent, w, batch):
        return w - 0.1 * jax.grad(loss)(w, batch)


def inputs():
    x = jax.random.normal(jax.random.key(0), (24, 3))
    return jnp.ones(3), {"x": x, "y": x.sum(axis=1)}


def with_agent():
    return Agent(), *inputs()
"""


def test_what_is_compiled_under_its_own_name_changes_no_dict_of_its_caller(shared: Project) -> None:
    """``step = jax.jit(step)`` is what the caller has, in the class body too: as with the decorator."""
    shared.write("rebound_agent.py", REBOUND)
    made = shared.run("gen", "rebound_agent.py::step", "--inputs", "rebound_agent.py::inputs")
    assert made.exit_code == 0 and "derived for all inputs" in made.stderr, made.stderr
    words = ("--inputs", "rebound_agent.py::with_agent", "--in-place", "--diff")
    made = shared.run("gen", "rebound_agent.py::Agent.update", *words)
    assert made.exit_code == 0 and "derived for all inputs" in made.stderr, made.stderr
    says = ("`late` changes its argument `batch` in place",)
    shared.refused("JP049", "gen", "rebound_agent.py::Agent.late", *words, says=says, exit_code=1)


NETWORKS = """
import jax
import jax.numpy as jnp


class Network:
    def __init__(self, width):
        self.width = width


def step(networks, w, x, key):
    noise = jax.random.normal(key, x.shape)
    return networks["policy"].width * jnp.mean((x + noise) @ w) + networks["critic"].width


def inputs():
    x = jax.random.normal(jax.random.key(0), (24, 3))
    return {"policy": Network(2), "critic": Network(3)}, jnp.ones(3), x, jax.random.key(1)
"""


def test_dicts_of_objects_keep_their_order_in_the_proof(shared: Project) -> None:
    """jax sorts the keys of what it puts together again, and the emitted code takes the dict of the proof."""
    shared.write("networks.py", NETWORKS)
    made = shared.run("gen", "networks.py::step", "--inputs", "networks.py::inputs")
    assert made.exit_code == 0, made.stderr
    assert "Constant(networks)" in made.stdout and "equal for equal draws" in made.stderr


CUT = """
    import jax
    import jax.numpy as jnp
    import numpy as np


    def moved(w, tokens):
        inputs, targets = tokens[:, :-1], tokens[:, ::-1][:, 1:].T
        return long(jnp.take(w, inputs).sum()) + jnp.take(w, targets).mean()


    def counted(w, tokens):
        return long(jnp.take(w, tokens * 3 % 7).sum())


    def waves(w, tokens):
        return long((jnp.take(w, tokens) * ((tokens + 1) / 7) ** 1.7).sum())


    def long(total):
        # Nobody waits for it to be computed.
        return jax.lax.fori_loop(0, 100_000_000, lambda i, x: 0.5 * x + jnp.sin(x), total / 24)


    def batch():
        return jnp.linspace(0, 1, 7), np.arange(24 * 5).reshape(24, 5) % 7
"""


def test_what_numpy_moves_is_what_jax_would_move(shared: Project) -> None:
    """Arrays of NumPy are cut by NumPy in a call, and by jax in a trace; nothing is computed to see that."""
    shared.write("cut.py", CUT)
    found = shared.run("plan", "cut.py::moved", "--inputs", "cut.py::batch")
    assert found.exit_code == 0, found.stderr
    assert "not held against" not in found.words
    # What NumPy computes of the tokens is the very value that jax computes; what comes after is then as well.
    found = shared.run("plan", "cut.py::counted", "--inputs", "cut.py::batch")
    assert "`counted` computes with `tokens` (int64) in NumPy" in found.words
    assert "gave the same on these inputs" in found.words and "not held against" not in found.words
    found = shared.run("plan", "cut.py::waves", "--inputs", "cut.py::batch")
    assert "not held against an uncompiled call" in found.words


def test_loops_that_count_down_from_a_large_number_are_not_waited_for(shared: Project) -> None:
    """NumPy may double the numbers in 64 bits; which ones are right for 32 would take minutes to see."""
    shared.write(
        "countdown.py",
        """
        import jax
        import jax.numpy as jnp


        def decayed(x, steps):
            def halve(state):
                x, steps, left = state
                steps = jnp.maximum(steps - 1, 0)
                return jnp.where(left, x / 2, x), steps, steps > 0

            steps = 2 * steps
            start = x, steps, steps > 0
            return jnp.mean(jax.lax.while_loop(lambda state: jnp.any(state[2]), halve, start)[0])
        """,
    )
    words = ("--arg", "x=f32[24]", "--arg", "steps=i32[24]<5", "--timeout", "60")
    made = shared.run("gen", "countdown.py::decayed", *words)
    assert made.exit_code == 0, made.stderr
    assert "pmax jnp.any(state[2])" in made.words
