"""The Claude Code plugin, held to the client's rules without the client.

The rules are those of `claude plugin validate --strict`, and beside them what that command does not
look at: that the command lines in the command file are ones the tool takes, that what is pre-approved runs
the project's own code alone, what the hooks say, and that the launcher finds the tool.
"""

import hashlib
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
from click.testing import CliRunner

from jax_pmap import __version__
from jax_pmap.cli import main
from jax_pmap.diagnostics import codes
from jax_pmap.emit.header import uses_line
from jax_pmap.files import seal
from jax_pmap.locate import locate
from jax_pmap.model import Refusal
from jax_pmap.syntax.parse import parse
from jax_pmap.syntax.uses import made_of

#: The plugin's own, and the copy that works inside a clone without the plugin.
COMMAND_FILES = ("commands/jax-pmap.md", ".claude/commands/jax-pmap.md")
#: What the client may run without asking, by how it begins.
ALLOWED = (
    "jax-pmap --confined gen --diff",
    "jax-pmap --confined plan",
    "jax-pmap --confined verify",
    "jax-pmap --confined check --no-run",
    "jax-pmap explain",
)

# What the client reads from a command's frontmatter; `metadata` is the place for everything else.
COMMAND_KEYS = {
    "name",
    "description",
    "when_to_use",
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

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="the launcher is a POSIX shell script")


def split(text: str) -> tuple[str, str]:
    """A command file's frontmatter and body."""
    found = re.match(r"---\n(.*?)\n---\n(.*)", text, re.DOTALL)
    if found is None:
        raise AssertionError("no frontmatter between --- lines at the top")
    return found[1], found[2]


def faults(text: str) -> Iterator[str]:
    """What is wrong with a command file."""
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
    for key in ("name", "description", "when_to_use", "argument-hint"):
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
        if rule not in {"Read", "Glob", *(f"Bash({beginning}:*)" for beginning in ALLOWED)}:
            yield f"allowed-tools pre-approves more than reading and what is confined: {rule}"
    if "Grep" in text:
        yield "the client has no tool Grep: write `search`"
    if not 60 <= text.count("\n") <= 110:
        yield f"{text.count(chr(10))} lines; between 60 and 110 are read with attention"


def command_lines(body: str) -> list[list[str]]:
    """The words behind every call of the tool in the body, in fences and in the text."""
    return [shlex.split(rest) for rest in re.findall(r"(?:^|`)jax-pmap ([^`\n]*)", body, re.MULTILINE)]


def options(command: click.Command) -> set[str]:
    """Every spelling of every option that a command takes."""
    return {name for option in command.params for name in (*option.opts, *option.secondary_opts)}


@pytest.fixture(scope="module")
def command_file(repository: Path) -> str:
    return (repository / COMMAND_FILES[0]).read_text(encoding="utf-8")


def test_every_command_file_is_inspected(repository: Path) -> None:
    found = {
        path.relative_to(repository).as_posix()
        for folder in ("commands", ".claude/commands")
        for path in (repository / folder).rglob("*.md")
    }
    assert found == set(COMMAND_FILES)


def test_command_file_keeps_the_rules(command_file: str) -> None:
    assert list(faults(command_file)) == []


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('argument-hint: "[function_name]', 'argument-hint: [a] [b] "', "not YAML"),
        ('argument-hint: "', "argument-hint: text # ", "not quoted"),
        ("metadata:", "category: x\nmetadata:", "unknown key 'category'"),
        ("$ARGUMENTS", "$1", "second"),
        ("  - Read\n", "  - Read\n  - Bash\n", "pre-approves more"),
        ("gen --diff:*)", "gen:*)", "pre-approves more"),
        ("jax-pmap --confined plan:*)", "jax-pmap plan:*)", "pre-approves more"),
        ("  - Glob\n", "  - Glob\n  - Grep\n", "no tool Grep"),
        ("## 1.", "!`ls`\n\n## 1.", "before Claude reads"),
        ("## 1.", "\n" * 60 + "## 1.", "lines"),
    ],
)
def test_planted_faults_are_found(command_file: str, old: str, new: str, complaint: str) -> None:
    assert old in command_file
    assert any(complaint in fault for fault in faults(command_file.replace(old, new)))


def test_copies_are_the_same(repository: Path) -> None:
    plugin, copy = ((repository / name).read_text(encoding="utf-8") for name in COMMAND_FILES)
    assert plugin == copy


