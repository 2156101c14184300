"""Whatever the user's file does: a message with a code, a place and a way out; nothing written or left."""

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

MODULE = """
import os, signal, subprocess, sys, time
import numpy as np
{body}

def double(x):
    return x * 2


def make(seed=0):
    return (np.random.default_rng(seed).normal(size=(24, 3)),)
"""
#: The line `{body}` stands at.
LINE = 3
TARGET = ("train.py::double", "--inputs", "train.py::make")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and Linux's memory limits")
#: What is about the process itself.
FRESH = pytest.mark.usefixtures("fresh_interpreters")


def module(body):
    return MODULE.format(body=textwrap.dedent(body).strip())


# --- modules that cannot be imported ------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("from jax.random import KeyArray as factor", "ImportError"),
        ("factor = np.load('no_data.npy')['x']", "FileNotFoundError"),
        ("factor = sys.exit(3)", "SystemExit: 3"),
        ("factor = input()", "EOFError"),
    ],
)
def test_a_module_that_fails_to_import(project, body, says):
    project.write("train.py", module(body).replace("x * 2", "x * factor"))
    result = project.refused("JP008", "gen", *TARGET, says=(f"`train.py` cannot be imported: {says}",))
    if "KeyArray" in body:
        assert "The installed `jax` has no `jax.random.KeyArray`: use `jax.Array`" in result.words
    assert f"train.py:{LINE}:" in result.stderr
    assert f"{LINE} | {body}" in result.stderr
    assert f"`double` needs it: double → factor (line {LINE})" in result.words
    # Their traceback, with their frames alone.
    assert "Traceback (most recent call last):" in result.stderr
    frames = re.findall(r'File "(.+)", line (\d+)', result.stderr)
    assert (str(project.folder / "train.py"), str(LINE)) == frames[0]
    assert all("site-packages" in file for file, _ in frames[1:])


def test_an_exception_that_cannot_be_shown(project):
    project.write(
        "train.py",
        module(
            "class Odd(Exception):\n    def __str__(self): raise ValueError\n"
            "def factor(x=(_ for _ in ()).throw(Odd)): return x"
        ).replace("x * 2", "factor(x)"),
    )
    project.refused("JP008", "gen", *TARGET, says=("Odd: (its message cannot be shown)", "train.py:5:"))


@FRESH
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("os._exit(3)", "exited with code 3 while importing `train.py`"),
        ("os._exit(0)", "exited with code 0 while importing `train.py`"),
        ("import ctypes; ctypes.string_at(0)", "was killed by SIGSEGV"),
    ],
)
def test_a_module_that_ends_the_process(project, body, says):
    project.write("train.py", module(body))
    project.refused("JP012", "gen", *TARGET, says=(says, f"train.py:{LINE}:"))


@FRESH
def test_devices_that_wait_for_others(project, monkeypatch):
    """A loop that each device leaves when its own rows say so, with a mean over devices in it."""
    project.write(
        "waits.py",
        """
        import functools

        import jax
        import jax.numpy as jnp


        def until(w, x, mean=lambda number: number):
            return jax.lax.while_loop(lambda w: jnp.mean(x @ w) < 3, lambda w: mean(1.1 * w), w)


        def step(w, x):
            return until(w, x)


        @functools.partial(jax.pmap, axis_name="i", in_axes=(None, 0))
        def p_step(w, x):
            return until(w, x, lambda w: jax.lax.pmean(w, "i"))


        def inputs():
            return jnp.ones(2), jnp.linspace(0.1, 2.0, 48).reshape(24, 2)
        """,
    )
    seconds = "--xla_cpu_collective_call_{}_timeout_seconds={}"
    monkeypatch.setenv("XLA_FLAGS", f"{seconds.format('warn_stuck', 1)} {seconds.format('terminate', 3)}")
    words = ("waits.py::p_step", "--against", "waits.py::step", "--inputs", "waits.py::inputs")
    project.refused("JP012", "verify", *words, says=("waited for each other", "lax.pmean"), exit_code=2)


