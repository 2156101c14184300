"""`--no-run`: the emitted code is derived equal to the original, and not run."""

import json
from pathlib import Path

import pytest
from project import Project

from jax_pmap.files import seal

TRAIN = """\
import jax
import jax.numpy as jnp


def loss_fn(w, x):
    return jnp.mean((x @ w) ** 2)


def step(w, x):
    loss, grads = jax.value_and_grad(loss_fn)(w, x)
    return w - 0.1 * grads, loss


def scaled(w, x, train: bool = True):
    return w - 0.1 * jax.grad(loss_fn)(w, x) if train else loss_fn(w, x)


def from_host(w, x):
    y = jax.pure_callback(lambda a: a * 2, x, x, vmap_method="expand_dims")
    return w - jnp.mean(y, axis=0)


if __name__ == "__main__":
    step(jnp.ones(3), jnp.ones((24, 3)))
"""
ARGS = ("--arg", "w=f32[3]", "--arg", "x=f32[24,3]")


@pytest.fixture
def train(project: Project) -> Project:
    project.write("train.py", TRAIN)
    return project


def test_what_is_derived_needs_no_run(train: Project) -> None:
    made = train.run("gen", "train.py::step", *ARGS, "--no-run", "--output-format", "json", "-v")
    assert made.exit_code == 0, made.stderr
    document = json.loads(made.stdout)
    evidence = document["evidence"]
    assert document["status"] == "proved"
    assert evidence["checks"] == []
    assert evidence["derivation"]["complete"]
    assert "running:" not in made.stderr
    first = document["code"].partition('"""')[0]
    assert "# Proved: derived for all inputs and device counts; not run" in first
    assert "--no-run" in first


def test_all_is_derived_before_a_run_could_end_the_worker(train: Project) -> None:
    """A run that takes more time than there is leaves nothing underived, whatever static arguments are."""
    made = train.run("gen", "train.py::scaled", *ARGS, "--arg", "train=True", "--static", "train", "-v")
    assert made.exit_code == 0, made.stderr
    said = [line for line in made.stderr.splitlines() if "deriving:" in line or "running:" in line]
    assert ["deriving:" in line for line in said] == [True, True, False, False]


def test_the_call_of_a_program_is_the_example_all_the_same(train: Project) -> None:
    made = train.run("gen", "train.py::step", "--run", "python train.py", "--no-run")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs and device counts" in made.words
    assert "not run" in made.words


def test_devices_that_are_chosen_are_not_run_either(train: Project) -> None:
    made = train.run("gen", "train.py::step", *ARGS, "--no-run", "--devices", "2")
    assert made.exit_code == 0, made.stderr
    assert "the choice of devices was not run" in made.words


def test_a_function_in_its_place_is_derived_there(train: Project) -> None:
    made = train.run("gen", "train.py::step", *ARGS, "--no-run", "--in-place")
    assert made.exit_code == 0, made.stderr
    assert "not run" in made.words
    assert "# Proved: derived for all inputs and device counts; not run" in Path("train.py").read_text()


def test_what_is_neither_derived_nor_run_is_refused(train: Project) -> None:
    says = ("`pure_callback` has no rule", "--> train.py:19:9", "Leave out --no-run")
    train.refused("JP061", "gen", "train.py::from_host", *ARGS, "--no-run", says=says, exit_code=1)
    tried = train.run("gen", "train.py::from_host", *ARGS)
    assert tried.exit_code == 0, tried.stderr
    assert "proved on 2, 3, 4, 8 devices" in tried.words
    assert "not derived for all inputs, but tried on some" in tried.words


def test_uneven_batches_are_shown_by_running(train: Project) -> None:
    train.refused("JP018", "gen", "train.py::step", *ARGS, "--no-run", "--remainder", "drop")


@pytest.mark.parametrize("command", ["gen", "plan"])
def test_the_option_that_proved_nothing_is_gone(train: Project, command: str) -> None:
    result = train.run(command, "train.py::step", *ARGS, "--no-proof")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--no-run" in result.stderr


def test_files_of_that_option_are_not_proved(train: Project) -> None:
    """A file of 0.1: the same text below a header that says so."""
    words = ("gen", "train.py::step", *ARGS, "-o", "train_pmap.py")
    assert train.run(*words, "-q").exit_code == 0
    path = Path("train_pmap.py")
    lines = path.read_text().splitlines(keepends=True)
    (command,) = [i for i, line in enumerate(lines) if line.startswith("#   jax-pmap gen")]
    lines[command] = lines[command].rstrip("\n") + " --no-proof\n"
    (verdict,) = [i for i, line in enumerate(lines) if line.startswith("# Proved: ")]
    lines[verdict] = "# NOT PROVED: the proof was declined (--no-proof)\n"
    path.write_text(seal("".join(lines)))
    for options in ((), ("--no-run",)):
        found = train.run("check", "train_pmap.py", *options)
        assert found.exit_code == 1
        assert "JP152" in found.stdout
        assert "`train_pmap.py` is not proved" in found.stdout
    mended = train.run("check", "--fix", "train_pmap.py")
    assert mended.exit_code == 0, mended.stdout
    text = path.read_text()
    assert "# Proved: " in text
    assert "--no-proof" not in text
    assert train.run("check", "train_pmap.py").exit_code == 0


def test_a_function_in_its_place_of_that_option_is_not_proved(train: Project) -> None:
    assert train.run("gen", "train.py::step", *ARGS, "--in-place", "-q").exit_code == 0
    path = Path("train.py")
    lines = path.read_text().splitlines(keepends=True)
    (command,) = [i for i, line in enumerate(lines) if line.startswith("#   jax-pmap gen")]
    lines[command] = lines[command].rstrip("\n") + " --no-proof\n"
    path.write_text("".join(lines))
    found = train.run("check", "train.py")
    assert found.exit_code == 1
    assert "JP152" in found.stdout
    assert "not proved" in found.stdout
    mended = train.run("check", "--fix", "train.py")
    assert mended.exit_code == 0, mended.stdout
    assert "--no-proof" not in path.read_text()
