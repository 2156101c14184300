"""`gen --in-place`: the change woven into the user's own file, proved as the edited program."""

from __future__ import annotations

import ast
import json
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from project import simulated

from jax_pmap.files import replace_text
from jax_pmap.model import RefusalError, Source

#: A file in an encoding of its own, with line endings, tabs and names that get in the way.
ODD = '''\
#!/usr/bin/env python
# -*- coding: latin-1 -*-
"""Doc\xe9."""
from __future__ import annotations

from functools import partial
import jax, sys; import jax.numpy as jnp

AXIS = 3
def shard(x): return x

if True:
\ttry:
\t\t@partial(
\t\t\tjax.jit,  # compile it
\t\t\tdonate_argnums=(),
\t\t)
\t\t# caf\xe9
\t\tdef step(w: jax.Array,  # weights
\t\t         x) -> tuple[jax.Array, jax.Array]:  # noqa
\t\t\t"""St\xe9p.

\t\t\tMore.
\t\t\t"""
\t\t\tloss = jnp.mean(
\t\t(x @ w) ** 2)\x20\x20
\t\t\t\x20
\t\t\t# last
\t\t\treturn w * loss, loss  # done
\texcept ValueError:
\t\tpass


def inputs(seed):
\treturn jnp.ones((4,)), jax.random.normal(jax.random.key(seed), (24, 4))'''

#: A script that trains when it is imported, with a method, methods it calls, a nested function and a loss
#: beside it.
SCRIPT = '''\
import jax
import jax.numpy as jnp


class Base:
  def _fit(self, w, batch):
    return self.rate * self._share((batch['x'] @ w - batch['y'])**2, batch['y'])

  @staticmethod
  def _share(values, weights):
    return jnp.sum(values * weights) / jnp.sum(weights)


class Trainer(Base):
  def __init__(self, rate):
    self.rate = rate
    self.__scale = 2.0

  def step(self, w, batch):
    """One step."""
    def loss(w):
      return jnp.mean((batch['x'] @ w - batch['y'])**2) * self.__scale + self._fit(w, batch)
    value, grads = jax.value_and_grad(loss)(w)
    return w - self.rate * grads, value


def main():
  trainer = Trainer(0.1)
  w = jnp.ones((4,))
  scale = 3.0

  def batch_loss(w, batch):
    return scale * jnp.sum((batch['x'] @ w - batch['y'])**2) / jnp.sum(batch['y'])

  def update(w, batch):
    loss, g = jax.value_and_grad(batch_loss)(w, batch)
    return w - 0.1 * g, loss
  jitted = jax.jit(update)

  for i in range(3):
    batch = {'x': jax.random.normal(jax.random.key(i), (24, 4)), 'y': jnp.arange(24.0)}
    w, value = trainer.step(w, batch)
    w, loss = jitted(w, batch)
  print(*w, value, loss)


main()
'''


def program_output(path: Path, devices: int) -> list[float]:
    """What a script prints on some devices, as numbers."""
    found = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, env=simulated(devices), check=True
    )
    return [float(word) for word in found.stdout.split()]


def test_an_odd_file_keeps_every_byte_that_is_not_changed(project):
    path = project.folder / "odd.py"
    data = ODD.replace("\n", "\r\n").encode("latin-1")
    path.write_bytes(data)
    path.chmod(0o640)
    link = project.folder / "link.py"
    link.symlink_to("odd.py")
    words = ("gen", "odd.py::step", "--inputs", "odd.py::inputs", "--in-place")
    result = project.run(*words, "--diff")
    assert result.exit_code == 0
    assert {name for name in result.files if not name.startswith(".jax-pmap-cache/")} == set()
    assert "run on 3, 8 devices" in result.words
    # Git writes a new file: what is there is given the same bytes.
    subprocess.run(["git", "apply", "-"], input=result.stdout_bytes, cwd=project.folder, check=True)
    new = path.read_bytes()
    # A collective is edited, and `check` makes the change anew: byte for byte the same.
    path.write_bytes(new.replace(b"lax.pmean", b"lax.psum"))
    path.chmod(0o640)
    assert project.run("check", "odd.py", "--no-run").exit_code == 0
    mended = project.run("check", "odd.py", "--fix")
    assert (mended.exit_code, mended.stdout) == (0, "")
    assert "1 mended" in mended.stderr
    assert mended.files - {".jax-pmap-cache/check.json", ".jax-pmap-cache/.gitignore"} == {
        "odd.py",
        "link.py",
    }
    assert path.read_bytes() == new
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert new.count(b"\n") == new.count(b"\r\n")
    assert not new.endswith(b"\n")
    old_lines, new_lines = data.split(b"\r\n"), new.split(b"\r\n")
    gone = [line.strip() for line in old_lines if line not in new_lines and line.strip() != b")"]
    assert gone == [b"@partial(", b"jax.jit,  # compile it", b"donate_argnums=(),"]
    for wanted in (b"\t\t(x @ w) ** 2)  ", b'AXIS_ = "batch"', b"\t\t# caf\xe9", b"AXIS = 3"):
        assert wanted in new_lines
    again = project.run(*words)
    assert again.exit_code == 0
    assert again.files == set()
    assert "already parallel" in again.words
    assert project.run(*words, "--diff").stdout == ""
    assert json.loads(project.run(*words, "--output-format", "json").stdout)["status"] == "unchanged"


