"""Loading what a target needs of a file that cannot, or should not, be imported."""

import importlib.util
import json
import sys
import types
from pathlib import Path

import pytest

from jax_pmap.worker import origins

#: Everything that keeps published training scripts from being imported elsewhere, around one step.
SCRIPT = '''
"""A script."""
import os

import jax
import jax.numpy as jnp
import numpy as np
import no_such_data as nsd
import no_such_logger, optax

TOKEN = os.environ["NO_SUCH_TOKEN"]
no_such_logger.init(project="x")
RATE = 0.1
SCALES = {}
SCALES["loss"] = 2.0
SCALES.update(grad=3.0)
try:
    from no_such_speedup import norm
except ImportError:
    norm = jnp.linalg.norm
tx = optax.sgd(RATE)
data = nsd.load("mnist")
print("never printed", data)


def log(x):
    no_such_logger.log(x)


class Penalty:
    weight = RATE

    def __call__(self, w):
        return self.weight * norm(w) * SCALES["grad"]


penalty = Penalty()


def loss_fn(w, batch):
    return jnp.mean((batch["x"] @ w - batch["y"]) ** 2) * SCALES["loss"] + penalty(w)


@jax.jit
def train_step(w, opt_state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(w, batch)
    updates, opt_state = tx.update(grads, opt_state, w)
    return optax.apply_updates(w, updates), opt_state, loss


def make(seed):
    rng = np.random.default_rng(seed)
    w = rng.normal(size=3)
    return w, tx.init(w), {"x": rng.normal(size=(24, 3)), "y": rng.normal(size=24)}


for step in range(10**9):
    log(train_step(w, opt_state, next(data)))
'''


def notes(result):
    """The notes of a report as one line."""
    return " ".join(result.stderr.split())


def test_a_script_that_cannot_be_imported_gives_the_part_the_target_needs(project):
    project.write("train.py", SCRIPT)
    result = project.run("gen", "train.py::train_step", "--inputs", "train.py::make")
    assert result.exit_code == 0, result.stderr
    assert "importing `train.py` would run the program (line 56)" in notes(result)
    assert "only what `train_step` needs was loaded, without line" in notes(result)
    for text in ("no_such_data", "no_such_logger", "TOKEN", "from train import", "print(", "def make"):
        assert text not in result.stdout
    for text in (
        'SCALES["loss"] = 2.0\nSCALES.update(grad=3.0)',
        "except ImportError:",
        "class Penalty:",
        "tx = optax.sgd(RATE)",
    ):
        assert text in result.stdout
    # It runs on its own, with nothing of the user's beside it.
    namespace = {}
    exec(compile(result.stdout, "train_pmap.py", "exec"), namespace)


def test_what_a_file_prints_writes_or_trains_at_import_is_not_run(project):
    project.write(
        "train.py",
        """
        import pathlib
        import jax.numpy as jnp

        scale = 3.0

        def mean(x):
            return jnp.mean(x) * scale

        def main():
            pathlib.Path("written.txt").write_text("x")
            x = jnp.ones((24, 3))
            for _ in range(10**9):
                mean(x)

        main()
        """,
    )
    result = project.run("gen", "train.py::mean", "--arg", "x=f32[24,3]", "--timeout", "120")
    assert result.exit_code == 0, result.stderr
    assert "importing `train.py` would run the program (line 15)" in notes(result)
    assert "scale = 3.0" in result.stdout
    assert result.files == set()


def test_one_demonstration_call_is_no_reason_to_copy(project):
    project.write(
        "stats.py",
        """
        import jax.numpy as jnp

        scale = 3.0

        def mean(x):
            return jnp.mean(x) * scale

        print(mean(jnp.ones((24, 3))))
        """,
    )
    result = project.run("gen", "stats.py::mean", "--arg", "x=f32[24,3]")
    assert result.exit_code == 0, result.stderr
    assert "from stats import scale" in result.stdout


