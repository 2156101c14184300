import dataclasses
import io
import itertools
import json
import re
import subprocess

import jsonschema
import pytest
import referencing
from rich.cells import cell_len

from jax_pmap.emit.header import Header
from jax_pmap.model import (
    Argument,
    AxesNode,
    Backend,
    Check,
    Collective,
    Compiled,
    Derivation,
    Devices,
    Evidence,
    Fit,
    Generated,
    Guard,
    Leaf,
    Machine,
    ParameterKind,
    Plan,
    Refusal,
    RefusalError,
    Role,
    Span,
    Sync,
)
from jax_pmap.planning.layers import TOLD
from jax_pmap.report import as_json, text
from jax_pmap.report.console import Console, make_console
from jax_pmap.report.layout import Column, print_table
from jax_pmap.report.patch import patch
from jax_pmap.report.refusals import print_refusal
from jax_pmap.syntax.uses import MadeOf
from jax_pmap.worker.protocol import Memory

KIND = ParameterKind.POSITIONAL_OR_KEYWORD


def replicated(path, shape, dtype="float32"):
    return Leaf(path, Role.REPLICATED, None, shape, dtype)


def batch(path, shape, dtype="float32", axis=0):
    return Leaf(path, Role.BATCH, axis, shape, dtype)


def mixed(count):
    leaves = tuple(replicated(f"aux['table'][{i}]", (5, 3)) for i in range(count))
    axes = AxesNode("dict", ("'table'", "'mask'"), (None, 1))
    return Argument(
        "aux", KIND, axes, (*leaves, batch("aux['mask']", (7, 64), "bool", 1)), why="roles differ"
    )


PLAN = Plan(
    target="train.py::train_step",
    axis_name="batch",
    arguments=(
        Argument(
            "params",
            KIND,
            None,
            tuple(replicated(f"params['w{i}']", (784, 128)) for i in range(4)),
            donated=True,
            why="a gradient is taken of it (line 12)",
        ),
        Argument(
            "batch",
            KIND,
            AxesNode("dict", ("'x'", "'y'"), (0, 0)),
            (batch("batch['x']", (64, 784)), batch("batch['y']", (64,), "int32")),
            why="leading size 64 is shared by its leaves and by no parameter",
        ),
        mixed(44),
        Argument("rng", KIND, None, (Leaf("rng", Role.KEY, None, (2,), "uint32"),), why="a PRNG key"),
        Argument("mode", ParameterKind.KEYWORD_ONLY, None, (), static=True, proved_values=("'train'",)),
    ),
    syncs=(
        Sync("pmean", "loss", "after", Span("train.py", 12, 4, 12, 30), bytes=4),
        Sync(
            "psum",
            "metrics",
            "wrap",
            Span("train.py", 15, 4),
            paths=("['n']", "['hits']"),
            containers=(("", "dict"), ("['n']", "tuple 2")),
            bytes=407_080,
        ),
    ),
    output_axes=AxesNode("tuple", (), (None, AxesNode("namedtuple", ("loss",), (0,), "train:Out"))),
    outputs=(replicated("result[0]", (784, 128)), batch("result[1].loss", (64,))),
    devices=Devices(ids=(0, 2, 4, 6)),
    guards=(Guard(Span("train.py", 20, 4), "if mask is not None"),),
    notes=("`n` is the size of one share.",),
    assumed_inputs=("batch={x: f32[64,784], y: i32[64]<10}", "rng=key"),
    chain=(("params", "[0]"),),
    source_hash="ab" * 32,
)
EVIDENCE = Evidence(
    checks=(
        *(Check(n, "float64", 24, 3, 1.1e-16, 4e-15) for n in (2, 3, 4, 8)),
        Check(8, "as given", 24, 3, 2e-7, 1e-6),
    ),
    jax_version="0.10.2",
    python_version="3.11.9",
    replicas_identical=True,
)
FAR = Check(8, "float64", 24, 3, float("inf"), 1e-6)
DERIVED = dataclasses.replace(EVIDENCE, checks=(), derivation=Derivation(1234, True))
ENDED = dataclasses.replace(
    EVIDENCE, derivation=Derivation(12, False, "it has no rule", "sort", Span("train.py", 12, 4))
)
GENERATED = Generated("import jax\n", PLAN, Backend.PMAP, EVIDENCE)
REFUSAL = Refusal(
    "JP043",
    "`jnp.cumsum` runs along the batch axis of `x`, so each entry of `y` depends on examples elsewhere.",
    "Run it along another axis (`axis=1`), or keep this step on one device.",
)


