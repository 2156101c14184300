"""Where people work: pre-commit, GitHub Actions, shells."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from jax_pmap.cli import main

WRONG = "import jax\n\nf = jax.pmap(lambda x: (x, x), out_axes=-1)\n"
posix_only = pytest.mark.skipif(sys.platform == "win32", reason="runs bash")


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**kept, **more}


def as_console_script(folder: Path, repository: Path) -> Path:
    """A `jax-pmap` in `folder`, as installing makes it."""
    folder.mkdir(parents=True)
    script = folder / "jax-pmap"
    path = repository / "generator"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{path}" exec "{sys.executable}" -m jax_pmap "$@"\n')
    script.chmod(0o755)
    return script


# --- pre-commit ---------------------------------------------------------------------------


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *identity, *words], cwd=folder, env=environment(), check=True, capture_output=True)


def test_hooks_call_commands_that_exist(repository: Path) -> None:
    hooks = yaml.safe_load((repository / ".pre-commit-hooks.yaml").read_text())
    assert [hook["id"] for hook in hooks] == ["jax-pmap", "jax-pmap-run"]
    known = {name for option in main.commands["check"].params for name in option.opts}
    for hook in hooks:
        program, command, *options = hook["entry"].split()
        assert (program, command) == ("jax-pmap", "check")
        assert set(options) <= known


@posix_only
@pytest.mark.skipif(importlib.util.find_spec("pre_commit") is None, reason="pre-commit is not installed")
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_real_pre_commit_runs_the_hook(repository: Path, tmp_path: Path) -> None:
    """The hook as it stands in the manifest, but found on PATH: making its environment needs a network."""
    hooks = yaml.safe_load((repository / ".pre-commit-hooks.yaml").read_text())
    project = tmp_path / "project"
    project.mkdir()
    git(project, "init", "-q")
    hook = {**hooks[0], "language": "system"}
    configuration = {"repos": [{"repo": "local", "hooks": [hook]}]}
    (project / ".pre-commit-config.yaml").write_text(yaml.safe_dump(configuration))
    (project / "wrong.py").write_text(WRONG)
    (project / "notes.txt").write_text(WRONG)
    git(project, "add", ".")
    as_console_script(tmp_path / "bin", repository)
    variables = environment(
        PATH=f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}", PRE_COMMIT_HOME=str(tmp_path / "cache")
    )

    def run() -> "subprocess.CompletedProcess[str]":
        words = [sys.executable, "-m", "pre_commit", "run", "--all-files"]
        return subprocess.run(
            words, cwd=project, env=variables, capture_output=True, text=True, timeout=120, check=False
        )

    done = run()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "wrong.py:3:41: JP110" in done.stdout
    assert "notes.txt" not in done.stdout
    (project / "wrong.py").write_text(WRONG.replace("-1", "1"))
    assert run().returncode == 0


# --- GitHub Actions -----------------------------------------------------------------------


@posix_only
def test_the_action(repository: Path, tmp_path: Path) -> None:
    """The script of its last step, with the inputs in the environment as the runner puts them there."""
    action = yaml.safe_load((repository / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    install, check = action["runs"]["steps"]
    for step in (install, check):
        assert step["shell"] == "bash"
        assert "${{" not in step["run"], "inputs go through the environment, never into the script"
        for value in step["env"].values():
            name = value.removeprefix("${{ inputs.").removesuffix(" }}")
            assert name in action["inputs"], value
    as_console_script(tmp_path / "temp" / "jax-pmap" / "bin", repository)
    work = tmp_path / "work"
    (work / "src").mkdir(parents=True)
    (work / "src" / "wrong.py").write_text(WRONG)

    def run(**inputs: str) -> "subprocess.CompletedProcess[str]":
        defaults = {
            name: str(action["inputs"][value.removeprefix("${{ inputs.").removesuffix(" }}")]["default"])
            for name, value in check["env"].items()
        }
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", check["run"]],
            cwd=work,
            env=environment(RUNNER_TEMP=str(tmp_path / "temp"), **{**defaults, **inputs}),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    found = run(CHECK_SARIF="out.sarif")
    assert found.returncode == 1, found.stderr
    assert found.stdout.startswith("::error file=src/wrong.py,line=3")
    assert '"ruleId": "JP110"' in (work / "out.sarif").read_text()
    assert run(CHECK_IGNORE="JP110").returncode == 0
    assert run(CHECK_PATHS="nowhere src").returncode == 2
    assert run(CHECK_PATHS="src; touch owned").returncode == 2
    assert not (work / "owned").exists()


# --- shells -------------------------------------------------------------------------------


@posix_only
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(repository: Path, tmp_path: Path, shell: str) -> None:
    script = as_console_script(tmp_path / "bin", repository)

    def ask(**variables: str) -> str:
        done = subprocess.run(
            [script], env=environment(**variables), capture_output=True, text=True, timeout=30, check=False
        )
        return done.stdout

    assert "jax-pmap" in ask(_JAX_PMAP_COMPLETE=f"{shell}_source")
    if shell == "bash":
        answer = ask(_JAX_PMAP_COMPLETE="bash_complete", COMP_WORDS="jax-pmap ch", COMP_CWORD="1")
        assert answer.split() == ["plain,check"]
        answer = ask(_JAX_PMAP_COMPLETE="bash_complete", COMP_WORDS="jax-pmap check --no-r", COMP_CWORD="2")
        assert answer.split() == ["plain,--no-run"]
