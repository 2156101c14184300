"""Objects that a library makes of the user's functions at the top level of a file."""

import pytest
from project import Project

LIBRARY = """
import dataclasses

import jax


@dataclasses.dataclass
class Descent:
    objective: object
    rounds: int = 3
    size: float = 0.1

    def __post_init__(self):
        self.derived = jax.value_and_grad(self.objective)

    def update(self, w, *args, **kwargs):
        value, slope = self.derived(w, *args, **kwargs)
        # A shorter step where the value is large: it has to be that of the whole batch.
        return jax.tree.map(lambda p, g: p - self.size * g / (1 + value), w, slope), value

    def run(self, w, *args, **kwargs):
        return jax.lax.scan(lambda w, _: self.update(w, *args, **kwargs), w, None, length=self.rounds)


class Counted(Descent):
    def update(self, w, *args, **kwargs):
        self.calls = 1
        return super().update(w, *args, **kwargs)


def estimator(density, size):
    return jax.grad(lambda w, *batch: size * jax.vmap(density, (None, 0, 0))(w, *batch).mean())


def leapfrog(slope, rounds):
    def once(state, batch):
        w, p = state
        p = p + 1e-3 * slope(w, *batch)
        return w + 1e-3 * p, p

    def step(w, p, *batch):
        return jax.lax.fori_loop(0, rounds, lambda _, state: once(state, batch), (w, p))

    return step


def fitted(residual, w, *batch):
    size = jax.numpy.sqrt((residual(w, *batch) ** 2).sum())
    return w / size
"""
LOSSES = """
import jax.numpy as jnp


def huber(w, x, y, mask):
    error = jnp.abs(x @ w - y)
    return jnp.sum(jnp.where(error < 1, error**2, error) * mask) / jnp.sum(mask)
"""
MADE = """
import sys
from pathlib import Path

import jax.numpy as jnp

import losses

sys.path.append(str(Path(__file__).parent / "site-packages"))

import descents

solver = descents.Descent(
    losses.huber,  # of errors that are large, their size
    rounds=2,
)
"""
STEPS = """
import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

import losses
from made import solver

sys.path.append(str(Path(__file__).parent / "site-packages"))

import descents
from descents import estimator, leapfrog

OPTIONS = {"rounds": 2}


def density(w, x, y):
    return -((x @ w - y) ** 2)


def regularized(w, x, y, mask, scale):
    return losses.huber(w, x, y, mask) + scale * jnp.sum(w**2)


run = jax.jit(descents.Descent(functools.partial(regularized, scale=0.1)).run)
counted = descents.Counted(losses.huber)
of_table = descents.Descent(losses.huber, OPTIONS["rounds"])
kernel = leapfrog(estimator(density, 100.0), 3)


def inputs():
    keys = jax.random.split(jax.random.key(0), 3)
    x, y = jax.random.normal(keys[0], (24, 3)), 3 * jax.random.normal(keys[1], (24,))
    return jnp.ones(3), x, y, (jax.random.uniform(keys[2], (24,)) < 0.6).astype(jnp.float32)


def imported(w, x, y, mask):
    w, values = solver.run(w, x, y, mask=mask)
    return solver.update(w, x, y, mask), values


def helper(w, *batch):
    return solver.update(w, *batch)[0]


def through_a_helper(w, x, y, mask):
    return helper(w, x, y, mask) * 2


def compiled(w, x, y, mask):
    return run(w, x, y, mask)


def inside(w, x, y, mask):
    own = jax.jit(descents.Descent(functools.partial(regularized, scale=0.1)).run)
    return own(w, x, y, mask)


def handed_on(w, x, y, mask):
    return descents.Descent(functools.partial(losses.huber, x=x, y=y, mask=mask)).run(w)


def sampled(w, x, y, mask):
    return kernel(w, jnp.ones(3), x, y)


def of_library_that_counts(w, x, y, mask):
    return counted.run(w, x, y, mask)


def made_of_a_table(w, x, y, mask):
    return of_table.run(w, x, y, mask)


def residual(w, x, y):
    return x @ w - y


def computed_by_the_library(w, x, y, mask):
    return descents.fitted(residual, w, x, y)


def more():
    OPTIONS["rounds"] += 1
"""


