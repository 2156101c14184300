"""Targets and their arguments taken from a run of the user's program, through the real command."""

import json
import os
import shlex
import subprocess
import sys
import textwrap

import pytest
from project import Project, simulated

from jax_pmap.inputs.program import read_program
from jax_pmap.model import RefusalError

#: One program whose functions are reached in many ways: `python train.py HOW`.
TRAIN = '''
import argparse
import functools
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

X = np.random.default_rng(0).normal(size=(24, 3)).astype("f4")


def make_train_step(model, tx):
    def masked(params, batch):
        error = (model(params, batch["x"]) - batch["y"]) ** 2
        return jnp.sum(error * batch["mask"]) / jnp.sum(batch["mask"])

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def train_step(params, opt_state, batch):
        loss, grads = jax.value_and_grad(masked)(params, batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return train_step


class Base:
    def scaled(self, x):
        return x * 2.0


class Trainer(Base):
    def __init__(self, rate):
        self.rate, self.__hidden, self.seen = rate, 3.0, 0
        self.compiled = jax.jit(self.step, static_argnums=(2,))

    def step(self, w, x, power=functools.partial(int, 2)()):
        """Uses what only a method has."""
        return w - self.rate * self.__hidden * jnp.mean(super().scaled(x) ** power, axis=0)

    def counted(self, x):
        self.seen += 1
        return x.mean()

    @staticmethod
    def total(x):
        return x.sum()

    @classmethod
    def largest(cls, x):
        return x.max()


def swallowed(x):
    return x.mean()


def threaded(x):
    return x.mean()


def scanned(c, x):
    return c + x.mean(), None


def differentiated(w, x):
    return jnp.mean((x @ w) ** 2)


def mapped(x):
    return x.sum()


def never(x):
    return x.sum()


def main(how):
    def inner(c, x):
        return c + FACTOR * x.mean()

    if how == "factory":
        tx = optax.adam(1e-2)
        params = {"w": jnp.ones((3,))}
        step = make_train_step(lambda p, x: x @ p["w"], tx)
        batch = {"x": X, "y": X.sum(axis=1), "mask": (np.arange(24) % 5 > 1).astype("f4")}
        step(params, tx.init(params), batch)
    elif how == "method":
        Trainer(0.1).compiled(jnp.ones(3), X, 2)
    elif how == "others":
        Trainer(0.1).total(X)
        Trainer.largest(X)
        Trainer(0.1).counted(X)
        inner(0.5, X)
    elif how == "swallow":
        while True:
            try:
                swallowed(X)
            except BaseException:
                print("caught")
    elif how == "thread":
        threading.Thread(target=threaded, args=(X,)).start()
        time.sleep(1000)
    elif how == "scan":
        jax.jit(lambda xs: jax.lax.scan(scanned, 0.5, xs))(X.reshape(1, 24, 3))
    elif how == "grad":
        jax.grad(differentiated)(jnp.ones(3), X)
    elif how == "vmap":
        jax.vmap(mapped)(X)
    elif how == "stdin":
        input("name? ")
    elif how == "fail":
        open("no/such/data.npz")


FACTOR = 2.0
if __name__ == "__main__":
    main(sys.argv[1])
'''


@pytest.fixture
def train(project):
    project.write("train.py", TRAIN)
    return project


def planned(project, target, run):
    result = project.run("plan", target, "--run", run, "--output-format", "json")
    assert result.exit_code == 0, result.stdout + result.stderr
    assert result.files == set()
    plan = json.loads(result.stdout)["plan"]
    assert plan["notes"][0].startswith(f"the arguments are those of the first call in `{run}`")
    return plan


def syncs(plan):
    return [(sync["op"], sync["value"]) for sync in plan["syncs"]]


# --- what is reached ----------------------------------------------------------------------


def test_a_step_made_by_a_factory(train):
    plan = planned(train, "train_step", "python train.py factory")
    assert plan["target"] == "train.py::make_train_step.train_step"
    # Inside `masked`, which stands beside the step in the factory and holds a model of its own.
    assert ("psum", 'jnp.sum(batch["mask"])') in syncs(plan)


def test_no_file_of_its_own_for_what_needs_the_program(train):
    train.refused(
        "JP050",
        *("gen", "train.py::Trainer.step", "--run", "python train.py method"),
        says=("a method: it needs the object it is called on, `self`", "--in-place"),
        exit_code=1,
    )