@FRESH
def test_a_module_that_closes_what_is_not_its_own(project):
    project.write("train.py", module("os.closerange(3, 256)"))
    project.refused("JP012", "gen", *TARGET, says=("lost its connection", "`train.py`", "file descriptors"))


@FRESH
@LINUX
def test_an_end_that_a_child_outlives_is_seen(project):
    project.write("train.py", module("if os.fork() == 0: time.sleep(1000)\nos._exit(5)"))
    project.refused("JP012", "gen", *TARGET, says=("exited with code 5", f"train.py:{LINE + 1}:"))


# --- limits -------------------------------------------------------------------------------


@FRESH
def test_a_module_that_never_ends(project):
    """Nor heeds signals, nor is silent, nor alone."""
    body = """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True)
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
        while True: print("still here" * 1000, end=" "), time.sleep(0.01)
    """
    project.write("train.py", module(body))
    says = ("importing `train.py` did not end within the time limit of 5 s", "--timeout", "still here")
    result = project.refused("JP010", "gen", *TARGET, "--timeout", "5", says=says)
    assert f"train.py:{LINE + 4}:" in result.stderr
    assert len(result.stderr) < 10_000


def test_a_function_that_never_ends(project):
    project.write(
        "train.py", module("") + "\n\ndef spin(x):\n    while True:\n        time.sleep(0.01)\n    return x\n"
    )
    words = ("train.py::spin", "--inputs", "train.py::make", "--timeout", "8")
    result = project.refused("JP010", "gen", *words, says=("tracing the function did not end",))
    assert re.search(r"train\.py:1[45]:", result.stderr)


@FRESH
@LINUX
@pytest.mark.parametrize(
    "body",
    [
        "x = [0]\nwhile True: x += x",
        "x = []\nwhile True: x.append(np.ones(10**6))",
        "import jax.numpy as jnp; x = []\nwhile True: x.append(jnp.ones(10**7))",
    ],
    ids=["list", "numpy", "jax"],
)
def test_a_module_that_allocates_without_end(project, body):
    project.write("train.py", module(body))
    says = ("importing `train.py` needs more than the memory limit of 1 GiB", "--memory 4G")
    result = project.refused("JP011", "gen", *TARGET, "--memory", "1G", says=says)
    assert f"train.py:{LINE + 1}:" in result.stderr


@FRESH
@LINUX
def test_a_function_that_allocates_without_end(project):
    hog = "\n\ndef hog(x):\n    kept = []\n    while True: kept.append(np.ones(10**7))\n"
    project.write("train.py", module("") + hog)
    words = ("train.py::hog", "--inputs", "train.py::make", "--memory", "1G")
    project.refused("JP011", "gen", *words, says=("tracing the function", "1 GiB", "train.py:15:"))


# --- modules that are a nuisance and work -------------------------------------------------