def parsed(words: list[str]) -> str:
    """The name of the command that the tool takes `words` for; click's error where it does not."""
    name, *rest = [word for word in words if word != "--confined"]
    main.commands[name].make_context(name, rest, parent=click.Context(main))
    return name


def test_command_lines_are_ones_the_tool_takes(command_file: str) -> None:
    lines = command_lines(split(command_file)[1])
    assert {parsed(words) for words in lines} == {"gen", "verify", "explain", "check"}
    fenced = [words for words in lines if "TARGET" in words]
    assert len(fenced) == 3
    assert all(words[0] == "--confined" for words in fenced)


def test_options_named_in_the_text_exist(command_file: str) -> None:
    _, body = split(command_file)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", body))
    assert {"--shard", "--run", "--inputs", "--python"} <= named
    elsewhere = {"--confined", "--against", "--layout", "--accept", "--force", "--upgrade"}
    assert named <= options(main.commands["gen"]) | elsewhere
    assert {"--against", "--layout"} <= options(main.commands["verify"])
    assert "--accept" in options(main.commands["check"])


def test_every_code_of_a_refusal_has_one_row(command_file: str) -> None:
    """One table, whatever the exit status; what no row names falls under `any other`, which explains it."""
    rows = [line.split("|")[1] for line in command_file.splitlines() if re.match(r"\| (JP|none)", line)]
    named: list[str] = []
    for row in rows:
        for first, last in re.findall(r"(JP\d{3})(?: to (JP\d{3}))?", row):
            named += [f"JP{number:03}" for number in range(int(first[2:]), int((last or first)[2:]) + 1)]
    refusals = {code for code in codes() if code < "JP100"}
    assert len(named) == len(set(named))
    assert set(named) <= refusals
    assert sum("any other" in row for row in rows) == 1
    assert set(re.findall(r"JP\d{3}", command_file)) <= set(codes())


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
    assert project["version"] == __version__
    assert plugin["version"] == market["plugins"][0]["version"]
    assert f"[{project['version']}]" in (repository / "CHANGELOG.md").read_text(encoding="utf-8")


def test_a_plugin_that_changed_has_a_version_of_its_own(repository: Path) -> None:
    """Clients fetch a plugin again when its version is another one, and only then."""
    total = hashlib.sha256()
    for folder in ("commands", "hooks", "bin", ".claude-plugin"):
        for path in sorted(path for path in (repository / folder).rglob("*") if path.is_file()):
            if "__pycache__" in path.parts:
                continue
            text = re.sub(r'"version": "[^"]*"', "", path.read_text(encoding="utf-8"))
            total.update(f"{path.relative_to(repository).as_posix()}\0{text}\0".encode())
    plugin = json.loads((repository / ".claude-plugin" / "plugin.json").read_text(encoding="utf-8"))
    known = json.loads((Path(__file__).parent / "plugin_versions.json").read_text(encoding="utf-8"))
    assert known.get(plugin["version"]) == total.hexdigest()[:16], (
        "the plugin changed: raise its version in plugin.json and marketplace.json, and add "
        f"{total.hexdigest()[:16]!r} for it to tests/plugin_versions.json"
    )


# --- what runs unasked --------------------------------------------------------------------