PROGRAM = """\
import sys
import jax.numpy as jnp

RATE = jnp.float32(2.0)


def fitted(x):
    return RATE * jnp.mean(x)


if __name__ == "__main__":
    print(fitted(jnp.arange(24.0)))
"""


def test_a_program_that_its_own_parallel_file_imports_is_told_so(train):
    train.write("fit.py", PROGRAM)
    words = ("gen", "fit.py::fitted", "--run", "python fit.py")
    said = "imports `fit.py`, which is the program itself"
    made = train.run(*words, "--no-run")
    assert (made.exit_code, "from fit import RATE" in made.stdout, said in made.words) == (0, True, True)
    assert said not in train.run(*words, "--in-place", "--diff", "--no-run").words
    train.write(
        "fit.py",
        PROGRAM.replace("RATE =", "assert 'twice' not in sys.modules\nsys.modules['twice'] = sys\nRATE ="),
    )
    says = (said, "to import it beside the program fails: AssertionError", "--in-place")
    train.refused("JP008", *words, says=says)


def test_a_program_that_calls_it_is_named(train):
    train.write("fit.py", PROGRAM)
    said = "`python fit.py` calls `fitted`: with --run 'python fit.py'"
    assert said in train.run("plan", "fit.py::fitted").words
    assert said not in train.run("plan", "fit.py::fitted", "--arg", "x=f32[24]").words
    held = PROGRAM.replace("def fitted", "class Fit:\n    def fitted").replace(
        "(x):\n    ", "(self, x):\n        "
    )
    train.write("fit.py", held)
    train.refused("JP050", "plan", "fit.py::Fit.fitted", says=("--run 'python fit.py'",), exit_code=1)


ROLLOUT = """\
import jax
import jax.numpy as jnp

ROUNDS = open("rounds.txt", "a")


def update(w, rows):
    return w - 0.1 * jax.grad(lambda w: jnp.mean((rows @ w - 1) ** 2))(w)


def env_step(state, _):
    print("step", file=ROUNDS, flush=True)
    return jnp.sin(state) + 1, state


def epoch(w, rows):
    print("epoch", file=ROUNDS, flush=True)
    return jax.lax.fori_loop(0, 2, lambda i, w: update(w, rows), w), None


@jax.jit
def train(w, state):
    state, rows = jax.lax.scan(env_step, state, None, length=500)
    state = jax.lax.while_loop(lambda s: jnp.sum(s) < 1e4, lambda s: s * 2 + env_step(s, 0)[0], state)
    return jax.lax.scan(epoch, w, rows.reshape(10, 50, 3))[0] + state


train(jnp.ones(3), jnp.arange(3.0))
"""


def test_loops_before_the_one_that_calls_it_are_compiled(train):
    train.write("rollout.py", ROLLOUT)
    words = ("plan", "rollout.py::update", "--run", "python rollout.py", "--output-format", "json")
    plan = json.loads(train.run(*words).stdout)["plan"]
    roles = {argument["name"]: argument["role"] for argument in plan["arguments"]}
    assert roles == {"w": "replicated", "rows": "batch"}
    rounds = (train.folder / "rounds.txt").read_text().split()
    assert rounds.count("epoch") < 8
    assert rounds.count("step") < 20  # 500 of them are run.


def test_a_method_compiled_where_it_is_bound(train):
    plan = planned(train, "train.py::Trainer.step", "python train.py method")
    roles = {argument["name"]: argument["role"] for argument in plan["arguments"]}
    assert roles == {"self": "static", "w": "replicated", "x": "batch", "power": "static"}
    assert [op for op, _ in syncs(plan)] == ["pmean"]


def test_inputs_of_a_method_begin_with_its_object(train):
    train.write("given.py", "from train import X, Trainer\ndef whole(): return (X,)\n")
    words = ("plan", "train.py::Trainer.largest", "--inputs", "given.py::whole", "--output-format", "json")
    plan = json.loads(train.run(*words).stdout)["plan"]
    assert [op for op, _ in syncs(plan)] == ["pmax"]
    assert {a["name"]: a["role"] for a in plan["arguments"]} == {"cls": "static", "x": "batch"}
    says = (
        "`given.py::whole`: what it returns does not fit: missing a required argument: 'w'",
        "(self, w, x,",
    )
    train.refused("JP013", "plan", "train.py::Trainer.step", "--inputs", "given.py::whole", says=says)


