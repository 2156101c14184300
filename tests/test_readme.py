"""README.md and docs/: every command line and every Python block is run, and every link leads somewhere.

A console block holds lines `$ command`; `# exit N` after one says what it must end with, if not 0. A Python
block that starts with `# name.py` is also written to that file, for the commands after it. All of it runs in
a copy of examples/. Blocks marked `text` are output.
"""

import importlib
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner
from project import simulated

from jax_pmap.cli import main

pytest_plugins = ["warm"]

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted((REPOSITORY / "docs").glob("*.md")),
]
#: Commands with another test, or that cannot run without a network or a client, as they are written.
ELSEWHERE = {"pipx install .", "claude plugin validate --strict .", ".venv/bin/pre-commit install"}
LANGUAGES = {"console", "python", "text", "yaml", "toml"}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    #: What is said of it in a comment before: the command it is the output of.
    output_of: str
    #: False for a file that other blocks need and that does not run by itself.
    runs: bool = True


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        before = text[: match.start()].rstrip().rpartition("\n")[2]
        skipped = before == "<!-- jax-pmap: skip -->"
        if skipped and not re.match(r"# \w+\.py\n", match[2]):
            continue
        marker = re.fullmatch(r"<!-- output of: (.*) -->", before)
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(match[1], match[2], line, marker[1] if marker else "", not skipped))
    return found


@pytest.fixture
def folder(tmp_path: Path, warm: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the examples that is the current folder, with eight simulated devices."""
    # The sources alone: nothing in the folder above is to make it part of a project.
    for example in (REPOSITORY / "examples").glob("*.py"):
        (tmp_path / example.name).write_bytes(example.read_bytes())
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    path = os.pathsep.join(filter(None, [str(REPOSITORY / "generator"), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("XLA_FLAGS", simulated(8)["XLA_FLAGS"])
    return tmp_path


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str


def run(*words: str) -> Done:
    """Run `jax-pmap` in this process, whose workers outlive a command, and anything else in its own."""
    if words[0] == "jax-pmap":
        result = CliRunner().invoke(main, words[1:], prog_name="jax-pmap")
        return Done(result.exit_code, result.stdout, result.stderr)
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def run_command(line: str, folder: Path) -> None:
    expected = re.search(r"# exit (\d+)", line)
    wanted = int(expected[1]) if expected else 0
    words = shlex.split(line, comments=True)
    if shlex.join(words) in ELSEWHERE:
        return
    if words[0] == "make":
        makefile = (REPOSITORY / "Makefile").read_text()
        assert all(re.search(rf"^{word}:", makefile, re.MULTILINE) for word in words[1:]), line
        return
    into = None
    if ">" in words:
        words, (_, into) = words[:-2], words[-2:]
    assert words[0] in ("jax-pmap", "python"), f"no way to run `{line}`"
    done = run(sys.executable, *words[1:]) if words[0] == "python" else run(*words)
    assert done.code == wanted, f"{line}\n{done.stdout}{done.stderr}"
    if into:
        (folder / into).write_text(done.stdout)


def run_python(block: Block, folder: Path) -> None:
    name = re.match(r"# (\w+\.py)\n", block.text)
    file = folder / (name[1] if name else "block.py")
    file.write_text(block.text, encoding="utf-8")
    if not block.runs:
        return
    done = run(sys.executable, str(file))
    assert done.code == 0, f"line {block.line}\n{done.stderr}"


def steady(text: str) -> str:
    """`text` without what differs between machines and versions."""
    text = re.sub(r"\d(\.\d+)?e[-+]\d+|error 0\b", "#", text)
    text = re.sub(r"sha256:\w+", "#", text)
    text = re.sub(r"jax[- ]p?m?a?p? ?\d+\.\d+\.\d+", "#", text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def check_output(block: Block, folder: Path) -> None:
    words = shlex.split(block.output_of)
    if words[0] == "cat":
        got = (folder / words[1]).read_text(encoding="utf-8")
    else:
        done = run(*words)
        on_stdout = block.language == "python" or words[1] == "check"
        got = done.stdout if on_stdout else done.stderr
    assert steady(block.text) == steady(got), block.output_of


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_the_page_shows_runs(page: Path, folder: Path) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{page.name}:{block.line} has a block of {block.language!r}"
        if block.output_of:
            check_output(block, folder)
        elif block.language == "console":
            for line in block.text.splitlines():
                assert line.startswith("$ "), f"{page.name}:{block.line}: {line!r} is no command"
                run_command(line[2:], folder)
        elif block.language == "python":
            run_python(block, folder)


@pytest.fixture
def refresh(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """docs/refresh.py."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "docs"))
    return importlib.import_module("refresh")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_are_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_rule_is_in_the_table(refresh: ModuleType) -> None:
    text = (REPOSITORY / "docs" / "check.md").read_text(encoding="utf-8")
    assert "<!-- rules -->" in text
    assert text == refresh.with_rules(text), "run docs/refresh.py"


def test_the_reference_is_the_diagnostics(refresh: ModuleType) -> None:
    page = REPOSITORY / "docs" / "diagnostics.md"
    assert page.read_text(encoding="utf-8") == refresh.reference(), "run docs/refresh.py"


def test_the_page_of_removals_is_the_table(refresh: ModuleType) -> None:
    page = REPOSITORY / "docs" / "removed.md"
    assert page.read_text(encoding="utf-8") == refresh.removed(), "run docs/refresh.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_into_pages_lead_to_a_heading(page: Path, refresh: ModuleType) -> None:
    for target, fragment in re.findall(r"\]\(([^)#\s]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        text = (page.parent / target if target else page).read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
        assert fragment in {refresh.anchor(heading) for heading in headings}, f"{target}#{fragment}"


def test_parts_of_examples_are_parts_of_them() -> None:
    page = (REPOSITORY / "docs" / "recipes.md").read_text(encoding="utf-8")
    marked = r"<!-- part of: (\S+) -->\n<!-- jax-pmap: skip -->\n```python\n(.*?)```"
    parts = re.findall(marked, page, re.DOTALL)
    assert len(parts) >= 8
    for name, text in parts:
        assert text in (REPOSITORY / name).read_text(encoding="utf-8"), name


def test_every_page_is_in_the_site() -> None:
    nav = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (REPOSITORY / "docs").glob("*.md"):
        assert f" {page.name}" in nav, page.name


def test_pages_were_found() -> None:
    assert len(PAGES) >= 7
    assert sum(len(blocks(page)) for page in PAGES) >= 20


def test_the_readme_names_every_command() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    for command in main.commands:
        assert re.search(rf"`jax-pmap {command}[ `]", text), command