@pytest.mark.parametrize(("target", "backend"), [("Trainer.step", "pmap"), ("main.update", "shard_map")])
def test_the_edited_script_gives_the_same_numbers(project, target, backend):
    path = project.write("script.py", SCRIPT)
    before = program_output(path, 1)
    result = project.run(
        "gen", f"script.py::{target}", "--run", "python script.py", "--in-place", "--backend", backend
    )
    assert result.exit_code == 0, result.stderr
    assert result.stdout == ""
    text = path.read_text()
    name = target.rpartition(".")[2]
    assert len(re.findall(rf"^ +def p_{name}\(", text, re.MULTILINE)) == 1
    assert len(re.findall(rf"^ +def {name}\(", text, re.MULTILINE)) == 1
    assert [n.name for n in ast.parse(text).body if isinstance(n, ast.ClassDef)] == ["Base", "Trainer"]
    # What the method calls on its object has a copy beside it, and stays as it is for others.
    assert text.count("  @staticmethod\n  def p__share(values, weights):") == (name == "step")
    assert text.count("self.p__fit(") == (name == "step")
    assert text.count("return self.rate * self._share(") == 1
    assert "all_gather" not in text
    assert program_output(path, 8) == pytest.approx(before, rel=1e-5)


def test_a_script_at_whose_top_a_step_trains_is_edited(project):
    """Of the file, which is not imported, what the step needed before the edit is there as well.

    So are modules that the new code needs, and of the old code nothing but the training.
    """
    project.write("losses.py", "def weighted_mean(x, mask):\n    return (x * mask).sum() / mask.sum()\n")
    path = project.write(
        "script.py",
        """\
import jax
import numpy as np
from losses import weighted_mean


def step(w, x, mask):
    loss, grads = jax.value_and_grad(lambda w: weighted_mean((x @ w) ** 2, mask))(w)
    return w - 0.1 * grads, loss


w, x, mask = jax.numpy.ones(3), jax.random.normal(jax.random.key(0), (24, 3)), np.arange(24.0)
for _ in range(3):
    w, loss = step(w, x, mask)
print(*w, loss)
""",
    )
    before = program_output(path, 1)
    words = ("--arg", "w=f32[3]", "--arg", "x=f32[24,3]", "--arg", "mask=mask[24]")
    result = project.run("gen", "script.py::step", *words, "--in-place")
    assert result.exit_code == 0, result.stderr
    assert "def p_weighted_mean(" in path.read_text()
    assert program_output(path, 8) == pytest.approx(before, rel=1e-5)


def test_a_nested_function_is_edited_with_the_program_that_makes_it(project):
    text = (
        "import jax.numpy as jnp\n\n\ndef main():\n    def mean(x):\n        return jnp.mean(x)\n\n"
        "    print(mean(jnp.ones(24)))\n\n\nmain()\n"
    )
    project.write("script.py", text)
    words = ("gen", "script.py::main.mean", "--arg", "x=f32[24]", "--in-place")
    says = (
        "`main.mean` is defined inside another function",
        "--run 'python script.py'",
        "without --in-place",
    )
    project.refused("JP050", *words, says=says, exit_code=1)


#: A class method that calls others, with collectives in arguments that have a line of their own.
CLASS_METHOD = """\
import jax
import jax.numpy as jnp

RATE, POWER = 0.1, 2.0


def ratio(value, over, power):
    return (value / over) ** power


class Model:
    @staticmethod
    def centre(x, weights):
        return jnp.sum(x.T * weights, axis=1) / jnp.sum(weights)

    @classmethod
    def spread(cls, x, weights):
        return jnp.sqrt(jnp.mean((x - cls.centre(x, weights)) ** 2))

    @classmethod
    def step(cls, w, x, weights):
        def loss(w):
            return ratio(
                jnp.sum(jnp.tanh(x @ w) * weights), over=jnp.sum(weights) + RATE, power=POWER
            )

        return w - RATE * jax.grad(loss)(w), cls.spread(x, weights)


x = jax.random.normal(jax.random.key(0), (24, 4))
w, spread = Model.step(jnp.arange(4.0), x, jnp.arange(24.0))
print(*w, spread)
"""