def test_names_of_a_script_s_main_block_are_found(project):
    project.write(
        "train.py",
        """
        import jax.numpy as jnp

        def mean(x):
            return jnp.mean(x) * scale

        if __name__ == "__main__":
            import no_such_module
            base = 2.0
            scale = base + 1
            while True:
                print(mean(no_such_module.next()))
        """,
    )
    result = project.run("gen", "train.py::mean", "--arg", "x=f32[24,3]")
    assert result.exit_code == 0, result.stderr
    assert "base = 2.0\nscale = base + 1" in result.stdout
    assert "while" not in result.stdout


@pytest.mark.parametrize(
    ("body", "chain", "hint"),
    [
        (
            "import no_such_flags\nwidth = no_such_flags.width\nmodel = [width]",
            "mean → no_such_flags (line 3)",
            "Install `no_such_flags` for",
        ),
        (
            "def build():\n    return open('no_such_file').read()\nmodel = build()",
            "mean → model (line 5)",
            "pass what the line makes as an argument",
        ),
        ("import os\nmodel = os.environ['NO_SUCH_WIDTH']", "mean → model (line 4)", "NO_SUCH_WIDTH=…"),
    ],
)
def test_what_is_needed_and_fails_is_named_with_the_way_to_it(project, body, chain, hint):
    function = "def mean(x):\n    return jnp.mean(x) * len(model)\n"
    project.write("train.py", f"import jax.numpy as jnp\nimport no_such_extra\n{body}\n\n\n{function}")
    if "no_such_flags" in body:
        chain = "mean → model → width → no_such_flags (line 3)"
    result = project.refused("JP008", "gen", "train.py::mean", "--arg", "x=f32[24,3]", says=(chain, hint))
    assert "no_such_extra" not in result.words


def test_other_modules_of_the_user_s_that_lack_a_package(project):
    """`pkg/train.py` imports `pkg/data.py`, which needs what is not there and the target does not."""
    project.write("pkg/__init__.py", "import no_such_extra\n")
    project.write(
        "pkg/data.py",
        """
        from __future__ import annotations
        import no_such_data as nsd
        SIZE = 3.0
        def load(x: nsd.Tensor | None) -> nsd.Tensor: return nsd.load(x)
        """,
    )
    project.write("pkg/model.py", "from . import data\ndef scale(x): return x * data.SIZE\n")
    train = """
        import jax.numpy as jnp
        from pkg import data, model

        def mean(x):
            return jnp.mean(model.scale(x))

        def total(x):
            return jnp.sum(x * data.load(x))
        """
    project.write("pkg/train.py", train)
    result = project.run("plan", "pkg/train.py::mean", "--arg", "x=f32[24,3]")
    assert result.exit_code == 0, result.stderr
    text = " ".join((result.stdout + result.stderr).split())
    assert "loaded without what fails in them: `pkg` line 1 (ModuleNotFoundError" in text
    assert "`pkg.data` line 2 (ModuleNotFoundError: No module named 'no_such_data')" in text
    refused = project.run("plan", "pkg/train.py::total", "--arg", "x=f32[24,3]")
    assert refused.exit_code in (1, 2)
    assert "`nsd` is needed, and data.py line 2 failed: ModuleNotFoundError" in refused.words


def test_folders_without_init_file_in_a_package_that_lacks_another(project):
    """Python keeps them where the package around fails to import, and asks them for it the next time."""
    project.write("pkg/__init__.py", "from pkg.inner.deep.parts import SCALE\nimport no_such_extra\n")
    project.write("pkg/inner/deep/parts.py", "SCALE = 2.0\n")
    steps = """
        import jax.numpy as jnp

        from pkg.inner.deep.parts import SCALE


        def step(x):
            return SCALE * jnp.mean(x**2)
        """
    project.write("pkg/inner/deep/steps.py", steps)
    inputs = """
        import jax

        import pkg.inner.deep.parts as parts


        def make(seed):
            return (parts.SCALE * jax.random.normal(jax.random.key(seed), (24, 3)),)
        """
    project.write("inputs.py", inputs)
    result = project.run("plan", "pkg/inner/deep/steps.py::step", "--inputs", "inputs.py::make")
    assert result.exit_code == 0, result.stderr
    assert "no_such_extra" in notes(result)


