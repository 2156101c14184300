"""The command line without a worker: help, options, streams, exit codes.

What needs an answer of the pipeline is given a real record in its place, because observing and proving have
tests of their own.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import jax_pmap
from jax_pmap import options as read
from jax_pmap.cli import main
from jax_pmap.model import (
    Argument,
    Backend,
    Check,
    Devices,
    Evidence,
    Generated,
    Leaf,
    ParameterKind,
    Plan,
    Refusal,
    RefusalError,
    Request,
    Role,
)

SOURCE_ROOT = Path(jax_pmap.__file__).parents[1]
LEAF = Leaf("x", Role.BATCH, 0, (24,), "float32")
PLAN = Plan(
    "ops.py::f", "batch", (Argument("x", ParameterKind.POSITIONAL_OR_KEYWORD, 0, (LEAF,)),), (), 0, (LEAF,)
)
EVIDENCE = Evidence((Check(2, "float64", 24, 2, 0.0, 1e-15),), "0.10.2", "3.11.9", True)
CODE = '"""Naïve → code."""\n\nimport jax\n'
GENERATED = Generated(CODE, PLAN, Backend.PMAP, EVIDENCE)
REFUSED = Refusal("JP043", "`jnp.sort` runs along the batch.", "Sort along another axis.")


class Pipeline:
    """Stands where `jax_pmap.pipeline` is: records the requests, says two notes, gives one answer."""

    def __init__(self, answer):
        self.answer = answer
        self.requests = []

    def generate(self, request, say):
        self.requests.append(request)
        say("loading: train.py")
        say("planning: tracing on 2 devices")
        say("loading: train.py")
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    make_plan = generate


@pytest.fixture
def invoke(monkeypatch, tmp_path):
    """Run the real command with a given answer of the pipeline, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*words, answer=GENERATED):
        pipeline = Pipeline(answer)
        monkeypatch.setitem(sys.modules, "jax_pmap.pipeline", pipeline)
        result = CliRunner().invoke(main, list(words), prog_name="jax-pmap")
        result.requests = pipeline.requests
        return result

    return run


def shell(*words, env=None, **kwargs):
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    environment |= {"PYTHONPATH": str(SOURCE_ROOT), **(env or {})}
    command = [sys.executable, "-m", "jax_pmap", *words]
    return subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False, **kwargs)


# --- help and version ---------------------------------------------------------------------


def test_version():
    result = shell("--version")
    assert (result.returncode, result.stderr) == (0, b"")
    assert re.fullmatch(rb"jax-pmap \d+\.\d+\.\d+\S*\n", result.stdout)
    assert result.stdout.decode().split()[1] == jax_pmap.__version__


def test_version_is_a_command_too(invoke):
    assert invoke("version").stdout == invoke("--version").stdout


