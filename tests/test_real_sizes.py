"""Models that are too large to run here: inputs that are shapes, and runs that are cut to what fits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from project import Project

BIG = """
import jax
import jax.numpy as jnp
import numpy as np


def loss(w, x):
    return jnp.mean((x @ w) ** 2)


def step(w, x):
    value, grads = jax.value_and_grad(loss)(w, x)
    return w - 0.1 * grads, value


def looked_up(w, x):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jnp.mean(jax.pure_callback(lambda a: np.asarray(a), shape, x) @ w)


def noisy(w, x, key):
    def noisy_loss(w):
        return loss(w, x + jax.random.normal(key, x.shape))

    return w - 0.1 * jax.grad(noisy_loss)(w)


p_step = jax.pmap(step, axis_name="d")


def shapes():
    return jax.ShapeDtypeStruct((5000, 5000), "float32"), jax.ShapeDtypeStruct((24, 5000), "float32")


def with_key():
    return *shapes(), jax.eval_shape(lambda: jax.random.key(0))


def arrays(size=20000):
    return jnp.ones((size, size)), jnp.ones((24, size))


def few():
    return np.float32(np.random.default_rng(0).normal(size=(5, 5))), np.float32(np.arange(120).reshape(24, 5))


def wide():
    return np.ones((6000, 6000), np.float32), np.ones((48, 6000), np.float32)


def many():
    draw = np.random.default_rng(0).normal
    return np.float32(draw(size=(3000, 3000))), np.float32(draw(size=(48, 3000)))
"""
STEP = ("gen", "big.py::step", "--inputs")


@pytest.fixture
def big(project: Project) -> Project:
    project.write("big.py", BIG)
    return project


def test_shapes_are_enough_to_plan_and_to_derive(big: Project) -> None:
    made = big.run(*STEP, "big.py::shapes")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs and device counts" in made.words
    assert "derived, and not run: the inputs are shapes alone" in made.words
    assert "# Proved: derived for all inputs and device counts; not run" in made.stdout
    assert "jax.lax.pmean((value, grads), axis_name=AXIS)" in made.stdout


def test_keys_are_folded_where_shapes_are_all_there_is(big: Project) -> None:
    made = big.run("gen", "big.py::noisy", "--inputs", "big.py::with_key")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs and device counts" in made.words
    assert "jax.random.fold_in(key, jax.lax.axis_index(AXIS))" in made.stdout


def test_arrays_beyond_the_memory_limit_become_shapes(big: Project) -> None:
    made = big.run(*STEP, "big.py::arrays", "--memory", "1G")
    assert made.exit_code == 0, made.stderr
    assert "do not fit the memory limit: their shapes alone are used" in made.words


def test_a_run_is_cut_to_what_fits(big: Project) -> None:
    result = big.run(*STEP, "big.py::many", "--memory", "1400M", "--output-format", "json")
    evidence = json.loads(result.stdout)["evidence"]
    assert evidence["derivation"]["complete"]
    assert any(
        "to fit memory and time, the run has a batch of 6 on 2 and 3" in note for note in evidence["notes"]
    )
    assert {check["devices"] for check in evidence["checks"]} == {2, 3}, evidence["notes"]


def test_a_file_that_is_edited_is_derived_where_no_run_fits(big: Project) -> None:
    edited = big.run(*STEP, "big.py::wide", "--memory", "2G", "--in-place")
    assert edited.exit_code == 0, edited.stderr
    assert "derived for all inputs and device counts" in edited.words
    assert "derived, and not run: a run needs about" in edited.words
    assert b"jax.lax.pmean" in big.files()["big.py"]


def test_the_shape_of_an_array_in_the_body_is_no_array(big: Project) -> None:
    made = big.run("gen", "big.py::looked_up", "--inputs", "big.py::few")
    assert made.exit_code == 0, made.stderr
    assert "`pure_callback` has no rule" in made.words


def test_what_shapes_do_not_tell_is_refused(big: Project) -> None:
    says = ("the inputs are shapes alone", "`pure_callback` has no rule")
    big.refused("JP061", "gen", "big.py::looked_up", "--inputs", "big.py::shapes", says=says, exit_code=1)


def test_a_parallel_function_is_called_with_numbers_drawn_for_shapes(big: Project) -> None:
    source = """
averaged = jax.pmap(lambda w, x: jax.lax.pmean(step(w, x), "d"), axis_name="d", in_axes=(None, 0))


def moderate():
    return jax.ShapeDtypeStruct((50, 50), "float32"), jax.ShapeDtypeStruct((24, 50), "float32")


def large():
    return jax.eval_shape(arrays)
"""
    big.write("big.py", BIG + source)
    proved = big.run(
        "verify", "big.py::averaged", "--against", "big.py::step", "--inputs", "big.py::moderate"
    )
    assert proved.exit_code == 0, proved.stderr
    assert "derived for all inputs and device counts" in proved.words
    assert "shapes alone are given, of `w`, `x`: the runs are on numbers drawn for them" in proved.words
    words = ("verify", "big.py::p_step", "--against", "big.py::step", "--inputs")
    big.refused("JP045", *words, "big.py::moderate", says=("a pmean is missing",), exit_code=1)
    says = ("`w` is given by its shapes alone, which are large",)
    big.refused("JP013", *words, "big.py::large", says=says, exit_code=2)


LONG = """
def deep(w, x):
    for _ in range(1200):
        x = -x
    return jnp.mean(x @ w)


def counted(count, w, x):
    return count + 1, deep(w, x)


def steps():
    return 7, *map(jnp.asarray, few())
"""


def test_a_long_program_is_run_on_one_count(big: Project) -> None:
    big.write("long.py", BIG + LONG)
    result = big.run("gen", "long.py::deep", "--inputs", "long.py::few", "--output-format", "json")
    evidence = json.loads(result.stdout)["evidence"]
    assert evidence["derivation"]["complete"]
    assert {check["devices"] for check in evidence["checks"]} == {3}


def test_a_long_program_that_counts_its_calls_is_held_against_the_call(big: Project) -> None:
    big.write("long.py", BIG + LONG)
    made = big.run("gen", "long.py::counted", "--inputs", "long.py::steps", "--no-run")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs" in made.words
    assert "not held against an uncompiled call" not in made.words