def test_an_edited_class_method_gives_the_same_numbers(project):
    path = project.write("script.py", CLASS_METHOD)
    before = program_output(path, 1)
    result = project.run("gen", "script.py::Model.step", "--run", "python script.py", "--in-place")
    assert result.exit_code == 0, result.stderr
    text = path.read_text()
    assert "jax.lax.psum(jnp.sum(weights), axis_name=AXIS)" in text
    assert "    @classmethod\n    def p_spread(cls, x, weights):" in text
    assert "cls.p_centre(x, weights)" in text
    assert "    @staticmethod\n    def p_centre(x, weights):" in text
    assert "all_gather" not in text
    assert program_output(path, 8) == pytest.approx(before, rel=1e-5)


SUBCLASS = """\
import jax
import jax.numpy as jnp


class Descent:
    def step(self, w, x, y):
        return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)


class Scaled(Descent):
    def step(self, w, x, y):
        return super().step(w, x / 2, y), jnp.mean(y)


x = jax.random.normal(jax.random.key(0), (24, 4))
w, mean = Scaled().step(jnp.arange(4.0), x, jnp.arange(24.0))
print(*w, mean)
"""


def test_an_edited_method_calls_that_of_the_class_above(project):
    path = project.write("script.py", SUBCLASS)
    before = program_output(path, 1)
    words = ("gen", "script.py::Scaled.step", "--run", "python script.py", "--in-place", "--no-run")
    result = project.run(*words)
    assert result.exit_code == 0, result.stderr
    assert program_output(path, 8) == pytest.approx(before, rel=1e-5)


def test_a_change_that_check_cannot_follow_says_so(project):
    project.write("fit.py", "import jax.numpy as jnp\n\n\ndef fit(x):\n    return jnp.mean(x)\n")
    words = ("gen", "fit.py::fit", "--arg", "x=f32[24,3]", "--in-place", "--diff", "--no-run")
    said = "`jax-pmap verify fit.py::fit --against OLD.py::fit`"
    assert said not in project.run(*words).words
    code = "import jax.numpy as jnp\n\n\ndef fit(x):\n    return jnp.corrcoef(x.T)[0, 1]\n"
    project.write("fit.py", code)
    made = project.run(*words)
    assert "# With: " not in made.stdout
    assert said in made.words
    assert "+    total = jax.lax.psum(apart @ apart.T, axis_name=AXIS)\n" in made.stdout
    assert "lambda" not in made.stdout


CALLED = """\
import jax
import jax.numpy as jnp


def loss(w, x):
    return jnp.mean((x @ w) ** 2)


def both(w, x):
    return jax.value_and_grad(loss)(w, x)


@jax.jit
def step(w, x):
    value, grad = both(w, x)
    return w - 0.1 * grad, value


def evaluate(w, x):
    return loss(w, x)
"""


def test_what_a_changed_function_calls_on_every_device_stays(project):
    """Made parallel too, it would map inside of a map: the step that was proved would raise."""
    project.write("steps.py", CALLED)
    inputs = ("--arg", "w=f32[3]", "--arg", "x=f32[24,3]", "--in-place", "--no-run")
    assert project.run("gen", "steps.py::step", *inputs).exit_code == 0
    says = ("`p_step` (steps.py:", "calls `loss` on every device")
    project.refused("JP055", "gen", "steps.py::loss", *inputs, exit_code=1, says=says)
    assert project.run("gen", "steps.py::evaluate", *inputs).exit_code == 0
    assert project.run("check", "steps.py").exit_code == 0


def test_a_file_that_reads_what_the_compiler_made_is_refused(project):
    more = "\n\ndef cost(w, x):\n    return step.lower(w, x).cost_analysis()\n"
    project.write("steps.py", CALLED + more)
    words = ("gen", "steps.py::step", "--arg", "w=f32[3]", "--arg", "x=f32[24,3]", "--in-place", "--no-run")
    says = ("`step.lower` (steps.py:24) is of what `@jax.jit` makes", "Write `jax.jit(step).lower` there")
    project.refused("JP042", *words, exit_code=1, says=says)
    project.write("steps.py", CALLED + more.replace("step.", "jax.jit(step)."))
    assert project.run(*words).exit_code == 0