@pytest.mark.parametrize(
    "words", [["--version"], ["--help"], ["gen", "--help"], ["explain", "JP043"], ["gen", "no.py::f"]]
)
def test_start_is_light(words):
    """No heavy module is loaded before it is needed."""
    code = (
        "import sys; sys.argv = ['jax-pmap', *sys.argv[1:]]\n"
        "from jax_pmap.cli import main\n"
        "try:\n    main()\n"
        "finally:\n"
        "    heavy = {'libcst', 'jinja2', 'black', 'rich.console', 'jax', 'numpy'} & set(sys.modules)\n"
        "    assert not heavy, heavy\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE_ROOT)}
    command = [sys.executable, "-c", code, *words]
    result = subprocess.run(command, env=environment, capture_output=True, check=False, text=True)
    assert result.returncode == (2 if "no.py::f" in words else 0), result.stderr


def test_a_plain_report_is_light(tmp_path):
    """The parts of rich that take long to import are for the progress line of a terminal."""
    (tmp_path / "m.py").write_text("import jax.numpy as jnp\ndef f(x: 'f32[24]'):\n    return jnp.mean(x)\n")
    code = (
        f"import sys; sys.argv = ['jax-pmap', 'gen', 'm.py::f', '--python', {sys.executable!r}, '--no-run']\n"
        "from jax_pmap.cli import main\n"
        "try:\n    main()\n"
        "finally:\n"
        "    heavy = {'rich.console', 'rich.table', 'rich.text', 'importlib.metadata'} & set(sys.modules)\n"
        "    assert not heavy, heavy\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE_ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        check=False,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert "derived for all inputs and device counts" in result.stderr


@pytest.mark.parametrize("command", [[], ["gen"], ["plan"], ["explain"]])
@pytest.mark.parametrize("columns", [50, 80])
def test_help_fits(command, columns):
    result = CliRunner().invoke(main, [*command, "--help"], prog_name="jax-pmap", terminal_width=columns)
    assert (result.exit_code, result.stderr) == (0, "")
    assert max(map(len, result.stdout.splitlines())) <= columns
    assert "Examples:\n" in result.stdout


def test_help_names_every_field_of_the_request():
    text = CliRunner().invoke(main, ["gen", "--help"]).stdout
    names = {"args": "arg", "helpers": "helper", "run_code": "no-run", "topology": "target"}
    # `--backend auto` is `choose`.
    inside = {"target", "directory", "command", "instead", "choose"}
    for field in set(Request.__dataclass_fields__) - inside:
        assert f"--{names.get(field, field).replace('_', '-')}" in text


def test_no_command_prints_help():
    result = CliRunner().invoke(main, [])
    assert result.exit_code == 2
    assert "Usage:" in result.output


# --- option values ------------------------------------------------------------------------


def test_plain_command_asks_with_defaults(invoke, tmp_path):
    result = invoke("gen", "ops.py::f")
    assert result.requests == [Request("ops.py::f", directory=tmp_path, command="jax-pmap gen ops.py::f")]


def test_every_option_reaches_the_request(invoke, tmp_path):
    words = (
        "gen f --axis-name data --devices 0,2 --backend jit --inputs a.py::g --arg x=f32[8] --arg y=3 "
        "--shard x:1 --replicate y --static mode --key rng --donate s --helper place --helper devices "
        "--python /py --timeout 2.5 --memory 8G --no-run --plan p.json -q -v --no-color"
    )
    command = (
        "jax-pmap gen f --axis-name data --devices 0,2 --inputs a.py::g --plan p.json --backend jit "
        "--arg 'x=f32[8]' --arg y=3 --shard x:1 --replicate y --static mode --key rng --donate s "
        "--helper place --helper devices --no-run"
    )
    assert invoke(*words.split()).requests == [
        Request(
            "f",
            axis_name="data",
            devices=Devices(ids=(0, 2)),
            backend=Backend.JIT,
            inputs="a.py::g",
            args=("x=f32[8]", "y=3"),
            shard=("x:1",),
            replicate=("y",),
            static=("mode",),
            key=("rng",),
            donate=("s",),
            helpers=("place", "devices"),
            python=Path("/py"),
            timeout=2.5,
            memory=8 * 2**30,
            run_code=False,
            plan=Path("p.json"),
            directory=tmp_path,
            command=command,
        )
    ]


def test_one_colon_behind_a_file_is_read_as_two(invoke):
    for words in (["gen", "a/b.py:f", "--inputs", "c.py:g"], ["gen", "a/b.py::f", "--inputs", "c.py::g"]):
        (request,) = invoke(*words).requests
        assert (request.target, request.inputs) == ("a/b.py::f", "c.py::g")
    (request,) = invoke("gen", "pkg.py.m:f").requests
    assert request.target == "pkg.py.m:f"


@pytest.mark.parametrize(
    ("target", "inputs"), [("a/b.py::M.f", "a/b.py::make"), ("a.b:f", "a.b:make"), ("f", "make")]
)
def test_inputs_by_name_alone_are_of_the_same_file(invoke, target, inputs):
    (request,) = invoke("gen", target, "--inputs", "make").requests
    assert request.inputs == inputs


def test_command_line_reads_back(invoke):
    """The header's command, run again, asks the same question."""
    import shlex

    first = invoke("gen", "a b.py::f", "--arg", "x={a: f32[8]}", "--shard", "x['a']:0", "--devices", "2,")
    again = invoke(*shlex.split(first.requests[0].command)[1:])
    assert again.requests == first.requests


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        (None, Devices()),
        ("4", Devices(count=4)),
        ("0,2,4", Devices(ids=(0, 2, 4))),
        ("2,", Devices(ids=(2,))),
        ("0, 1", Devices(ids=(0, 1))),
    ],
)
def test_devices(text, devices):
    assert read.devices(text) == devices


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("8G", 8 * 2**30),
        ("512MiB", 512 * 2**20),
        ("1.5 gb", 3 * 2**29),
        ("2T", 2**41),
        (None, None),
    ],
)
def test_memory(text, size):
    assert read.memory(text) == size


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("x", ("x", 0)),
        ("tokens:1", ("tokens", 1)),
        ("b['a:1']", ("b['a:1']", 0)),
        ("b['a']:2", ("b['a']", 2)),
    ],
)
def test_shard(text, parts):
    assert read.split_shard(text) == parts