CLASS_METHODS = """\
import jax, jax.numpy as jnp, numpy as np


class Algorithm:
    rate = 0.1

    @classmethod
    def once(cls, w, x):
        grads = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return w - cls.rate * grads / jnp.sqrt(1e-3 + grads**2)

    @classmethod
    def update(cls, w, x):
        for _ in range(2):
            w = cls.once(w, x)
        return w


class Other(Algorithm):
    rate = 0.2


def inputs():
    return np.ones(3, np.float32), np.arange(72, dtype=np.float32).reshape(24, 3)
"""


@pytest.mark.parametrize(
    "how", ["--inputs algorithm.py::inputs", "--run 'python run.py'", "--arg w=f32[3] --arg x=f32[24,3]"]
)
def test_a_class_method_is_called_without_its_class(project, how):
    project.write("algorithm.py", CLASS_METHODS)
    project.write("run.py", "from algorithm import *\nAlgorithm().update(*inputs())\n")
    words = ("gen", "algorithm.py::Algorithm.update", *shlex.split(how), "-o", "algorithm_pmap.py")
    assert project.run(*words).exit_code == 0
    # The copy of what it calls is that of this class.
    text = (project.folder / "algorithm_pmap.py").read_text()
    assert "if cls.once.__func__ is not Algorithm.once.__func__:" in text
    given = "algorithm.inputs()"
    call = f"import numpy, algorithm, algorithm_pmap\none = algorithm.Algorithm.update(*{given})\n"
    project.write(
        "call.py", f"{call}assert numpy.allclose(one, algorithm_pmap.update(*{given}), atol=1e-5)\n"
    )
    subprocess.run([sys.executable, "call.py"], env=simulated(4), check=True)


def test_a_class_method_that_is_called_on_another_class(project):
    project.write("algorithm.py", CLASS_METHODS)
    project.write("run.py", "from algorithm import *\nOther.update(*inputs())\n")
    words = ("plan", "algorithm.py::Algorithm.update", "--run", "python run.py")
    project.refused("JP013", *words, says=("its class is `Other` there",))


@pytest.mark.parametrize(
    ("target", "how", "op"),
    [
        ("swallowed", "swallow", "pmean"),
        ("threaded", "thread", "pmean"),
        ("scanned", "scan", "pmean"),
        ("differentiated", "grad", "pmean"),
    ],
)
def test_ways_to_be_called(train, target, how, op):
    assert op in [each for each, _ in syncs(planned(train, f"train.py::{target}", f"python train.py {how}"))]


def test_a_nested_function_that_needs_nothing_around_it_is_emitted(train):
    result = train.run("gen", "train.py::main.inner", "--run", "python -m train others", "-o", "inner.py")
    assert result.exit_code == 0, result.stderr
    text = (train.folder / "inner.py").read_text()
    assert "from train import FACTOR" in text
    assert "--run 'python -m train others'" in text
    # The same, and a static method, without a run.
    assert train.run("plan", "train.py::Trainer.total", "--arg", "x=f32[24,3]").exit_code == 0


def test_a_test_that_calls_it(train):
    train.write(
        "tests/test_train.py",
        """
        import numpy as np
        import pytest

        import train


        def test_first():
            raise RuntimeError("another test")


        @pytest.fixture
        def x(tmp_path):
            return np.ones((24, 3)) * np.arange(24)[:, None]


        def test_never(x, capfd):
            assert train.never(x) > 0
            (open("left.txt", "w")).close()
        """,
    )
    run = "python -m pytest -q tests/test_train.py::test_never"
    assert [op for op, _ in syncs(planned(train, "train.py::never", run))] == ["psum"]
    train.refused(
        "JP019",
        *("plan", "train.py::never", "--run", "python -m pytest tests/test_train.py::test_first"),
        says=("RuntimeError: another test", "tests/test_train.py:8:"),
    )