def test_neighbours_shadow_neither_the_standard_library_nor_packages(project):
    """Files called like modules that jax and NumPy import, and one the user does mean."""
    for name in ("logging", "types", "random", "jax", "numpy", "secrets", "optax"):
        project.write(f"{name}.py", "raise RuntimeError('shadowed')\n")
    project.write("tabnanny.py", "def scale(x): return x * 2\n")
    project.write(
        "train.py",
        """
        import logging, random, secrets
        import jax.numpy as jnp
        from tabnanny import scale

        def mean(x):
            logging.debug("tracing")
            return jnp.mean(scale(x))
        """,
    )
    project.write("secrets.py", "")
    result = project.run("gen", "train.py::mean", "--arg", "x=f32[24,3]")
    assert result.exit_code == 0, result.stderr
    assert "from tabnanny import scale" in result.stdout


def test_a_target_s_file_may_have_the_name_of_a_library(project):
    """`from random import scale` would be another module: the file carries what it needs."""
    text = """
        from typing import NamedTuple
        import jax
        import jax.numpy as jnp

        class Batch(NamedTuple):
            x: jax.Array
            c: jax.Array

        scale = 2.0

        def mean(b):
            return jnp.mean(b.x) * scale

        def centre(b: Batch):
            return Batch(b.x * scale, b.c)

        def make():
            return (Batch(jnp.arange(24.0), jnp.ones(24)),)
        """
    project.write("random.py", text)
    result = project.run("gen", "random.py::mean", "--inputs", "random.py::make")
    assert result.exit_code == 0, result.stderr
    assert "from random import" not in result.stdout
    assert "scale = 2.0" in result.stdout
    # A copy of the class would be another class than the caller's.
    result = project.refused("JP008", "gen", "random.py::centre", "--inputs", "random.py::make")
    assert "`Batch`" in result.words


def test_options_of_a_script_have_their_defaults(project):
    """argparse and absl at the top of a file: values the proof needs, which a second file cannot parse."""
    pytest.importorskip("absl")
    project.write(
        "train.py",
        """
        import argparse
        import jax.numpy as jnp
        from absl import flags

        FLAGS = flags.FLAGS
        flags.DEFINE_float("scale", 2.0, "a factor")
        parser = argparse.ArgumentParser()
        parser.add_argument("--power", type=int, default=2)
        args = parser.parse_args()
        width = FLAGS.scale + 1

        def mean(x):
            return jnp.mean(x**args.power) * FLAGS.scale * width
        """,
    )
    result = project.run("gen", "train.py::mean", "--arg", "x=f32[24,3]")
    assert result.exit_code == 0, result.stderr
    assert "from train import FLAGS, args, width" in result.stdout
    assert "absl flags have their defaults: `FLAGS`" in notes(result)
    path = project.folder / "train.py"
    path.write_text("import no_such_module\n" + path.read_text())
    result = project.refused("JP008", "gen", "train.py::mean", "--arg", "x=f32[24,3]")
    assert "reads from the command line" in result.words
    assert "--in-place" in result.words
    assert "`train.py` cannot be imported (line 1): ModuleNotFoundError: No module named" in result.words
    document = json.loads(
        project.run("plan", "train.py::mean", "--arg", "x=f32[24,3]", "--output-format", "json").stdout
    )
    assert document["status"] == "planned"


def test_a_notebook_is_read_as_its_code_cells(project):
    def cell(*lines, kind="code"):
        return {"cell_type": kind, "source": [f"{line}\n" for line in lines]}

    cells = [
        cell("# Training", "def train_step(x): prose", kind="markdown"),
        cell("%matplotlib inline", "!pip install jax", "import jax.numpy as jnp", "import no_such_data"),
        cell("%%bash", "def train_step():", "ls"),
        cell("%%time", "data = no_such_data.load()", "files = !ls", "data?"),
        cell(
            "scale = 2.0",
            "text = '''",
            "%kept",
            "'''",
            "def train_step(x):",
            "    return jnp.mean(x) * scale",
        ),
        cell("for x in data:", "    train_step(x)", "    %timeit train_step(x)"),
        cell("import jax", "def ranks(x):", "    return jnp.argsort(x)"),
    ]
    project.write("nb.ipynb", json.dumps({"cells": cells, "nbformat": 4}))
    result = project.run("gen", "train_step", "--arg", "x=f32[24,3]")
    assert result.exit_code == 0, result.stderr
    assert "# Source: nb.ipynb::train_step" in result.stdout
    assert "scale = 2.0" in result.stdout
    assert "nb.ipynb cell 5:6" in result.stderr
    result = project.run("gen", "nb.ipynb::ranks", "--arg", "x=f32[24]")
    assert "--> nb.ipynb cell 7:3:12" in result.stderr
    assert "3 |     return jnp.argsort(x)" in result.stderr
    # A file is meant before a notebook that repeats it.
    project.write("train.py", "def train_step(x): return x")
    result = project.run("plan", "train_step", "--arg", "x=f32[24]")
    assert "train.py::train_step" in result.stdout + result.stderr


