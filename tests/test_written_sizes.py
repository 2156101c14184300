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
'''


@pytest.fixture
def written(shared: Project) -> Project:
    shared.write("written.py", textwrap.dedent(CODE))
    return shared


def plan(project: Project, name: str) -> Any:
    words = ("--inputs", f"written.py::for_{name}", "--output-format", "json")
    result = project.run("plan", f"written.py::{name}", *words)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)["plan"]


def syncs(found: Any) -> list[tuple[str, str]]:
    return [(sync["op"], sync["value"]) for sync in found["syncs"]]


def split(found: Any) -> set[str]:
    return {each["name"] for each in found["arguments"] if each["role"] == "batch"}


def test_what_is_carried_is_as_long_as_the_share(written: Project) -> None:
    assert syncs(plan(written, "states"))[0] == ("own_size", "BATCH")


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