# --- what is not --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "run", "code", "says"),
    [
        ("never", "python train.py nothing", "JP019", ("ends without calling `never`",)),
        (
            "never",
            "python train.py stdin",
            "JP019",
            ("EOFError", "standard input, which is closed", "train.py:"),
        ),
        ("never", "python train.py fail", "JP019", ("FileNotFoundError", "no/such/data.npz", "train.py:")),
        ("never", "python train.py", "JP019", ("IndexError",)),
        ("never", "python -c 'raise SystemExit(3)'", "JP019", ("exit code 3", "never loads `train.py`")),
        ("main.inner", "python -c 'import train'", "JP019", ("before the definition of `main.inner`",)),
        ("mapped", "python train.py vmap", "JP020", ("jax.vmap", "one example at a time")),
    ],
)
def test_programs_that_do_not_get_there(train, target, run, code, says):
    train.refused(code, "plan", f"train.py::{target}", "--run", run, says=says)


def test_a_method_that_changes_its_object(train):
    train.refused(
        "JP049",
        *("plan", "train.py::Trainer.counted", "--run", "python train.py others"),
        says=("changes `self.seen`", "train.py:44:"),
        exit_code=1,
    )


CHANGING = """
import numpy as np


class Meter:
    def __init__(self):
        self.last, self.seen = None, 0

    def _keep(self, x):
        self.last = x

    def _count(self):
        self.seen += 1

    def kept(self, x):
        self._keep(x)
        return x.mean()

    def counted(self, x):
        self._count()
        return x.mean()


def noted(meter, x):
    meter.last = x
    return x.mean()


def inputs():
    return Meter(), np.arange(72.0, dtype="f").reshape(24, 3)


if __name__ == "__main__":
    meter, x = inputs()
    noted(meter, x), meter.kept(x), meter.counted(x)
"""


@pytest.mark.parametrize("given", [("--inputs", "meters.py::inputs"), ("--run", "python meters.py")])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Meter.kept", "each call of `kept` changes `self.last`"),
        ("Meter.counted", "each call of `counted` changes `self.seen`"),
        ("noted", "changes `meter.last`"),
    ],
)
def test_a_function_that_changes_an_object_it_is_given(project, given, name, says):
    project.write("meters.py", CHANGING)
    project.refused("JP049", "gen", f"meters.py::{name}", *given, says=(says,), exit_code=1)


def test_a_program_without_end(train):
    train.write("forever.py", "import train\nwhile True:\n    pass\n")
    words = ("plan", "train.py::never", "--run", "python forever.py", "--timeout", "6")
    train.refused("JP010", *words, says=("forever.py", "6 s"))


def test_a_program_that_forks_changes_folders_and_leaves(train):
    train.write(
        "wild.py",
        """
        import os
        import sys

        import train

        if os.fork() == 0:
            train.never(train.X)
            os._exit(0)
        os.wait()
        os.chdir("/")
        sys.argv.clear()
        sys.stdout = None
        try:
            train.never(train.X)
        finally:
            sys.exit(4)
        """,
    )
    assert [op for op, _ in syncs(planned(train, "train.py::never", "python wild.py"))] == ["psum"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--run", "python trian.py"), ("no file `trian.py`", "Did you mean `train.py`?")),
        (("--run", "nb.ipynb"), ("no file `nb.ipynb`",)),
        (("--run", "python broken.ipynb"), ("`broken.ipynb` is not the JSON of a notebook",)),
        (("--run", "make train"), ("`make` is not known",)),
        (("--run", "cd x && python train.py"), ("for a shell",)),
        (("--run", "python 'train.py"), ("Close the quotes",)),
        (("--run", "python -u"), ("without a program",)),
        (("--run", ""), ("names no program",)),
        (("--run", "python train.py", "--inputs", "train.py::make"), ("Drop one",)),
        (("--run", "python train.py", "--arg", "x=f32[8]"), ("Drop one",)),
    ],
)
def test_options_that_name_no_program(train, words, says):
    train.write("broken.ipynb", "[")
    train.refused("JP018", "plan", "train.py::never", *words, says=says)


# --- command lines ------------------------------------------------------------------------


def test_command_lines_are_read_as_python_reads_them(tmp_path):
    (tmp_path / "train.py").touch()
    read = read_program("A=1 B='x y' uv run python3.11 -W ignore -u train.py --steps 1 -m x", tmp_path)
    program = read.program
    assert (program.kind, program.what) == ("script", str(tmp_path / "train.py"))
    assert program.argv == ("train.py", "--steps", "1", "-m", "x")
    assert program.first == str(tmp_path)
    assert read.environment == {"A": "1", "B": "x y"}
    read = read_program(".venv/bin/python -m pkg.train --fast", tmp_path)
    program = read.program
    assert (program.kind, program.what, program.args) == ("module", "pkg.train", ("--fast",))
    assert read.python == tmp_path / ".venv/bin/python"
    assert read_program("pytest -q t.py::f", tmp_path).program.first is None
    assert read_program("python -m pytest t.py", tmp_path).program.kind == "pytest"
    with pytest.raises(RefusalError):
        read_program(textwrap.dedent("python train.py | tee log"), tmp_path)