def rendered(show, record, *, width=80, plain=True, encoding="utf-8"):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    show(record, make_console(stream, plain=plain, width=width))
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)


# --- JSON ---------------------------------------------------------------------------------


def validate(document, name):
    schemas = {f"{n}.schema.json": as_json.schema(n) for n in ("plan", "report")}
    registry = referencing.Registry().with_resources(
        (uri, referencing.Resource.from_contents(contents)) for uri, contents in schemas.items()
    )
    schema = schemas[f"{name}.schema.json"]
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema, registry=registry).validate(document)


MINIMAL = Plan("f.py::f", "batch", (), (), None, ())


@pytest.mark.parametrize("plan", [MINIMAL, PLAN, dataclasses.replace(PLAN, output_axes=0)])
def test_plan_round_trips_through_text(plan):
    document = json.loads(as_json.dumps(as_json.plan_to_dict(plan)))
    validate(document, "plan")
    assert as_json.plan_from_dict(document) == plan


def test_optional_keys_may_be_left_out():
    document = as_json.plan_to_dict(MINIMAL)
    for key in as_json.schema("plan")["properties"].keys() - set(as_json.schema("plan")["required"]):
        del document[key]
    validate(document, "plan")
    assert as_json.plan_from_dict(document) == MINIMAL


def test_schema_lists_the_fields_of_the_records():
    defs = as_json.schema("plan")["$defs"]
    records = {
        "leaf": Leaf,
        "argument": Argument,
        "sync": Sync,
        "guard": Guard,
        "devices": Devices,
        "span": Span,
    }
    keys = {name: set(defs[name]["properties"]) for name in records}
    keys["argument"] -= {"role"}
    keys["leaf"] = keys["leaf"] - {"paths"} | {"path"}
    keys["plan"] = set(as_json.schema("plan")["properties"])
    for name, record in {**records, "plan": Plan}.items():
        fields = dataclasses.fields(record)
        assert keys[name] == {field.name for field in fields}
    assert set(as_json.schema("plan")["properties"]["layers"]["items"]["anyOf"][0]["enum"]) == TOLD
    defs = as_json.schema("report")["$defs"]
    for name, record, derived in (
        ("check", Check, set()),
        ("evidence", Evidence, {"proved"}),
        ("derivation", Derivation, set()),
        ("refusal", Refusal, {"title", "exit_code"}),
    ):
        fields = {field.name for field in dataclasses.fields(record)} - {"final", "found"}
        assert set(defs[name]["properties"]) == fields | derived


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (GENERATED, "proved"),
        (dataclasses.replace(GENERATED, evidence=DERIVED), "proved"),
        (dataclasses.replace(GENERATED, evidence=ENDED), "proved"),
        (PLAN, "planned"),
        (
            Fit(PLAN, Machine("v5e:2x4", "TPU v5 lite", 8, 24, 1, Memory(1, 2, 3), (), by_shapes=True)),
            "planned",
        ),
        (Fit(PLAN, None, Compiled((Collective("all-gather", 1, 8, ("data",)),), None, ("so",))), "planned"),
        (REFUSAL, "refused"),
        (dataclasses.replace(REFUSAL, span=Span("ops.py", 7), details=("x", "Traceback\n")), "refused"),
    ],
)
def test_report_fits_its_schema(result, status):
    document = as_json.report_to_dict(result, target="train_step")
    validate(json.loads(as_json.dumps(document)), "report")
    assert document["status"] == status