#: Command lines for a project with train.py, and what each must do. "runs": without a question. "asked": by
#: the client, since no rule fits. "refused": a rule fits, and both the tool and the hook stop it.
UNASKED = {
    "jax-pmap --confined plan train_step": "runs",
    "jax-pmap --confined plan 'train.py::train_step' --shard 'batch' --axis-name i": "runs",
    "jax-pmap --confined gen --diff 'train.py::train_step' -o 'train_pmap.py'": "runs",
    "jax-pmap --confined gen --diff 'train:train_step' --in-place --inputs 'train.py::make_inputs'": "runs",
    "jax-pmap --confined plan train_step --arg 'batch={x: f32[64,784], y: i32[64]<10}'": "runs",
    "jax-pmap --confined plan train_step --arg 'batch=Batch{x: f32[64,784]}'": "runs",
    "jax-pmap --confined verify 'train.py::other' --against 'train.py::train_step'": "runs",
    "jax-pmap --confined check --no-run train.py": "runs",
    "jax-pmap explain JP043": "runs",
    # Writing, and anything that is not confined.
    "jax-pmap --confined gen 'train.py::train_step' -o 'train_pmap.py'": "asked",
    "jax-pmap --confined gen 'train.py::train_step' --diff -o 'train_pmap.py'": "asked",
    "jax-pmap gen --diff train_step -o train_pmap.py": "asked",
    "jax-pmap plan train_step --run 'python train.py'": "asked",
    "jax-pmap check": "asked",
    "jax-pmap --confined check": "asked",
    "PYTHONPATH=evil jax-pmap --confined plan train_step": "asked",
    "jax-pmap --confined plan train_step; sh evil.sh": "asked",
    "jax-pmap --confined plan train_step && sh evil.sh": "asked",
    "jax-pmap --confined plan train_step | sh": "asked",
    "sh evil.sh\njax-pmap --confined plan train_step": "asked",
    # What is appended to an approved beginning.
    "jax-pmap --confined plan train_step --run 'python -c \"import os\"'": "refused",
    "jax-pmap --confined plan train_step --run='sh evil.sh'": "refused",
    "jax-pmap --confined gen --diff train_step -o train_pmap.py --run 'sh evil.sh'": "refused",
    "jax-pmap --confined verify train.py::other --against train_step --run ./evil": "refused",
    "jax-pmap --confined plan train_step --python ./anything": "refused",
    "jax-pmap --confined plan train_step --python=./anything": "refused",
    'jax-pmap --confined plan train_step --arg \'batch=py:__import__("os").system("x")\'': "refused",
    "jax-pmap --confined plan train_step --arg 'batch={x: [py:evil()]}'": "refused",
    "jax-pmap --confined plan train_step --arg 'batch=np.os.system{command: \"x\"}'": "refused",
    "jax-pmap --confined plan ../elsewhere/evil.py::f": "refused",
    "jax-pmap --confined plan OUTSIDE/evil.py::f": "refused",
    "jax-pmap --confined plan '../project/../elsewhere/evil.py::f'": "refused",
    "jax-pmap --confined plan train_step --inputs ../elsewhere/evil.py::f": "refused",
    "jax-pmap --confined plan train_step --inputs=OUTSIDE/evil.py::f": "refused",
    "jax-pmap --confined gen --diff train_step -o ../elsewhere/train_pmap.py": "refused",
    "jax-pmap --confined gen --diff train_step -oOUTSIDE/train_pmap.py": "refused",
    "jax-pmap --confined gen --diff train_step --plan ../elsewhere/plan.json -o x.py": "refused",
    "jax-pmap --confined verify ../elsewhere/evil.py::f --against train_step": "refused",
    "jax-pmap --confined verify train.py::other --against ../elsewhere/evil.py::f": "refused",
    "jax-pmap --confined verify other --against train_step --convert ../elsewhere/evil.py::f": "refused",
    "jax-pmap --confined gen --diff train_step -o x.py --report x.html": "refused",
    "jax-pmap --confined check --no-run --fix train.py": "refused",
    "jax-pmap --confined check --no-run train.py --accept": "refused",
    "jax-pmap --confined check --no-run ../elsewhere": "refused",
}
#: Lines that only the tool can tell: the text of the command says nothing of it.
BY_THE_TOOL = (
    "jax-pmap --confined plan link.py::f",
    "jax-pmap --confined plan node_modules/evil.py::f",
    "jax-pmap --confined plan .hidden/evil.py::f",
    "jax-pmap --confined plan train_step --inputs os:getcwd",
    "jax-pmap --confined verify train.py::other --against train_step --convert batch=os:getcwd",
    "jax-pmap --confined verify train.py::other --against train_step --convert batch=../elsewhere/evil.py::f",
    "jax-pmap --confined plan train_step --arg 'batch=Popen{args: \"x\"}'",
)
#: Lines that only the hook can tell: the shell has been there before the tool.
BY_THE_HOOK = (
    "jax-pmap --confined plan $(cat target)",
    'jax-pmap --confined plan "`cat target`"',
    "jax-pmap --confined plan 'train_step",
    "cd ../elsewhere && jax-pmap --confined plan f",
    "VIRTUAL_ENV=../elsewhere; jax-pmap --confined plan train_step",
    "export PATH=../elsewhere && jax-pmap --confined plan train_step",
    "! jax-pmap --confined plan train_step --run ./evil",
    "{ jax-pmap --confined plan train_step --run ./evil; }",
    "if true; then jax-pmap --confined plan train_step --run ./evil; fi",
    "while true; do jax-pmap --confined plan train_step --run ./evil; done",
    "eval 'jax-pmap --confined plan train_step --run ./evil'",
    "timeout 9 bash -c 'X=1 jax-pmap --confined plan train_step'",
)


