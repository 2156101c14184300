import os
import sys
from pathlib import Path

import pytest

from jax_pmap.interpreter import Interpreter, find_interpreter
from jax_pmap.model import RefusalError

RUNNING = Interpreter(Path(sys.executable).absolute(), "the running interpreter")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)


@pytest.fixture
def project(tmp_path):
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "sub").mkdir()
    return tmp_path


def make_python(path, mode=0o755):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(mode)
    return path


def make_environment(folder):
    python = make_python(folder / "bin" / "python")
    (folder / "pyvenv.cfg").touch()
    return python


def refused(*arguments):
    with pytest.raises(RefusalError) as caught:
        find_interpreter(*arguments)
    assert caught.value.refusal.code == "JP009"
    return caught.value.refusal


# --- nothing is named ---------------------------------------------------------------------


def test_the_running_interpreter_is_the_last_resort(project, monkeypatch):
    assert find_interpreter(None, project / "sub", None) == RUNNING
    monkeypatch.setenv("VIRTUAL_ENV", "")
    (project / ".venv").mkdir()  # not an environment
    (project / "sub" / ".venv").write_text("somewhere\n")
    assert find_interpreter(None, project / "sub", None) == RUNNING


def test_nothing_is_launched(project):
    make_python(project / "python").write_text("#!/bin/sh\ntouch launched\n")
    find_interpreter(Path("python"), project, None)
    assert not (project / "launched").exists()


# --- the order ----------------------------------------------------------------------------


def test_order(project, monkeypatch):
    sub = project / "sub"
    at_root = make_environment(project / ".venv")
    assert find_interpreter(None, sub, None) == Interpreter(at_root, ".venv")
    beside = make_environment(sub / ".venv")
    assert find_interpreter(None, sub, None) == Interpreter(beside, ".venv")
    active = make_environment(project / "active")
    monkeypatch.setenv("VIRTUAL_ENV", str(project / "active"))
    assert find_interpreter(None, sub, None) == Interpreter(active, "$VIRTUAL_ENV")
    configured = make_environment(project / "env")
    assert find_interpreter(None, sub, "env") == Interpreter(configured, "[tool.jax-pmap] python")
    asked = make_python(sub / "py")
    assert find_interpreter(Path("py"), sub, "env") == Interpreter(asked, "--python")


@pytest.mark.parametrize("place", ["bin/python", "bin/python3", "Scripts/python.exe"])
def test_folder_or_executable(project, place):
    python = make_python(project / "env" / place)
    for path in (Path("env"), project / "env", Path("env") / place, Path("sub/../env")):
        assert find_interpreter(path, project, None).path == python


def test_a_command_on_the_path(project, monkeypatch):
    python = make_python(project / "tools" / "python9")
    monkeypatch.setenv("PATH", str(python.parent))
    assert find_interpreter(Path("python9"), project, None).path == python
    assert "is not there" in refused(Path("tools/python8"), project, None).reason


def test_links_are_kept(project):
    python = make_environment(project / "env")
    link = project / "link"
    link.symlink_to(python)
    assert find_interpreter(Path("link"), project, None).path == link


def test_home_is_expanded(project, monkeypatch):
    monkeypatch.setenv("HOME", str(project))
    python = make_environment(project / "env")
    assert find_interpreter(None, project / "sub", "~/env").path == python


# --- refusals: one that is named is never passed over -------------------------------------


def test_missing(project, monkeypatch):
    refusal = refused(Path("nope/python"), project, None)
    assert "`nope/python` (--python) is not there" in refusal.reason
    assert "--python" in refusal.hint
    assert "pyproject.toml" in refused(None, project, "gone").hint
    monkeypatch.setenv("VIRTUAL_ENV", str(project / "gone"))
    assert "deactivate" in refused(None, project, None).hint


def test_broken_environments(project):
    (project / "empty").mkdir()
    assert "without a Python" in refused(Path("empty"), project, None).reason
    link = project / "link"
    link.symlink_to("nowhere")
    assert "broken symbolic link" in refused(Path("link"), project, None).reason
    (project / ".venv").mkdir()
    (project / ".venv" / "pyvenv.cfg").touch()  # its Python was removed
    assert ".venv" in refused(None, project, None).reason


def test_not_executable(project):
    make_python(project / "python", mode=0o644)
    assert "not executable" in refused(Path("./python"), project, None).reason


def test_odd_paths(project):
    refused(Path("null\0byte"), project, None)
    refused(None, project, "x" * 5000)
    refused(Path(os.devnull), project, None)
    refused(None, project, "~nobody-of-that-name/env")


def test_a_python_that_does_not_know_itself(project, monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    assert "--python" in refused(None, project, None).hint