STEP_APART = """
import jax
import jax.numpy as jnp


def weighted(error, mask):
    return jnp.sum(error * mask) / jnp.sum(mask)


@jax.jit
def step(state, batch):
    def loss(w):
        return weighted((state.apply_fn({"params": w}, batch[0]) - 1.0) ** 2, batch[1])

    return jax.value_and_grad(loss)(state.params)
"""
SCRIPT_APART = """
from typing import NamedTuple

import flax.linen as nn
import numpy as np
import optax
from flax.training.train_state import TrainState
from step_apart import step


class Line(nn.Module):
    @nn.compact
    def __call__(self, x):
        return (x - CENTRE) @ self.param("w", nn.initializers.ones, (3,))


class Batch(NamedTuple):
    x: np.ndarray
    mask: np.ndarray
    rate: float = 0.1


rows = np.arange(72.0, dtype="f").reshape(24, 3)
batch = BATCH(rows, np.arange(24) % 3 > 0)
params = {"w": np.ones(3, "f")}
print(step(TrainState.create(apply_fn=Line().apply, params=params, tx=optax.sgd(0.1)), batch))
"""


def test_classes_of_a_script_that_calls_a_step_of_another_file(project):
    project.write("step_apart.py", STEP_APART)
    project.write("apart.py", SCRIPT_APART.replace("BATCH", "").replace("CENTRE", "x.mean(axis=0)"))
    said = ("`Line.__call__` (apart.py:11) stands in the program that is run", "x.mean(axis=0)")
    project.refused("JP067", "gen", "step_apart.py::step", "--run", "python apart.py", says=said, exit_code=1)
    # What the code must name has to be in a module.
    project.write("apart.py", SCRIPT_APART.replace("BATCH", "Batch").replace("CENTRE", "0.5"))
    for options in [(), ("--in-place", "--diff")]:
        said = ("the program that was run defines `Batch`", "Move `Batch` to a module of its own")
        project.refused(
            "JP008", "gen", "step_apart.py::step", "--run", "python apart.py", *options, says=said
        )


OWN_CLASSES = """
from typing import NamedTuple

import jax
import numpy as np


class State(NamedTuple):
    w: jax.Array
    steps: jax.Array


class Batch(NamedTuple):
    x: np.ndarray
    rate: float = 0.1


@jax.jit
def step(state, batch):
    loss, grads = jax.value_and_grad(lambda w: ((batch.x @ w - 1.0) ** 2).mean())(state.w)
    return State(state.w - batch.rate * grads, state.steps + 1), loss


def main():
    state = State(np.ones(3, "f"), np.zeros((), "i"))
    for _ in range(3):
        state, loss = step(state, Batch(np.arange(72.0, dtype="f").reshape(24, 3) / 72))
    return state


if __name__ == "__main__":
    main()
"""
#: Runs the training of a module with the step of another, and says what came out.
ELSEWHERE = """
import sys
from importlib import import_module

program, parallel = map(import_module, sys.argv[1:])
before = program.main()
program.step = parallel.step
after = program.main()
assert type(after) is program.State
print(abs(before.w - after.w).max() < 1e-6, after.steps)
"""