@FRESH
@pytest.mark.parametrize(
    "body",
    [
        """
        print("HELLO"); sys.stderr.write("HELLO"); os.write(1, b"HELLO")
        os.close(0); os.close(1); os.close(2)
        """,
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True)
        child = os.fork() if hasattr(os, "fork") else 1
        if child == 0: time.sleep(100)
        again = os.fork() if hasattr(os, "fork") else 1
        sys.stdout = sys.stderr = None
        os.chdir("/")
        """,
        """
        import jax, jax.numpy as jnp
        assert len(jax.devices()) >= 8, jax.devices()
        table = jnp.ones((3,)) @ jnp.ones((3,))
        jax.config.update("jax_platforms", "cuda")
        jax.config.update("jax_num_cpu_devices", 2)
        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_disable_jit", True)
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
        os.environ["JAX_PLATFORMS"] = "tpu"
        """,
        """
        import atexit, builtins
        for name in list(sys.modules):
            if name.partition(".")[0] not in ("sys", "builtins", "jax", "jaxlib", "numpy", "train"):
                del sys.modules[name]
        sys.modules["json"] = sys.modules["traceback"] = sys.modules["tempfile"] = None
        sys.excepthook = builtins.print = None
        atexit.register(time.sleep, 100)
        sys.setrecursionlimit(3000)
        """,
    ],
    ids=[
        "prints and closes its streams",
        "signals, daemons and children",
        "jax already initialised",
        "modules taken away",
    ],
)
def test_a_module_that_is_a_nuisance(project, body):
    project.write("train.py", module(body))
    result = project.run("gen", *TARGET)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("# Generated by jax-pmap")
    assert "HELLO" not in result.stdout
    compile(result.stdout, "train_pmap.py", "exec")
    assert "run on 3, 8 devices" in result.stderr


def test_broken_use_of_jax_beside_the_target_is_left_out(project):
    """What people come with: the decorator form of pmap fails at import, the target does not need it."""
    body = "import jax, functools\n@jax.pmap(axis_name='batch')\ndef mean(x):\n    return x"
    project.write("train.py", module(body))
    result = project.run("plan", *TARGET)
    assert result.exit_code == 0, result.stderr
    assert "cannot be imported (line 4)" in result.stdout + result.words


# --- example inputs -----------------------------------------------------------------------

INPUTS = """
import jax.numpy as jnp
import numpy as np


def scale(x, y):
    return x * y


def few(): return (np.ones((24, 3)),)
def generator(): yield np.ones(3)
def raising(): raise KeyError("no such split")
def strings(): return "a", "b"
def nones(): return None, None
def functions(): return print, len
def unlike(): return np.ones((24, 2)), np.ones((20, 2))
def scalars(): return 1.0, 2.0
def small(): return np.full((3, 2), 2.0), np.full((3, 2), 3.0)
def thirty(seed): return tuple(np.random.default_rng(seed).normal(size=(2, 30, 2)))
"""


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ("train.py::few", ("missing a required argument: 'y'", "as a tuple, (x, y)", "train.py:5:")),
        ("train.py::generator", ("it returns a generator", "as a tuple, (x, y)", "train.py:5:")),
        ("train.py::raising", ("KeyError: 'no such split'", "train.py:11:", "Correct it")),
        ("train.py::nowhere", ("there is no `nowhere` in it", "`few`, `generator`")),
        ("train.py::generater", ("there is no `generater` in it", "Did you mean `generator`?", "(x, y)")),
        ("nowhere:make", ("cannot be imported", "No module named 'nowhere'")),
    ],
)
def test_inputs_that_cannot_be_had(project, inputs, says):
    """The other ways not to get them are in test_worker.py, on one worker."""
    project.write("train.py", INPUTS)
    project.refused("JP013", "plan", "train.py::scale", "--inputs", inputs, says=(f"`{inputs}`", *says))


def test_inputs_that_need_more_of_a_module_that_fails(project):
    project.write("old.py", "import jax\n\njax.numpy.no_such_name\n")
    project.write("train.py", "import jax.numpy as jnp\nimport old\n\n\ndef scale(x):\n    return 2 * x\n")
    project.write("given.py", "import train\n\nSCALE = train.scale\n\n\ndef make(): return (1.0,)\n")
    says = (
        "no attribute 'scale'",
        "`train.py` cannot be imported (line 2)",
        "no_such_name",
        "Correct `train.py`",
    )
    project.refused("JP013", "plan", "train.py::scale", "--inputs", "given.py::make", says=says)


@pytest.mark.parametrize(
    ("inputs", "code", "exit_code", "says"),
    [
        ("strings", "JP015", 2, ("can't multiply sequence", "train.py:6:")),
        ("nones", "JP015", 2, ("'NoneType' and 'NoneType'", "train.py:6:")),
        ("functions", "JP015", 2, ("builtin_function_or_method", "train.py:6:")),
        ("unlike", "JP015", 2, ("(24, 2), (20, 2)", "train.py:6:")),
        ("scalars", "JP040", 1, ("`scale`", "scalars (x (), y ())", "vmap")),
    ],
)
def test_inputs_the_function_cannot_use(project, inputs, code, exit_code, says):
    project.write("train.py", INPUTS)
    words = ("gen", "train.py::scale", "--inputs", f"train.py::{inputs}")
    project.refused(code, *words, says=says, exit_code=exit_code)


def test_a_batch_that_does_not_divide(project):
    project.write("train.py", INPUTS)
    words = ("gen", "train.py::scale", "--inputs", "train.py::thirty", "--devices", "4")
    says = ("`x` has shape (30, 2)", "batch of 30 does not divide over 4 devices", "batch of 28 or 32")
    project.refused("JP041", *words, says=says, exit_code=1)


@pytest.mark.parametrize("option", [("--devices", "5"), ("--mesh", "batch=5", "--backend", "jit")])
def test_another_axis_that_divides_is_not_the_batch(project, option):
    code = "import jax.numpy as jnp\n\n\ndef f(w, x):\n    return jnp.sum(w**2) + jnp.mean(x)\n"
    project.write("train.py", code)
    words = ("gen", "train.py::f", "--arg", "w=f32[10]", "--arg", "x=f32[24]", *option)
    project.refused("JP041", *words, says=("its batch of 24 does not divide over 5 devices",), exit_code=1)


# --- functions ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ("x, 'done'", ("`result[1]` is a str",)),
        ("{'loss': x, 'update': np.sin}", ("`result['update']` is a ufunc",)),
        ("lambda: x", ("`result` is a function",)),
    ],
)
def test_results_that_are_no_arrays(project, returned, says):
    project.write("train.py", module("").replace("x * 2", returned))
    project.refused("JP044", "gen", *TARGET, says=(*says, "train.py:5:"), exit_code=1)


def test_a_function_that_fails_once_it_runs(project):
    later = "def later(x):\n    assert next(CALLS) < 1, 'again'\n    return x\n"
    project.write("train.py", module("import itertools\n\nCALLS = itertools.count()") + "\n\n" + later)
    words = ("gen", "train.py::later", "--inputs", "train.py::make")
    project.refused("JP015", *words, says=("AssertionError: again", "train.py:16:"))


@pytest.mark.parametrize("decorator", ["", "@jax.jit"])
def test_a_function_that_keeps_arrays_of_its_trace(project, decorator):
    """jax raises where such a function is traced again; a trace holds an array of the one before."""
    body = f"""
        import functools, jax, jax.numpy as jnp

        @functools.cache
        def weights(rows): return jnp.arange(rows) / rows

        {decorator}
        def weighted(x): return jnp.sum(x[:, 0] * weights(len(x)))
    """
    project.write("train.py", module(body))
    words = ("gen", "train.py::weighted", "--inputs", "train.py::make")
    project.refused("JP015", *words, says=("UnexpectedTracerError", "functools.cache", "NumPy"))


def test_a_callback_that_fails(project):
    body = """
        import jax
        def boom(x): raise ValueError("in the callback")
        def call(x): return jax.pure_callback(boom, x, x)
    """
    project.write("train.py", module(body).replace("x * 2", "call(x)"))
    result = project.refused("JP015", "gen", *TARGET, says=("ValueError: in the callback",))
    assert "boot.py" not in result.stderr


@pytest.mark.parametrize("decorator", ["mystery", "mystery(3)"])
def test_a_decorator_nobody_knows(project, decorator):
    project.write(
        "train.py", module("from tools import mystery").replace("def double", f"@{decorator}\ndef double")
    )
    says = (f"`@{decorator}`", "`double`", "train.py:5:2")
    project.refused("JP042", "gen", *TARGET, says=says, exit_code=1)


# --- where to write -----------------------------------------------------------------------


def edited(path):
    path.write_text("# mine\nLEARNING_RATE = 0.1\n")


def generated_and_edited(path):
    from jax_pmap.files import seal

    path.write_text(seal("# Generated by jax-pmap 0.1.0.\nx = 1\n") + "y = 2\n")


def read_only(path):
    from jax_pmap.files import seal

    path.write_text(seal("# Generated by jax-pmap 0.1.0.\nx = 1\n"))
    path.chmod(0o444)


@pytest.mark.parametrize(
    ("prepare", "output", "says"),
    [
        (Path.mkdir, "out", ("`out` is a folder", "out/NAME.py")),
        (edited, "out.py", ("`out.py` is there already", "--force")),
        (generated_and_edited, "out.py", ("`out.py` was edited by hand", "--force")),
        (read_only, "out.py", ("`out.py` is read-only", "chmod u+w")),
        (None, "missing/out.py", ("The folder `missing` does not exist", "mkdir -p missing")),
        (None, "train.py/out.py", ("`train.py` is not a folder",)),
        (None, "/dev/null", ("not a regular file",)),
    ],
)
def test_an_output_that_cannot_be_written(project, prepare, output, says):
    """Refused before the work: the module, which would not import, is not even tried."""
    project.write("train.py", module("raise RuntimeError"))
    if prepare is not None:
        prepare(project.folder / output)
    project.refused("JP016", "gen", *TARGET, "-o", output, says=says)


@pytest.mark.parametrize("how", ["--force", "--diff"])
def test_the_file_of_the_target_is_never_the_output(project, how):
    project.write("train.py", module("raise RuntimeError"))
    before = (project.folder / "train.py").read_text()
    says = ("`train.py` holds `double` itself", "--in-place", "-o train_pmap.py")
    project.refused("JP016", "gen", *TARGET, "-o", "./train.py", how, says=says)
    assert (project.folder / "train.py").read_text() == before


# --- interpreters -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A Python without jax."""
    folder = tmp_path_factory.mktemp("bare") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder


def test_an_interpreter_without_jax(project, bare):
    project.write("train.py", module(""))
    project.options = []
    says = (str(bare), "`import jax` fails", "-m pip install jax", "--python PATH")
    project.refused("JP009", "gen", *TARGET, "--python", str(bare), says=says)


def test_a_jax_that_is_too_old(project, bare):
    (packages,) = bare.glob("lib/python*/site-packages")
    (packages / "numpy.py").touch()
    (packages / "jax.py").write_text('__version__ = "0.5.3"\n')
    project.write("train.py", module(""))
    project.options = []
    says = ("jax 0.5.3 is older than 0.6.2", "-m pip install --upgrade jax", "--python PATH")
    project.refused("JP009", "gen", *TARGET, "--python", str(bare), says=says)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("exit 3", ("is no Python: it exited with code 3",)),
        ("echo usage: tool [options]; exit 1", ("is no Python", "usage: tool [options]")),
    ],
)
def test_a_program_that_is_no_interpreter(project, script, says):
    project.write("train.py", module(""))
    tool = project.write("tool", f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    project.options = []
    project.refused("JP009", "gen", *TARGET, "--python", "./tool", says=("tool`", *says))


@pytest.mark.parametrize("path", ["nowhere/python", "train.py", "."])
def test_an_interpreter_that_is_not_there(project, path):
    project.write("train.py", module(""))
    project.options = []
    says = ("--python", path if path != "train.py" else "is not executable")
    project.refused("JP009", "gen", *TARGET, "--python", path, says=says)


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.8", "3.9"])
def test_a_python_that_is_too_old(project, version):
    variable = f"PYTHON{version.replace('.', '')}"
    python = os.environ.get(variable) or shutil.which(f"python{version}")
    # A shim may stand on PATH for a version that is not there.
    if python is None or subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode:
        pytest.skip(f"no python{version} on PATH, and ${variable} names none")
    project.write("train.py", module(""))
    project.options = []
    says = (f"Python {version}.", "is older than 3.10", "--python")
    project.refused("JP009", "gen", *TARGET, "--python", python, says=says)


# --- ended from outside -------------------------------------------------------------------


@LINUX
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_from_outside(project, repository, number):
    project.write("train.py", module("open('here', 'w').close()\nwhile True: time.sleep(1)"))
    process = subprocess.Popen(
        [sys.executable, "-m", "jax_pmap", "gen", *TARGET],
        env={**os.environ, "TMPDIR": str(project.spare), "PYTHONPATH": str(repository / "generator")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        wait_for(lambda: (project.folder / "here").exists())
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=30)
    assert stdout == ""
    assert "Traceback" not in stderr
    assert process.returncode in (128 + number, -number)
    wait_for(lambda: not project.processes())
    assert number == signal.SIGKILL or list(project.spare.iterdir()) == []


def wait_for(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
