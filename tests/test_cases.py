"""Case files: a user's module, and what `jax-pmap gen` answers to it.

The first line of ``tests/cases/NAME.py`` is ``# flags:`` and the command behind it, with ``this::`` for
the file itself. Below the module stands either ``# output`` and the emitted file without its header
comments, or ``# refused JP043 line 12:`` and a part of the reason. ``pytest --update-goldens`` writes
what came out.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import black
import pytest
from click.testing import CliRunner
from project import simulated

from jax_pmap import diagnostics
from jax_pmap.cli import main

pytest_plugins = ["warm"]

CASES = sorted((Path(__file__).parent / "cases").glob("*.py"))
MARKER = re.compile(r"^# (output|refused)\b.*\n?", re.MULTILINE)
REFUSED = re.compile(r"# refused (JP\d{3})(?: line (\d+))?: (.+)")

#: Cases whose output is also imported and called.
RUN = (
    "args_and_kwargs",
    "clip_by_global_norm",
    "dict_with_table",
    "helpers",
    "in_processes",
    "made_by_a_factory",
    "names_that_collide",
    "on_a_mesh",
    "time_major",
)


@dataclass(frozen=True)
class Case:
    path: Path
    #: The user's module: everything above the marker.
    module: str
    #: Words of the command line.
    words: tuple[str, ...]
    #: The marker's line and what is below it.
    expected: str

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def function(self) -> str:
        return self.words[1].rpartition("::")[2]


def read_case(path: Path) -> Case:
    text = path.read_text(encoding="utf-8")
    marker = MARKER.search(text)
    end = marker.start() if marker else len(text)
    first, _, _ = text.partition("\n")
    assert first.startswith("# flags: "), f"{path.name}: the first line holds the flags"
    words = shlex.split(first.removeprefix("# flags: ").replace("this::", f"{path.name}::"))
    if "::" not in words[1]:
        words[1] = f"{path.name}::{words[1]}"
    return Case(path, text[:end], tuple(words), text[end:])


def without_header(code: str) -> str:
    """The emitted file from its docstring on; the comments above it hold hashes and evidence."""
    lines = code.splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    return "".join(lines[start:])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all cases are, so that one worker can take them."""
    return tmp_path_factory.mktemp("cases")


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, update_goldens: bool) -> None:
    case = read_case(path)
    (folder / path.name).write_text(case.module, encoding="utf-8")
    before = set(folder.iterdir())
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(main, [*case.words, "--python", sys.executable, "--output-format", "json"])
    assert result.exit_code in (0, 1, 2), result.stderr
    answer = json.loads(result.stdout)
    refusal = answer.get("refusal")
    if refusal is not None:
        assert result.exit_code == diagnostics.exit_code(refusal["code"])
        check_refusal(case, refusal, update_goldens)
        return
    assert result.exit_code == 0
    code = answer["code"]
    compile(code, path.name, "exec")
    assert black.format_str(code, mode=black.Mode()) == code
    assert "jax_pmap" not in without_header(code)
    if update_goldens:
        path.write_text(f"{case.module}# output\n{without_header(code)}", encoding="utf-8")
    else:
        assert case.expected.startswith("# output\n"), f"not refused, but expected: {case.expected}"
        assert without_header(code) == case.expected.removeprefix("# output\n")
    assert set(folder.iterdir()) == before, "nothing is written without -o"


def check_refusal(case: Case, refusal: dict[str, object], update: bool) -> None:
    span = refusal["span"]
    line = span["line"] if isinstance(span, dict) else None
    reason = str(refusal["reason"])
    wanted = REFUSED.match(case.expected)
    where = f" line {line}" if line else ""
    if update:
        part = wanted[3] if wanted and wanted[3] in reason else reason
        text = f"{case.module}# refused {refusal['code']}{where}: {part}\n"
        case.path.write_text(text, encoding="utf-8")
        return
    assert wanted, f"refused: {refusal['code']}{where}: {reason}"
    assert (refusal["code"], line) == (wanted[1], int(wanted[2]) if wanted[2] else None), reason
    assert wanted[3] in reason


DRIVER = """
import importlib
import sys
import jax
import numpy as np

devices = int(sys.argv[1])
assert len(jax.devices()) == devices
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: compiled.append(event) if "backend_compile" in event else None
)
for name, function, chosen in {cases}:
    if chosen > devices:
        continue
    original = importlib.import_module(name)
    made = original.inputs(0)
    args, kwargs = made if type(made) is tuple and len(made) == 2 and isinstance(made[1], dict) \\
        and isinstance(made[0], (tuple, list)) else (made, {{}})
    want = getattr(original, function)(*args, **kwargs)
    got = getattr(importlib.import_module(name + "_pmap"), function)(*args, **kwargs)
    assert jax.tree.structure(got) == jax.tree.structure(want), (got, want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        assert np.shape(a) == np.shape(b), (name, np.shape(a), np.shape(b))
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=1e-5, err_msg=name)
        assert len(a.sharding.device_set) == (chosen or devices), (name, a.sharding)

assert compiled
compiled.clear()
for name in {steps}:
    params, batch = importlib.import_module(name).inputs(1)
    for _ in range(3):
        params, loss = importlib.import_module(name + "_pmap").train_step(params, batch)
    assert not compiled, (name, compiled)
"""


#: Steps that are also called in a loop, which compiles nothing after the first call.
STEPS = ("train_step", "train_step_jit", "train_step_shard_map")


@pytest.mark.parametrize("devices", [2, 8])
def test_emitted_files_import_and_run(devices: int, tmp_path: Path, repository: Path) -> None:
    """What `test_case` holds the command to is itself run here, as the user will run it."""
    calls = []
    for name in (*RUN, *STEPS):
        case = read_case(repository / "tests" / "cases" / f"{name}.py")
        (tmp_path / case.path.name).write_text(case.module, encoding="utf-8")
        (tmp_path / f"{name}_pmap.py").write_text(case.expected.removeprefix("# output\n"), encoding="utf-8")
        calls.append((name, case.function, 4 if "--devices" in case.words else 0))
    driver = [
        sys.executable,
        "-W",
        "error::DeprecationWarning:__main__",
        "-c",
        DRIVER.format(cases=calls, steps=STEPS),
    ]
    done = subprocess.run(
        [*driver, str(devices)],
        cwd=tmp_path,
        env=simulated(devices),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["args_and_kwargs", "dict_with_table"])
def test_a_fresh_process_writes_the_same_file(name: str, tmp_path: Path, repository: Path) -> None:
    case = read_case(repository / "tests" / "cases" / f"{name}.py")
    (tmp_path / case.path.name).write_text(case.module, encoding="utf-8")
    # Another hash seed: what the golden was made with must not matter.
    environment = {**os.environ, "PYTHONHASHSEED": "4321"}
    written = f"{name}_pmap.py"
    command = [sys.executable, "-m", "jax_pmap", *case.words, "--python", sys.executable, "-q", "-o", written]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    code = (tmp_path / written).read_text(encoding="utf-8")
    assert without_header(code) == case.expected.removeprefix("# output\n")


def test_the_list_of_cases_to_run_is_current() -> None:
    assert set(RUN) <= {path.stem for path in CASES}
