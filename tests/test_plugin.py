"""The Claude Code plugin, held to the client's rules without the client.

The rules are those of `claude plugin validate --strict`, and beside them what that command does not
look at: that the command lines in the command file are ones the tool takes, that only planning is
pre-approved, and that the launcher finds the tool.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from jax_pmap import __version__
from jax_pmap.cli import main
from jax_pmap.diagnostics import codes

PLUGIN_CLI = '"${CLAUDE_PLUGIN_ROOT}/bin/jax-pmap"'
REPOSITORY_CLI = "./bin/jax-pmap"
COMMAND_FILES = {"commands/jax-pmap.md": PLUGIN_CLI, ".claude/commands/jax-pmap.md": REPOSITORY_CLI}

# What the client reads from a command's frontmatter; `metadata` is the place for everything else.
COMMAND_KEYS = {
    "name",
    "description",
    "argument-hint",
    "allowed-tools",
    "disallowed-tools",
    "model",
    "disable-model-invocation",
    "user-invocable",
    "metadata",
}
PLUGIN_KEYS = {
    "name",
    "version",
    "description",
    "author",
    "homepage",
    "repository",
    "license",
    "keywords",
}
MARKETPLACE_KEYS = {"$schema", "name", "description", "owner", "metadata", "plugins"}
ENTRY_KEYS = PLUGIN_KEYS | {"source", "category", "tags", "strict"}


def split(text: str) -> tuple[str, str]:
    """A command file's frontmatter and body."""
    found = re.match(r"---\n(.*?)\n---\n(.*)", text, re.DOTALL)
    if found is None:
        raise AssertionError("no frontmatter between --- lines at the top")
    return found[1], found[2]


def faults(text: str, cli: str) -> Iterator[str]:
    """What is wrong with a command file that calls the tool as `cli`."""
    front, body = split(text)
    try:
        fields: Any = yaml.safe_load(front)
    except yaml.YAMLError as error:
        yield f"the frontmatter is not YAML, so the client drops all of it: {error}"
        return
    if not isinstance(fields, dict):
        yield "the frontmatter is not a mapping"
        return
    for key in fields.keys() - COMMAND_KEYS:
        yield f"unknown key {key!r}; put it under `metadata`"
    for key in ("name", "description", "argument-hint"):
        if not isinstance(fields.get(key), str):
            yield f"{key} is not a string"
    if not re.search(r'^argument-hint: "[^"]*"$', front, re.MULTILINE):
        yield "argument-hint is not quoted: [a] [b] is not YAML"
    if re.search(r"\$\d|\$ARGUMENTS\[", body):
        yield "positional arguments count from zero, so $1 is the second: use $ARGUMENTS"
    if body.count("$ARGUMENTS") != 1:
        yield "$ARGUMENTS has to appear exactly once; it is replaced in code fences too"
    if re.search(r"!`|^```!", body, re.MULTILINE):
        yield "a command that runs before Claude reads the text asks nobody"
    for rule in fields.get("allowed-tools") or ["none"]:
        if rule not in {"Read", "Glob", "Grep", f"Bash({cli} plan:*)", f"Bash({cli} explain:*)"}:
            yield f"allowed-tools pre-approves more than reading, planning and explaining: {rule}"
    if not 60 <= text.count("\n") <= 110:
        yield f"{text.count(chr(10))} lines; between 60 and 110 are read with attention"


def command_lines(body: str, cli: str) -> list[list[str]]:
    """The words behind every call of `cli` in the body, in fences and in the text."""
    return [shlex.split(rest) for rest in re.findall(re.escape(cli) + r" ([^`\n]*)", body)]


def options(command: click.Command) -> set[str]:
    """Every spelling of every option that a command takes."""
    return {name for option in command.params for name in (*option.opts, *option.secondary_opts)}


@pytest.fixture(scope="module", params=COMMAND_FILES)
def command_file(request: pytest.FixtureRequest, repository: Path) -> tuple[str, str]:
    return (repository / request.param).read_text(encoding="utf-8"), COMMAND_FILES[request.param]


