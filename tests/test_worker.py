"""The worker and its session without the pipeline: environment, limits, input functions, its end."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import types
import typing
from pathlib import Path

import pytest

from jax_pmap import session as sessions
from jax_pmap.home import Home, remove_left
from jax_pmap.model import RefusalError, Source
from jax_pmap.problems import error_details, error_span
from jax_pmap.session import Session, worker_environment
from jax_pmap.worker import methods, protocol
from jax_pmap.worker.protocol import Problem
from jax_pmap.worker.target import Target

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

MODULE = """
import numpy as np


def scale(x, y):
    return x * y


def pair(): return np.ones((24, 3)), np.ones((24, 3))
def seeded(seed): return np.full(8, 2.0 + seed), np.ones(8)
def by_keyword(): return (np.ones(8),), {"y": np.ones(8)}
def by_name(): return {"y": np.ones(8), "x": np.ones(8)}
def as_list(): return [np.ones(8), np.ones(8)]
def many(): return 1.0, 2.0, 3.0
def one(): return np.ones((24, 3))
def twice(): return (np.ones(3),), {"x": np.ones(3)}
def unnamed(): return {"x": np.ones(3), "z": np.ones(3)}
def nothing(): pass
def text(): return "x, y"
def unsorted_keys(): return {"a": 1.0, 2: 3.0}, 1.0
def odd(): raise Odd
def raw(): return b"x, y"
def generator(): yield np.ones(3)
async def coroutine(): return 1, 2
def leaving(): raise SystemExit(1)
def interrupted(): raise KeyboardInterrupt
def needing(path, split): return path, split
class Odd(Exception):
    def __str__(self): raise ValueError
number = 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worker")
    (folder / "pyproject.toml").touch()
    (folder / "train.py").write_text(MODULE)
    (folder / "broken.py").write_text("import no_such_module\n")
    (folder / "syntax.py").write_text("def f(:\n")
    return folder


@pytest.fixture(scope="module")
def worker(folder):
    with Session(Path(sys.executable), folder, 3, 300, None) as session:
        load(session, folder)
        yield session


def load(session, folder):
    definition = protocol.Definition(
        "def scale(x, y):\n    return x * y\n", str(folder / "train.py"), 5, "scale"
    )
    module = protocol.Module(str(folder / "train.py"), "train", str(folder))
    request = protocol.Load(module, definition, session.devices, collectives=False, in_place=True)
    session.ask(request, "loading")


def inputs(session, folder, reference):
    file, double, _ = reference.partition("::")
    where = protocol.Module(str(folder / file), Path(file).stem, str(folder)) if double else None
    return session.ask(protocol.InputsFromCallable(reference, str(folder), where), "calling")


# --- the environment ----------------------------------------------------------------------


def test_the_flags_of_the_user_stay():
    theirs = {
        "XLA_FLAGS": "--xla_dump_to=/x --xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cuda",
        "JAX_PLATFORM_NAME": "gpu",
        "JAX_DISABLE_JIT": "1",
        "PYTHONPATH": "src",
        "PYTHONHOME": "/opt/generator",
    }
    made = worker_environment(theirs, 5, "/home/of/worker")
    flags = made["XLA_FLAGS"].split()
    assert "--xla_dump_to=/x" in flags
    assert [flag for flag in flags if "device_count" in flag] == ["--xla_force_host_platform_device_count=5"]
    assert (made["JAX_PLATFORMS"], made["JAX_NUM_CPU_DEVICES"]) == ("cpu", "5")
    assert (made["PYTHONPATH"], made["TMPDIR"]) == ("src", "/home/of/worker")
    assert not {"JAX_PLATFORM_NAME", "JAX_DISABLE_JIT", "PYTHONHOME"} & made.keys()
    assert theirs["XLA_FLAGS"].endswith("=2")


def test_the_worker_has_the_devices_asked_for(worker):
    with pytest.raises(RefusalError) as caught:
        worker.ask(protocol.MakeDevices(4, 0, False, None), "starting")
    assert "asked for 4 simulated CPU devices" in caught.value.refusal.reason
    worker.ask(protocol.MakeDevices(3, 0, False, None), "starting")
    assert worker.versions.python == sys.version.split()[0]


