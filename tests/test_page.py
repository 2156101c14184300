"""The HTML report: what a reader finds in it, in a real browser where there is one."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import Browser, find_browser
from click.testing import CliRunner
from project import Project
from warm import Start, kept_warm

from jax_pmap.cli import main
from jax_pmap.report.as_json import schema

pytest_plugins = ["warm"]

NAMES = ("mlp", "flax", "long", "hostile", "refused", "plan", "equal", "different", "divided", "mesh")
HOSTILE = """
import jax.numpy as jnp


def loss(x):
    tag = "</span></style><script>alert(1)</script><img src=x onerror=alert(2)>"  # & "quoted" <b>
    assert tag
    spread = jnp.std(x)
    return {"spread": jnp.mean(x) / (1.0 + spread), tag: x * 2}
"""
#: As many parameters as a small transformer has.
LONG = """
import jax
import jax.numpy as jnp

NAMES = [f"layer_{i}_with_a_rather_long_name/{part}" for i in range(25) for part in ("kernel", "bias")]


def make_inputs():
    shapes = [(8, 8) if name.endswith("kernel") else (8,) for name in NAMES]
    params = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in zip(NAMES, shapes)}
    x, y = jax.ShapeDtypeStruct((16, 8), "float32"), jax.ShapeDtypeStruct((16,), "float32")
    return params, {"x": x, "y": y}


def loss_fn(params, batch):
    hidden = batch["x"]
    for i in range(0, 50, 2):
        hidden = jnp.tanh(hidden @ params[NAMES[i]] + params[NAMES[i + 1]])
    return jnp.mean((hidden.sum(axis=1) - batch["y"]) ** 2)


def train_step(params, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss
"""

WRITTEN = """
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def make_inputs():
    rng = np.random.default_rng(0)
    return rng.normal(size=4).astype("float32"), rng.normal(size=(24, 4)).astype("float32")


def loss_fn(w, x):
    errors = (x @ w) ** 2
    return jnp.mean(errors)


def step(w, x):
    loss, grads = jax.value_and_grad(loss_fn)(w, x)
    return w - 0.1 * grads, loss


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0), out_axes=None)
def equal(w, x):
    loss, grads = jax.value_and_grad(loss_fn)(w, x)
    grads = jax.lax.pmean(grads, "batch")
    return w - 0.1 * grads, jax.lax.pmean(loss, "batch")


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0), out_axes=None)
def different(w, x):
    loss, grads = jax.value_and_grad(loss_fn)(w, x)
    grads = jax.lax.psum(grads, "batch")
    return w - 0.1 * grads, jax.lax.psum(jax.lax.pmean(loss, "batch"), "batch")


mesh = Mesh(np.array(jax.devices()), ("data",))
whole, split = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("data",)))
divided = jax.jit(step, in_shardings=(whole, split), out_shardings=whole)
"""


class Page(HTMLParser):
    """A page taken apart: its elements, and the text in them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def tips(self) -> set[str]:
        """What is shown while the pointer is on a value."""
        return {each["data-tip"] or "" for _, each in self.elements if "data-tip" in each}