def test_report_schema_rejects_a_refusal_with_code():
    document = as_json.report_to_dict(REFUSAL, target="f") | {"code": "import jax\n"}
    with pytest.raises(jsonschema.ValidationError):
        validate(document, "report")


def test_numbers_json_does_not_have():
    evidence = dataclasses.replace(
        EVIDENCE,
        checks=(
            Check(2, "float64", 24, 1, float("nan"), 1e-15),
            Check(3, "float64", 24, 1, float("inf"), 0.0),
        ),
    )
    document = as_json.report_to_dict(dataclasses.replace(GENERATED, evidence=evidence), target="f")
    validate(json.loads(as_json.dumps(document)), "report")
    assert [check["error"] for check in document["evidence"]["checks"]] == ["nan", "inf"]
    assert document["evidence"]["proved"] is False


def test_text_that_is_not_unicode_is_still_json():
    document = as_json.report_to_dict(dataclasses.replace(REFUSAL, reason="caf\udce9 ünï"), target="f")
    assert json.loads(as_json.dumps(document).encode("utf-8"))["refusal"]["reason"] == "caf\\udce9 ünï"


def edited(change):
    document = json.loads(as_json.dumps(as_json.plan_to_dict(PLAN)))
    change(document)
    return document


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schema_version=3), "schema_version is `3`"),
        (lambda d: d.pop("schema_version"), "schema_version is none"),
        (lambda d: d.update(sync=[]), "unknown key `sync`. Did you mean `syncs`?"),
        (lambda d: d.pop("target"), "lacks the key `target`"),
        (lambda d: d.update(axis_name=3), "`plan.axis_name` is `3`; it has to be a string"),
        (lambda d: d.update(axis_name="a b"), "identifier"),
        (lambda d: d.update(observed=False), "`--no-proof`"),
        (lambda d: d["arguments"][0].update(donated="yes"), "true or false"),
        (lambda d: d.update(arguments={}), "has to be an array"),
        (
            lambda d: d["arguments"][1]["leaves"][0].update(role="sharded"),
            "`plan.arguments[1].leaves[0].role`",
        ),
        (lambda d: d["arguments"][1]["leaves"][0].update(role=["batch"]), "has to be one of"),
        (lambda d: d["arguments"][1]["leaves"][0].update(axis=True), "leaves[0].axis` is `true`"),
        (lambda d: d["arguments"][1]["leaves"][0].update(axis=None), "role `batch` and axis `null`"),
        (lambda d: d["arguments"][1]["leaves"][0].update(axis=2), "the leaf has 2 axes"),
        (lambda d: d["arguments"][1]["leaves"][0].update(shape=[64, "n"]), "shape[1]"),
        (lambda d: d["arguments"][1]["leaves"][0].update(paths=["x"]), "each path its place"),
        (lambda d: d["arguments"][1]["leaves"][0]["paths"].update({"batch['x']": 1}), "at the same place"),
        (lambda d: d["arguments"][1]["leaves"][0]["paths"].update({"batch['x']": 7}), "none at one"),
        (lambda d: d["arguments"][1].update(role="replicated"), "its leaves say `batch`"),
        (lambda d: d["arguments"][1]["axes"]["keys"].pop(), "2 children and 1 keys"),
        (lambda d: d["arguments"][1]["axes"].update(kind="set"), "axes.kind"),
        (lambda d: d["syncs"][0].update(op="__import__('os')"), "`plan.syncs[0].op`"),
        (lambda d: d["syncs"][0].update(where="before"), "`plan.syncs[0].where`"),
        (lambda d: d["syncs"][0].update(joined=[2, "rows"]), "and joined `[2, "),
        (lambda d: d["syncs"][0].update(op="all_gather", axis=0, joined=[2, "rows()"]), '`[2, "rows()"]`'),
        (lambda d: d["chain"][0].append("x"), "has 3 entries; it has to have 2"),
        (lambda d: d["syncs"].append(None), "`plan.syncs[2]` is `null`; it has to be an object"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(change, message):
    with pytest.raises(RefusalError) as caught:
        as_json.plan_from_dict(edited(change))
    assert caught.value.refusal.code == "JP017"
    assert message in caught.value.refusal.reason


def test_leaves_that_differ_in_their_paths_alone_are_one_entry():
    document = as_json.plan_to_dict(PLAN)
    (group,) = document["arguments"][0]["leaves"]
    assert group["paths"] == {f"params['w{i}']": i for i in range(4)}
    mixed_up = dataclasses.replace(
        PLAN, outputs=tuple(replicated(f"result[{i}]", (8 + i % 2,)) for i in range(6))
    )
    document = json.loads(as_json.dumps(as_json.plan_to_dict(mixed_up)))
    assert [list(group["paths"].values()) for group in document["outputs"]] == [[0, 2, 4], [1, 3, 5]]
    assert as_json.plan_from_dict(document) == mixed_up


def test_what_is_asked_first_comes_first():
    """A client may cut off what is long."""
    large = dataclasses.replace(
        PLAN, outputs=tuple(replicated(f"result['block_{i}']['kernel']", (768, 768)) for i in range(600))
    )
    text = as_json.dumps(as_json.report_to_dict(dataclasses.replace(GENERATED, plan=large), target="f"))
    assert len(text) < 60_000
    head = text[:8000]
    assert all(f'"{key}"' in head for key in ("evidence", "syncs", "notes", "assumed_inputs"))


def test_a_plan_of_the_first_version_is_read():
    document = as_json.plan_to_dict(PLAN)
    for holder, key in [*((each, "leaves") for each in document["arguments"]), (document, "outputs")]:
        one_by_one = [
            (place, {"path": path, **{name: each for name, each in group.items() if name != "paths"}})
            for group in holder[key]
            for path, place in group["paths"].items()
        ]
        holder[key] = [leaf for _, leaf in sorted(one_by_one, key=lambda pair: pair[0])]
    assert as_json.plan_from_dict({**document, "schema_version": 1}) == PLAN


def test_evidence_round_trips_through_text():
    for evidence in (EVIDENCE, DERIVED, ENDED, dataclasses.replace(EVIDENCE, checks=(FAR,))):
        document = json.loads(as_json.dumps(as_json.evidence_to_dict(evidence)))
        assert as_json.evidence_from_dict(document) == evidence


def test_a_plan_file_may_be_a_plan_or_a_report(tmp_path):
    path = tmp_path / "plan.json"
    for document in (as_json.plan_to_dict(PLAN), as_json.report_to_dict(PLAN, target="f")):
        path.write_text(as_json.dumps(document), encoding="utf-8")
        assert as_json.read_plan(path) == PLAN


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"[]", "a JSON object"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (
            as_json.dumps(as_json.report_to_dict(REFUSAL, target="f")).encode(),
            "holds no plan: its status is `refused`",
        ),
        (None, "cannot be read"),
    ],
)
def test_an_unusable_plan_file(tmp_path, content, message):
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RefusalError) as caught:
        as_json.read_plan(path)
    assert caught.value.refusal.code == "JP017"
    assert message in caught.value.refusal.reason


