"""Batches whose size the code says as a number: which numbers become those of a device's share."""

import json
import subprocess
import sys
import textwrap
from typing import Any

import pytest
from project import Project, simulated

CODE = '''
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    BATCH, STEPS = 30, 4


    def states(w, x):
        """A state of the length of the batch is carried."""
        def cell(state, row):
            state = jnp.tanh(state + row @ w)
            return state, state.sum()

        last, sums = jax.lax.scan(cell, jnp.zeros((BATCH, 3)), jnp.swapaxes(x, 0, 1))
        return last.mean() + sums.mean()


    def flat(w, tokens):
        """A multiple of the rows, and a rate made of them."""
        rows = w[tokens].reshape(BATCH * STEPS, 3).reshape(30, STEPS, 3)
        return rows.mean() / BATCH


    @functools.partial(jax.jit, static_argnames="size")
    def pairs(w, x, y, size=30):
        """Positions among all rows, of which a device has some."""
        scores = (x @ w) @ (y @ w).T
        return optax.softmax_cross_entropy_with_integer_labels(scores, jnp.arange(size)).mean()


    def chosen(w, x, y):
        """Positions in the share; the weights are as wide as the batch is long."""
        scores = x @ w
        return jnp.mean(jax.nn.logsumexp(scores, axis=-1) - scores[jnp.arange(BATCH), y])


    def of_library(w, x):
        """A number that code of nobody's here says."""
        return jnp.mean(functools.partial(jnp.reshape, shape=(BATCH, 3))(x @ w) * SCALES)


    def micro(p, x):
        """Rows of a microbatch, and hidden units that depend on each other."""
        def loss(p, x):
            hidden = jax.nn.relu(jnp.sort(x @ p["w"]) + p["b"])
            return jnp.mean(jax.nn.logsumexp(hidden @ p["v"], axis=-1))

        def add(total, x):
            return jax.tree.map(jnp.add, total, jax.grad(loss)(p, x)), None

        return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, p), x.reshape(4, 8, 5))[0]


    def returns(seen):
        """Of steps that are fewer than the devices, each along its own episodes."""
        def back(later, step):
            now = seen["reward"][step] + 0.9 * later
            return now, now

        values = jax.lax.scan(back, jnp.zeros(BATCH), jnp.arange(STEPS), reverse=True)[1]
        return {"frames": seen["frames"], "values": values}


    SCALES = jnp.linspace(1.0, 2.0, 30)[:, None]


    def draw(*shape):
        return np.random.default_rng(0).normal(size=shape).astype("float32")


    def for_states():
        return draw(5, 3), draw(30, 7, 5)


    def for_flat():
        return draw(9, 3), np.random.default_rng(0).integers(0, 9, (30, STEPS)).astype("int32")


    def for_pairs():
        return draw(5, 3), draw(30, 5), draw(30, 5)


    def for_chosen():
        return draw(5, 30), draw(30, 5), np.random.default_rng(0).integers(0, 30, 30).astype("int32")


    def for_of_library():
        return draw(5, 3), draw(30, 5)


    def for_returns():
        return ({"frames": draw(STEPS, 30, 5), "reward": draw(STEPS, 30)},)
'''


METHODS = """
    import flax.linen as nn
    import jax.numpy as jnp
    import numpy as np

    BATCH = 30


    class Rows(nn.Module):
        '''A module inside another one.'''
        rows: int

        def __call__(self, x):
            return x.reshape(self.rows, 8)


    class Head(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(1)(Rows(BATCH)(x))


    class Recurrent:
        def __init__(self, rows):
            self.rows = rows

        def start(self):
            return jnp.zeros((self.rows, 3))

        def run(self, w, x):
            return jnp.tanh(x @ w + self.start())


    def made():
        class Hidden(nn.Module):
            def __call__(self, x):
                return x.reshape(BATCH, 6)

        return Hidden()


    head, cells, hidden = Head(), {"a": Recurrent(BATCH)}, made()


    def of_library(params, x):
        return jnp.mean(head.apply(params, x) ** 2)


    def of_value(w, x):
        return jnp.mean(cells["a"].run(w, x))


    def of_hidden(w, x):
        return jnp.mean(hidden.apply({}, x @ w))


    def draw(*shape):
        return np.random.default_rng(0).normal(size=shape).astype("float32")


    def for_of_library():
        return {"params": {"Dense_0": {"kernel": draw(8, 1), "bias": draw(1)}}}, draw(30, 4, 2)


    def for_of_value():
        return draw(5, 3), draw(30, 5)


    def for_of_hidden():
        return draw(5, 3), draw(30, 2, 5)
"""


@pytest.fixture
def methods(shared: Project) -> Project:
    pytest.importorskip("flax")
    shared.write("methods.py", textwrap.dedent(METHODS))
    return shared