@pytest.mark.parametrize(
    ("file", "run"),
    [("train.py", "python train.py"), ("loops/train.py", "python -m loops.train")],
)
def test_a_program_with_classes_of_its_own(project, file, run):
    """The emitted file imports them by the name that others import the program by."""
    project.write(file, OWN_CLASSES)
    project.write("elsewhere.py", ELSEWHERE)
    out = file.replace("train", "train_pmap")
    made = project.run("gen", f"{file}::step", "--run", run, "-o", out)
    assert made.exit_code == 0, made.stderr
    assert "call it from another file" in made.words
    names = [each.removesuffix(".py").replace("/", ".") for each in (file, out)]
    assert f"from {names[0]} import Batch, State" in (project.folder / out).read_text()
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    done = subprocess.run(
        [sys.executable, "elsewhere.py", *names],
        cwd=project.folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["True", "3"], done.stderr


def test_a_file_has_the_name_that_the_program_imports_it_by(project):
    """In a folder without ``__init__.py``; by another name its classes would be others."""
    project.write("loops/steps.py", OWN_CLASSES)
    project.write("main.py", "from loops.steps import main\n\nmain()\n")
    run = ("--run", "python main.py")
    for words in (run, ("--arg", "state=py:State(np.ones(3, 'f'), np.zeros((), 'i'))", "--arg", BATCH)):
        made = project.run("gen", "loops/steps.py::step", *words)
        assert made.exit_code == 0, made.stderr
        assert "from loops.steps import Batch, State" in made.stdout
    # Of two names, the one that follows from the file's own folder; those of tests do not count.
    project.write("tests/test_steps.py", "from steps import step\n")
    assert "from loops.steps import" in project.run("gen", "loops/steps.py::step", *words).stdout
    project.write("loops/other.py", "from steps import step\n")
    made = project.run("gen", "loops/steps.py::step", *words)
    assert "from steps import Batch, State" in made.stdout, made.stderr


BATCH = "batch=py:Batch(np.ones((24, 3), 'f'))"


def test_a_notebook_is_a_program(project):
    """Its cells run one after the other, in its folder, as in Jupyter."""

    def cell(*lines):
        return {"cell_type": "code", "source": [f"{line}\n" for line in lines]}

    cells = [
        cell("%matplotlib inline", "import sys", "sys.path.append('..')", "import numpy as np"),
        cell("from src.losses import masked"),
        cell("rows = np.loadtxt('rows.txt', dtype='f')", "display(rows)"),
        cell("def step(x, mask):", "    return masked(x.sum(-1), mask)"),
        cell("%%time", "step(rows, (rows[:, 0] > 0.5).astype('f'))"),
    ]
    project.write("src/losses.py", "def masked(x, mask):\n    return (x * mask).sum() / mask.sum()\n")
    project.write("notebooks/nb.ipynb", json.dumps({"cells": cells, "nbformat": 4}))
    project.write("notebooks/rows.txt", "\n".join(f"{i / 24} 1.0" for i in range(24)))
    run = ("--run", "notebooks/nb.ipynb")
    made = project.run("gen", "notebooks/nb.ipynb::step", *run)
    assert made.exit_code == 0, made.stderr
    assert "first call in `notebooks/nb.ipynb` (notebooks/nb.ipynb cell 5:2)" in made.words
    # What is written out is not imported as well, nor what only found the import.
    assert "def masked(" in made.stdout
    assert "src.losses" not in made.stdout.split("\n\n", 1)[1]
    assert "import sys" not in made.stdout
    # So does one for a function of a module, and reading the notebook alone works in its folder, too.
    assert project.run("plan", "src/losses.py::masked", *run).exit_code == 0
    args = ("--arg", "x=f32[24,2]", "--arg", "mask=mask[24]")
    assert project.run("plan", "notebooks/nb.ipynb::step", *args).exit_code == 0
    told = project.refused("JP014", "plan", "notebooks/nb.ipynb::step", "--arg", "x=py:rows['no']")
    assert "--run notebooks/nb.ipynb" in told.words


COUNTED = """
import jax
import jax.numpy as jnp


def decayed(returns, rewards):
    total, steps = jax.lax.scan(lambda sums, row: (0.9 * sums + row, sums), returns, rewards.T)
    return jnp.mean(total), jnp.mean(steps)


def inputs(seed):
    keys = jax.random.split(jax.random.key(seed), 24)
    # Numbers of Python, one for each key: a loop makes floats of them, which it does of no int32.
    return jax.vmap(lambda key: 0)(keys), jax.vmap(lambda key: jax.random.normal(key, (5,)))(keys)


if __name__ == "__main__":
    jax.jit(decayed)(*inputs(0))
"""


@pytest.mark.parametrize("source", [("--inputs", "counted.py::inputs"), ("--run", "python counted.py")])
def test_weakly_typed_arrays_stay_weakly_typed(shared: Project, source: tuple[str, str]) -> None:
    shared.write("counted.py", COUNTED)
    made = shared.run("gen", "counted.py::decayed", *source)
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs" in made.stderr