BAD = [
    *(
        ("--devices", value)
        for value in ("0", "-1", "a", "", ",", "0-3", "1,1", "1,,2", "0,x", "4.0", "²", "9" * 5000)
    ),
    *(("--axis-name", value) for value in ("", "a b", "a-b", "1a", "a'b")),
    *(("--backend", value) for value in ("", "pmpa", "PMAP", "vmap")),
    *(("--timeout", value) for value in ("0", "-1", "nan", "inf", "x", "")),
    *(("--memory", value) for value in ("0", "-1G", "8X", "G", "", "1e9", "9" * 400 + "T")),
    *(("--helper", value) for value in ("plcae", "")),
    *(("--shard", value) for value in ("", "x:", "x:-1", "x:a", ":0", "x:²")),
    *((f"--{role}", "") for role in ("replicate", "static", "key")),
]


@pytest.mark.parametrize(("option", "value"), BAD)
def test_bad_value(invoke, option, value):
    result = invoke("gen", "f", option, value)
    assert (result.exit_code, result.stdout, result.requests) == (2, "", [])
    assert result.stderr.startswith(f"error[JP018]: `{option}")
    assert "hint: " in result.stderr


def test_bad_value_suggests_the_nearest(invoke):
    assert "Did you mean `--backend pmap`?" in invoke("gen", "f", "--backend", "pmpa").stderr


@pytest.mark.parametrize(
    "words",
    [["--shard", "x:0", "--replicate", "x"], ["--diff"], ["--force"]],
)
def test_options_that_contradict(invoke, words):
    result = invoke("gen", "f", *words)
    assert (result.exit_code, result.stdout, result.requests) == (2, "", [])
    assert result.stderr.startswith("error[JP018]")


def test_bad_value_as_json(invoke):
    result = invoke("plan", "f", "--devices", "x", "--output-format", "json")
    assert (result.exit_code, result.stderr) == (2, "")
    document = json.loads(result.stdout)
    assert (document["status"], document["refusal"]["code"]) == ("refused", "JP018")


def test_unknown_option_and_command(invoke):
    result = invoke("gen", "f", "--devces", "4")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--devices" in result.stderr
    assert invoke("genn", "f").exit_code == 2
    assert "jax-pmap gen train.py::f" in invoke("train.py::f").stderr
    assert invoke("gen").exit_code == 2
    assert invoke("gen", "f", "g").exit_code == 2


def test_an_option_is_no_value_of_the_one_before(invoke):
    result = invoke("gen", "f", "--axis-name", "--devices", "4")
    assert (result.exit_code, result.requests) == (2, [])
    assert "'--axis-name' requires an argument, and '--devices' is an option" in result.stderr


# --- streams and exit codes ---------------------------------------------------------------