# --- text ---------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("plain", [True, False])
def test_every_line_fits_and_only_a_terminal_gets_escapes(width, plain, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    drawn = dataclasses.replace(GENERATED, evidence=dataclasses.replace(EVIDENCE, equal_draws=True))
    output = rendered(text.print_generated, drawn, width=width, plain=plain)
    assert ("\x1b[" in output) is not plain
    if plain:
        for line in output.splitlines():
            assert line == line.rstrip()
            # Names, places and what is to be copied stay whole, however narrow it is.
            if width >= 60 and "--arg" not in line:
                assert cell_len(line) <= width


def test_tables_at_80_columns():
    output = rendered(text.print_generated, GENERATED)
    lines = output.splitlines()
    assert lines[0] == 'train.py::train_step · pmap · axis "batch" · devices 0, 2, 4, 6'
    words = {line.split()[0]: line.split() for line in lines if line.strip()}
    assert words["['x']"] == ["['x']", "batch", "axis", "0", "f32[64,784]", "f32[16,784]"]
    assert words["['mask']"] == ["['mask']", "batch", "axis", "1", "bool[7,64]", "bool[7,16]"]
    assert words["rng"][1:4] in (["key", "u32[2]", "u32[2]"], ["a", "PRNG", "key"])
    assert re.search(r"^  params \(donated\) +replicated +4 leaves$", output, re.M)
    assert "  … 37 more leaves" in output
    assert "'train'" in output
    assert words["pmean"] == ["pmean", "loss", "train.py:12", "4", "B"]
    assert words["psum"] == ["psum", "metrics['n'],", "metrics['hits']", "train.py:15", "407", "kB"]
    assert "  --arg 'batch={x: f32[64,784], y: i32[64]<10}'" in lines
    assert "  --arg rng=key" in lines
    assert "train.py:20  if mask is not None" in output
    assert "proved on 2, 3, 4, 8 devices · 3 chained steps" in output
    assert "float64 error 1.1e-16 (bound 4e-15)" in output
    assert "replicas bit-identical · jax 0.10.2" in output


def test_a_role_is_never_hidden_behind_the_count():
    assert "['mask']" in rendered(text.print_plan, dataclasses.replace(PLAN, arguments=(mixed(1000),)))


def test_a_plan_is_shown_for_a_device_count_that_divides_it():
    plan = dataclasses.replace(
        MINIMAL,
        arguments=(
            Argument("x", KIND, 0, (batch("x", (6, 2)),)),
            Argument("y", KIND, 0, (batch("y", (6,)),)),
        ),
    )
    assert "f32[2,2]" in rendered(text.print_plan, plan)
    assert "on each of 3" in rendered(text.print_plan, plan)


def test_what_is_not_proved_does_not_say_proved():
    off = dataclasses.replace(EVIDENCE.checks[0], error=1.0)
    evidence = dataclasses.replace(EVIDENCE, checks=(off,), replicas_identical=False)
    output = rendered(text.print_generated, dataclasses.replace(GENERATED, evidence=evidence))
    assert "NOT EQUAL" in output
    assert "replicas" not in output


def test_the_header_and_the_report_show_the_same_check():
    checks = (
        Check(2, "float64", 24, 3, 3e-15, 4e-12),
        Check(8, "float64", 24, 3, 1.2e-15, 4e-15),  # a smaller error, and yet nearer to its bound
        Check(8, "as given", 24, 3, 2e-7, 1e-6),
    )
    evidence = dataclasses.replace(EVIDENCE, checks=checks)
    assert evidence.worst() is checks[1]
    assert evidence.worst("as given") is checks[2]
    header = Header("0.1.0", "jax-pmap gen f", "f.py::f", MadeOf("0" * 16, ()), evidence).text()
    assert "float64 error 1.2e-15 (bound 4.0e-15)" in header
    report = rendered(text.print_generated, dataclasses.replace(GENERATED, evidence=evidence))
    assert "float64 error 1.2e-15 (bound 4e-15)" in report


def test_jit_lists_no_collectives_that_the_code_does_not_have():
    output = rendered(text.print_generated, dataclasses.replace(GENERATED, backend=Backend.JIT))
    assert "needed; the compiler inserts them" in output
    assert re.search(r"^  mean +loss +train.py:12 +4 B$", output, re.M)
    assert not {"pmean", "psum", "sync"} & set(output.split())


def test_what_is_derived_and_not_run_says_so():
    output = rendered(text.print_generated, dataclasses.replace(GENERATED, evidence=DERIVED))
    assert "derived for all inputs and device counts (1,234 operations) · not run" in output
    assert "error" not in output
    header = Header("0.1.0", "jax-pmap gen f --no-run", "f.py::f", MadeOf("0" * 16, ()), DERIVED).text()
    assert "# Proved: derived for all inputs and device counts; not run, jax 0.10.2" in header


def test_a_derivation_that_ended_is_a_test_and_says_where():
    output = " ".join(rendered(text.print_generated, dataclasses.replace(GENERATED, evidence=ENDED)).split())
    assert "proved on 2, 3, 4, 8 devices" in output
    assert "not derived for all inputs, but tried on some: after 12 operations the derivation ended" in output
    assert "at `sort` (train.py:12): it has no rule" in output


def test_a_plan_of_an_earlier_version_is_read():
    document = as_json.plan_to_dict(PLAN) | {"observed": True}
    assert as_json.plan_from_dict(document) == PLAN


def test_prose_in_a_table_is_wrapped_at_any_width():
    stream = io.StringIO()
    word = "名" * 30
    columns = [Column("name"), Column("why", wraps=True)]
    rows = [[("x", ""), (f"because of {word} and more", "")]]
    print_table(columns, rows, Console(stream, 30, styled=False))
    lines = stream.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= 30
    shown = "".join(line[8:] for line in lines[1:])
    assert shown.replace(" ", "") == f"becauseof{word}andmore"


def test_ascii_stream():
    output = rendered(text.print_generated, GENERATED, encoding="ascii")
    assert "-> result" in output
    assert output.isascii()


def test_wide_tables_give_the_reason_on_the_row():
    line = next(
        ln for ln in rendered(text.print_plan, PLAN, width=160).splitlines() if ln.startswith("  batch")
    )
    assert line.endswith("leading size 64 is shared by its leaves and by no parameter")


def test_dtypes_are_written_as_in_arg():
    names = ["float32", "bfloat16", "int8", "uint32", "complex64", "bool", "key<fry>", "float8_e4m3fn"]
    shorts = ["f32", "bf16", "i8", "u32", "c64", "bool", "key<fry>", "float8_e4m3fn"]
    assert [text.short_dtype(name) for name in names] == shorts


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (407_080, "407 kB"),
        (999_600, "1 MB"),
        (5 * 10**15, "5e+03 TB"),
    ],
)
def test_human_bytes(size, shown):
    assert text.human_bytes(size) == shown