def test_every_command_file_is_inspected(repository: Path) -> None:
    found = {
        path.relative_to(repository).as_posix()
        for folder in ("commands", ".claude/commands")
        for path in (repository / folder).rglob("*.md")
    }
    assert found == set(COMMAND_FILES)


def test_command_file_keeps_the_rules(command_file: tuple[str, str]) -> None:
    assert list(faults(*command_file)) == []


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('argument-hint: "[function_name]', 'argument-hint: [a] [b] "', "not YAML"),
        ('argument-hint: "', "argument-hint: text # ", "not quoted"),
        ("metadata:", "category: x\nmetadata:", "unknown key 'category'"),
        ("$ARGUMENTS", "$1", "second"),
        ("  - Read\n", "  - Read\n  - Bash\n", "pre-approves more"),
        (" plan:*)", " gen:*)", "pre-approves more"),
        (" plan:*)", ":*)", "pre-approves more"),
        ("## 1.", "!`ls`\n\n## 1.", "before Claude reads"),
        ("## 1.", "\n" * 60 + "## 1.", "lines"),
    ],
)
def test_planted_faults_are_found(command_file: tuple[str, str], old: str, new: str, complaint: str) -> None:
    text, cli = command_file
    assert old in text
    assert any(complaint in fault for fault in faults(text.replace(old, new), cli))


def test_copies_differ_only_in_how_the_cli_is_found(repository: Path) -> None:
    plugin, copy = ((repository / name).read_text(encoding="utf-8") for name in COMMAND_FILES)
    assert plugin.count(PLUGIN_CLI) >= 5
    assert plugin.replace(PLUGIN_CLI, REPOSITORY_CLI) == copy


def test_command_lines_are_ones_the_tool_takes(command_file: tuple[str, str]) -> None:
    text, cli = command_file
    _, body = split(text)
    lines = command_lines(body, cli)
    assert {words[0] for words in lines} == {"plan", "gen", "verify", "explain", "check"}
    assert len(lines) >= 5
    for words in lines:
        assert words[0] in main.commands, words
        used = {word.partition("=")[0] for word in words[1:] if word.startswith("-")}
        assert used <= options(main.commands[words[0]]), words
        main.commands[words[0]].make_context(words[0], words[1:], parent=click.Context(main))


def test_options_named_in_the_text_exist(command_file: tuple[str, str]) -> None:
    _, body = split(command_file[0])
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", body))
    assert len(named) >= 8
    assert named <= options(main.commands["gen"]) | {"--against", "--layout"}
    assert {"--against", "--layout"} <= options(main.commands["verify"])


def test_plan_takes_what_gen_is_given(command_file: tuple[str, str]) -> None:
    """The command file hands the same options to both."""
    only_gen = {"--diff", "--in-place", "--no-run", "-o", "--against", "--layout"}
    _, body = split(command_file[0])
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", body)) - only_gen
    assert named <= options(main.commands["plan"])


def test_codes_named_in_the_text_exist(command_file: tuple[str, str]) -> None:
    named = set(re.findall(r"JP\d{3}", command_file[0]))
    assert len(named) >= 6
    assert named <= set(codes())


def test_manifests(repository: Path) -> None:
    folder = repository / ".claude-plugin"
    assert {path.name for path in folder.iterdir()} == {"plugin.json", "marketplace.json"}
    plugin = json.loads((folder / "plugin.json").read_text(encoding="utf-8"))
    market = json.loads((folder / "marketplace.json").read_text(encoding="utf-8"))
    assert set(plugin) <= PLUGIN_KEYS
    assert set(market) <= MARKETPLACE_KEYS
    assert {"name", "version", "description", "author"} <= set(plugin)
    assert {"name", "description", "owner", "plugins"} <= set(market)
    (entry,) = market["plugins"]
    assert set(entry) <= ENTRY_KEYS
    assert (repository / entry["source"]).resolve() == repository
    assert entry["name"] == plugin["name"] == "jax-pmap"
    assert entry["description"] == plugin["description"]