@pytest.fixture(scope="module")
def pages(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, warm_sessions: Start
) -> dict[str, Path]:
    """Reports of generated code, of refusals, of a plan, and of parallel functions written by hand."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "hostile.py").write_text(HOSTILE)
    (folder / "long.py").write_text(LONG)
    (folder / "written.py").write_text(WRITTEN)
    (folder / "pyproject.toml").touch()
    against = ("--against", "written.py::step", "--inputs", "written.py::make_inputs")
    commands = {
        "mlp": (
            repository / "examples",
            "gen",
            "train.py::train_step",
            "--inputs",
            "train.py::example_inputs",
        ),
        "flax": (
            repository / "examples",
            "gen",
            "nnx_classifier.py::train_step",
            "--inputs",
            "nnx_classifier.py::example_inputs",
            "--no-run",
        ),
        "long": (folder, "gen", "long.py::train_step", "--inputs", "long.py::make_inputs", "--no-run"),
        "hostile": (folder, "gen", "hostile.py::loss", "--arg", "x=f32[48,3]"),
        "refused": (
            repository / "examples",
            "gen",
            "metrics.py::ranks",
            "--inputs",
            "metrics.py::inputs_ranks",
        ),
        "plan": (folder, "plan", "written.py::step", "--inputs", "written.py::make_inputs"),
        "mesh": (
            folder,
            *("plan", "written.py::step", "--inputs", "written.py::make_inputs"),
            *("--backend", "jit", "--mesh", "data=2,model=2", "--spec", "w=model"),
        ),
        "equal": (folder, "verify", "written.py::equal", *against),
        "different": (folder, "verify", "written.py::different", *against),
        "divided": (folder, "verify", "written.py::divided", *against),
    }
    made = {}
    for name, (where, *words) in commands.items():
        made[name] = folder / f"{name}.html"
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(where)
            patch.setenv("VIRTUAL_ENV", "")
            options = ["--report", str(made[name]), "--python", sys.executable]
            with kept_warm(warm_sessions):
                result = CliRunner().invoke(main, [*words, *options])
        assert result.exit_code == (name in ("refused", "different")), result.stderr
        assert f"wrote {made[name]}" in result.stderr.replace("\n", "")
    return made


@pytest.mark.parametrize("name", NAMES)
def test_a_page_stands_alone(pages: dict[str, Path], name: str) -> None:
    text = pages[name].read_text(encoding="utf-8")
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.elements}
    assert not re.search(r"url\(|@import", text)
    loads = [value for _, each in page.elements for key, value in each.items() if key in ("src", "href")]
    assert all(value is not None and value.startswith("#") for value in loads)
    ids = [each["id"] for _, each in page.elements if "id" in each]
    assert len(ids) == len(set(ids))
    assert {f"#{each}" for each in ids} >= set(loads)


def test_what_a_training_step_shows(pages: dict[str, Path]) -> None:
    page = Page(pages["mlp"].read_text(encoding="utf-8"))
    text = " ".join(page.text.split())
    # The collectives, where they stand and how much they carry.
    assert "pmean loss, grads · 852 B every device gets the mean over all devices" in text
    assert "In a ring each device sends 1.49 kB" in text
    # Who holds what.
    assert "4.28 kB of arguments on one device, 2.76 kB on each of 8" in text
    assert "split over the devices" in text
    # The witnesses.
    assert "Came to its end after" in text
    assert "What every device has whole is the same bit by bit" in text
    # Before and after.
    assert "def p_train_step(params, opt_state, batch):" in text
    tips = page.tips()
    assert "partial: the mean over the devices is the value (5 arrays)" in tips
    assert "sharded along axis 0 (f32[48,16] of the whole batch)" in tips
    assert "replicated: the same on every device (f32[16,4] of the whole batch)" in tips


def test_what_objects_that_are_changed_show(pages: dict[str, Path]) -> None:
    text = " ".join(Page(pages["flax"].read_text(encoding="utf-8")).text.split())
    assert "its keys are folded with the device's index" in text
    assert "What the function changes in place is the same on every device: `model`" in text
    assert "what is added to it is summed over all devices" in text


def test_every_leaf_of_a_long_model_is_listed(pages: dict[str, Path]) -> None:
    page = Page(pages["long"].read_text(encoding="utf-8"))
    assert "50 leaves of params" in page.text
    assert page.text.count("['layer_24_with_a_rather_long_name/kernel']") == 2  # given, and in the result


def test_source_is_text_and_nothing_else(pages: dict[str, Path]) -> None:
    page = Page(pages["hostile"].read_text(encoding="utf-8"))
    assert "<script>alert(1)</script><img src=x onerror=alert(2)>" in page.text
    assert not any(key.startswith("on") for _, each in page.elements for key in each)


def test_a_refusal_has_its_line_and_the_cure(pages: dict[str, Path]) -> None:
    page = Page(pages["refused"].read_text(encoding="utf-8"))
    assert "refused: JP043" in page.text
    assert "return jnp.argsort(jnp.argsort(scores))" in page.text
    assert "jax-pmap explain JP043" in page.text
    assert "proved" not in page.text
    assert any(each.get("class", "").startswith("wrong") for _, each in page.elements)


def test_what_a_plan_shows(pages: dict[str, Path]) -> None:
    text = " ".join(Page(pages["plan"].read_text(encoding="utf-8")).text.split())
    assert "jax-pmap plan written.py::step --inputs written.py::make_inputs" in text
    assert "pmean loss, grads" in text
    assert "Who holds what" in text
    # Nothing was proved, and there is no code.
    assert not re.search("proved|The two witnesses|Before and after", text)


def test_what_a_function_written_by_hand_shows(pages: dict[str, Path]) -> None:
    page = Page(pages["equal"].read_text(encoding="utf-8"))
    text = " ".join(page.text.split())
    assert "proved equal" in text
    assert "jax-pmap verify written.py::equal --against written.py::step" in text
    given = "what it is given is partial: the mean over the devices is the value"
    assert f"pmean grads · 16 B every device gets the mean over all devices; {given}" in text
    assert "what is split has a device axis" in text or "every array has a device axis" in text
    assert "Each row is the parallel function beside the reference" in text
    assert "sharded along axis 0 (f32[24] of the whole batch)" in page.tips()


def test_where_a_function_written_by_hand_differs(pages: dict[str, Path]) -> None:
    text = " ".join(Page(pages["different"].read_text(encoding="utf-8")).text.split())
    assert "not equal: JP045" in text
    assert "parallel: [" in text
    assert "reference: [" in text
    assert "grads replicated, but for a factor" in text
    assert "so that the sum is it times the number of devices" in text
    assert "✗" in text
    assert "proved" not in text


def test_of_what_a_compiler_divides_its_own_collectives_are_shown(pages: dict[str, Path]) -> None:
    text = " ".join(Page(pages["divided"].read_text(encoding="utf-8")).text.split())
    assert "divided = jax.jit(step" in text
    assert "up to every output: equal for all inputs and device counts, as real numbers" in text
    assert "all-reduce" in text
    assert "Nothing is communicated" not in text


def test_of_a_mesh_each_device_holds_its_part(pages: dict[str, Path]) -> None:
    page = Page(pages["mesh"].read_text(encoding="utf-8"))
    text = " ".join(page.text.split())
    assert "mesh data=2, model=2" in text
    # Half of four numbers, and 12 of 24 rows of four, which two devices have in common.
    assert "divided over model · f32[4] → f32[2] on each · 8 B on each" in text
    assert "split along axis 0, over data · f32[24,4] → f32[12,4] on each · 192 B on each" in text
    # What is sent is that of the compiled program, by the axes it goes along.
    assert "In a ring each device sends" not in text
    assert "sent by each, in a ring all-reducedata" in text and "all-gathermodel" in text
    opaque = [at.get("fill-opacity") for tag, at in page.elements if tag == "rect" and "fill-opacity" in at]
    assert opaque[:16] == ["0.9", "0.1", "0.1", "0.9"] * 2 + ["0.9", "0.1"] * 2 + ["0.1", "0.9"] * 2


# --- in a browser -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A tab of Chromium."""
    program = find_browser()
    if program is None:
        pytest.skip("there is no Chromium here")
    with Browser(program, tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [1400, 360])