def test_code_to_stdout_report_to_stderr(invoke):
    result = invoke("gen", "f")
    assert (result.exit_code, result.stdout_bytes.decode()) == (0, CODE)
    assert "proved on 2 devices" in result.stderr
    assert "\x1b" not in result.stderr


def test_plan_table_goes_to_stderr(invoke):
    result = invoke("plan", "f", answer=PLAN)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "batch axis 0" in result.stderr


def test_quiet_prints_the_code_alone(invoke):
    assert invoke("gen", "f", "-q").stderr == ""
    assert "error[JP043]" in invoke("gen", "f", "-q", answer=REFUSED).stderr


def test_verbose_prints_progress(invoke):
    told = invoke("gen", "f", "-v").stderr
    assert re.search(r"^jax-pmap: +\d+\.\d s  planning: tracing on 2 devices$", told, re.M)
    assert told.splitlines()[-1].startswith("jax-pmap: starting ")
    assert "planning" not in invoke("gen", "f").stderr


def test_the_time_of_every_stage_is_told(invoke):
    """Parts of one stage count together; under -v the last line has what the JSON has."""
    result = invoke("gen", "f", "-v", "--output-format", "json")
    stages = json.loads(result.stdout)["stages"]
    assert [each["stage"] for each in stages] == ["starting", "loading", "planning"]
    last = re.findall(r"(\w+) (\d+\.\d) s", invoke("gen", "f", "-v").stderr.splitlines()[-1])
    assert [name for name, _ in last] == ["starting", "loading", "planning"]
    refused = invoke("gen", "f", "--output-format", "json", answer=REFUSED)
    assert "planning" in {each["stage"] for each in json.loads(refused.stdout)["stages"]}


@pytest.mark.parametrize(("code", "status"), [("JP043", 1), ("JP008", 2)])
def test_refusal(invoke, code, status):
    refusal = Refusal(code, "No.", "Do.")
    for answer in (refusal, RefusalError(refusal)):
        result = invoke("gen", "f", "-o", "out.py", answer=answer)
        assert (result.exit_code, result.stdout) == (status, "")
        assert result.stderr.startswith(f"error[{code}]: No.\n")
        assert not Path("out.py").exists()


@pytest.mark.parametrize(
    ("command", "answer", "status"),
    [
        ("gen", GENERATED, "proved"),
        ("gen", REFUSED, "refused"),
        ("plan", PLAN, "planned"),
        ("plan", REFUSED, "refused"),
    ],
)
def test_json_is_the_only_output(invoke, command, answer, status):
    result = invoke(command, "f", "--output-format", "json", answer=answer)
    assert result.stderr == ""
    document = json.loads(result.stdout)
    assert (document["status"], document["schema_version"], document["target"]) == (status, 2, "f")
    assert document["code"] == (CODE if answer is GENERATED else None)


def test_diff_writes_nothing(invoke, tmp_path):
    old = '"""Old."""\n\nimport jax\n'
    (tmp_path / "out.py").write_text(old)
    result = invoke("gen", "f", "-o", "out.py", "--diff")
    assert result.exit_code == 0
    assert result.stdout.startswith("--- a/out.py\n+++ b/out.py\n")
    assert '-"""Old."""\n+"""Naïve → code."""\n' in result.stdout
    assert (tmp_path / "out.py").read_text() == old
    document = json.loads(invoke("gen", "f", "-o", "out.py", "--diff", "--output-format", "json").stdout)
    assert document["diff"] == result.stdout
    assert document["output"] is None


def test_output_file(invoke, tmp_path):
    result = invoke("gen", "f", "-o", "out.py")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.endswith("wrote out.py\n")
    assert (tmp_path / "out.py").read_text(encoding="utf-8") == CODE
    assert "up to date" in invoke("gen", "f", "-o", "out.py", "--diff").stderr
    document = json.loads(invoke("gen", "f", "-o", "out.py", "--force", "--output-format", "json").stdout)
    assert document["output"] == "out.py"