def test_versions_agree(repository: Path) -> None:
    folder = repository / ".claude-plugin"
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    plugin = json.loads((folder / "plugin.json").read_text(encoding="utf-8"))
    market = json.loads((folder / "marketplace.json").read_text(encoding="utf-8"))
    versions = [project["version"], __version__, plugin["version"], market["plugins"][0]["version"]]
    assert versions == [project["version"]] * 4
    assert f"[{project['version']}]" in (repository / "CHANGELOG.md").read_text(encoding="utf-8")


# --- the launcher -------------------------------------------------------------------------

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="the launcher is a POSIX shell script")


@pytest.fixture
def plugin_root(tmp_path: Path, repository: Path) -> Path:
    """A plugin folder with a space in its name that holds the launcher alone."""
    root = tmp_path / "the plugin"
    (root / "bin").mkdir(parents=True)
    shutil.copy(repository / "bin" / "jax-pmap", root / "bin")
    return root


def fake_cli(folder: Path, name: str) -> None:
    """A `jax-pmap` that prints `name` and its arguments, one a line, and exits with 1."""
    folder.mkdir(parents=True)
    cli = folder / "jax-pmap"
    cli.write_text(f"#!/bin/sh\nprintf '%s\\n' {name} \"$@\"\nexit 1\n")
    cli.chmod(0o755)


def launch(launcher: Path, *path: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [launcher, "plan", "a b.py::f", "--arg", "x=f32[8]<10 'q' $HOME"],
        env={"PATH": os.pathsep.join([*map(str, path), "/usr/bin", "/bin"]), **variables},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


WORDS = ["plan", "a b.py::f", "--arg", "x=f32[8]<10 'q' $HOME"]


@posix_only
def test_launcher_says_what_to_install(plugin_root: Path) -> None:
    done = launch(plugin_root / "bin" / "jax-pmap")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("jax-pmap is not installed")
    assert f'pipx install "{plugin_root}"' in done.stderr


@posix_only
def test_launcher_prefers_path_and_hands_on_words_and_exit_code(plugin_root: Path) -> None:
    fake_cli(plugin_root.parent / "on path", "path")
    fake_cli(plugin_root / ".venv" / "bin", "own")
    done = launch(plugin_root / "bin" / "jax-pmap", plugin_root.parent / "on path")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == ["path", *WORDS]


@posix_only
def test_launcher_falls_back_to_its_own_environment(plugin_root: Path) -> None:
    fake_cli(plugin_root / ".venv" / "bin", "own")
    assert launch(plugin_root / "bin" / "jax-pmap").stdout.splitlines() == ["own", *WORDS]


@posix_only
def test_launcher_knows_the_plugin_data_folder(plugin_root: Path) -> None:
    fake_cli(plugin_root.parent / "data" / ".venv" / "bin", "data")
    done = launch(plugin_root / "bin" / "jax-pmap", CLAUDE_PLUGIN_DATA=str(plugin_root.parent / "data"))
    assert done.stdout.splitlines() == ["data", *WORDS]


@posix_only
def test_launcher_never_calls_a_launcher(plugin_root: Path) -> None:
    """Itself on PATH, a link to itself, and another checkout's copy are all passed over."""
    links, copy = plugin_root.parent / "links", plugin_root.parent / "copy"
    links.mkdir()
    (links / "jax-pmap").symlink_to("../the plugin/bin/jax-pmap")
    shutil.copytree(plugin_root / "bin", copy)
    fake_cli(plugin_root / ".venv" / "bin", "own")
    path = (plugin_root / "bin", links, copy)
    for launcher in (plugin_root / "bin" / "jax-pmap", links / "jax-pmap"):
        assert launch(launcher, *path).stdout.splitlines() == ["own", *WORDS]


@posix_only
def test_launcher_of_the_repository_is_executable(repository: Path) -> None:
    assert os.access(repository / "bin" / "jax-pmap", os.X_OK)