def test_a_browser_shows_it_without_complaint(
    browser: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    backgrounds = set()
    for dark in (False, True):
        browser.open(pages[name], width=width, dark=dark)
        # No line of it makes the window scroll sideways.
        assert browser.value("document.documentElement.scrollWidth") <= width
        backgrounds.add(browser.value("getComputedStyle(document.body).backgroundColor"))
        assert browser.complaints() == []
    assert len(backgrounds) == 2


def test_the_pointer_shows_a_placement(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["mlp"])
    shown = "getComputedStyle(document.querySelector('.v:hover:not(:has(.v:hover))'), '::after').content"
    browser.point_at(".v.partial")
    assert browser.value(shown) == '"partial: the mean over the devices is the value (5 arrays)"'
    browser.point_at(".v.leaf.sharded")
    assert "sharded along axis 0" in browser.value(shown)


def test_it_prints(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["mlp"], medium="print")
    assert browser.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    printed = base64.b64decode(browser.ask("Page.printToPDF", printBackground=True)["data"])
    assert printed.startswith(b"%PDF-")


# --- the path -----------------------------------------------------------------------------

PLAIN = """
import jax.numpy as jnp


def f(x):
    return jnp.mean(x)
"""


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("nowhere/page.html", "The folder `nowhere` does not exist"),
        (".", "`.` is a folder"),
        ("f.py", "`f.py` is there already, and is no report"),
        ("out.py", "`-o` and `--report` name the same file"),
    ],
)
def test_a_path_that_cannot_be_written(project: Project, path: str, says: str) -> None:
    project.write("f.py", PLAIN)
    words = ("gen", "f.py::f", "--arg", "x=f32[24]", "-o", "out.py", "--report", path)
    project.refused("JP018" if path == "out.py" else "JP016", *words, says=(says,))


def test_a_page_takes_the_place_of_another(shared: Project) -> None:
    import json

    import jsonschema
    from referencing import Registry, Resource

    shared.write("f.py", PLAIN)
    words = ("gen", "f.py::f", "--arg", "x=f32[24]", "--report", "page.html")
    first = shared.run(*words, "-o", "f_pmap.py")
    assert first.exit_code == 0, first.stderr
    assert first.files == {"f_pmap.py", "page.html"}
    assert "--report" not in (shared.folder / "f_pmap.py").read_text()
    # What was refused since must not stand beside a page that says proved.
    second = shared.run("gen", "f.py::f", "--arg", "x=f32[]", "--report", "page.html")
    assert second.exit_code != 0
    assert "refused: " in (shared.folder / "page.html").read_text()
    third = shared.run(*words, "--output-format", "json")
    document = json.loads(third.stdout)
    assert document["report"] == "page.html"
    assert "proved equal" in (shared.folder / "page.html").read_text()
    plan = Registry().with_resource("plan.schema.json", Resource.from_contents(schema("plan")))
    jsonschema.Draft202012Validator(schema("report"), registry=plan).validate(document)


def test_a_proof_that_was_kept_has_its_placements(shared: Project) -> None:
    shared.write("kept.py", PLAIN)
    words = ("gen", "kept.py::f", "--arg", "x=f32[24]", "-o", "kept_pmap.py", "--report", "kept.html")
    assert shared.run(*words, "--diff").exit_code == 0
    before = Page((shared.folder / "kept.html").read_text()).tips()
    assert "the proof is that of" in shared.run(*words).stderr
    assert Page((shared.folder / "kept.html").read_text()).tips() == before != set()
