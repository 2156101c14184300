"""Inputs that could not tell right from wrong are found out, and others are made that can."""

from __future__ import annotations

import dataclasses
import functools
import json
import textwrap
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax_pmap.worker import nans, prove, rounded, sizes, strengthen, units
from jax_pmap.worker import trials as trials_of
from jax_pmap.worker.comparing import Parallel
from jax_pmap.worker.decisions import Decisions
from jax_pmap.worker.explain import with_cause
from jax_pmap.worker.jaxpr.forward import Forward
from jax_pmap.worker.perturb import jitter, perturb
from jax_pmap.worker.protocol import Check, Failure
from jax_pmap.worker.proving import check_count

pytest_plugins = ["project"]

if TYPE_CHECKING:
    from project import Project


def ways(program, *leaves):
    """For each decision, the ways it takes."""
    found = Decisions(lambda leaves: program(*leaves), leaves)
    taken = iter(found(leaves).tolist())
    return [(site.name, [next(taken) for _ in range(site.ways)]) for site in found.sites]


def test_loops_that_may_have_no_end_are_cut_off():
    def program(x, tolerance):
        halves = lax.while_loop(lambda s: jnp.max(s) > tolerance, lambda s: jnp.maximum(s / 2, -1.0), x)
        return jax.vmap(lambda one: lax.while_loop(lambda s: s > 1, lambda s: s - 1, one))(x) + halves

    x = jnp.array([2.0, -7.0, 5.0])
    found = Decisions(lambda leaves: program(*leaves), [x, 0.1])
    taken = iter(found([x, 0.1]).tolist())
    ways = [(site.name, [next(taken) for _ in range(site.ways)]) for site in found.sites]
    # In some round or other the tests go both ways, and so does what the body of the first decides.
    assert [way for name, way in ways if name in ("gt", "max")] == [[True, True]] * 3
    assert found([x, -1.0]) is None


def test_decisions_inside_loops_branches_and_compiled_functions_are_seen():
    def program(x, step):
        total, _ = lax.scan(lambda c, row: (c + jnp.maximum(row, 2.0), None), 0.0, x)
        total = lax.cond(step > 3, lambda t: jnp.abs(t), lambda t: t * 2, total)
        rounds = lax.while_loop(lambda s: s > 1e6, lambda s: s / 2, total)
        return jax.jit(jnp.sign)(rounds)

    low, high = (dict(ways(program, jnp.full(4, fill), step)) for fill, step in ((1.0, 0), (1e7, 9)))
    assert low["max"] == [False, True]
    assert high["max"] == [True, False]
    assert low["cond"] == [True, False]
    assert high["cond"] == [False, True]
    assert low["abs"] == [False, False]
    assert high["abs"] == [True, False]
    assert low["while"] == [False, True]
    assert high["while"] == [True, False]
    assert low["sign"] == high["sign"] == [True, False]


THRESHOLDS = [
    lambda x, step, label: jnp.where(jnp.sum(x**2) > 1e9, 0.0, jnp.mean(x)),
    lambda x, step, label: jnp.where(jnp.mean(x**2) < 1e-9, 0.0, jnp.mean(x)),
    lambda x, step, label: jnp.nanmean(x),
    lambda x, step, label: jnp.where(step % 50 == 7, 2.0, 1.0) * jnp.mean(x),
    lambda x, step, label: jnp.sum(x * (label != -100)),
    lambda x, step, label: jnp.round(jnp.mean(x) * 1e-3),
    lambda x, step, label: jnp.mean(jnp.abs(x)),
    lambda x, step, label: (jax.debug.print("{}", x[0]), jnp.mean(jnp.abs(x)))[1],
]


@pytest.mark.parametrize("number", range(len(THRESHOLDS)))
def test_inputs_are_found_on_which_decisions_go_the_other_way(number: int):
    function = THRESHOLDS[number]
    random = np.random.default_rng(0)
    values = {
        "x": random.uniform(0.5, 1.0, 24).astype(np.float32),
        "step": np.int32(0),
        "label": random.integers(0, 5, 24),
    }
    question = asked(lambda v: function(**v), values, axes={"x": {0: 0}, "label": {0: 0}})
    found = strengthen.find(question, (), (8,), 1)
    assert found.stuck == ()
    assert found.inputs
    assert all(np.isfinite(function(**inputs)).all() for inputs in found.inputs)


