"""Functions that insist on some numbers of rows: sizes that we try are no fault of theirs."""

import json

import pytest
from project import Project

STEPS = """\
import jax
import jax.numpy as jnp


def best_of_five(w, x):
    return jnp.mean(jnp.max((x @ w).reshape(-1, 5), axis=1))


def in_five_groups(w, x):
    return jnp.mean(x.reshape(5, -1, 4) @ w)


def sums_of_three(w, x):
    return (x @ w).reshape(-1, 3).sum(1)


def six_at_a_time(w, x, batch_size=6):
    return jnp.mean(jax.lax.map(lambda rows: jnp.tanh(rows @ w), x.reshape(-1, batch_size, 4)))


def most_of_the_fives(w, x):
    return jnp.mean(jnp.max((x @ w).reshape(-1, 5), axis=1)[: len(x) // 20 * 4])


def neighbours(w, x):
    return jnp.mean((x[0::2] - x[1::2]) ** 2 @ w)
"""


@pytest.fixture
def steps(shared: Project) -> Project:
    shared.write("odd_steps.py", STEPS)
    return shared


@pytest.mark.parametrize(
    ("name", "rows"),
    [("best_of_five", 20), ("in_five_groups", 50), ("sums_of_three", 30), ("six_at_a_time", 30)],
)
def test_rows_that_devices_do_not_share_so_are_derived(steps: Project, name: str, rows: int) -> None:
    """20 rows are cut to 16 for 8 devices, of which no five are made; shares of 20 rows will do."""
    args = ("--arg", "w=f32[4]", "--arg", f"x=f32[{rows},4]", "--output-format", "json")
    made = steps.run("gen", f"odd_steps.py::{name}", *args)
    assert made.exit_code == 0, made.stderr
    assert json.loads(made.stdout)["evidence"]["derivation"]["complete"]


def test_a_half_that_the_function_does_not_take_is_not_asked_for(steps: Project) -> None:
    """Half of 30 rows have no pairs: 3 devices have them, and more devices for more rows."""
    args = ("--arg", "w=f32[4]", "--arg", "x=f32[30,4]", "--output-format", "json")
    made = steps.run("gen", "odd_steps.py::neighbours", *args)
    assert made.exit_code == 0, made.stderr
    assert json.loads(made.stdout)["plan"]["multiple_of"] == 2


def test_what_larger_shares_hide_is_asked_of_the_batch(steps: Project) -> None:
    """Shares of 20 rows are never cut, those of 5 are; nor has `(x @ w).reshape` a name in front."""
    args = ("--arg", "w=f32[4]", "--arg", "x=f32[40,4]", "--output-format", "json")
    made = steps.run("gen", "odd_steps.py::most_of_the_fives", *args)
    assert made.exit_code == 0, made.stderr
    assert json.loads(made.stdout)["plan"]["multiple_of"] == 20