@pytest.fixture
def project_with_a_neighbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that is the current folder, with code of others in and beside it."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for folder in (project / "node_modules", project / ".hidden", elsewhere):
        folder.mkdir(parents=True)
        (folder / "evil.py").write_text("def f(x):\n    return x\n")
    (project / "pyproject.toml").touch()
    (project / "link.py").symlink_to(elsewhere / "evil.py")
    (project / "train.py").write_text(
        "from subprocess import Popen\n\n\nclass Batch:\n    pass\n\n\n"
        "def train_step(batch):\n    return batch\n\n\ndef other(batch):\n    return batch\n\n\n"
        "def make_inputs():\n    return (1,)\n"
    )
    monkeypatch.chdir(project)
    return project


def client_allows(line: str, rules: list[str]) -> bool:
    """Whether the client runs a line without asking: every command in it begins as a rule has it."""
    lexer = shlex.shlex(line, posix=False, punctuation_chars=";&|\n")
    lexer.whitespace, lexer.whitespace_split = " \t", True
    simple = [[]]
    for word in lexer:
        if set(word) <= set(";&|\n"):
            simple.append([])
        else:
            simple[-1].append(word)
    beginnings = [
        rule.removeprefix("Bash(").removesuffix(":*)") for rule in rules if rule.startswith("Bash(")
    ]
    return all(any(" ".join(words).startswith(each) for each in beginnings) for words in simple)