def test_what_the_given_inputs_cannot_show_is_named():
    values = {
        "x": np.tile(np.arange(3.0), 8),
        "mask": np.ones(24, bool),
        "w": np.zeros(3),
    }
    words = strengthen.weaknesses(values, {"x": {0: 0}, "mask": {0: 0}}, (2, 4, 8))
    assert words == ["`mask` is True throughout", "every device gets the same data"]
    words = strengthen.weaknesses({"x": np.arange(8.0)}, {"x": {0: 0}}, (2, 4, 8))
    assert words == ["the batch is 8, one example a device on 8 devices"]


PAIRS = """
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np

    mapped = functools.partial(jax.pmap, axis_name="d", out_axes=None)


    def clipped(w, x):
        g = jnp.mean(x * w, 0)
        return w - 0.1 * g * jnp.minimum(1.0, 1e5 / jnp.sqrt(jnp.sum(g**2)))


    @functools.partial(mapped, in_axes=(None, 0))
    def p_clipped(w, x):
        g = jnp.mean(x * w, 0)
        return w - 0.1 * jax.lax.pmean(g * jnp.minimum(1.0, 1e5 / jnp.sqrt(jnp.sum(g**2))), "d")


    def mean(w, x):
        return jnp.sum(x * w) / x.shape[0]


    @functools.partial(mapped, in_axes=(None, 0))
    def p_mean(w, x):
        return jax.lax.psum(jnp.sum(x * w), "d") / 24


    def skipped(w, x):
        loss, g = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return jnp.where(jnp.all(jnp.isfinite(g)), w - 0.1 * g, w), loss


    @functools.partial(mapped, in_axes=(None, 0))
    def p_skipped(w, x):
        loss, g = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        g = jnp.where(jnp.all(jnp.isfinite(g)), g, 0.0)
        return w - 0.1 * jax.lax.pmean(g, "d"), jax.lax.pmean(loss, "d")


    def count(x):
        return jnp.sum(x > 0)


    @functools.partial(mapped, in_axes=0)
    def p_count(x):
        return jax.lax.psum(jnp.sum(x > 0).astype(jnp.bfloat16), "d").astype(int)


    def masked(x, mask):
        return jnp.sum(x * mask) / jnp.sum(mask)


    @functools.partial(mapped, in_axes=0)
    def p_masked(x, mask):
        total, number = jax.lax.psum((jnp.sum(x * mask), jnp.sum(mask)), "d")
        return total / number


    def peaks(x):
        return jnp.mean(x) + jnp.sum(jnp.where(x > 1e6, x, 0.0))


    def weights(seed=0):
        random = np.random.default_rng(seed)
        return random.normal(size=3), random.normal(size=(24, 3))


    def rows(seed=0):
        return (np.random.default_rng(seed).normal(size=24),)


    def marked(seed=0):
        return *rows(seed), np.ones(24, bool)
"""


@pytest.mark.parametrize(
    ("name", "inputs", "says"),
    [
        ("clipped", "weights", "mean of what each device has by itself"),
        ("mean", "weights", "with a batch of 2"),
        ("count", "rows", "each row repeated to make thousands"),
        # Where a row is no number the loss is none either, and the update is left out.
        ("skipped", "weights", "the mean of what each device has by itself on 2 devices"),
    ],
)
def test_faults_that_the_given_inputs_do_not_show(project: Project, name: str, inputs: str, says: str):
    project.write("pairs.py", PAIRS)
    words = ("verify", f"pairs.py::p_{name}", "--against", f"pairs.py::{name}", "--devices", "2")
    project.refused("JP045", *words, "--inputs", f"pairs.py::{inputs}", says=(says,), exit_code=1)