def test_refusal_points_at_the_source(tmp_path, monkeypatch):
    (tmp_path / "ops.py").write_text("def f(x):\n    y = jnp.cumsum(x, axis=0)\n    return y\n")
    monkeypatch.chdir(tmp_path)
    refusal = dataclasses.replace(REFUSAL, span=Span("ops.py", 2, 8, 2, 29))
    assert rendered(print_refusal, refusal, width=60) == (
        "error[JP043]: `jnp.cumsum` runs along the batch axis of `x`,\n"
        "so each entry of `y` depends on examples elsewhere.\n"
        " --> ops.py:2:9\n"
        "  |\n"
        "2 |     y = jnp.cumsum(x, axis=0)\n"
        "  |         ^^^^^^^^^^^^^^^^^^^^^\n"
        "\n"
        "hint: Run it along another axis (`axis=1`), or keep this\n"
        "step on one device.\n"
        "\n"
        "For more: jax-pmap explain JP043\n"
    )


def test_source_is_found_from_below_the_project_root(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "ops.py").write_text("spam\n")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    assert "1 | spam" in rendered(print_refusal, dataclasses.replace(REFUSAL, span=Span("ops.py", 1)))


@pytest.mark.parametrize(
    ("line", "span", "marked"),
    [
        ("\ty = f(x)", (5, 9), "f(x)"),
        ("名 = f(x)", (4, 8), "f(x)"),
        ("y = f(x)  # " + "é" * 200, (4, 8), "f(x)"),
        ("y = " + "a + " * 50 + "f(x)", (204, 208), "f(x)"),
        ("        " * 12 + "f(x)", (96, 100), "f(x)"),
    ],
)
def test_carets_stand_under_the_span(tmp_path, line, span, marked):
    path = tmp_path / "s.py"
    path.write_text(line + "\n", encoding="utf-8")
    refusal = dataclasses.replace(REFUSAL, span=Span(str(path), 1, span[0], 1, span[1]))
    rows = rendered(print_refusal, refusal).splitlines()
    source, carets = next((a, b) for a, b in itertools.pairwise(rows) if a.startswith("1 |"))
    assert cell_len(source) <= 80
    start = carets.index("^")
    prefix = next(source[:i] for i in range(len(source) + 1) if cell_len(source[:i]) == start)
    assert source[len(prefix) :].startswith(marked)
    assert carets.count("^") == cell_len(marked)