# --- input functions ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shapes", "seeds"),
    [
        ("pair", [[24, 3], [24, 3]], 1),
        ("seeded", [[8], [8]], 2),
        ("by_keyword", [[8], [8]], 1),
        ("by_name", [[8], [8]], 1),
        ("as_list", [[8], [8]], 1),
    ],
)
def test_inputs(worker, folder, name, shapes, seeds):
    for reference in (f"train.py::{name}", f"train:{name}"):
        answer = inputs(worker, folder, reference)
        assert [a["leaves"][0]["shape"] for a in answer.arguments] == shapes
        assert [a["name"] for a in answer.arguments] == ["x", "y"]
        assert answer.seeds == seeds


@pytest.mark.parametrize(
    ("reference", "kind", "says"),
    [
        ("train.py::many", "count", "too many positional arguments"),
        ("train.py::many", "count", "takes (x, y), and 3 came by position"),
        ("train.py::one", "count", "missing a required argument: 'y'"),
        ("train.py::twice", "count", "1 came by position and `x` by name"),
        ("train.py::unnamed", "count", "missing a required argument: 'y'"),
        ("train.py::nothing", "inputs", "returns None"),
        ("train.py::text", "inputs", "returns a str"),
        ("train.py::unsorted_keys", "inputs", "cannot take `x` apart"),
        ("train.py::odd", "inputs", "Odd: (its message cannot be shown)"),
        ("train.py::raw", "inputs", "returns a bytes"),
        ("train.py::generator", "inputs", "returns a generator"),
        ("train.py::leaving", "inputs", "SystemExit: 1"),
        ("train.py::interrupted", "inputs", "KeyboardInterrupt"),
        ("train.py::needing", "inputs", "needs arguments ['path', 'split']"),
        ("train.py::number", "inputs", "not a callable"),
        ("train.py::nowhere", "inputs", "there is no `nowhere` in it"),
        ("train.py::number.bits", "inputs", "there is no `bits` in it"),
        ("nowhere.py::make", "inputs", "there is no file `nowhere.py`"),
        ("broken.py::make", "import", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("syntax.py::make", "import", "SyntaxError"),
        ("broken:make", "import", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("nowhere:make", "import", "ModuleNotFoundError: No module named 'nowhere'"),
        ("make", "inputs", "neither FILE::callable nor module:callable"),
        (":make", "inputs", "neither FILE::callable nor module:callable"),
    ],
)
def test_inputs_that_cannot_be_had(worker, folder, reference, kind, says):
    with pytest.raises(Problem) as caught:
        inputs(worker, folder, reference)
    assert caught.value.kind == kind
    assert says in caught.value.message
    assert "Traceback" not in caught.value.message


def test_the_worker_goes_on_after_a_problem(worker, folder):
    with pytest.raises(Problem):
        inputs(worker, folder, "train.py::many")
    assert inputs(worker, folder, "train.py::pair").seeds == 1


# --- requests and answers -----------------------------------------------------------------


def test_a_record_is_what_it_was_once_it_was_json():
    roles = protocol.Roles({"batch": {0: 1}}, ("config",))
    chain = (("w", (0, "w")), ("b", (1, 2)))
    mesh = protocol.Mesh({"data": 2}, 2, "data", ((("data",), ()), None))
    emitted = protocol.Emitted("", "f", "m", "f.py", "batch", (0, 2), mesh)
    request = protocol.Derive(protocol.Comparison(roles, chain, 2), emitted, 1, 8, 0.5)
    line = protocol.encode({"method": "Derive", "request": request})
    assert protocol.request_of(line) == request


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"axes": {}}, "Roles.statics is missing"),
        ({"axes": {}, "statics": [], "more": 1}, "Roles has no field more"),
        ({"axes": {"x": {"0": "1"}}, "statics": []}, r"Roles.axes\[x\]\[0\] is '1', no int"),
        ({"axes": {}, "statics": "x"}, "Roles.statics is 'x', no tuple"),
    ],
)
def test_what_does_not_fit_a_record_is_named(data, says):
    with pytest.raises(ValueError, match=says):
        protocol.decode(protocol.Roles, data)