def test_what_differs_for_another_static_value_is_said_with_it(project: Project) -> None:
    project.write(
        "clock.py",
        """
        import itertools

        import jax
        import jax.numpy as jnp
        import numpy as np

        ticks = itertools.count(1.0)


        def level(x, mode="mean"):
            if mode == "drift":
                scalar = jax.ShapeDtypeStruct((), np.float32)
                return jnp.mean(x) + jax.pure_callback(lambda _: np.float32(next(ticks)), scalar, 0.0)
            return jnp.mean(x)
        """,
    )
    said = ("differs on 2 devices with `mode='drift'`", "Give inputs with that value")
    words = ("gen", "clock.py::level", "--arg", "x=f32[24]", "--arg", "mode='mean'")
    refused = project.refused("JP045", *words, says=said, exit_code=1)
    assert "--shard" not in refused.stderr
    said = ("`level` with `mode='drift'`, which the example inputs do not have,",)
    project.refused("JP061", *words, "--no-run", says=said, exit_code=1)


def test_a_mask_of_ones_is_named_and_made_another(project: Project):
    project.write("pairs.py", PAIRS)
    words = ("--against", "pairs.py::masked", "--inputs", "pairs.py::marked", "--devices", "2")
    result = project.run("verify", "pairs.py::p_masked", *words)
    assert result.exit_code == 0, result.stderr
    assert "(`mask` is True throughout): the proof also ran on" in result.words


def test_a_sum_that_the_given_inputs_leave_at_zero_is_synchronised(project: Project):
    project.write("pairs.py", PAIRS)
    words = ("--inputs", "pairs.py::rows", "--output-format", "json")
    result = project.run("gen", "pairs.py::peaks", *words)
    assert result.exit_code == 0, result.stderr
    assert [sync["op"] for sync in json.loads(result.stdout)["plan"]["syncs"]] == ["pmean", "psum"]


def test_weakly_typed_numbers_stay_so_in_other_inputs():
    """As strongly typed ones they are other arguments to jax, which compiles the function once more."""
    weak = jnp.zeros_like(0.5)
    strong = np.zeros(3, np.float32)
    assert weak.weak_type
    for changed in (
        perturb({"x": weak, "y": strong}, {}, (), 0),
        jitter({"x": weak, "y": strong}, (), 1e-7, 0),
    ):
        assert changed is not None
        assert [jnp.asarray(each).weak_type for each in changed.values()] == [True, False]
        assert [each.dtype for each in changed.values()] == [weak.dtype, strong.dtype]


def test_times_and_edges_stay_in_order_in_perturbed_inputs():
    times = np.linspace(0.0, 1.0, 50, dtype="float32")
    spectrum = {"down": times[::-1].copy(), "rows": np.tile(times, (8, 1)), "loose": np.cos(40 * times)}
    values = {"ts": times, "x": spectrum}
    for wild in (False, True):
        changed = perturb(values, {"x": {2: 0}}, (), 0, wild=wild)
        assert np.all(np.diff(changed["ts"]) > 0) and np.all(np.diff(changed["x"]["down"]) < 0)
        assert np.all(np.diff(changed["x"]["rows"], axis=1) > 0)
        assert not np.allclose(changed["ts"], times)


@pytest.mark.parametrize(
    ("function", "minds"),
    [
        (lambda x: jnp.mean(x[:100]), True),
        (lambda x: jnp.sum(x) / min(len(x), 100), True),
        (lambda x: jnp.mean(x) if len(x) < 100 else jnp.max(x), True),
        (lambda x: jnp.mean(x) + jnp.sum(x) / (2 * len(x)) + jnp.var(x, ddof=1), False),
        (lambda x: sum(x[i] for i in range(len(x))), False),
    ],
)
def test_what_many_rows_are_computed_otherwise_is_found_without_running_them(function, minds: bool):
    question = asked(lambda values: function(**values), {"x": np.zeros(24)})
    assert sizes.minds_size(question) is minds