@pytest.mark.parametrize("line", [0, 5, 10**6])
def test_a_span_outside_the_file_shows_no_source(tmp_path, line):
    path = tmp_path / "s.py"
    path.write_text("x = 1\n")
    output = rendered(print_refusal, dataclasses.replace(REFUSAL, span=Span(str(path), line)))
    assert " | " not in output


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"# coding: no-such\n", None])
def test_a_source_that_cannot_be_read_is_left_out(tmp_path, content):
    path = tmp_path / "s.py"
    if content is not None:
        path.write_bytes(content)
    assert f"--> {path}:1:1" in rendered(print_refusal, dataclasses.replace(REFUSAL, span=Span(str(path), 1)))


def test_tracebacks_come_last_whole_and_harmless():
    path = "/very/long/" + "folder/" * 20 + "train.py"
    refusal = dataclasses.replace(
        REFUSAL,
        details=(
            f'Traceback (most recent call last):\n  File "{path}", line 7\n'
            "Error: [bold]\x1b[2J\x1b]0;t\x07\x00",
            "candidates:\n  a.py::f",
        ),
    )
    output = rendered(print_refusal, refusal)
    assert output.index("a.py::f") < output.index("Traceback")
    assert path in output
    assert "Error: [bold]\n" in output
    assert not {"\x1b", "\x00", "\x07"} & set(output)


