"""`[tool.jax-pmap]`: targets, paths, check, and the schema editors are given."""

import tomllib

import jsonschema
import pytest
from click.testing import CliRunner

from jax_pmap import config, options
from jax_pmap.cli import main
from jax_pmap.model import Backend, Devices, RefusalError
from jax_pmap.report.as_json import schema

WHOLE = """\
[tool.jax-pmap]
python = ".venv"
axis-name = "batch"
devices = [0, 2]
backend = "pmap"
timeout = 600

[tool.jax-pmap.check]
select = ["JP1"]
ignore = ["jp113"]
exclude = ["vendor", "old/*.py"]
run = false

[tool.jax-pmap.targets."train.py::train_step"]
inputs = "train.py::make_inputs"
replicate = ["params"]
axis-name = "data"

[tool.jax-pmap.targets."eval.py::evaluate"]
arg = ["x=f32[24,8]"]
shard = ["x:0"]
static = ["n"]
key = ["rng"]
donate = ["x"]
devices = 4
backend = "jit"

[tool.jax-pmap.paths."experiments/*"]
backend = "shard_map"
devices = 2
axis-name = "i"
timeout = 60
"""


def read(tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(text)
    return config.read_config(tmp_path)


def request(found, target, **more):
    words = [word for name, value in more.items() for word in (f"--{name}", value)]
    context = main.commands["plan"].make_context("plan", [target, *words])
    return options.request(context.params, found)


def test_options_of_a_target(tmp_path):
    found = read(tmp_path, WHOLE)
    asked = request(found, "train.py::train_step")
    assert (asked.inputs, asked.replicate, asked.axis_name) == ("train.py::make_inputs", ("params",), "data")
    assert asked.devices == Devices(ids=(0, 2))
    assert request(found, "train_step").inputs == "train.py::make_inputs"
    assert request(found, "other.py::train_step").inputs is None
    asked = request(found, "evaluate")
    assert (asked.args, asked.shard, asked.static) == (("x=f32[24,8]",), ("x:0",), ("n",))
    assert (asked.key, asked.donate) == (("rng",), ("x",))
    assert (asked.devices, asked.backend) == (Devices(count=4), Backend.JIT)


def test_a_misspelt_target_is_not_ignored_in_silence(tmp_path):
    (tmp_path / "train.py").write_text("def train_step(x): return x\n")
    for table, target in (
        ("train.py::trian_step", "train.py::train_step"),
        ("train.py::trian_step", "train_step"),
        ("trian_step", "train.py::train_step"),
        ("trian.py::train_step", "train.py::train_step"),
    ):
        found = read(tmp_path, f'[tool.jax-pmap.targets."{table}"]\nreplicate = ["x"]')
        with pytest.raises(RefusalError, match="near to") as error:
            request(found, target)
        assert (error.value.refusal.code, error.value.refusal.span.line) == ("JP018", 1)
        assert request(found, "train.py::evaluate").replicate == ()
    # A function that is there is another one.
    (tmp_path / "train.py").write_text("def train_step(x): return x\ndef train_step2(x): return x\n")
    found = read(tmp_path, '[tool.jax-pmap.targets."train.py::train_step2"]\nreplicate = ["x"]')
    assert request(found, "train_step").replicate == ()


def test_the_command_line_wins(tmp_path):
    found = read(tmp_path, WHOLE)
    asked = request(found, "train_step", inputs="mine.py::f", shard="x", **{"axis-name": "j"})
    assert (asked.inputs, asked.shard, asked.axis_name) == ("mine.py::f", ("x",), "j")
    assert asked.replicate == ()


def test_defaults_of_a_path(tmp_path):
    found = read(tmp_path, WHOLE)
    asked = request(found, "experiments/deep/a.py::f")
    assert (asked.backend, asked.devices, asked.axis_name) == (Backend.SHARD_MAP, Devices(count=2), "i")
    assert asked.timeout == 60
    assert request(found, "src/a.py::f").backend is Backend.PMAP


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("[tool.jax-pmap.chek]", "`chek` is not a key", "`check`"),
        (
            "[tool.jax-pmap.check]\nexclud = []",
            "`exclud` is not a key of `[tool.jax-pmap.check",
            "`exclude`",
        ),
        ("[tool.jax-pmap.check]\nselect = ['X1']", "not a list of codes", "select"),
        ("[tool.jax-pmap.check]\nrun = 'no'", "not true or false", "run = false"),
        ("[tool.jax-pmap]\ncheck = 1", "is not a table", "[tool.jax-pmap.check]"),
        ("[tool.jax-pmap.targets.f]\ninput = 'x'", "`input` is not a key", "`inputs`"),
        ("[tool.jax-pmap.targets.f]\nstatic = 'n'", "not a list of argument names", "static"),
        ("[tool.jax-pmap.targets]\nf = 1", "is not a table", "targets"),
        ("[tool.jax-pmap.paths.'a/*']\npython = 'x'", "`python` is not a key", "keys are"),
    ],
)
def test_mistakes_are_named(tmp_path, text, says, hint):
    with pytest.raises(RefusalError) as error:
        read(tmp_path, text)
    assert error.value.refusal.code == "JP018"
    assert says in error.value.refusal.reason
    assert hint in error.value.refusal.hint


def test_check_reads_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = "import jax\n\nf = jax.pmap(lambda x: x, out_axes=-1)\n"
    for name in ("vendor/deep/a.py", "old/b.py", "c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(wrong)

    def check(*words):
        return CliRunner().invoke(main, ["check", "--no-cache", "-q", *words]).stdout.count("JP110")

    assert check() == 3
    (tmp_path / "pyproject.toml").write_text('[tool.jax-pmap.check]\nexclude = ["vendor", "old/*.py"]\n')
    assert check() == 1
    assert check("old/b.py") == 1
    (tmp_path / "pyproject.toml").write_text('[tool.jax-pmap.check]\nignore = ["JP11"]\n')
    assert check() == 0
    assert check("--ignore", "JP101") == 3


def test_the_schema_for_editors(tmp_path):
    table = tomllib.loads(WHOLE)["tool"]["jax-pmap"]
    described = schema("config")
    jsonschema.Draft202012Validator.check_schema(described)
    jsonschema.validate(table, described)
    for wrong in (
        {"devises": 4},
        {"devices": 0},
        {"check": {"selct": []}},
        {"targets": {"f": {"input": "x"}}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, described)
    keys = {key.replace("-", "_") for key in described["properties"]}
    assert keys == {*config._READERS, *config._TABLES}
    for name, (_, readers) in config._TABLES.items():
        properties = described["properties"][name]
        inner = properties.get("properties") or properties["additionalProperties"]["properties"]
        assert {key.replace("-", "_") for key in inner} == set(readers)