def test_a_nan_that_several_devices_pass_over_is_named():
    values = {"x": np.arange(1.0, 9.0)}

    def reference(values):
        largest = jnp.max(values["x"])
        return {"far": largest > 5, "largest": largest, "sum": jnp.sum(values["x"])}

    def several(values):
        largest = np.nanmax(values["x"])
        return {"far": largest > 5, "largest": largest, "sum": jnp.sum(values["x"])}

    shows, decides = nans.noted(nans.lost(reference, several, values, {"x": {0: 0}}))
    assert "shows in `['largest']` on one device and not on several" in shows
    assert "decides on numbers in `['far']` on one device and not on several" in decides
    assert nans.noted(nans.lost(reference, reference, values, {"x": {0: 0}})) == []


def test_a_slice_that_only_a_large_batch_reaches_is_no_mean(project: Project) -> None:
    project.write(
        "first.py",
        """
        import jax
        import jax.numpy as jnp
        import numpy as np


        def f(x):
            return jnp.mean(x[:100])


        def centred(x):
            return jnp.mean(x - jnp.mean(x))


        p_f = jax.pmap(lambda x: jax.lax.pmean(f(x), "d"), axis_name="d", out_axes=None)
        p_centred = jax.pmap(lambda x: jax.lax.pmean(centred(x), "d"), axis_name="d", out_axes=None)


        def inputs(seed=0):
            return (np.random.default_rng(seed).normal(size=24),)
        """,
    )
    example = ("--inputs", "first.py::inputs")
    made = project.run("gen", "first.py::f", *example, "--no-run")
    assert "all_gather" in made.stdout
    against = ("--against", "first.py::f", *example)
    project.refused("JP045", "verify", "first.py::p_f", *against, says=("with a batch of",), exit_code=1)
    answer = project.refused(
        "JP045",
        *("verify", "first.py::p_centred", "--against", "first.py::centred", "--devices", "2", *example),
        exit_code=1,
    )
    assert "every output of `centred` is rounding alone" in answer.words


REFUSES = """
    import jax
    import jax.numpy as jnp
    import numpy as np


    def probabilities(p):
        if np.any(p > 1):
            raise ValueError("no probability")
        return p


    def score(w, x, p):
        p = jax.pure_callback(probabilities, jax.ShapeDtypeStruct(p.shape, p.dtype), p)
        return jnp.mean((x @ w) ** 2 * p)


    def inputs(seed):
        random = np.random.default_rng(seed)
        return random.normal(size=3), random.normal(size=(24, 3)), random.uniform(0.9, 1, 24)
"""


def test_inputs_of_ours_that_the_function_refuses_when_it_runs_are_left_out(project: Project) -> None:
    project.write("score.py", textwrap.dedent(REFUSES))
    made = project.run("gen", "score.py::score", "--inputs", "score.py::inputs")
    assert "# Proved: 2, 3, 4, 8 devices" in made.stdout, made.stderr


def asked(function, values, *, draws=False, axes=None):
    """The question about a function of a batch `x`, in its own dtypes."""
    eps = float(np.finfo(np.float32).eps)
    return trials_of.Question(
        reference=jax.jit(function),
        traceable=function,
        invoke=lambda function, values: function(values),
        data=(values,),
        axes=axes or {"x": {0: 0}},
        statics=(),
        chain=(),
        steps=1,
        eps={"given": eps},
        rounding={"given": units.Rounding(eps)},
        x64=False,
        draws=draws,
    )