def test_what_changes_a_needed_name_is_needed(project):
    """Tables that decorators fill, attributes set later, globals set by functions, arguments changed."""
    project.write(
        "train.py",
        """
        import functools
        import jax.numpy as jnp
        import no_such_module

        TABLE = {}

        def register(name):
            def wrap(function):
                TABLE[name] = function
                return function
            return wrap

        @register("square")
        def square(x): return x**2

        @functools.singledispatch
        def convert(x): return x

        @convert.register
        def _(x: int): return x + 1

        class Base:
            scale = 1.0
            def loss(self, x): return loss(x) * self.scale

        def loss(x): return jnp.mean(x)

        Base.scale = 3.0
        counter = 0
        counter += 2

        def setup():
            global EXTRA
            EXTRA = 5.0

        setup()
        config = {"a": 1.0}

        def fill(settings): settings["b"] = 2.0

        fill(config)
        no_such_module.log(config)

        def step(x):
            value = TABLE["square"](jnp.mean(x)) * Base().loss(x)
            return value * counter * EXTRA * config["b"] + convert(1)
        """,
    )
    result = project.run("gen", "train.py::step", "--arg", "x=f32[24,3]")
    assert result.exit_code == 0, result.stderr
    assert "which is given `config` and may change it, was left out" in notes(result)
    namespace = {}
    exec(compile(result.stdout, "train_pmap.py", "exec"), namespace)
    assert namespace["Base"].scale == 3.0
    assert namespace["counter"] * namespace["EXTRA"] * namespace["config"]["b"] == 20.0
    assert list(namespace["TABLE"]) == ["square"]


def test_an_annotation_that_jax_no_longer_has_is_named_in_a_file_loaded_in_part(project):
    project.write(
        "old.py",
        """
        import jax
        import jax.numpy as jnp
        import no_such_module


        def mean(x: jax.NoSuchArray):
            return jnp.mean(x)
        """,
    )
    result = project.refused("JP008", "gen", "old.py::mean", "--arg", "x=f32[24,3]")
    assert "module 'jax' has no attribute 'NoSuchArray'" in result.words
    assert "def mean(x: jax.NoSuchArray):" in result.stderr


def test_a_number_that_bounds_a_slice_is_static(project):
    project.write(
        "blanks.py",
        """
        def without_blank(x, blank=1):
            return x[:, blank : blank + 1] * 2.0
        """,
    )
    result = project.run("gen", "blanks.py::without_blank", "--arg", "x=f32[24,3]")
    assert result.exit_code == 0, result.stderr
    assert "its value is needed while tracing" in result.stderr


def test_what_fails_with_numbers_as_they_are_given_is_the_error(project):
    project.write(
        "steps.py",
        """
        from functools import partial

        import jax


        @partial(jax.jit, static_argnames="times")
        def repeated(w, x, times):
            for _ in range(times):
                w = w - x.mean(0) @ w
            return w


        def step(w, x, times=3):
            return repeated(w, x, times)
        """,
    )
    result = project.run("gen", "steps.py::step", "--arg", "w=f32[3]", "--arg", "x=f32[24,3]", "--shard", "x")
    assert result.exit_code == 0, result.stderr
    assert "the function does not trace without its value" in result.stderr
    wrong = project.refused("JP015", "gen", "steps.py::step", "--arg", "w=f32[4]", "--arg", "x=f32[24,3]")
    assert "w = w - x.mean(0) @ w" in wrong.stderr and "Non-hashable" not in wrong.words


