"""Ways to name the target, through the real command; what cannot be named starts no worker."""

import subprocess
import sys

import pytest
from project import simulated

TRAIN = """
import functools

import jax
import numpy as np


def scale(x):
    return x * 2


def total(x):
    return x.sum()


class Trainer:
    def step(self, x):
        return x


def outer(x):
    def inner(y):
        return y + x

    return inner(x)


fast_scale = jax.jit(scale)
RATE = 0.1


async def later(x):
    return x


def stream(x):
    yield x


def make():
    return (np.random.default_rng(0).normal(size=(24, 3)),)
"""


@pytest.fixture
def several(project):
    project.write("train.py", TRAIN)
    project.write("package/__init__.py", "")
    project.write("package/steps.py", "from .rates import RATE\n\n\ndef apply(x):\n    return x * RATE\n")
    project.write(
        "package/rates.py",
        "import numpy as np\n\nRATE = 3.0\n\n\ndef make():\n    return (np.ones((16, 2)),)\n",
    )
    project.write("other.py", "def total(y):\n    return y\n")
    project.write("broken.py", "def f(x):\n    return (x\n")
    return project


# --- what works ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "inputs", "shown"),
    [
        ("scale", "train:make", "train.py::scale"),
        ("train.py::scale", "train.py::make", "train.py::scale"),
        ("package.steps:apply", "package.rates:make", "package/steps.py::apply"),
        ("package/steps.py::apply", "package/rates.py::make", "package/steps.py::apply"),
    ],
)
def test_names_of_a_function(several, target, inputs, shown):
    result = several.run("plan", target, "--inputs", inputs)
    assert result.exit_code == 0, result.stderr
    assert shown in result.words
    assert result.files == set()


def test_a_file_outside_the_project(several, tmp_path):
    (tmp_path / "elsewhere.py").write_text(TRAIN)
    result = several.run("plan", "../elsewhere.py::scale", "--inputs", "../elsewhere.py::make")
    assert result.exit_code == 0, result.stderr


# --- what does not ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "code", "says"),
    [
        ("trian.py::scale", "JP001", ("trian.py", "train.py")),
        ("package.stepz:apply", "JP001", ("package.stepz",)),
        ("package::apply", "JP001", ("package",)),
        ("::scale", "JP001", ("FILE::FUNC",)),
        ("train.py::scael", "JP002", ("`scael`", "scale")),
        ("package.steps:aply", "JP002", ("aply", "apply")),
        ("scael", "JP002", ("scael", "scale")),
        ("train.py::", "JP002", ("FUNC",)),
        ("train.py::not a name", "JP002", ("not a name",)),
        ("total", "JP003", ("other.py::total", "train.py::total")),
        ("train.py::Trainer", "JP004", ("`Trainer` is a class", "train.py:15:")),
        ("train.py::RATE", "JP004", ("`RATE`", "train.py:28:")),
        ("package/steps.py::RATE", "JP004", ("`RATE`", ".rates")),
        ("broken.py::f", "JP005", ("broken.py:2:",)),
        ("broken:f", "JP005", ("broken.py:2:",)),
    ],
)
def test_targets_that_are_not_there(several, target, code, says):
    several.refused(code, "gen", target, says=says)


@pytest.mark.parametrize(
    ("target", "code", "says"),
    [
        ("train.py::Trainer.step", "JP050", ("method", "train.py:16:")),
        ("train.py::outer.inner", "JP050", ("`outer.inner`", "train.py:21:")),
        ("train.py::later", "JP056", ("`async def`", "train.py:31:")),
        ("train.py::stream", "JP056", ("generator", "train.py:35:")),
    ],
)
def test_functions_of_another_kind(several, target, code, says):
    several.refused(code, "gen", target, says=says, exit_code=1)


METHODS = """
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct


class Agent(struct.PyTreeNode):
    w: jax.Array
    rate: float = struct.field(pytree_node=False, default=0.1)

    def loss(self, w, x):
        return jnp.mean((x @ w) ** 2)

    @partial(jax.jit, static_argnames="times")
    def update(self, x, times=2):
        agent = self
        for _ in range(times):
            agent, loss = agent.moved(x)
        return agent, loss

    def moved(self, x):
        loss, grad = jax.value_and_grad(self.loss)(self.w, x)
        return self.replace(w=self.w - self.rate * grad), loss

    def upper(self, x):
        return super().replace(w=self.w - x.mean(0))

    def private(self, x):
        return self.__dict__["w"] - self.__mean(x)

    def __mean(self, x):
        return x.mean(0)


def inputs():
    return Agent(jnp.ones(4)), jax.random.normal(jax.random.key(0), (24, 4))
"""