def hook_asks(line: str, directory: Path, repository: Path) -> bool:
    """Whether the hook, given a tool call as the client gives it, answers `ask`."""
    call = {"tool_name": "Bash", "tool_input": {"command": line}, "cwd": str(directory)}
    hook = repository / "hooks" / "before_bash.py"
    done = subprocess.run(
        [sys.executable, "-I", "-S", hook], input=json.dumps(call), capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    if not done.stdout:
        return False
    answer = json.loads(done.stdout)["hookSpecificOutput"]
    assert answer["hookEventName"] == "PreToolUse"
    assert answer["permissionDecisionReason"].startswith("jax-pmap: ")
    return answer["permissionDecision"] == "ask"


def tool_refuses(line: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the tool ends with JP022 before anything is asked of the pipeline."""
    asked: list[str] = []

    def answer(*given: object, **named: object) -> Refusal:
        asked.append("asked")
        return Refusal("JP012", "the test asks no further", "none")

    for name in ("generate", "make_plan", "verify", "parallel_already"):
        monkeypatch.setattr(f"jax_pmap.pipeline.{name}", answer)
    result = CliRunner().invoke(main, shlex.split(line)[1:], prog_name="jax-pmap")
    refused = "JP022" in result.stderr
    assert not (refused and asked)
    assert refused or asked or result.exit_code in (0, 1), result.stderr
    return refused


@posix_only
@pytest.mark.parametrize(("line", "outcome"), UNASKED.items())
def test_what_runs_unasked(
    line: str,
    outcome: str,
    command_file: str,
    project_with_a_neighbour: Path,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = line.replace("OUTSIDE", str(project_with_a_neighbour.parent / "elsewhere"))
    rules = yaml.safe_load(split(command_file)[0])["allowed-tools"]
    allowed = client_allows(line, rules)
    assert allowed is (outcome != "asked")
    if allowed:
        assert hook_asks(line, project_with_a_neighbour, repository) is (outcome == "refused")
        assert tool_refuses(line, monkeypatch) is (outcome == "refused")


@posix_only
@pytest.mark.parametrize("line", BY_THE_TOOL)
def test_what_the_tool_alone_can_tell(
    line: str, project_with_a_neighbour: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tool_refuses(line, monkeypatch)


@posix_only
@pytest.mark.parametrize("line", BY_THE_HOOK)
def test_what_the_hook_alone_can_tell(line: str, project_with_a_neighbour: Path, repository: Path) -> None:
    assert hook_asks(line, project_with_a_neighbour, repository)


@posix_only
@pytest.mark.parametrize(
    "line",
    [
        "ls",
        "grep -rn 'jax-pmap plan x --run' docs",
        "cat bin/jax-pmap",
        "pip install jax-pmap",
        "echo $(",
        "sh -c 'ls bin/jax-pmap'",
    ],
)
def test_the_hook_leaves_other_commands_alone(line: str, tmp_path: Path, repository: Path) -> None:
    assert not hook_asks(line, tmp_path, repository)


# --- after an edit ------------------------------------------------------------------------


def after_edit(edited: Path, repository: Path, *path: Path) -> str:
    """What the hook tells the model after an edit of a file; the empty text where it tells nothing."""
    done = subprocess.run(
        [sys.executable, repository / "hooks" / "after_edit.py"],
        input=json.dumps({"tool_name": "Edit", "tool_input": {"file_path": str(edited)}}),
        env={**os.environ, "PATH": os.pathsep.join([*map(str, path), "/usr/bin", "/bin"])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return json.loads(done.stdout)["hookSpecificOutput"]["additionalContext"] if done.stdout else ""


@posix_only
@pytest.mark.parametrize("with_git", [True, False])
def test_an_edit_that_leaves_a_generated_file_stale_is_told(
    tmp_path: Path, repository: Path, with_git: bool
) -> None:
    tool = tmp_path / "on path"
    tool.mkdir()
    text = f'#!/bin/sh\nPYTHONPATH="{repository}/generator" exec "{sys.executable}" -m jax_pmap "$@"\n'
    (tool / "jax-pmap").write_text(text)
    (tool / "jax-pmap").chmod(0o755)
    # As it is installed: without the environment that a clone may have, where there is a tool as well.
    plugin = tmp_path / "plugin"
    for each in ("hooks", "bin", ".claude-plugin"):
        shutil.copytree(repository / each, plugin / each)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    if with_git:
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    source, made = folder / "stats.py", folder / "stats_pmap.py"
    source.write_text("from helper import g\n\n\ndef f(x):\n    return g(x)\n")
    helper = folder / "helper.py"
    helper.write_text("def g(x):\n    return x\n")
    parts = made_of(parse(locate("stats.py::f", folder)))
    made.write_text(
        seal(
            "# Generated by jax-pmap 0.1.0. Edit freely; regenerate with:\n"
            "#   jax-pmap gen f -o stats_pmap.py\n"
            f"# Source: stats.py::f sha256:{parts.digest}\n{uses_line(parts.uses)}\n"
            "# Proved: x\ndef f(x):\n    return x\n"
        )
    )
    assert after_edit(source, plugin, tool) == ""
    helper.write_text("def g(x):\n    return -x\n")
    assert "JP150: `stats_pmap.py` is stale: `g` (helper.py:1) changed" in after_edit(helper, plugin, tool)
    source.write_text("def f(x):\n    return 2 * x\n")
    told = after_edit(source, plugin, tool)
    assert "JP150: `stats_pmap.py` is stale" in told
    assert "jax-pmap gen f -o stats_pmap.py" in told
    assert after_edit(folder / "pyproject.toml", plugin, tool) == ""
    made.write_text(made.read_text().replace("return x", "return x + 1"))
    assert "JP151: `stats_pmap.py` was edited" in after_edit(made, plugin, tool)
    # A tool that is old, broken or not there is nothing that an edit should be about.
    (tool / "jax-pmap").write_text("#!/bin/sh\necho 'Error: No such option: --confined' >&2\nexit 2\n")
    assert after_edit(made, plugin, tool) == ""
    (tool / "jax-pmap").unlink()
    assert after_edit(made, plugin, tool) == ""


def test_hooks_are_declared_as_the_client_reads_them(repository: Path) -> None:
    declared = json.loads((repository / "hooks" / "hooks.json").read_text(encoding="utf-8"))
    assert declared["hooks"].keys() == {"PreToolUse", "PostToolUse"}
    for event, matcher in (("PreToolUse", "Bash"), ("PostToolUse", "Edit|Write|MultiEdit")):
        (entry,) = declared["hooks"][event]
        (hook,) = entry["hooks"]
        assert (entry["matcher"], hook["type"]) == (matcher, "command")
        program, script = shlex.split(hook["command"].replace("${CLAUDE_PLUGIN_ROOT}", str(repository)))
        assert (program, Path(script).is_file()) == ("python3", True)


# --- the launcher -------------------------------------------------------------------------


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
def test_launcher_passes_over_a_tool_whose_python_is_gone(plugin_root: Path) -> None:
    broken = plugin_root.parent / "broken"
    broken.mkdir()
    (broken / "jax-pmap").write_text("#!/no/such/folder/bin/python\nimport jax_pmap\n")
    (broken / "jax-pmap").chmod(0o755)
    assert launch(plugin_root / "bin" / "jax-pmap", broken).stderr.startswith("jax-pmap is not installed")
    fake_cli(plugin_root / ".venv" / "bin", "own")
    assert launch(plugin_root / "bin" / "jax-pmap", broken).stdout.splitlines() == ["own", *WORDS]


@posix_only
def test_launcher_of_the_repository_is_executable(repository: Path) -> None:
    assert os.access(repository / "bin" / "jax-pmap", os.X_OK)