def written_in(project: Project) -> Project:
    project.write("site-packages/descents.py", LIBRARY)
    project.write("losses.py", LOSSES)
    project.write("made.py", MADE)
    project.write("steps_made.py", STEPS)
    return project


@pytest.fixture
def steps(shared: Project) -> Project:
    return written_in(shared)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        (
            "imported",
            "def make_solver(): "
            '"""`solver` anew, of the functions of this file.""" '
            "return descents.Descent( huber, # of errors that are large, their size rounds=2, )",
        ),
        ("imported", "w, values = make_solver().run(w, x, y, mask=mask)"),
        ("through_a_helper", "make_solver().update(w, *batch)[0]"),
        ("compiled", "descents.Descent(functools.partial(regularized, scale=0.1)).run"),
        ("inside", "own = jax.jit(descents.Descent(functools.partial(regularized, scale=0.1)).run)"),
        ("handed_on", "functools.partial(huber, x=x, y=y, mask=mask)"),
        ("sampled", "return leapfrog(estimator(density, 100.0), 3)"),
    ],
)
def test_an_object_is_made_anew_of_the_functions_with_collectives(
    steps: Project, name: str, written: str
) -> None:
    made = steps.run("gen", f"steps_made.py::{name}", "--inputs", "steps_made.py::inputs")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs" in made.stderr and "all_gather" not in made.stdout
    assert written in " ".join(made.stdout.split())


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("of_library_that_counts", "its class `Counted` changes its objects"),
        ("made_of_a_table", "`OPTIONS` may change, of which `of_table` is made"),
    ],
)
def test_an_object_that_may_change_is_not_made_anew(steps: Project, name: str, why: str) -> None:
    given = ("--inputs", "steps_made.py::inputs")
    steps.refused("JP067", "gen", f"steps_made.py::{name}", *given, says=(why,), exit_code=1)


def test_what_a_library_computes_by_itself_is_refused_with_its_line(steps: Project) -> None:
    says = (
        "`descents.fitted(residual, w, x, y)` couples the examples",
        "in it, `size = jax.numpy.sqrt((residual(w, *batch) ** 2).sum())` (descents.py:47) is taken",
    )
    given = ("--inputs", "steps_made.py::inputs")
    steps.refused("JP043", "gen", "steps_made.py::computed_by_the_library", *given, says=says, exit_code=1)


SET = """
import sys
from pathlib import Path

import losses

sys.path.append(str(Path(__file__).parent / "site-packages"))

import descents

first = descents.Descent(losses.huber)


class Settings:
    def __init__(self):
        self.size = 0.1


def slower():
    first.size = 0.01


def set_attribute(w, x, y, mask):
    return first.run(w, x, y, mask)
"""


def test_an_object_whose_attribute_some_file_sets_is_not_made_anew(project: Project) -> None:
    written_in(project).write("sets.py", SET)
    says = ("sets.py sets `.size`, and `first` may be another one for that",)
    given = ("--inputs", "steps_made.py::inputs")
    project.refused("JP067", "gen", "sets.py::set_attribute", *given, says=says, exit_code=1)
    # What a method sets of its own object is none of a library's class.
    project.write("sets.py", SET.replace("    first.size = 0.01", "    pass"))
    made = project.run("gen", "sets.py::set_attribute", *given, "--no-run")
    assert made.exit_code == 0, made.stderr


def test_an_object_is_made_anew_in_place(project: Project) -> None:
    given = ("--inputs", "steps_made.py::inputs", "--in-place")
    made = written_in(project).run("gen", "steps_made.py::imported", *given)
    assert made.exit_code == 0, made.stderr
    text = (project.folder / "steps_made.py").read_text(encoding="utf-8")
    assert "    w, values = p_make_solver().run(w, x, y, mask=mask)" in text
    assert "    return p_make_solver().update(w, x, y, mask), values" in text
    found = project.run("check", "steps_made.py")
    assert found.exit_code == 0, found.stdout