def test_a_dash_is_stdout(invoke, tmp_path):
    result = invoke("gen", "f", "-o", "-")
    assert (result.exit_code, result.stdout) == (0, CODE)
    assert "wrote" not in result.stderr and not (tmp_path / "-").exists()


def test_output_that_cannot_be_written(invoke, tmp_path):
    (tmp_path / "folder").mkdir()
    for path in ("folder", "missing/out.py"):
        result = invoke("gen", "f", "-o", path)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "error[JP016]" in result.stderr


# --- our own bugs, interruption, closed pipes ---------------------------------------------


def test_a_bug_is_one_line_without_verbose(invoke):
    result = invoke("gen", "f", answer=ZeroDivisionError("two\nlines"))
    assert (result.exit_code, result.stdout) == (70, "")
    assert result.stderr.count("\n") == 1
    assert "this is a bug in jax-pmap (ZeroDivisionError: two lines)" in result.stderr


def test_a_bug_shows_its_traceback_under_verbose(invoke):
    result = invoke("gen", "f", "-v", answer=ZeroDivisionError("x"))
    assert result.exit_code == 70
    assert "Traceback (most recent call last):" in result.stderr


def test_interrupt(invoke):
    result = invoke("gen", "f", answer=KeyboardInterrupt())
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr.strip() == "jax-pmap: interrupted"


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_interrupt_from_the_keyboard():
    code = (
        "import sys, time, types\n"
        "def generate(request, say):\n    print('ready', file=sys.stderr, flush=True)\n    time.sleep(60)\n"
        "sys.modules['jax_pmap.pipeline'] = types.SimpleNamespace(generate=generate)\n"
        "from jax_pmap.cli import main\nmain(['gen', 'f'])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE_ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stderr.readline() == "ready\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stderr.strip() == "jax-pmap: interrupted"


def test_an_environment_that_lacks_a_package_is_said_so():
    code = "import sys\nsys.modules['click'] = None\nfrom jax_pmap.__main__ import main\nmain()\n"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE_ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("jax-pmap is not installed as it should be: ")
    assert "click" in done.stderr.splitlines()[0]


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_interrupt_while_the_command_line_is_imported():
    code = (
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'click':\n            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from jax_pmap.__main__ import main\nmain()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE_ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "jax-pmap: interrupted\n")


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
@pytest.mark.parametrize("words", [["explain"], ["explain", "JP043"], ["gen", "--help"]])
def test_a_reader_that_went_away_is_no_error(words):
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE_ROOT)}
    command = [sys.executable, "-m", "jax_pmap", *words]
    try:
        result = subprocess.run(
            command, env=environment, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False
        )
    finally:
        os.close(writer)
    assert result.stderr == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said():
    with Path("/dev/full").open("wb") as full:
        environment = {**os.environ, "PYTHONPATH": str(SOURCE_ROOT)}
        command = [sys.executable, "-m", "jax_pmap", "plan", "f", "--devices", "x", "--output-format", "json"]
        result = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, check=False)
    assert result.returncode == 2
    assert b"error[JP016]: Standard output cannot be written: No space left" in result.stderr
    assert b"Exception ignored" not in result.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["--help"], ["explain", "JP043"], ["check", "wrong.py"]])
def test_a_full_disk_is_no_bug_in_any_command(tmp_path, words):
    (tmp_path / "wrong.py").write_text("import jax\n\nstep = jax.pmap(axis_name='i')\n")
    environment = {**os.environ, "PYTHONPATH": str(SOURCE_ROOT)}
    command = [sys.executable, "-m", "jax_pmap", *words]
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            command, cwd=tmp_path, env=environment, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (result.returncode, b"error[JP016]: Standard output cannot" in result.stderr) == (2, True)


