import ast
import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import jax_pmap
from jax_pmap import diagnostics
from jax_pmap.cli import main
from jax_pmap.report.explanation import explanation

PACKAGE = Path(jax_pmap.__file__).parent
CODES = diagnostics.codes()


def test_nothing_is_registered_that_is_not_a_code():
    assert diagnostics.find("JP999") is None
    assert diagnostics.find("jp043") is None
    assert diagnostics.find("") is None
    assert diagnostics.find("base") is None


def test_codes_are_sorted_and_every_file_is_one():
    files = sorted(path.stem.upper() for path in (PACKAGE / "diagnostics").glob("*.toml"))
    assert list(CODES) == files


@pytest.mark.parametrize("code", CODES)
def test_entry_is_complete(code):
    entry = diagnostics.find(code)
    assert entry.code == code
    assert entry.exit_code == (2 if int(code[2:]) < 40 else 1) == diagnostics.exit_code(code)
    assert not entry.title.endswith(".")
    for prose in (entry.meaning, entry.why, entry.cure):
        assert len(prose) > 30
        assert prose.endswith(".")
        assert prose.count("`") % 2 == 0
        assert "  " not in prose
    titles = [diagnostics.find(other).title for other in CODES]
    assert titles.count(entry.title) == 1


@pytest.mark.parametrize("code", CODES)
def test_example_and_cure_are_real(code):
    """Python parses and defines the function the command names; commands parse as ours."""
    entry = diagnostics.find(code)
    commands = [entry.command] if entry.command else _commands(entry.example)
    if entry.command and code != "JP005" and "::" in entry.command:
        names = {
            node.name if isinstance(node, ast.FunctionDef) else node.targets[0].id
            for node in ast.parse(entry.example).body
            if isinstance(node, ast.FunctionDef)
            or (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name))
        }
        target = shlex.split(entry.command)[2].partition("::")[2].partition(".")[0]
        assert target in names or code == "JP002"
    if entry.fixed:
        assert entry.fixed != entry.example
        if entry.fixed_language == "python":
            ast.parse(entry.fixed)
        else:
            commands += _commands(entry.fixed)
    assert commands or entry.fixed
    for command in commands:
        _parse(command)


def _commands(session):
    return [line[2:].partition(" > ")[0] for line in session.splitlines() if line.startswith("$ jax-pmap")]


def _parse(command):
    """Let click read the command's options without running it."""
    program, *words = shlex.split(command)
    assert program == "jax-pmap"
    flags = {option for parameter in main.params for option in parameter.opts}
    while words[0] in flags:
        words.pop(0)
    main.commands[words[0]].make_context(words[0], words[1:], parent=click.Context(main))


def test_the_codes_the_package_raises_are_those_that_are_registered():
    found = {
        code
        for path in PACKAGE.rglob("*.py")
        for code in re.findall(r"\"(JP\d{3})\"", path.read_text(encoding="utf-8"))
    }
    assert found == set(CODES)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("jp43", "JP043"), ("43", "JP043"), ("JP0043", "JP043"), ("JO043", "JP043"), ("x", None)],
)
def test_nearest(typed, meant):
    assert diagnostics.nearest(typed) == meant


def test_exit_code_of_an_unknown_code_is_our_bug():
    with pytest.raises(KeyError):
        diagnostics.exit_code("JP999")


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("width", [20, 60, 80, 200])
def test_explanation_fits(code, width):
    entry = diagnostics.find(code)
    text = explanation(entry, width=width)
    verbatim = f"{entry.example}\n{entry.fixed}\n{entry.command}".splitlines()
    limit = max(30, min(width, 88))
    for line in text.splitlines():
        longest_word = max(map(len, line.split()), default=0)
        assert len(line) <= max(limit, longest_word + 2) or line.strip().removeprefix("$ ") in {
            other.strip().removeprefix("$ ") for other in verbatim
        }
    assert "\x1b" not in text
    assert text.startswith(f"{code}: ")
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


def test_explain_prints_the_entry_to_stdout():
    result = CliRunner().invoke(main, ["explain", "JP043"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == explanation(diagnostics.find("JP043"))
    assert "jnp.cumsum(x, axis=0)" in result.stdout
    assert "jnp.cumsum(x, axis=1)" in result.stdout


def test_explain_takes_lower_case():
    assert CliRunner().invoke(main, ["explain", "jp043"]).stdout.startswith("JP043: ")


def test_explain_without_a_code_lists_all():
    result = CliRunner().invoke(main, ["explain"])
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == list(CODES)
    assert max(map(len, result.stdout.splitlines())) <= 60


def test_explain_an_unknown_code():
    result = CliRunner().invoke(main, ["explain", "jp43"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Did you mean JP043?" in result.stderr
    result = CliRunner().invoke(main, ["explain", "JP999"])
    assert result.exit_code == 2
    assert "Did you mean" not in result.stderr