def test_a_problem_of_each_kind_of_field_comes_through():
    problem = protocol.Problem("program", "no", protocol.Raised("E", "no"), state="never called", code=3)
    again = protocol.decode(protocol.Problem, json.loads(protocol.encode(problem)))
    assert (again.error, again.code, str(again)) == (problem.error, 3, "no")


@pytest.mark.parametrize("request_type", methods.HANDLERS, ids=lambda each: each.__name__)
def test_every_request_has_the_handler_that_its_types_say(request_type):
    hints = typing.get_type_hints(methods.HANDLERS[request_type])
    (answer,) = typing.get_args(request_type.__orig_bases__[0])
    assert hints["request"] is request_type
    assert hints["return"] == answer


# --- errors of the user's code ------------------------------------------------------------


def test_an_answer_holds_until_anything_of_the_target_changes():
    target, asked = Target(), []

    def answer():
        asked.append(target.x64)
        return target.x64

    assert [target.once("x64", "key", answer) for _ in range(2)] == [False, False]
    target = dataclasses.replace(target, x64=True)
    assert [target.once("x64", "key", answer) for _ in range(2)] == [True, True]
    assert asked == [False, True]
    assert [target.once("x64", key, answer, most=1) for key in ("other", "key", "key")] == [True] * 3
    assert asked == [False, True, True, True]
    for key in ("four", "seven", "nine"):
        target.once("words", key, key.upper, most=9, weigh=len)
    assert target.known("words") == ("SEVEN", "NINE")


def test_a_limit_is_said_in_its_own_unit_and_at_no_line_of_a_library(tmp_path):
    limited = types.SimpleNamespace(memory=10 << 20)
    assert "memory limit of 10 MiB" in Session._out_of_memory(limited, "importing", None).reason
    limited.memory = 3 << 29
    assert "memory limit of 1.5 GiB" in Session._out_of_memory(limited, "importing", None).reason
    library = str(tmp_path / "lib" / "python3.11" / "importlib" / "__init__.py")
    raised = protocol.Raised("MemoryError", "", library, 126, ((library, 126, "import_module"),))
    assert error_span(raised, tmp_path) is None


def test_the_place_of_an_error_is_the_users_own(tmp_path):
    (tmp_path / "pyproject.toml").touch()
    mine, theirs = str(tmp_path / "a" / "train.py"), "/env/lib/python3.11/site-packages/optax/base.py"
    frames = (("/elsewhere/run.py", 1, "f"), (mine, 3, "g"), (theirs, 7, "h"))
    blocks = ('  File "train.py", line 3, in g\n', "ValueError: no\n")
    error = protocol.Raised("ValueError", "no", theirs, 7, frames, blocks)
    span = error_span(error, tmp_path)
    assert (span.file, span.line) == ("a/train.py", 3)
    source = Source(
        target="t",
        path=Path("/elsewhere/run.py"),
        shown_path="run.py",
        module="run",
        root=Path("/elsewhere"),
        qualname="f",
        text="",
        encoding="utf-8",
        newline="\n",
    )
    span = error_span(error, tmp_path, source)
    assert (span.file, span.line) == ("run.py", 1)
    assert error_span(None, tmp_path) is None
    (detail,) = error_details(error)
    assert detail.splitlines()[0] == "Traceback (most recent call last):"
    assert detail.endswith("ValueError: no")
    assert error_details(None) == ()


# --- the end ------------------------------------------------------------------------------