@pytest.fixture
def written(shared: Project) -> Project:
    shared.write("written.py", textwrap.dedent(CODE))
    return shared


def plan(project: Project, name: str, file: str = "written.py") -> Any:
    words = ("--inputs", f"{file}::for_{name}", "--output-format", "json")
    result = project.run("plan", f"{file}::{name}", *words)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)["plan"]


def syncs(found: Any) -> list[tuple[str, str]]:
    return [(sync["op"], sync["value"]) for sync in found["syncs"]]


def split(found: Any) -> set[str]:
    return {each["name"] for each in found["arguments"] if each["role"] == "batch"}


def test_what_is_carried_is_as_long_as_the_share(written: Project) -> None:
    assert syncs(plan(written, "states"))[0] == ("own_size", "BATCH")


def test_what_few_steps_carry_is_as_long_as_the_share_and_not_left_whole(written: Project) -> None:
    """Dividing the frames alone, which are only handed on, would have every device do all the work."""
    found = plan(written, "returns")
    assert syncs(found) == [("own_size", "BATCH")]
    assert [leaf["axis"] for leaf in found["arguments"][0]["leaves"]] == [1, 1]


def test_multiples_and_numbers_in_the_code_are_divided_and_rates_are_not(written: Project) -> None:
    found = plan(written, "flat")
    assert sorted(syncs(found))[:2] == [("own_size", "30"), ("own_size", "BATCH")]
    lines = [sync["span"]["line"] for sync in found["syncs"] if sync["value"] == "BATCH"]
    assert lines == [sync["span"]["line"] for sync in found["syncs"] if sync["value"] == "30"]


def test_positions_are_those_in_the_share_or_among_all_rows(written: Project) -> None:
    found = plan(written, "pairs")
    assert ("own_share", "jnp.arange(size)") in syncs(found) and split(found) == {"x", "y"}
    found = plan(written, "chosen")
    assert ("own_size", "BATCH") in syncs(found) and split(found) == {"x", "y"}


def test_the_compiler_needs_none_of_it_and_microbatches_have_fewer(written: Project) -> None:
    made = written.run("gen", "written.py::states", "--inputs", "written.py::for_states", "--backend", "jit")
    assert "mean last.mean()" in made.words and "own_size" not in made.stdout, made.stderr
    words = ("gen", "written.py::states", "--inputs", "written.py::for_states", "--accumulate", "3")
    said = "`BATCH`: it says how many rows a device has, and a microbatch has fewer"
    written.refused("JP074", *words, says=(said,), exit_code=1)


def test_numbers_that_devices_do_not_share_evenly_are_refused(written: Project) -> None:
    words = ("written.py::states", "--inputs", "written.py::for_states", "-o", "written_pmap.py")
    made = written.run("gen", *words)
    assert made.exit_code == 0, made.stderr
    code = "import written as w, written_pmap as p; p.states(w.draw(5, 3), w.draw(28, 7, 5))"
    ran = subprocess.run(
        [sys.executable, "-c", code], env=simulated(7), cwd=written.folder, capture_output=True, text=True
    )
    assert "ValueError: states: 30 rows do not divide over 7 devices" in ran.stderr


def test_what_no_number_mends_is_refused(written: Project) -> None:
    written.refused(
        "JP068", "plan", "written.py::of_library", "--inputs", "written.py::for_of_library", exit_code=1
    )


def test_the_size_is_named_before_what_becomes_of_hidden_units(written: Project) -> None:
    given = ("--arg", 'p={"w": f32[5,10], "b": f32[10], "v": f32[10,4]}', "--arg", "x=f32[32,5]")
    said = ("cannot reshape array of shape (4, 5)",)
    written.refused("JP068", "plan", "written.py::micro", *given, says=said, exit_code=1)


def test_methods_say_it_of_modules_that_a_library_runs_and_of_objects(methods: Project) -> None:
    assert syncs(plan(methods, "of_library", "methods.py"))[0] == ("own_size", "self.rows")
    assert syncs(plan(methods, "of_value", "methods.py"))[0] == ("own_size", "self.rows")
    made = methods.run("gen", "methods.py::of_library", "--inputs", "methods.py::for_of_library", "--no-run")
    assert "derived for all inputs" in made.words and "copies of modules' methods" in made.stdout, made.stderr


def test_a_method_that_is_not_looked_into_is_named_by_the_line_that_fails(methods: Project) -> None:
    words = ("plan", "methods.py::of_hidden", "--inputs", "methods.py::for_of_hidden")
    said = ("fails in line 36 of methods.py", "return x.reshape(BATCH, 6)")
    methods.refused("JP068", *words, says=said, exit_code=1)