def test_a_run_says_which_outputs_told_something_and_what_a_wrong_one_is() -> None:
    def outputs(values):
        x = values["x"]
        return {"mean": jnp.mean(x), "none": 0 * jnp.sum(x), "count": jnp.sum(x > 0), "rows": x}

    values = {"x": np.random.default_rng(0).normal(size=(24, 3)).astype("f")}
    trials = trials_of.Trials(asked(outputs, values))
    trial, allowed = trials.at("given", 0, 24, None)
    about = Check(2, "given", 24, 1)

    def run(call, allowed=allowed, unlike=None):
        parallel = Parallel(trials, lambda _: call, lambda leaves, count: unlike, 2)
        return parallel.run(about, trial, allowed, None, explain=with_cause)

    right = run(outputs)
    assert right == dataclasses.replace(about, tolerance=right.tolerance, zero=("['none']",), compared=3)
    assert 0 < right.tolerance < 1e-4
    loose = [[bound and 1e9 for bound in allowed[0]]]
    assert run(outputs, loose).noise == ("['mean']", "['rows']")
    wrong = run(lambda values: {**outputs(values), "mean": jnp.mean(values["x"][:12])}).failure
    assert (wrong.what, wrong.path, wrong.leaf, wrong.cause) == ("value", "['mean']", 1, "first")
    assert (wrong.on, wrong.differing) == ("the given inputs", (1, 1)) and wrong.off > wrong.tolerance
    other = run(lambda values: {**outputs(values), "count": 1.5}).failure
    assert (other.what, other.path, other.got, other.want) == ("dtype", "['count']", "float32", "int32")
    unlike = Failure("replicas", path="['mean']", why=prove.UNLIKE)
    assert run(outputs, unlike=unlike).failure == dataclasses.replace(unlike, on="the given inputs")
    assert run(lambda values: 1 / 0).raised.type == "ZeroDivisionError"


@pytest.mark.parametrize(
    ("off", "wide", "runs_wide", "proved"),
    [(1e-3, 0.0, True, True), (1e-3, 1e-6, True, False), (0.5, 0.0, True, False), (1e-3, 0.0, False, False)],
)
def test_where_a_rounding_decides_float64_tells(off, wide, runs_wide, proved) -> None:
    """A `relu` goes another way in one layer: no more than rounding moves others, and in float32 alone."""

    def outputs(values, by=0.0):
        mean = jnp.mean(values["x"])
        return {"decided": mean * (1 + by), "moved": jnp.sin(1e4 * mean)}

    values = {"x": np.random.default_rng(0).normal(size=(24, 3)).astype("f")}
    exact = units.Rounding(float(np.finfo(np.float64).eps))
    question = dataclasses.replace(
        asked(outputs, values), derived=True, exact=lambda: exact if runs_wide else None
    )

    def call(values):
        return outputs(values, off if values["x"].dtype == np.float32 else wide)

    parallel = Parallel(trials_of.Trials(question), lambda _: call, lambda leaves, count: None, 2)
    checks = check_count(parallel, 24, with_given=True, plans=[("given", 0)])
    assert [check.precision for check in checks] == (["float64", "given"] if proved else ["given"])
    assert (checks[-1].failure is None) == proved
    if proved:
        assert checks[0].tolerance < 1e-9 and off < checks[1].tolerance < 0.5
        assert checks[1].compared == 2


def test_roundings_inside_a_function_that_draws_widen_its_bounds() -> None:
    def deep(values):
        x = values["x"]
        for _ in range(8):
            x = jnp.tanh(x @ values["w"])
        return {"deep": x, "twice": values["x"] * 2, "count": jnp.sum(values["x"] > 0)}

    random = np.random.default_rng(0)
    values = {"x": random.normal(size=(24, 8)).astype("f"), "w": random.normal(size=(8, 8)).astype("f")}
    want, run = deep(values), rounded.rounded(deep, ())
    ways = [run(values, number) for number in range(3)]
    assert len({np.asarray(way["deep"]).tobytes() for way in ways}) == 3
    for way in ways:
        assert 0 < np.max(np.abs(way["deep"] - want["deep"])) < 1e-4
        assert np.array_equal(way["twice"], want["twice"]) and way["count"] == want["count"]
    question = asked(deep, values, draws=True)
    trials = trials_of.Trials(question)
    trial, bounds = trials.at("given", 0, 24, None)
    far = Failure("value", off=1.0, tolerance=1e-7)
    (allowed,), (wider,) = bounds, trials.wider("given", trial, bounds, None, far)
    assert wider[0] == allowed[0] == 0  # the count
    assert wider[1] >= allowed[1] > 0 and wider[1] < 1e-2
    assert wider[2] == allowed[2]
    certain = trials_of.Trials(dataclasses.replace(question, draws=False))
    assert certain.wider("given", trial, bounds, None, far) is None