def test_what_cannot_be_asked_of_an_edit_is_refused(project):
    project.write("odd.py", "def f(x):\n    return x\n")
    project.refused("JP018", "gen", "odd.py::f", "--in-place", "-o", "x.py", says=("--in-place", "--output"))
    project.refused("JP018", "gen", "odd.py::f", "--in-place", "--force", says=("--force",))


def test_a_value_that_changes_later_is_no_constant(project):
    text = SCRIPT.replace("  print(", "    trainer.rate = 0.1 / (i + 2)\n  print(")
    project.write("script.py", text)
    words = ("gen", "script.py::Trainer.step", "--run", "python script.py", "--in-place")
    project.refused("JP062", *words, exit_code=1, says=("`self.rate` anew, which line 44 changes",))


def test_a_value_that_changes_in_the_class_above_is_no_constant(project):
    text = SUBCLASS.replace("class Descent:\n", "class Descent:\n    rate = 0.1\n\n").replace(
        "w - 0.1", "w - self.rate"
    )
    project.write("script.py", f"{text}\n\ndef slow():\n    Descent.rate = 0.01\n")
    words = ("gen", "script.py::Scaled.step", "--run", "python script.py", "--in-place")
    project.refused("JP062", *words, exit_code=1, says=("`self.rate` anew, which line 23 changes",))