@pytest.fixture
def spare(tmp_path, monkeypatch):
    """A temporary folder of our own, to see what is left in it."""
    folder = tmp_path / "spare"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def script(folder, text):
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("exit 0", "is no Python: it exited with code 0"),
        ("exit 7", "is no Python: it exited with code 7"),
        ("kill -9 $$", "is no Python: it was killed by SIGKILL"),
        ("sleep 100", "is no Python: it did nothing for 0.5 s"),
        ("while true; do echo y; done", "is no Python: it did nothing for 0.5 s"),
    ],
)
def test_a_program_that_is_no_python(tmp_path, spare, monkeypatch, text, says):
    monkeypatch.setattr(sessions, "START", 0.5)
    program = script(tmp_path, text)
    with Session(program, tmp_path, 2, 60, None) as session, pytest.raises(RefusalError) as caught:
        session.ask(protocol.Forget(), "starting")
    assert caught.value.refusal.code == "JP009"
    assert says in caught.value.refusal.reason
    assert str(program) in caught.value.refusal.reason
    assert list(spare.iterdir()) == []


def test_a_program_that_cannot_be_started(tmp_path, spare):
    program = tmp_path / "python"
    program.write_bytes(b"\x00\x01\x02")
    program.chmod(0o755)
    with pytest.raises(RefusalError) as caught:
        Session(program, tmp_path, 2, 60, None)
    assert caught.value.refusal.code == "JP009"
    assert list(spare.iterdir()) == []


@pytest.mark.usefixtures("fresh_interpreters")  # A fork starts sooner than any limit ends.
def test_a_time_limit_during_the_start(tmp_path, spare):
    with (
        Session(Path(sys.executable), tmp_path, 2, 0.05, None) as session,
        pytest.raises(RefusalError) as caught,
    ):
        session.ask(protocol.Forget(), "starting")
    assert caught.value.refusal.code == "JP010"
    assert list(spare.iterdir()) == []


def test_the_requests_of_a_step_keep_one_time_limit(tmp_path, spare):
    """Each ends well within it; no one of them is to blame."""
    step = ("looking for a plan", "Say what is divided (--shard NAME)")
    with (
        Session(Path(sys.executable), tmp_path, 2, 10, None) as session,
        pytest.raises(RefusalError) as caught,
    ):
        session.ask(protocol.Forget(), "starting")
        session.timeout = 0.5
        with session.within_limit(*step):
            while True:
                session.ask(protocol.Forget(), "starting over")
    refusal = caught.value.refusal
    assert refusal.code == "JP010"
    assert refusal.reason.startswith("looking for a plan did not end within the time limit of 0.5 s")
    assert refusal.hint.startswith("Say what is divided (--shard NAME), or allow more: --timeout 60")
    assert list(spare.iterdir()) == []


@LINUX
def test_closing_ends_everything_the_worker_started(tmp_path, spare):
    """Children, daemons and the folder; twice is once; and no descriptor stays open."""
    before = descriptors()
    text = "sleep 100 & setsid sleep 100 & echo started; wait"
    session = Session(script(tmp_path, text), tmp_path, 2, 60, None)
    while "started" not in session.output:
        time.sleep(0.01)
    mark = f"TMPDIR={spare}".encode()
    wait_for(lambda: len(holding(mark)) >= 3)
    session.close()
    session.close()
    wait_for(lambda: not holding(mark))
    assert list(spare.iterdir()) == []
    assert descriptors() == before


@LINUX
def test_a_worker_does_not_outlive_a_killed_generator(folder):
    code = (
        "import sys\nfrom pathlib import Path\nfrom jax_pmap.session import Session\n"
        "from jax_pmap.worker.protocol import Forget\n"
        f"session = Session(Path(sys.executable), Path({str(folder)!r}), 2, 60, None)\n"
        "session.ask(Forget(), 'greeting')\n"
        "print(session._process.pid, session._home.name, flush=True)\nimport time; time.sleep(100)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(sessions.__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    ) as generator:
        pid, home = generator.stdout.readline().split()
        generator.send_signal(signal.SIGKILL)
    wait_for(lambda: not holding(f"TMPDIR={home}".encode()))
    assert int(pid) > 0
    # Its folder goes with the next run, and no folder that somebody holds.
    held = Home()
    remove_left()
    assert not Path(home).exists()
    assert Path(held.name).exists()
    held.cleanup()
    assert not Path(held.name).exists()


def holding(mark):
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