def test_where_rounding_alone_decides_what_is_equal_is_not_called_wrong() -> None:
    def step(values):
        """Steps as long whichever way the slopes point, whose terms cancel."""
        each = jnp.exp(values["x"])
        slopes = jnp.sum(each, 0) - jnp.sum(jnp.sum(each.reshape(4, 6, 16), 1), 0)
        return values["w"] - 1e-5 * jnp.where(slopes > 0, 1, -1)

    values = {"x": np.random.default_rng(0).normal(size=(24, 16)).astype("f"), "w": np.ones(16, "f")}
    trials = trials_of.Trials(asked(step, values))
    trial, _ = trials.at("given", 0, 24, None)

    def run(call):
        parallel = Parallel(trials, lambda _: call, lambda leaves, count: None, 2)
        return parallel.run(Check(2, "given", 24, 1), trial, [[1e-7]], None)

    other_way = run(lambda values: 2 * values["w"] - step(values))
    assert other_way.failure is None
    assert 1e-7 < other_way.error < other_way.tolerance
    assert run(lambda values: step(values) + 0.1).failure is not None


def test_what_cancels_is_told_from_what_is_wrong_where_it_is_derived() -> None:
    """Small as the inputs are, no change of theirs shows how the numbers near 1 inside are rounded."""

    def apart(values, more=0):
        kernel = jnp.exp(-((values["x"][:, None] - values["x"]) ** 2).sum(-1))
        return 1 - kernel.mean() + more

    values = {"x": np.random.default_rng(0).normal(size=(24, 3), scale=0.01).astype("f")}

    def failure(more, derived):
        trials = trials_of.Trials(dataclasses.replace(asked(apart, values), derived=derived))
        trial, allowed = trials.at("given", 0, 24, None)
        call = functools.partial(apart, more=np.float32(more))
        parallel = Parallel(trials, lambda _: call, lambda leaves, count: None, 2)
        return parallel.run(Check(2, "given", 24, 1), trial, allowed, None).failure

    rounding = 2.0**-22  # In parts of the result, which is below 0.001, that is a thousandth.
    assert failure(rounding, True) is None
    assert failure(100 * rounding, True) is not None


def test_what_is_rounding_alone_is_squared_on_devices_where_it_is_derived() -> None:
    def left(values, more=0):
        """As large as what is left of a sum that cancels, squared."""
        return 1e-17 * values["x"] + more

    values = {"x": np.random.default_rng(0).uniform(0.5, 1.0, 24).astype("f")}
    question = asked(left, values)

    def failure(more, derived):
        trials = trials_of.Trials(dataclasses.replace(question, derived=derived))
        trial, _ = trials.at("given", 0, 24, None)
        call = functools.partial(left, more=np.float32(more))
        parallel = Parallel(trials, lambda _: call, lambda leaves, count: None, 2)
        return parallel.run(Check(2, "given", 24, 1), trial, [[1e-15]], None).failure

    assert failure(5e-16, False) is None and failure(5e-14, False) is not None
    assert failure(5e-14, True) is None and failure(5e-13, True) is not None


def test_roundings_in_every_round_of_a_scan_are_moved() -> None:
    def steps(values):
        def step(w, row):
            # What cancels is rounding alone, and is made as large as anything.
            zero = jnp.sum(jnp.exp(row)) - jnp.exp(row[0]) - jnp.exp(row[1]) - jnp.exp(row[2])
            return w - 0.1 * zero / (jnp.abs(zero) + 1e-12), (row * 2, jnp.sum(row > 0))

        return jax.lax.scan(step, values["w"], values["x"], reverse=True)

    values = {"x": np.random.default_rng(0).normal(size=(6, 3)).astype("f"), "w": np.float32(0)}
    want, run = steps(values), rounded.rounded(steps, ())
    ways = [run(values, number) for number in range(6)]
    assert max(abs(float(way[0] - ways[0][0])) for way in ways) > 0.1
    for way in ways:
        assert jax.tree.structure(way) == jax.tree.structure(want)
        assert np.array_equal(way[1][1], want[1][1])
        assert np.allclose(way[1][0], want[1][0], rtol=1e-6)


