import click
import pytest

from jax_pmap.cli import plan
from jax_pmap.config import Config, is_project_root, project_root, read_config
from jax_pmap.model import Backend, Devices, RefusalError
from jax_pmap.options import request


@pytest.fixture
def write(tmp_path):
    def write(text):
        (tmp_path / "pyproject.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path

    return write


def refused(folder):
    with pytest.raises(RefusalError) as caught:
        read_config(folder)
    refusal = caught.value.refusal
    assert refusal.code == "JP018"
    assert refusal.span.file == "pyproject.toml"
    return refusal


# --- nothing is set -----------------------------------------------------------------------


def test_no_pyproject(tmp_path):
    (tmp_path / ".git").mkdir()
    assert read_config(tmp_path) == Config()
    assert read_config(tmp_path / "missing") == Config()


@pytest.mark.parametrize(
    "text",
    ["", "tool = 3\n", "[tool.ruff]\nline-length = 1\n", "[tool.jax-pmap]\n", "[project]\naxis_name = 'x'\n"],
)
def test_nothing_for_us(write, text):
    assert read_config(write(text)) == Config()


# --- what is set --------------------------------------------------------------------------


def test_every_key(write):
    text = """[tool.jax-pmap]
python = ".venv"
axis_name = "data"
devices = 4
backend = "shard_map"
timeout = 600
"""
    expected = Config(".venv", "data", Devices(count=4), Backend.SHARD_MAP, 600.0)
    assert read_config(write(text)) == expected
    assert read_config(write(text.replace("axis_name", "axis-name"))) == expected
    assert read_config(write(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())) == expected


def test_device_ids(write):
    assert read_config(write("[tool.jax-pmap]\ndevices = [0, 2]\n")).devices == Devices(ids=(0, 2))


def test_it_is_found_from_a_folder_below(write):
    root = write("[tool.jax-pmap]\naxis-name = 'i'\n")
    below = root / "a" / "b"
    below.mkdir(parents=True)
    assert read_config(below).axis_name == "i"
    assert project_root(below) == root
    (below / ".git").write_text("gitdir: elsewhere\n")  # a worktree or submodule
    assert is_project_root(below)
    assert project_root(below) == below
    assert read_config(below) == Config()


def test_without_a_project_the_folder_is_the_root(tmp_path):
    assert project_root(tmp_path) in (tmp_path, *tmp_path.parents)


# --- refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "near"),
    [("axis_nam", "axis-name"), ("device", "devices"), ("time-out", "timeout"), ("Python", "python")],
)
def test_unknown_key_names_the_nearest(write, key, near):
    refusal = refused(write(f"[tool.other]\n{key} = 1\n\n[tool.jax-pmap]\n# here\n{key} = 1\n"))
    assert f"`{key}`" in refusal.reason
    assert refusal.hint == f"Did you mean `{near}`?"
    assert refusal.span.line == 6


def test_a_key_like_no_other_gets_the_list(write):
    assert "`axis-name`" in refused(write("[tool.jax-pmap]\nzzz = 1\n")).hint


def test_the_same_key_twice(write):
    assert "both" in refused(write("[tool.jax-pmap]\naxis_name = 'a'\naxis-name = 'a'\n")).reason


@pytest.mark.parametrize(
    "line",
    [
        "python = 3.11",
        "python = ''",
        "python = true",
        "axis_name = 'a b'",
        "axis_name = 1",
        "devices = 0",
        "devices = -1",
        "devices = true",
        "devices = '4'",
        "devices = []",
        "devices = [0, 0]",
        "devices = [0, true]",
        "devices = [0, -2]",
        "devices = 4.0",
        "devices = 1" + "0" * 30,
        "backend = 'jax'",
        "backend = []",
        "mesh = 'data'",
        "mesh = ['data=2']",
        "spec = '.*=data'",
        "fsdp = 'yes'",
        "explicit = 1",
        "timeout = 0",
        "timeout = -3.5",
        "timeout = nan",
        "timeout = inf",
        "timeout = 1" + "0" * 400,
        "timeout = '5'",
        "timeout = false",
        "timeout = {a = 1}",
    ],
)
def test_wrong_values(write, line):
    refusal = refused(write(f"[tool.jax-pmap]\n{line}\n"))
    assert f"`{line.partition(' ')[0]}`" in refusal.reason
    assert "Write for instance" in refusal.hint
    assert refusal.span.line == 2
    assert len(refusal.reason) < 250


@pytest.mark.parametrize("text", ["[tool]\njax-pmap = 3\n", "[[tool.jax-pmap]]\npython = 'x'\n"])
def test_not_a_table(write, text):
    assert "not a table" in refused(write(text)).reason


@pytest.mark.parametrize("name", ["jax_pmap", "jaxpmap", "Jax-Pmap"])
def test_a_misspelt_table_is_not_passed_over(write, name):
    refusal = refused(write(f"[project]\nname = 'x'\n[tool.{name}]\npython = 'x'\n"))
    assert "`[tool.jax-pmap]`" in refusal.hint
    assert refusal.span.line == 3


@pytest.mark.parametrize(
    ("text", "line"), [("[tool\n", 1), ("a = 1\nb = \n", 2), (b"a = '\xff'\n", 1), ("x=[" * 9999, 1)]
)
def test_a_broken_pyproject(write, text, line):
    refusal = refused(write(text))
    assert "cannot be read" in refusal.reason
    assert refusal.span.line == line


@pytest.mark.parametrize("where", ["", '.targets."model.py::step"'])
def test_a_mesh_of_the_project_is_taken_until_one_is_given_by_hand(write, where):
    text = f"[tool.jax-pmap{where}]\nbackend = 'jit'\nmesh = 'data=2,model=2'\nspec = ['w=None,model']\n"
    config = read_config(write(text))
    unasked = {p.name: () if p.multiple else None for p in plan.params if isinstance(p, click.Option)}
    asked = {**unasked, "target": "model.py::step"}
    found = request(asked, config)
    assert [(axis.name, axis.size) for axis in found.mesh] == [("data", 2), ("model", 2)]
    assert [rule.text for rule in found.spec] == ["w=None,model"]
    found = request({**asked, "mesh": "batch=4"}, config)
    assert [axis.name for axis in found.mesh] == ["batch"] and not found.spec
    assert not request({**asked, "parallel": "p.py::step"}, config).mesh


def test_explicit_mode_of_the_project_is_for_jit_code(write):
    config = read_config(write("[tool.jax-pmap]\nbackend = 'jit'\nexplicit = true\n"))
    unasked = {p.name: () if p.multiple else None for p in plan.params if isinstance(p, click.Option)}
    asked = {**unasked, "target": "model.py::step"}
    assert request(asked, config).explicit
    assert not request({**asked, "backend": "pmap"}, config).explicit