def test_only_attributes_of_the_target_s_module_are_needed_for_the_inputs(project):
    project.write(
        "steps.py", "import no_such\n\nState = no_such.State\nW = 2.0\n\ndef f(x):\n    return x * 2\n"
    )
    project.write(
        "made.py",
        """
        import types

        import jax.numpy as jnp

        import steps as s

        other = types.SimpleNamespace(State=1.0)


        def inputs():
            return (jnp.ones((24, 3)) * other.State * s.W,)
        """,
    )
    result = project.run("gen", "steps.py::f", "--inputs", "made.py::inputs")
    assert result.exit_code == 0, result.stderr


def test_what_is_made_of_a_function_with_collectives_stands_behind_its_copy(project):
    project.write(
        "train.py",
        """
        import functools
        import jax, jax.numpy as jnp
        import no_such_data

        class Loader(no_such_data.Loader):
            pass

        def centred(scale, x):
            return scale * (x - jnp.mean(x))

        TWICE = functools.partial(centred, 2.0)
        LENGTH = len(centred.__name__)

        def step(w, x):
            return w - 0.1 / LENGTH * jax.grad(lambda w: jnp.mean(TWICE(x @ w) ** 2))(w)
        """,
    )
    made = project.run("gen", "train.py::step", "--arg", "w=f32[3]", "--arg", "x=f32[24,3]")
    assert made.exit_code == 0, made.stderr
    assert made.stdout.index("def centred(") < made.stdout.index("LENGTH = ")
    assert made.stdout.count("TWICE") == 2  # its copy, and the use of it
    assert "derived for all inputs and device counts" in made.words


def test_packages_that_only_load_data_or_log_are_stood_in_for(project):
    project.write(
        "train.py",
        """
        import jax.numpy as jnp
        import no_such_logger as logger
        from no_such_data.core import Loader, pipeline


        class Shuffled(Loader):
            rows = 24


        @pipeline
        def scaled(x):
            return x * 2.0


        def mean(x):
            return jnp.mean(scaled(x))


        if __name__ == "__main__":
            logger.init(project="x").start()
            figure, (upper, lower) = logger.figures(2, sharex=True)
            with logger.timed("step"):
                for batch in pipeline.load("mnist")["train"]:
                    mean(batch)
            try:
                mean(jnp.ones((Shuffled().rows, 3)))
            except logger.errors.Offline:
                pass
        """,
    )
    words = ["gen", "train.py::mean", "--run", "python train.py"]
    project.refused("JP019", *words, says=["--stub no_such_logger"], exit_code=2)
    stubs = ["--stub", "no_such_logger", "--stub", "no_such_data"]
    result = project.run(*words, *stubs)
    assert result.exit_code == 0, result.stderr
    assert "--stub no_such_logger --stub no_such_data" in result.stdout
    project.refused("JP018", *words, "--stub", "jax.numpy", says=["nothing stands in for what computes"])


LAZY = """
import jax.numpy as jnp

TABLE = {"squares": lambda: (jnp.arange(24.0),)}


def __getattr__(name):
    return TABLE[name]
"""


def test_a_module_that_finds_its_names_when_asked_for_them(project):
    """Asked for one that it has not, it may fail in any way."""
    project.write("lazy.py", LAZY)
    project.write("used.py", "import jax.numpy as jnp\nimport lazy\n\ndef f(x):\n    return jnp.mean(x)\n")
    made = project.run("gen", "used.py::f", "--inputs", "lazy.py::squares")
    assert made.exit_code == 0, made.stderr


def test_a_module_that_is_to_be_loaded_when_it_is_used_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "later.py"
    path.write_text("raise AssertionError('it was loaded')\n")
    spec = importlib.util.spec_from_file_location("later", path)
    assert spec is not None and spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert origins.file_of(module) == str(path)


def test_modules_without_a_file_have_none() -> None:
    answering = types.ModuleType("answering")
    answering.__dict__["__getattr__"] = lambda name: f"/home/somebody/{name}.py"
    namespace = types.ModuleType("namespace")
    namespace.__file__ = None
    assert [origins.file_of(each) for each in (answering, namespace, sys, None)] == [""] * 4