class Depth(Forward[int]):
    """How many operations there are from the inputs to a result, at most."""

    def constant(self, value):
        return 0

    def operation(self, equation, facts):
        return [1 + max(facts, default=0)] * len(equation.outvars)


def test_the_ways_of_many_operations_are_not_made_one_from_the_other() -> None:
    def depth(count):
        given = [jnp.float32(each) for each in range(count)]
        jaxpr = jax.make_jaxpr(lambda values: [jnp.exp(each) for each in values])(given)
        moved = jax.make_jaxpr(lambda values, number: rounded.evaluated(jaxpr, values, number))(given, 0)
        return max(Depth().run(moved, [0] * (count + 1)))

    assert depth(40) == depth(2)


def test_an_integer_that_is_wider_in_our_64_bit_mode_alone_is_no_difference() -> None:
    got, want = {"n": np.int32(3), "x": np.float64(1)}, {"n": np.int64(3), "x": np.float64(1)}
    with prove.x64(True):
        assert prove.same_form(got, want).what == "dtype"
        assert prove.same_form(got, want, widths=False) is None
        assert prove.same_form({**got, "x": np.float32(1)}, want, widths=False).path == "['x']"
        assert prove.same_form({**got, "n": np.float64(3)}, want, widths=False).path == "['n']"


SELDOM = """
    import jax
    import jax.numpy as jnp
    import numpy as np

    MEAN = np.array([0.4, 0.1, 0.2])  # float64, in a function of float32


    def step(state, x, labels):
        one_hot = jax.nn.one_hot(labels, 3)
        x = x - MEAN
        loss = -jnp.sum(one_hot * jax.nn.log_softmax(x)) / jnp.maximum(jnp.sum(one_hot), 1.0)
        rows = jnp.sum(x) / jnp.sum(jnp.any(x + MEAN != 0, axis=1))
        seen = state["seen"] + x.shape[0]
        mean = (state["mean"] * state["seen"] + jnp.mean(x) * x.shape[0]) / seen
        jax.debug.print("{}", loss)
        return {"seen": seen, "mean": mean}, loss, rows


    def inputs(seed=0):
        random = np.random.default_rng(seed)
        x = random.normal(size=(24, 3)).astype(np.float32)
        return {"seen": 0, "mean": 0.0}, x, random.integers(0, 3, 24)
"""


def test_labels_of_no_class_rows_of_padding_and_counters_that_have_run_on(shared: Project) -> None:
    shared.write("seldom.py", SELDOM)
    words = ("--inputs", "seldom.py::inputs", "--output-format", "json")
    result = shared.run("gen", "seldom.py::step", *words)
    assert result.exit_code == 0, result.stderr
    plan = json.loads(result.stdout)["plan"]
    syncs = plan["syncs"]
    # What is divided by is summed, and no mean, as labels of a class and the first call's zeros make it look.
    assert {sync["value"] for sync in syncs if sync["op"] == "psum"} >= {
        "jnp.sum(one_hot)",
        "jnp.sum(jnp.any(x + MEAN != 0, axis=1))",
        "x.shape[0]",
    }


def test_a_function_that_does_not_run_in_float64_is_said_to_be_compared_as_it_is(shared: Project) -> None:
    shared.write(
        "narrow_state.py",
        """
        import jax
        import jax.numpy as jnp
        import numpy as np


        def single(x):
            shape = jax.ShapeDtypeStruct(x.shape, jnp.float32)
            y = jax.pure_callback(lambda a: np.asarray(a, np.float32), shape, x)
            total = jnp.mean(y**2 + x)
            return jax.lax.cond(total > 0, lambda: jnp.sqrt(total), lambda: jnp.float32(0))
        """,
    )
    made = shared.run("gen", "narrow_state.py::single", "--arg", "x=f32[24,3]")
    assert made.exit_code == 0, made.stderr
    assert "`single` does not run in float64: it was compared in its own dtypes alone" in made.words