@pytest.mark.skipif(not Path("/bin/sh").exists(), reason="needs a shell")
def test_streams_may_be_closed():
    def closed(how, *words):
        command = f'exec "$0" -m jax_pmap "$@" {how}'
        environment = {**os.environ, "PYTHONPATH": str(SOURCE_ROOT)}
        shell = ["/bin/sh", "-c", command, sys.executable, *words]
        return subprocess.run(shell, env=environment, capture_output=True, timeout=60, check=False)

    assert closed("2>&- <&-", "explain", "JP043").stdout.startswith(b"JP043")
    result = closed(">&-", "explain", "JP043")
    assert (result.returncode, b"error[JP016]: Standard output" in result.stderr) == (2, True)


@pytest.mark.parametrize("words", [["gen", "--help"], ["--help"], ["explain"], ["explain", "JP043"]])
def test_help_needs_no_unicode(words):
    result = shell(*words, env={"PYTHONIOENCODING": "ascii"})
    assert (result.returncode, result.stderr) == (0, b"")


def test_stdout_is_utf8_in_every_locale():
    result = shell("gen", "f", "--devices", "→", "--output-format", "json", env={"PYTHONIOENCODING": "ascii"})
    assert "→" in json.loads(result.stdout.decode("utf-8"))["refusal"]["reason"]
    result = shell("gen", "f", "--devices", "→", env={"PYTHONIOENCODING": "ascii"})
    assert result.returncode == 2
    assert b"error[JP018]" in result.stderr


def on_a_terminal(command, env):
    """Exit code and what a terminal on stderr was sent."""
    import pty

    parent, child = pty.openpty()
    environment = {
        k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "CLAUDECODE", "COLUMNS", "TERM")
    }
    environment |= {"PYTHONPATH": str(SOURCE_ROOT), **env}
    process = subprocess.Popen(command, env=environment, stderr=child, stdout=subprocess.DEVNULL)
    os.close(child)
    output = b""
    with process:
        while True:
            try:
                chunk = os.read(parent, 65536)
            except OSError:  # the terminal is gone when the process is
                break
            if not chunk:
                break
            output += chunk
    os.close(parent)
    return process.returncode, output


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("words", "shown"), [([], True), (["-q"], False), (["--no-color"], False)])
def test_progress_on_a_terminal(words, shown):
    code = (
        "import sys, time, types\n"
        "from jax_pmap.model import Refusal\n"
        "def generate(request, say):\n"
        "    say('running: on [8] devices')\n    time.sleep(0.3)\n    return Refusal('JP043', 'No.', 'Do.')\n"
        "sys.modules['jax_pmap.pipeline'] = types.SimpleNamespace(generate=generate)\n"
        "from jax_pmap.cli import main\nmain(['gen', 'f', *sys.argv[1:]])\n"
    )
    returncode, output = on_a_terminal([sys.executable, "-c", code, *words], {"TERM": "xterm-256color"})
    assert returncode == 1
    assert (b"running: on [8] devices" in output) is shown
    assert b"JP043" in output


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(
    ("env", "words", "styled"),
    [
        ({"TERM": "xterm-256color"}, [], True),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, [], False),
        ({"TERM": "xterm-256color", "CLAUDECODE": "1"}, [], False),
        ({"TERM": "dumb"}, [], False),
        ({"TERM": "xterm-256color"}, ["--no-color"], False),
    ],
)
def test_colour_on_a_terminal_only(env, words, styled):
    command = [sys.executable, "-m", "jax_pmap", "gen", "f", "--devices", "x", *words]
    returncode, output = on_a_terminal(command, env)
    assert returncode == 2
    assert b"JP018" in output
    assert (b"\x1b[" in output) is styled


# --- the public names ---------------------------------------------------------------------


def test_public_names_are_loaded_on_use():
    code = (
        "import sys, jax_pmap\n"
        "assert 'jax_pmap.model' not in sys.modules\n"
        "assert jax_pmap.Request('f').target == 'f'\n"
        "assert set(jax_pmap.__all__) <= set(dir(jax_pmap))\n"
        "assert not {'libcst', 'jinja2', 'black', 'rich', 'click', 'jax'} & set(sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE_ROOT)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        jax_pmap.nothing  # noqa: B018