def test_a_file_that_changed_meanwhile_is_not_written(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    source = Source("a.py::f", path, "a.py", "a", tmp_path, "f", "x = 0\n")
    with pytest.raises(RefusalError, match="changed while"):
        replace_text(source, "x = 2\n")
    assert path.read_text() == "x = 1\n"


COMPARED = """
import dataclasses

import jax
import jax.numpy as jnp


class ByName:
    def __init__(self, name, rate):
        self.name, self.rate = name, rate

    def __eq__(self, other):
        return self.name == other.name

    def __hash__(self):
        return hash(self.name)

    def step(self, x):
        return self.scaled(jnp.mean(x))

    def scaled(self, value):
        return self.rate * value

    def named(self, x):
        return len(self.name) * jnp.mean(x)


@dataclasses.dataclass(frozen=True)
class Partly:
    rate: float = dataclasses.field(default=0.1, compare=False)

    def step(self, x):
        return self.rate * jnp.mean(x)


x = jnp.ones((24, 3))
ByName("one", 0.1).step(x), ByName("one", 0.1).named(x), Partly().step(x)
"""


def test_objects_that_are_equal_by_less_than_a_method_reads_are_refused(project):
    """Compiled code is kept for equal objects: of the second it would take the rate of the first."""
    project.write("script.py", COMPARED)
    for name, line in (("ByName", 11), ("Partly", 29)):
        words = ("gen", f"script.py::{name}.step", "--run", "python script.py", "--in-place")
        says = ("`self.rate`, and two objects that differ in it are equal", f"line {line}")
        project.refused("JP050", *words, exit_code=1, says=says)
    words = ("gen", "script.py::ByName.named", "--run", "python script.py", "--in-place", "--diff")
    assert project.run(*words).exit_code == 0


HANDED = """
import types

import jax
import jax.numpy as jnp


class Agent:
    rate = 0.1

    def step(self, x, config):
        return self.rate * jnp.mean(x) + config.target

    def scaled(self, x, config):
        return config.scale * jnp.mean(x) + self.target


config = types.SimpleNamespace(target=0.0, scale=1.0)
agent = Agent()
agent.target = 3.0
if __name__ == "__main__":
    config.target = 2.0
    x = jnp.ones((24, 3))
    for _ in range(2):
        agent.step(x, config), agent.scaled(x, config)
"""


def test_what_a_method_reads_of_its_other_arguments_is_not_of_its_object(project):
    project.write("script.py", HANDED)
    words = ("--run", "python script.py", "--static", "config", "--in-place", "--diff")
    for name in ("step", "scaled"):
        made = project.run("gen", f"script.py::Agent.{name}", *words)
        assert made.exit_code == 0, made.stderr
    project.write("script.py", HANDED + "        agent.target -= 1.0\n")
    project.refused("JP062", "gen", "script.py::Agent.scaled", *words, exit_code=1, says=("`self.target`",))
    made = project.run("gen", "script.py::Agent.step", *words)
    assert made.exit_code == 0, made.stderr


MADE = """
import jax
import jax.numpy as jnp


def make(kind):
    @jax.jit
    def loss(w, x):
        errors = (x @ w) ** 2
        return jnp.mean(errors) if kind == "mean" else jnp.sum(errors)

    return loss


make("mean")(jnp.ones(3), jnp.ones((24, 3)))
"""


def test_a_side_that_a_variable_around_decides_raises(shared):
    """The function around it is called with another one, and nothing else asks what that is."""
    shared.write("made_loss.py", MADE)
    words = ("made_loss.py::make.loss", "--run", "python made_loss.py", "--in-place", "--diff", "--no-run")
    made = shared.run("gen", *words)
    assert made.exit_code == 0, made.stderr
    assert 'else unseen("jnp.sum(errors)")' in made.stdout


HOLDS = """
import dataclasses
import threading

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass
class Options:
    kind: str
    rate: float = 0.1
    start: dict = dataclasses.field(default_factory=lambda: {"w": jnp.ones(3)})


def reduced(options, errors):
    return options.rate * getattr(jnp, options.kind)(errors)


def shifted(x, share):
    if share > 0.5:
        x = x - jnp.mean(x)
    return jnp.sum(jnp.abs(x))


def itself(options):
    return options


class Fit:
    def __init__(self, kind="mean", own=None):
        self.kind, self.rate, self.options = kind, 0.1, Options(kind)
        if own is not None:
            self.own = own
        self.reduce, self.apart = getattr(jnp, kind), lambda errors: getattr(jnp, kind)(errors)
        self.axis, self.name = 0 if kind == "mean" else 1, "fit"
        self.jitted, self.kinds = jax.jit(self.loss), [kind]
        self.basis = jnp.ones((3, 3) if kind == "mean" else 3)
        self.share, self.over, self.axes = float(self.axis), [self.axis], (self.axis, 0.5)
        self.how, self.weights = {"axis": self.axis}, np.arange(2) == self.axis
        lock = threading.Lock()
        self.locked = lambda errors: getattr(jnp, kind)(errors if lock else errors)

    def looked_up(self, w, x):
        if self.rate is None:
            raise ValueError(f"{self.name} has no rate")
        return self.rate * {"mean": jnp.mean, "sum": jnp.sum}[self.kind]((x @ w) ** 2)

    def function(self, w, x):
        return self.rate * self.reduce((x @ w) ** 2)

    def unnamed(self, w, x):
        return self.rate * self.apart((x @ w) ** 2)

    def handed_on(self, w, x):
        options = self.options
        return reduced(options, (x @ w) ** 2)

    def whole(self, w, x):
        return reduced(itself(self.options), (x @ w) ** 2)

    def along(self, w, x):
        return jnp.mean(x * w, axis=self.axis).sum()

    def projected(self, w, x):
        return self.rate * jnp.mean(jax.nn.logsumexp(w * (x @ self.basis), axis=-1))

    def computed(self, w, x):
        return jnp.mean(x * w, axis=int(self.share)).sum() + jnp.max(x, axis=self.axis + 0).sum()

    def told(self, w, x):
        axis = jnp.max(x, axis=getattr(self, "axis") * 1).sum()
        return jnp.mean(x * w, **self.how).sum() + axis + jnp.max(x, axis=int(self.weights.argmax())).sum()

    def asked(self, w, x):
        return self.rate * shifted(x @ w, self.share)

    def counted_off(self, w, x):
        first, _ = self.axes
        return sum(jnp.mean(x * w, axis=axis).sum() for axis in self.over) + jnp.max(x, axis=first).sum()

    def branch(self, w, x):
        return jnp.mean((x @ w) ** 2) if self.kind == "mean" else jnp.sum((x @ w) ** 2)

    def several(self, w, x):
        return sum(getattr(jnp, kind)((x @ w) ** 2) for kind in self.kinds)

    def untold(self, w, x):
        return self.locked((x @ w) ** 2)

    def counted(self, w, x):
        def loss(w):
            return jnp.sum((x @ w) ** 2) / (len(x) if self.kind == "mean" else 1)

        return jax.grad(loss)(w)

    def compiled(self, w, x):
        return self.rate * self.jitted(w, x)

    def by_method(self, w, x):
        return self.rate * self.loss(w, x)

    def loss(self, w, x):
        errors = (x @ w) ** 2
        if self.kind == "mean":
            errors = errors / len(errors)
        return errors.sum()

    def derived(self, w, x):
        return jax.grad(self.plain)(w, x)

    def plain(self, w, x):
        return jnp.mean((x @ w) ** 2)

    @staticmethod
    def spread(x):
        return jnp.std(x)

    def assigned(self, w, x):
        return jax.grad(self.own)(w, x)

    def own(self, w, x):
        return jnp.mean((x @ w) ** 2)


class Summed(Fit):
    def plain(self, w, x):
        return jnp.sum((x @ w) ** 2)


class Halved(Fit):
    def halved(self, w, x):
        return super().derived(w, x) / 2 + super().spread(x)


class Largest(Halved):
    def plain(self, w, x):
        return jnp.max((x @ w) ** 2)


def make(kind):
    def loss(w, x):
        return getattr(jnp, kind)((x @ w) ** 2)

    def step(w, x):
        return w - 0.1 * jax.grad(loss)(w, x)

    return step


def main(kind="mean", fit=Fit):
    w, x = jnp.ones(3), jnp.ones((24, 3))
    for name in (
        "looked_up", "function", "unnamed", "handed_on", "whole", "along", "branch", "by_method", "derived",
        "counted", "compiled", "untold", "several", "assigned", "projected",
        "computed", "asked", "counted_off", "told",
    ):
        getattr(fit(kind), name)(w, x)
    Halved(kind).halved(w, x)
    return make(kind)(w, x)


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("target", "test"),
    [
        ("Fit.looked_up", 'self.kind != "mean"'),
        ("Fit.function", "self.reduce != jnp.mean"),
        ("Fit.unnamed", 'contents(self.apart)[0] != "'),
        ("Fit.handed_on", 'self.options.kind != "mean"'),
        ("Fit.whole", "(type(self.options).__qualname__, self.options.kind"),
        ("Fit.along", "self.axis != 0"),
        ("Fit.computed", "(int(self.share), self.axis + 0) != (0, 0)"),
        ("Fit.told", '(self.axis * 1, self.how["axis"], int(self.weights.argmax())) != (0, 0, 0)'),
        ("Fit.asked", "bool(self.share > 0.5) is not False"),
        ("Fit.counted_off", "(self.over, self.axes[0]) != ([0], 0)"),
        ("Fit.projected", 'getattr(self.basis, "ndim", 0) != 2'),
        ("Fit.branch", ""),
        ("Fit.several", 'self.kinds != ["mean"]'),
        ("Fit.counted", 'self.kind != "mean"'),
        ("Fit.compiled", 'self.kind != "mean"'),
        ("Fit.by_method", 'self.kind != "mean"'),
        ("Fit.derived", 'self.plain.__qualname__ != "Fit.plain"'),
        ("Halved.halved", 'self.plain.__qualname__ != "Fit.plain"'),
        ("Fit.assigned", 'self.own.__qualname__ != "Fit.own"'),
        ("make.step", 'kind != "mean"'),
    ],
)
def test_what_the_object_and_the_functions_around_hold_is_compared(shared, target, test):
    """Another one may reduce otherwise. Rates, messages and what a branch that raises asks are let alone."""
    shared.write("holds.py", HOLDS)
    words = (f"holds.py::{target}", "--run", "python holds.py", "--in-place", "--diff", "--no-run")
    made = shared.run("gen", *words)
    assert made.exit_code == 0, made.stderr
    name = target.rpartition(".")[2]
    drop_in = made.stdout.rpartition(f" def {name}(")[2].partition("+        return")[0]
    tests = re.findall(r"^[+ ] +if (.*):$", drop_in, re.MULTILINE)
    assert [each[: len(test)] for each in tests] == ([test] if test else [])


AGENT = """
import functools

import jax
import jax.numpy as jnp
from flax import struct


class Net(struct.PyTreeNode):
    step: int
    kind: str = struct.field(pytree_node=False)
    layers: dict

    def __call__(self, x, layers):
        return getattr(jnp, self.kind)((x @ sum(jax.tree.leaves(layers))) ** 2)

    def bound(self):
        return functools.partial(self)


class Agent(struct.PyTreeNode):
    net: Net

    @jax.jit
    def update(self, x):
        value, grads = jax.value_and_grad(lambda layers: self.net.bound()(x, layers))(self.net.layers)
        layers = jax.tree.map(lambda w, g: w - 0.1 * g, self.net.layers, grads)
        return self.replace(net=self.net.replace(step=self.net.step + 1, layers=layers)), value


def inputs():
    layers = {f"layer{i}": {"dense": {"w": jnp.full(3, 0.1 * i)}} for i in range(30)}
    return Agent(Net(1, "mean", layers)), jax.random.normal(jax.random.key(0), (24, 3))
"""


def test_an_object_of_many_parts_is_told_without_the_numbers_that_a_step_changes(shared):
    """Its counter is a number of Python in the first call, and an array in the second."""
    shared.write("agent.py", AGENT)
    made = shared.run("gen", "agent.py::Agent.update", "--inputs", "agent.py::inputs", "--in-place", "--diff")
    assert made.exit_code == 0, made.stderr
    assert "if contents(self.net, scales=False)[0] != " in made.stdout


PARAMETERS = """
import jax
import jax.numpy as jnp
from flax import struct


class Model(struct.PyTreeNode):
    layers: dict
    kinds: list = struct.field(pytree_node=False)

    def step(self, x):
        def loss(layers):
            for layer, kind in zip(layers.values(), self.kinds):
                h = jnp.tanh(x @ layer["w"]) if kind == "tanh" else x @ layer["w"]
            return jnp.mean(h**2)

        value, grads = jax.value_and_grad(loss)(self.layers)
        norms = [jnp.linalg.norm(each) for each in jax.tree.leaves(grads)]
        return self.replace(layers=jax.tree.map(lambda w, g: w - 0.1 * g, self.layers, grads)), sum(norms)


def inputs():
    layers = {f"layer{i}": {"w": jnp.full((3, 2), 0.1 * i + 0.1), "b": [jnp.ones(2)]} for i in range(2)}
    return Model(layers, ["tanh", "plain"]), jax.random.normal(jax.random.key(0), (24, 3))
"""


def test_parameters_that_a_method_hands_on_are_not_counted(shared):
    """They are arguments of the mapped function; what is no leaf of the object is told from others."""
    shared.write("model.py", PARAMETERS)
    made = shared.run("gen", "model.py::Model.step", "--inputs", "model.py::inputs", "--in-place", "--diff")
    assert made.exit_code == 0, made.stderr
    assert "len(self.layers" not in made.stdout
    assert "if self.kinds != [" in made.stdout


def test_a_function_that_nothing_tells_from_others_is_refused(shared):
    shared.write("holds.py", HOLDS)
    words = ("holds.py::Fit.untold", "--run", "python holds.py", "--in-place", "--diff", "--no-run")
    says = ("`self.locked` is a function", "Make it a method")
    shared.refused("JP053", "gen", *words, exit_code=1, says=says)


def test_another_object_than_that_of_the_proof_raises(project):
    path = project.write("holds.py", HOLDS)
    made = project.run("gen", "holds.py::Fit.function", "--run", "python holds.py", "--in-place")
    assert made.exit_code == 0, made.stderr
    assert "`self` is static: the emitted function takes none with another `self.reduce`" in made.words
    more = "\nimport holds\nholds.main()\nprint(1)\nholds.main('sum')\n"
    (path.parent / "more.py").write_text(more)
    words = [sys.executable, path.parent / "more.py"]
    found = subprocess.run(words, capture_output=True, text=True, env=simulated(8), check=False)
    assert found.stdout == "1\n"
    assert "function: `self.reduce` must be jnp.mean, as in the run this file was made from" in found.stderr
    assert project.run("check", "holds.py", "--no-run").exit_code == 0


CONFIGURED = """\
import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass
class Config:
    rate: float = 0.1
    decay: float = 0.01
    kind: str = "mean"


class Trainer:
    def __init__(self, config):
        self.config = config

    def step(self, w, x):
        return w - self.config.rate * jax.grad(self.loss)(w, x)

    def loss(self, w, x):
        value = getattr(jnp, self.config.kind)((x @ w) ** 2)
        if self.config.decay > 0:
            value = value + self.config.decay * jnp.sum(w**2)
        return value


if __name__ == "__main__":
    print(*Trainer(Config()).step(jnp.ones(3), jax.random.normal(jax.random.key(0), (24, 3))))
"""


def test_what_a_program_holds_is_read_alike_when_it_is_checked(project):
    """The lines of a changed file are others than those that check takes it back to, and runs."""
    path = project.write("configured.py", CONFIGURED)
    before = program_output(path, 1)
    words = ("gen", "configured.py::Trainer.step", "--run", "python configured.py", "--in-place", "--no-run")
    assert project.run(*words).exit_code == 0
    text = path.read_text()
    assert "self.config.kind" in text.partition("def step(")[2]
    assert "bool(self.config.decay > 0)" in text
    assert program_output(path, 8) == pytest.approx(before, rel=1e-5)
    checked = project.run("check", "configured.py")
    assert checked.exit_code == 0, checked.stdout


def test_a_function_of_the_program_is_the_same_one_when_it_is_imported(project):
    """As the module `__main__` it was proved, and a test imports it by its name."""
    text = HOLDS.replace("class Fit", "def halved(f, e):\n    return f(e) / 2\n\n\nclass Fit", 1)
    text = text.replace("lambda errors: getattr(jnp, kind)(errors)", "functools.partial(halved, jnp.mean)", 1)
    path = project.write(
        "holds.py", text.replace("import dataclasses", "import dataclasses\nimport functools", 1)
    )
    words = ("gen", "holds.py::Fit.unnamed", "--run", "python holds.py", "--in-place", "--no-run")
    assert project.run(*words).exit_code == 0
    assert "contents(self.apart)[0]" in path.read_text()
    more = path.parent / "more.py"
    more.write_text(
        "import holds\n\nholds.Fit().unnamed(holds.jnp.ones(3), holds.jnp.ones((24, 3)))\nprint(1)\n"
    )
    assert program_output(more, 8) == [1]


IN_PACKAGE = """
import flax.struct
import jax
import jax.numpy as jnp


class Agent(flax.struct.PyTreeNode):
    w: jax.Array

    @staticmethod
    def _update(agent, batch):
        value, grad = jax.value_and_grad(lambda w: Agent(w).loss(batch))(agent.w)
        return agent.replace(w=agent.w - 0.1 * grad), value

    def loss(self, batch):
        return jnp.sum((batch["x"] @ self.w) ** 2 * batch["mask"]) / jnp.sum(batch["mask"])

    def update(self, batch):
        return self._update(self, batch)
"""
AGENT_INPUTS = """
import jax
import jax.numpy as jnp
from agents.agent import Agent


def inputs():
    x = jax.random.normal(jax.random.key(0), (24, 3))
    return Agent(jnp.ones(3)), {"x": x, "mask": jnp.arange(24.0) % 3}
"""


@pytest.mark.parametrize("package", [(), ("agents/__init__.py",), ("agents/__init__.py", "__init__.py")])
def test_a_method_of_a_class_that_the_inputs_import_by_another_name(project, package):
    """Of two names for a file, that of the inputs is the one whose class the object is of."""
    project.write("agents/agent.py", IN_PACKAGE)
    project.write("given.py", AGENT_INPUTS)
    for name in package:
        project.write(name, "")
    words = ("gen", "agents/agent.py::Agent.update", "--inputs", "given.py::inputs", "--in-place", "--diff")
    made = project.run(*words)
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs" in made.words
    assert "self.p__update(self, batch)" in made.stdout


DATACLASS = """\
import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass
class Trainer:
    rate: float = 0.1

    def __post_init__(self):
        self.step = jax.jit(self._step)

    def _step(self, w, x):
        loss, grads = jax.value_and_grad(lambda w: jnp.mean((x @ w - 1.0) ** 2))(w)
        return w - self.rate * grads, loss


if __name__ == "__main__":
    trainer, w = Trainer(), jnp.ones(3)
    for seed in range(3):
        w, loss = trainer.step(w, jax.random.normal(jax.random.key(seed), (24, 3)))
    print(*w, loss)
"""


def test_a_method_of_an_object_that_cannot_be_hashed(project):
    path = project.write("trainer.py", DATACLASS)

    def run():
        words = [sys.executable, str(path)]
        done = subprocess.run(words, capture_output=True, text=True, env=simulated(8), check=True)
        return [float(each) for each in done.stdout.split()]

    before = run()
    made = project.run("gen", "trainer.py::Trainer.step", "--run", "python trainer.py", "--in-place")
    assert made.exit_code == 0, made.stderr
    assert run() == pytest.approx(before, rel=1e-5)
    assert project.run("check", "trainer.py").exit_code == 0


#: As the examples of Equinox are written: the loss has its gradient as a decorator, and draws its own noise.
NOISY = """
import jax
import jax.numpy as jnp


def main():
    @jax.value_and_grad
    def loss(w, x, key):
        x = x + 0.1 * jax.random.normal(key, x.shape)
        return jnp.mean((x @ w - 1.0) ** 2)

    @jax.jit
    def step(w, x, key):
        value, grads = loss(w, x, key)
        return w - 0.1 * grads, value

    w = jnp.ones(3)
    for seed in range(3):
        w, value = step(w, jax.random.normal(jax.random.key(seed), (24, 3)), jax.random.key(seed))
    print(value)


if __name__ == "__main__":
    main()
"""


def test_a_nested_loss_with_its_gradient_as_a_decorator(project):
    path = project.write("noisy.py", NOISY)
    made = project.run("gen", "noisy.py::main.step", "--run", "python noisy.py", "--in-place")
    assert made.exit_code == 0, made.stderr
    assert "@jax.value_and_grad\n    def p_loss(" in path.read_text()
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=simulated(8))
    assert done.returncode == 0, done.stderr