def test_sums_of_numbers_of_one_sign_are_given_others(shared: Project) -> None:
    """The sum of their sizes is the size of their sum as long as all have one sign."""
    shared.write(
        "sizes.py",
        textwrap.dedent("""\
            import functools

            import jax
            import jax.numpy as jnp
            import numpy as np


            def size(x):
                return jnp.abs(jnp.sum(x))


            @functools.partial(jax.pmap, axis_name="i", out_axes=None)
            def of_parts(x):
                return jax.lax.psum(jnp.abs(jnp.sum(x)), "i")


            def inputs():
                return (np.arange(1.0, 25.0, dtype=np.float32),)
            """),
    )
    words = ("verify", "sizes.py::of_parts", "--against", "sizes.py::size", "--inputs", "sizes.py::inputs")
    shared.refused("JP045", *words, says=("differs",), exit_code=1)


def test_one_layer_by_itself_is_made_large(shared: Project) -> None:
    """Where all are, what is between them is flat, and a limit on the gradient is never met."""
    shared.write(
        "clipped.py",
        textwrap.dedent("""\
            import jax
            import jax.numpy as jnp
            import numpy as np


            def loss(weights, x):
                return jnp.mean(jnp.tanh(x @ weights[0]) @ weights[1])


            def step(weights, x):
                grads = jax.grad(loss)(weights, x)
                norm = jnp.sqrt(sum(jnp.sum(g**2) for g in grads))
                return [g * jnp.minimum(1.0, 500.0 / norm) for g in grads]


            def local(weights, x):
                grads = jax.grad(loss)(weights, x)
                norm = jnp.sqrt(sum(jnp.sum(g**2) for g in grads))
                scale = jax.lax.pmean(jnp.minimum(1.0, 500.0 / norm), "i")
                return [jax.lax.pmean(g, "i") * scale for g in grads]


            by_hand = jax.pmap(local, axis_name="i", in_axes=(None, 0), out_axes=None)


            def inputs():
                draw = np.random.default_rng(0)
                return [draw.normal(size=(3, 4)), draw.normal(size=4)], draw.normal(size=(24, 3))
            """),
    )
    words = (
        "verify",
        "clipped.py::by_hand",
        "--against",
        "clipped.py::step",
        "--inputs",
        "clipped.py::inputs",
    )
    shared.refused("JP045", *words, says=("differs",), exit_code=1)


def test_what_stands_for_infinity_is_no_label() -> None:
    """`jnp.finfo(x.dtype).min`, by which maxima leave out what a mask hides, is a number of the function."""
    random = np.random.default_rng(0)
    changes = strengthen.changes([float(np.finfo(np.float32).min), 3.0], random, tame=False)
    labels = np.arange(24, dtype=np.int32)
    made = [np.asarray(change(labels, 0)) for change in (*changes["labels"], *changes["counters"])]
    assert any(3 in labels for labels in made)
    assert all(np.all(np.abs(labels) <= np.iinfo(np.int32).max) for labels in made)


def test_results_that_are_nan_on_one_device_too_are_named(project: Project) -> None:
    """The gradient of a square root of zero is none, and the run compares NaN with NaN."""
    project.write(
        "norms.py",
        """
        import jax
        import jax.numpy as jnp
        import numpy as np


        def step(w, x, y):
            def loss(w):
                return jnp.mean((jnp.sqrt(jnp.sum((x @ w) ** 2, -1)) - y) ** 2)

            loss, grads = jax.value_and_grad(loss)(w)
            return {"w": w - 0.1 * grads}, loss


        def inputs(first=1.0):
            x = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
            x[3] *= first
            return np.ones((3, 2), np.float32), x, x[:, 0]


        def with_zeros():
            return inputs(0.0)
        """,
    )
    said = "`[0]['w']` is NaN on the given inputs, on one device as on several"
    for given, expected in (("with_zeros", True), ("inputs", False)):
        found = project.run("gen", "norms.py::step", "--inputs", f"norms.py::{given}")
        assert found.exit_code == 0, found.stderr
        assert (said in found.words) == expected