def test_a_long_traceback_keeps_its_end():
    detail = "\n".join(["Traceback (most recent call last):", *(f"  line {i}" for i in range(500)), "E: x"])
    output = rendered(print_refusal, dataclasses.replace(REFUSAL, details=(detail,)))
    assert "E: x" in output
    assert "… 463 lines left out" in output
    assert "line 100\n" not in output


def test_commands_in_a_hint_are_not_wrapped():
    command = "  jax-pmap gen train.py::f " + "--arg 'x=f32[64,784]' " * 5
    output = rendered(print_refusal, dataclasses.replace(REFUSAL, hint=f"Add a line:\n{command}"), width=60)
    assert command.rstrip() in output


@pytest.mark.parametrize(("columns", "width"), [(None, 80), ("100", 100), ("1", 80), ("x", 80), ("²", 80)])
def test_width_when_it_is_no_terminal(columns, width, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    assert make_console(io.StringIO(), plain=True).width == width


# --- patch --------------------------------------------------------------------------------


@pytest.mark.parametrize("old", [None, b"", b"a\nb\n", b"a\r\nb\r\nc\r\n", b"a\nb", b"x\x0cy\na\n"])
@pytest.mark.parametrize("new", ["a\nc\n", "a\nB\nc\n", "a"])
def test_patch_is_taken_by_git(tmp_path, monkeypatch, old, new):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "out.py"
    if old is not None:
        path.write_bytes(old)
    diff = patch(path.relative_to(tmp_path), new)
    (tmp_path / "p.diff").write_bytes(diff.encode())
    subprocess.run(["git", "apply", "p.diff"], check=True, cwd=tmp_path)
    ending = "\r\n" if b"\r\n" in (old or b"") else "\n"
    assert path.read_bytes().decode() == new.replace("\n", ending)


def test_no_patch_for_equal_files(tmp_path):
    path = tmp_path / "out.py"
    path.write_bytes(b"a\r\nb\r\n")
    assert patch(path, "a\nb\n") == ""


@pytest.mark.parametrize("kind", ["folder", "binary"])
def test_patch_against_something_else(tmp_path, kind):
    path = tmp_path / "out.py"
    if kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"\xff\xfe")
    with pytest.raises(RefusalError) as caught:
        patch(path, "a\n")
    assert caught.value.refusal.code == "JP016"