@pytest.mark.parametrize("given", [("--inputs", "agents.py::inputs"), ("--run", "python program.py")])
def test_a_method_becomes_a_function_of_its_object(project, given):
    project.write("agents.py", METHODS)
    project.write("program.py", "from agents import inputs\n\nagent, x = inputs()\nagent.update(x)\n")
    made = project.run("gen", "agents.py::Agent.update", *given, "-o", "out.py")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs" in made.words
    project.write(
        "use.py",
        """
        import jax
        import jax.numpy as jnp
        import numpy as np

        from agents import Agent
        from out import update

        x = jax.random.normal(jax.random.key(3), (48, 4))
        one = many = Agent(jnp.arange(4.0), rate=0.01)
        for _ in range(3):
            (one, loss), (many, same) = one.update(x), update(many, x)
        np.testing.assert_allclose(many.w, one.w, rtol=1e-6)
        np.testing.assert_allclose(same, loss, rtol=1e-6)


        class Summed(Agent):
            def loss(self, w, x):
                return jnp.sum((x @ w) ** 2)


        try:
            update(Summed(many.w), x)
        except ValueError as error:
            assert "`type(self).__qualname__` must be 'Agent'" in str(error)
        else:
            raise AssertionError("another method was taken for the proved one")
        """,
    )
    ran = subprocess.run([sys.executable, "use.py"], env=simulated(4), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert project.run("check", "--no-run").exit_code == 0
    for name in ("upper", "private"):
        words = ("gen", f"agents.py::Agent.{name}", "--inputs", "agents.py::inputs")
        project.refused("JP050", *words, says=("--in-place",), exit_code=1)


@pytest.mark.parametrize("command", ["gen", "plan"])
def test_both_commands_refuse_alike(several, command):
    several.refused("JP002", command, "train.py::scael", says=("`scael`",))


def test_a_refusal_in_json(several):
    import json

    result = several.run("gen", "train.py::scael", "--output-format", "json")
    assert result.exit_code == 2
    document = json.loads(result.stdout)
    assert document["schema_version"]
    assert "JP002" in result.stdout


ASSIGNED = """
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Config(NamedTuple):
    rate: float = 0.1


cfg = Config()


def _update(cfg, w, batch, steps, *, activation):
    for _ in range(steps):
        w = w - cfg.rate * jax.grad(lambda w: jnp.mean(activation(batch @ w) ** 2))(w)
    return w


update = jax.jit(partial(_update, cfg, activation=jnp.tanh), static_argnums=2, donate_argnames="w")


def make_train_step(scale, rate):
    def loss_fn(w, x, mask):
        return scale * ((x @ w) ** 2 * mask).sum() / mask.sum()

    def train_step(rate, w, x, mask):
        loss, grad = jax.value_and_grad(loss_fn)(w, x, mask)
        return w - rate * grad, loss

    return jax.jit(partial(train_step, rate))


train_step = make_train_step(2.0, 0.1)


def inputs():
    return jnp.ones(3), jax.random.normal(jax.random.key(0), (24, 3)), 2
"""


def test_a_name_that_partial_and_jit_give(project):
    project.write("train.py", ASSIGNED)
    result = project.run("gen", "train.py::update", "--inputs", "train.py::inputs", "-o", "fast.py")
    assert result.exit_code == 0, result.stderr
    assert "the function is `train.py::_update`, called with `cfg`, `activation=jnp.tanh`" in result.words
    assert "static under jit" in result.words
    assert "w (donated)" in result.words
    text = (project.folder / "fast.py").read_text()
    assert "# Source: train.py::update " in text
    assert "\nfrom train import cfg\n" in text
    project.refused(
        "JP021", "verify", "fast.py::update", "--against", "train.py::update", says=("`steps` must be 2",)
    )
    assert text.endswith("\n\n\nupdate = functools.partial(_update, cfg, activation=jnp.tanh)\n")


def test_a_step_that_a_factory_makes_at_the_top_of_its_file(project):
    path = project.write("train.py", ASSIGNED)
    words = ("--arg", "w=f32[3]", "--arg", "x=f32[24,3]", "--arg", "mask=mask[24]")
    result = project.run("gen", "train.py::train_step", *words, "--in-place")
    assert result.exit_code == 0, result.stderr
    assert "8 devices" in result.words
    text = path.read_text()
    # The mask is summed inside the loss beside the step, and everything else stays.
    assert "jax.lax.psum(mask.sum(), axis_name=AXIS)" in text
    assert "return jax.jit(partial(train_step, rate))" in text
    assert "def train_step(rate, w, x, mask):" in text


#: A factory in a package, of which another file makes a step.
FACTORY = """
import jax

from .losses import weighted_mean

SCALE = 2.0


def make_step(predict, rate):
    def update(w, x, mask):
        def loss_fn(w):
            return SCALE * weighted_mean(predict(w, x) ** 2, mask)

        loss, grads = jax.value_and_grad(loss_fn)(w)
        return w - rate * grads, loss

    return jax.jit(update)
"""

MADE = """
import jax
import numpy as np
from steps.make import make_step


def predict(w, x):
    return x @ w


train_step = make_step(predict, 0.25)


def inputs(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=3), rng.normal(size=(24, 3)), (np.arange(24) % 5 > 0) * 1.0
"""


@pytest.fixture
def factory(project):
    project.write("steps/__init__.py", "")
    project.write("steps/make.py", FACTORY)
    project.write(
        "steps/losses.py", "def weighted_mean(x, mask):\n    return (x * mask).sum() / mask.sum()\n"
    )
    project.write("train.py", MADE)
    return project


def test_a_step_that_a_factory_of_another_file_makes(factory):
    words = ("--inputs", "train.py::inputs")
    result = factory.run("gen", "train.py::train_step", *words, "-o", "fast.py")
    assert result.exit_code == 0, result.stderr
    assert "the function is `steps/make.py::make_step.update`" in result.words
    text = (factory.folder / "fast.py").read_text()
    assert "# Source: train.py::train_step " in text
    assert "\nfrom train import train_step as train_step_\n" in text
    assert "\nrate = closure[" in text
    # What another file makes the step with counts as its source.
    factory.write("train.py", MADE.replace("0.25", "0.5"))
    assert "JP150" in factory.run("check", "fast.py", "--no-run").stdout
    factory.write("train.py", MADE)
    assert factory.run("check", "fast.py").exit_code == 0
    assert factory.run("gen", "train.py::train_step", *words, "--in-place").exit_code == 0
    assert "def p_update(" in (factory.folder / "steps" / "make.py").read_text()


def test_a_factory_in_a_file_that_cannot_be_imported(factory):
    words = (
        "gen",
        "train.py::train_step",
        "--arg",
        "w=f32[3]",
        "--arg",
        "x=f32[24,3]",
        "--arg",
        "mask=mask[24]",
    )
    factory.write("train.py", MADE + "for _ in range(3):\n    train_step(*inputs(0))\n")
    says = "importing `train.py`, which makes `train_step`, would run the program (line 16)"
    factory.refused("JP050", *words, says=(says,), exit_code=1)
    factory.write("train.py", MADE.replace("train_step =", "if __name__ == '__main__':\n    train_step ="))
    says = "`train_step` is made only where `train.py` is run as a program"
    factory.refused("JP050", *words, says=(says,), exit_code=1)
    factory.write("train.py", MADE + "1 / 0\n")
    factory.refused("JP008", *words, says=("`train.py` cannot be imported: ZeroDivisionError",))


CLASSES_AROUND = """
import jax
import numpy as np
import nets
from nets import Network


class Halved:
    def __call__(self, x):
        return x / 2


def make_step(network):
    def step(w, x):
        def loss_fn(w):
            return (network(w, x) ** 2).mean()

        return w - 0.1 * jax.grad(loss_fn)(w)

    return jax.jit(step)


step = make_step(Network(nets.Doubled, Halved))


def inputs(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=3), rng.normal(size=(24, 3))
"""

NETS = """
class Doubled:
    def __call__(self, x):
        return x * 2


class Network:
    def __init__(self, first, then):
        self.first, self.then = first, then

    def __call__(self, w, x):
        return self.then()(self.first()(x @ w))
"""


def test_classes_that_the_object_around_a_step_holds_are_imported(project):
    project.write("nets.py", NETS)
    project.write("train.py", CLASSES_AROUND)
    result = project.run("gen", "train.py::step", "--inputs", "train.py::inputs", "-o", "fast.py")
    assert result.exit_code == 0, result.stderr
    text = (project.folder / "fast.py").read_text()
    assert "\nimport nets\n" in text
    assert "\nfrom train import Halved\n" in text


PARTLY = """
import functools

import jax
import jax.numpy as jnp
import numpy as np


def make_step(rate):
    def step(w, x, power=2.0):
        loss, grads = jax.value_and_grad(lambda w: jnp.mean(jnp.abs(x @ w) ** power))(w)
        return w - rate * grads, loss

    return {made}


{name} = make_step(0.25)


def inputs(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=3), rng.normal(size=(24, 3))
"""


@pytest.mark.parametrize(
    ("name", "made", "called"),
    [
        ("train_step", "jax.jit(functools.partial(step, power=3.0))", "step"),
        ("step", "functools.partial(jax.jit(step), power=3.0)", "step_"),
    ],
)
def test_a_step_that_a_factory_binds_an_argument_of(project, name, made, called):
    project.write("train.py", PARTLY.replace("{made}", made).replace("{name}", name))
    result = project.run("gen", f"train.py::{name}", "--inputs", "train.py::inputs", "-o", "fast.py")
    assert result.exit_code == 0, result.stderr
    assert (
        (project.folder / "fast.py")
        .read_text()
        .endswith(f"{name} = functools.partial({called}, power=3.0)\n")
    )


BESIDE = """
import jax
import jax.numpy as jnp
import numpy as np


def squares(a, b):
    return (a - b) ** 2


def mean_loss(w, x, y):
    return jnp.sum(w)


def make_step(error, rate, ascend=False):
    def mean_loss(w, x, y):
        seen = y > 0
        return jnp.sum(error(x @ w, y) * seen) / jnp.sum(seen)

    def update_step(w, x, y):
        loss, grads = jax.value_and_grad(mean_loss)(w, x, y)
        return w - rate * grads, loss

    def ascent_step(w, x, y):
        loss, grads = jax.value_and_grad(mean_loss)(w, x, y)
        return w + rate * grads, loss

    {bound}

    @jax.jit
    def step(w, x, y):
        return update(w, x, y)

    return step


step = make_step(squares, 0.25)


def inputs(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=3), rng.normal(size=(24, 3)), rng.normal(size=24)
"""


@pytest.mark.parametrize(
    "bound",
    [
        "update = update_step",
        "update = ascent_step if ascend else update_step",
        "update = jax.jit(update_step)",
        pytest.param('update = {"step": update_step}["step"]', marks=pytest.mark.thorough),
    ],
)
def test_functions_that_a_factory_defines_beside_a_step(project, bound):
    """They are copied where the step calls them by another name, and where they call each other."""
    project.write("train.py", BESIDE.replace("{bound}", bound))
    command = "gen", "train.py::step", "--inputs", "train.py::inputs"
    result = project.run(*command, "-o", "fast.py")
    assert result.exit_code == 0, result.stderr
    text = (project.folder / "fast.py").read_text()
    assert "psum" in text
    assert 'error = closure["error"]' in text
    if "ascend" in bound:
        # An import that makes the other one is told from the one of the proof.
        project.write("train.py", BESIDE.replace("{bound}", bound).replace("ascend=False", "ascend=True"))
        call = "import fast, train; fast.step(*train.inputs(0))"
        ran = subprocess.run([sys.executable, "-c", call], env=simulated(4), capture_output=True, text=True)
        assert ran.returncode != 0 and "`update` is not the function of the run" in ran.stderr


def test_what_a_factory_binds_to_a_function_beside_a_step_is_not_that_function(project):
    text = BESIDE.replace("{bound}", "update = functools.partial(update_step, y=0.5 * np.ones(24))")
    text = text.replace("import jax\n", "import functools\n\nimport jax\n", 1)
    project.write("train.py", text.replace("return update(w, x, y)", "return update(w, x)"))
    result = project.run("gen", "train.py::step", "--inputs", "train.py::inputs")
    assert result.exit_code == 1 and "Traceback" not in result.stderr, result.stderr
