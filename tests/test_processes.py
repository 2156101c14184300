"""`--processes`: code in which each process has its own rows, run in several real ones."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from project import Project, simulated

from jax_pmap.model import Backend, RefusalError, refused
from jax_pmap.proof import processes
from jax_pmap.worker import protocol

STEP = """\
import os

import jax
import jax.numpy as jnp


def step(params, key, x):
    key, noise = jax.random.split(key)
    hidden = x @ params["up"] + jax.random.normal(noise, (x.shape[0], 4))
    return {"up": params["up"] - 0.1 * x.T @ hidden / len(x)}, key, hidden


def errors(w, x, y):
    error = x @ w - y
    return w - 0.1 * x.T @ error / len(x), error


def differs(x):
    return jnp.mean(x) + jax.process_index()


def dies(x):
    if jax.process_index() == 1:
        os._exit(3)
    return jnp.mean(x)
"""
ARGS = ("--arg", "params={up: f32[6,4]}", "--arg", "key=key", "--arg", "x=f32[24,6]", "--processes", "2")
MESH = ("--mesh", "data=2,model=2", "--spec", "params.up=None,model")


@pytest.fixture
def steps(project: Project) -> Project:
    project.write("step.py", STEP)
    return project


@pytest.mark.parametrize("words", [("--backend", "pmap"), ("--backend", "jit", *MESH)], ids=["pmap", "mesh"])
def test_code_is_run_in_processes_that_have_their_own_rows(steps: Project, words: tuple[str, ...]) -> None:
    made = steps.run("gen", "step.py::step", *ARGS, *words, "--output-format", "json")
    assert made.exit_code == 0, made.stderr
    document = json.loads(made.stdout)
    assert [(row["devices"], row["processes"]) for row in document["evidence"]["checks"]][-1] == (4, 2)
    assert "4 in 2 processes" in document["code"].partition('"""')[0]
    assert ("make_array_from_process_local_data" in document["code"]) is ("jit" in words)


def test_rows_of_all_processes_go_into_the_next_call_beside_own_ones(steps: Project) -> None:
    """`errors` gives rows that have the form of its `y`."""
    words = ("--arg", "w=f32[6]", "--arg", "x=f32[24,6]", "--arg", "y=f32[24]", "--processes", "2")
    made = steps.run("gen", "step.py::errors", *words, "--backend", "shard_map")
    assert made.exit_code == 0, made.stderr
    assert "4 in 2 processes" in made.stdout.partition('"""')[0]


MEMBER = """
import sys

import jax
import numpy as np

address, index, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(address, 2, index)
from mean_rows import mean

x = np.arange(48, dtype=np.float32)
print(mean(x[:rows] if index == 0 else x[48 - rows :]))
"""


def test_processes_are_held_to_as_many_rows_in_each(steps: Project) -> None:
    steps.write("rows.py", "def mean(x):\n    return x.mean()\n")
    words = ("gen", "rows.py::mean", "--arg", "x=f32[24]", "--processes", "2", "-o", "mean_rows.py")
    assert steps.run(*words).exit_code == 0
    steps.write("member.py", MEMBER)
    for rows, says in (((24, 24), "23.5"), ((16, 32), "mean: the processes have [16, 32] rows")):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = "127.0.0.1:{1}".format(*probe.getsockname())
        commands = [[sys.executable, "member.py", address, str(i), str(n)] for i, n in enumerate(rows)]
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        members = [subprocess.Popen(each, env=simulated(2), **options) for each in commands]
        for member in members:
            assert says in member.communicate(timeout=120)[0]


def test_what_differs_between_processes_is_refused(steps: Project) -> None:
    words = ("gen", "step.py::differs", "--arg", "x=f32[24]", "--processes", "2")
    says = ("of 2: the output differs on 4 devices in 2 processes", "jax.process_index")
    steps.refused("JP045", *words, says=says, exit_code=1)


def test_a_process_that_ends_ends_the_others(steps: Project) -> None:
    words = ("gen", "step.py::dies", "--arg", "x=f32[24]", "--processes", "2", "--timeout", "100")
    says = ("process 2 of 2", "exited with code 3", "step.py:24:9")
    steps.refused("JP012", *words, says=says)


def test_what_compares_nothing_is_refused(steps: Project) -> None:
    words = ("gen", "step.py::differs", "--arg", "x=f32[8]", "--processes", "5")
    steps.refused("JP064", *words, says=("a batch of 8 is smaller than the 10 rows",), exit_code=1)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--processes", "1"), "not a number from 2 to 8"),
        (("--processes", "two"), "not a number from 2 to 8"),
        (("--processes", "2", "--devices", "4"), "Drop one: `--processes`, or `--devices`"),
        (("--processes", "2", "--no-run"), "Drop one: `--processes`, or `--no-run`"),
        (("--processes", "2", "--remainder", "pad"), "Drop one: `--processes`, or `--remainder`"),
        (("--processes", "3", "--backend", "jit", "--mesh", "data=4"), "3 processes do not share evenly"),
    ],
)
def test_options_that_do_not_fit_together(steps: Project, words: tuple[str, ...], says: str) -> None:
    steps.refused("JP018", "gen", "step.py::differs", *words, says=(says,))


class Process:
    """A member in place of a worker; the second is slow to trace."""

    def __init__(self, index: int, done: list[str], errors: tuple[Exception | None, ...]) -> None:
        self.member, self.index = protocol.Member("", len(errors), index), index
        self.done, self.error = done, errors[index]

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """It has nothing to end."""

    def ask(self, asked: Any, _: str) -> protocol.Checks | None:
        time.sleep(0.2 * self.index)
        self.done.append(type(asked).__name__)
        if isinstance(asked, protocol.Precision):
            return None
        if self.error is not None:
            raise self.error
        return protocol.Checks((protocol.Check(4, "given", 24),))


def run_two(monkeypatch: pytest.MonkeyPatch, *errors: Exception | None) -> list[str]:
    """What two processes did, in which the run ends so."""
    done: list[str] = []
    comparison = protocol.Comparison(protocol.Roles({}, ()), (), 1)
    monkeypatch.setattr(processes, "load", lambda *_: None)
    monkeypatch.setattr(processes, "comparison_of", lambda *_: comparison)
    monkeypatch.setattr(processes, "emitted_of", lambda *_: None)
    processes.run_in_processes(
        lambda _, member: Process(member.index, done, errors),
        SimpleNamespace(facts=SimpleNamespace(span=None)),
        SimpleNamespace(mesh=(), arguments=(), outputs=(), mutated=(), multiple_of=1),
        SimpleNamespace(variants=[{}]),
        SimpleNamespace(processes=2, backend=Backend.PMAP),
        "",
        SimpleNamespace(derived=True),
        lambda _: None,
    )
    return done


def test_processes_begin_their_collectives_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One waits for another half a minute."""
    assert run_two(monkeypatch, None, None) == ["Precision"] * 2 + ["ProveInProcesses"] * 2


def test_the_process_that_others_waited_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = protocol.Problem("transport", "JaxRuntimeError: Gloo context initialization failed")
    ended = refused("JP010", "it did not end within the time limit", "", None)
    for errors, says in (((waited, ended), "process 2 of 2: it did not"), ((waited, waited), "Gloo context")):
        with pytest.raises(RefusalError) as raised:
            run_two(monkeypatch, *errors)
        assert says in raised.value.refusal.reason
