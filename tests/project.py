"""A project of one or a few files, and the real command run in it with the real worker."""

import importlib.metadata
import os
import re
import sys
import tempfile
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner
from fork_server import ForkServer

from jax_pmap.cli import main
from jax_pmap.session import with_simulated

pytest_plugins = ["warm"]

CODE = re.compile(r"error\[(JP\d{3})\]")


def simulated(devices: int) -> dict[str, str]:
    """The environment of a process with simulated devices, which compiles quickly and runs slowly."""
    flags = ["--xla_llvm_disable_expensive_passes=true", "--xla_backend_optimization_level=0"]
    if tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2])) < (0, 11):
        flags.append("--xla_cpu_use_fusion_emitters=false")
    return with_simulated({**os.environ, "XLA_FLAGS": " ".join(flags)}, devices)


@dataclass
class Result:
    """What one command left."""

    exit_code: int
    stdout: str
    stderr: str
    #: Workers that it started.
    workers: int
    files: set[str]
    stdout_bytes: bytes = b""

    @property
    def words(self) -> str:
        """The message with its line breaks taken out."""
        return " ".join(self.stderr.split())


@dataclass
class Project:
    """A folder that is the current one, with a temporary folder of its own to watch."""

    folder: Path
    #: None where a worker outlives the command that started it.
    spare: Path | None
    #: Starts its workers.
    server: ForkServer
    options: list[str] = field(default_factory=list)

    def write(self, name: str, text: str) -> Path:
        """Write a file of the project."""
        path, text = self.folder / name, textwrap.dedent(text).lstrip("\n")
        if self.spare is None and path.suffix == ".py" and path.exists():
            assert path.read_text(encoding="utf-8") == text, f"the worker has imported another {name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def files(self) -> dict[str, bytes]:
        """Every file of the project and its bytes."""
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in found}

    def run(self, *words: str) -> Result:
        """Run a command, and hold it to leaving neither processes nor temporary files."""
        before = self.files()
        living, started = set(self.server.living()), self.server.started
        result = CliRunner().invoke(main, [*words, *self.options], prog_name="jax-pmap")
        started = self.server.started - started
        assert "bug in jax-pmap" not in result.stderr, result.stderr
        if self.spare is not None:
            assert list(self.spare.iterdir()) == []
            assert self.processes() == []
            assert living.issuperset(self.server.living())
        after = self.files()
        changed = {name for name in before if after.get(name) != before[name]}
        return Result(
            result.exit_code,
            result.stdout,
            result.stderr,
            started,
            changed | (after.keys() - before),
            result.stdout_bytes,
        )

    def refused(self, code: str, *words: str, says: tuple[str, ...] = (), exit_code: int = 2) -> Result:
        """Run a command that has to end with `code`, a message, a hint, and nothing else."""
        result = self.run(*words)
        assert CODE.findall(result.stderr) == [code], result.stderr
        assert result.exit_code == exit_code
        assert result.stdout == ""
        assert result.files == set()
        assert "hint: " in result.stderr
        for text in says:
            assert text in result.words, result.stderr
        return result

    def processes(self) -> list[int]:
        """Processes that were started below this project's temporary folder; those Linux lists."""
        marked, found = f"TMPDIR={self.spare}".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if marked in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found


@pytest.fixture
def project(tmp_path: Path, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> Project:
    """An empty project that is the current folder."""
    folder, spare = tmp_path / "project", tmp_path / "spare"
    folder.mkdir()
    spare.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("VIRTUAL_ENV", "")
    monkeypatch.setattr(tempfile, "tempdir", str(spare))
    made = Project(folder, spare, fork_server, ["--python", sys.executable])
    made.write("pyproject.toml", '[project]\nname = "example"\n')
    return made


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a module's `shared` project."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture
def shared(
    shared_folder: Path, warm: None, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> Project:
    """A project that the tests of a module have in common, and its worker: name other files otherwise."""
    monkeypatch.chdir(shared_folder)
    monkeypatch.setenv("VIRTUAL_ENV", "")
    made = Project(shared_folder, None, fork_server, ["--python", sys.executable])
    made.write("pyproject.toml", '[project]\nname = "example"\n')
    return made
