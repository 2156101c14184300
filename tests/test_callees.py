"""Functions that calls lead to: decorated ones, methods of values, functions that values hold."""

import dis
import json
import re
import string
import subprocess
import sys

import pytest
from project import Project, simulated

from jax_pmap.worker import callees

MODELS = """
import pprint
from typing import Any, NamedTuple

import flax
import jax
import jax.numpy as jnp
import optax


@flax.struct.dataclass
class Model:
    params: Any
    opt_state: Any
    tx: Any = flax.struct.field(pytree_node=False)
    clip: bool = flax.struct.field(pytree_node=False, default=False)

    def _gradient(self, loss_fn):
        return jax.grad(loss_fn, has_aux=True)(self.params)

    def apply_gradient(self, loss_fn):
        grads, info = self._gradient(loss_fn)
        if self.clip:
            grads = jax.tree.map(lambda g: jnp.clip(g, -1, 1), grads)
        updates, opt_state = self.tx.update(grads, self.opt_state, self.params)
        return self.replace(params=optax.apply_updates(self.params, updates), opt_state=opt_state), info


class Line(NamedTuple):
    w: Any
    b: Any

    def predict(self, x):
        return x @ self.w + self.b

    def loss(self, batch):
        error = (self.predict(batch["x"]) - batch["y"]) ** 2
        return jnp.sum(batch["mask"] * error) / jnp.sum(batch["mask"])


class Table(NamedTuple):
    w: Any

    def loss(self, batch):
        assert batch["x"].ndim == 2, f'not for {pprint.pformat(self.w.shape)}'
        return jnp.std(batch["x"] @ self.w)
"""
UPDATES = """
import jax
import jax.numpy as jnp
import optax

from models_v import Line, Model, Table


def batch():
    keys = jax.random.split(jax.random.key(0), 3)
    mask = (jax.random.uniform(keys[1], (48,)) < jnp.linspace(0.2, 1, 48)).astype(jnp.float32)
    return {"x": jax.random.normal(keys[0], (48, 5)), "y": jax.random.normal(keys[2], (48,)), "mask": mask}


def model(cls):
    params, tx = {"w": jnp.arange(5.0) / 5}, optax.adam(0.1)
    return cls(params, tx.init(params), tx)


def make():
    return {"critic": model(Model)}, batch()


def lines():
    return Line(jnp.arange(5.0), jnp.asarray(1.0)), batch()


def tables():
    return (Line(jnp.arange(5.0), jnp.asarray(1.0)), Table(jnp.arange(5.0))), batch()


def update(models, batch):
    def mean_loss(params):
        loss = jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2)
        return loss, {"loss": loss}

    def masked_loss(params):
        error = (batch["x"] @ params["w"] - batch["y"]) ** 2
        loss = jnp.sum(error * batch["mask"]) / jnp.sum(batch["mask"])
        return loss, {"loss": loss}

    critic, info = models["critic"].apply_gradient(mean_loss)
    critic, masked = critic.apply_gradient(masked_loss)
    return {"critic": critic}, info, masked


def gradient(loss, *args):
    return jax.value_and_grad(loss)(*args)


def make_loss(batch):
    def loss(line):
        return line.loss(batch)

    return loss


def fit(line, batch):
    loss, grads = gradient(make_loss(batch), line)
    return jax.tree.map(lambda p, g: p - 0.1 * g, line, grads), loss


def several(models, batch):
    return sum(each.loss(batch) for each in models)
"""

LOSSES = """
from functools import partial

import jax
import jax.numpy as jnp
from jax import value_and_grad as vg


def weighted(values, w):
    return jnp.sum(values * w) / jnp.sum(w)


@jax.jit
@partial(vg, argnums=1, has_aux=True)
def masked(x, p, w):
    loss = weighted((x @ p) ** 2, w)
    return loss, {"root": jnp.sqrt(loss)}
"""
DECORATED = """
import jax.numpy as jnp
import numpy as np
from losses_d import masked


def inputs():
    draw = np.random.default_rng(0)
    w = (draw.random(48) < np.linspace(0.2, 1, 48)).astype("f")
    return draw.normal(size=3).astype("f"), draw.normal(size=(48, 3)).astype("f"), w


def step(p, x, w):
    (loss, found), grads = masked(x, p, w)
    return p - 0.1 * jnp.clip(grads, -0.2, 0.2), loss, found
"""


def test_a_loss_that_is_decorated_with_its_gradient_is_carried_with_it(shared: Project) -> None:
    shared.write("losses_d.py", LOSSES)
    shared.write("decorated.py", DECORATED)
    made = shared.run("gen", "decorated.py::step", "--inputs", "decorated.py::inputs")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs" in made.stderr
    assert "from jax import value_and_grad as vg\n" in made.stdout
    assert "@partial(vg, argnums=1, has_aux=True)\ndef masked(x, p, w):" in made.stdout
    # The sums in the loss, the gradient behind it and before what is not linear.
    assert "jax.lax.psum((jnp.sum(values * w), jnp.sum(w)), axis_name=AXIS)" in made.stdout
    assert "grads = jax.lax.pmean(grads, axis_name=AXIS)" in made.stdout


NAMED_GRADIENTS = """
import functools

import jax
import jax.numpy as jnp

POWER = 2


def masked(p, x, w, power):
    loss = jnp.sum((x @ p) ** power * w) / jnp.sum(w)
    return loss, {"root": jnp.sqrt(loss)}


def scores(p, x):
    return x @ p


masked_and_grad = jax.jit(jax.value_and_grad(functools.partial(masked, power=POWER), has_aux=True))
of_rows = jax.vmap(scores, (None, 0))
"""
WITH_NAMED_GRADIENTS = """
import jax
import jax.numpy as jnp
import gradients_n
from gradients_n import masked_and_grad, of_rows


def spread(p, x, w):
    return jnp.sum(of_rows(p, x) ** 2 * w) / jnp.sum(w)


spread_grad = jax.grad(spread)


def imported(p, x, w):
    (loss, found), grads = masked_and_grad(p, x, w)
    return p - 0.1 * jnp.clip(grads, -0.2, 0.2), loss, found


def of_module(p, x, w):
    return gradients_n.masked_and_grad(p, x, w)[0][0]


def own(p, x, w):
    return p - 0.1 * spread_grad(p, x, w)


def inputs():
    return jnp.ones(3), jax.random.normal(jax.random.key(0), (24, 3)), jnp.arange(24.0) % 3
"""


def test_a_gradient_that_a_module_has_under_a_name_is_taken_of_the_copy(shared: Project) -> None:
    shared.write("gradients_n.py", NAMED_GRADIENTS)
    shared.write("named_gradients.py", WITH_NAMED_GRADIENTS)
    anew = "jax.jit( jax.value_and_grad(functools.partial(masked, power=POWER), has_aux=True) )(p, x, w)"
    written = {"imported": anew, "of_module": anew, "own": "jax.lax.psum(jax.grad(spread)(p, x, w), "}
    for name, call in written.items():
        made = shared.run("gen", f"named_gradients.py::{name}", "--inputs", "named_gradients.py::inputs")
        assert made.exit_code == 0, made.stderr
        assert "derived for all inputs" in made.stderr
        assert call in " ".join(made.stdout.split())
        assert "all_gather" not in made.stdout


TABLE = """
class Table:
    def __init__(self):
        self.entries = {}

    def register(self, name):
        def enter(function):
            self.entries[name] = function
            return function

        return enter


table = Table()
"""
ENTRIES = """
import jax
import jax.numpy as jnp
from table import table


def halved(function):
    def half(p, x, w):
        return function(p, x, w) / 2

    half.__qualname__ = function.__qualname__
    return half


@table.register("masked")
def masked(p, x, w):
    return jnp.sqrt(jnp.sum((x @ p) ** 2 * w) / jnp.sum(w))


@halved
def half(p, x, w):
    return jnp.sum((x @ p) ** 2 * w) / jnp.sum(w)


def by_name(p, x, w):
    return p - 0.1 * jax.grad(masked)(p, x, w)


def by_entry(p, x, w):
    loss = table.entries["masked"]
    return p - 0.1 * jnp.clip(jax.grad(loss)(p, x, w), -1, 1)


def by_half(p, x, w):
    return half(p, x, w)


def inputs():
    return jnp.ones(3), jax.random.normal(jax.random.key(0), (24, 3)), jnp.arange(24.0) % 3
"""


def test_a_decorator_that_gives_back_what_it_is_given_is_left_out(shared: Project) -> None:
    """One that enters a function into a table, as running shows: the copy stays out of the table."""
    shared.write("table.py", TABLE)
    shared.write("entries.py", ENTRIES)
    for name in ("by_name", "by_entry"):
        made = shared.run("gen", f"entries.py::{name}", "--inputs", "entries.py::inputs")
        assert made.exit_code == 0, made.stderr
        assert "derived for all inputs" in made.stderr
        assert "table.register" not in made.stdout
        text = " ".join(made.stdout.split())
        assert "jax.lax.psum( (jnp.sum((x @ p) ** 2 * w), jnp.sum(w)), axis_name=AXIS )" in text
    says = ("`half` has a decorator that is not known",)
    inputs = ("--inputs", "entries.py::inputs")
    shared.refused("JP067", "gen", "entries.py::by_half", *inputs, says=says, exit_code=1)


def test_the_target_itself_may_be_entered_in_a_table(shared: Project) -> None:
    """By a method of an object, which importing the file shows, and by a function that is read."""
    shared.write("table.py", TABLE)
    listed = "LISTED = []\n\n\ndef listed(f):\n    LISTED.append(f)\n    return f\n\n\n@listed\n"
    shared.write("entered.py", ENTRIES.replace("@table.register", f"{listed}@table.register"))
    words = ("gen", "entered.py::masked", "--inputs", "entered.py::inputs")
    made = shared.run(*words)
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs" in made.stderr
    assert "table" not in made.stdout.split("AXIS")[1]
    shared.refused("JP042", *words, "--in-place", says=("`@table.register",), exit_code=1)
    read = ENTRIES.replace('@table.register("masked")\n', listed.lstrip())
    shared.write("listed.py", read)
    words = ("gen", "listed.py::masked", "--inputs", "listed.py::inputs")
    made = shared.run(*words, "--in-place", "--diff")
    assert made.exit_code == 0, made.stderr
    assert " @listed\n def masked(p, x, w):" in made.stdout.replace("+@", " @").replace("+def", " def")


REBINDING = """
import jax.numpy as jnp


def by_a_definition(f):
    first = f

    def f(*args):
        return 2 * first(*args)

    return f


def by_a_function_inside(f):
    def change():
        nonlocal f
        first = f
        f = lambda *args: 2 * first(*args)

    change()
    return f


{decorator}
def loss(w, x):
    return jnp.mean((x @ w) ** 2)
"""


@pytest.mark.parametrize("how", ["by_a_definition", "by_a_function_inside"])
def test_a_decorator_that_gives_the_name_to_another_function_is_not_left_out(
    shared: Project, how: str
) -> None:
    name = f"rebinding_{how}"
    shared.write(f"{name}.py", REBINDING.format(decorator=f"@{how}"))
    arguments = ("--arg", "w=f32[4]", "--arg", "x=f32[24,4]")
    shared.refused("JP042", "gen", f"{name}.py::loss", *arguments, "--in-place", exit_code=1)
    made = shared.run("gen", f"{name}.py::loss", *arguments, "-o", f"{name}_pmap.py")
    assert made.exit_code == 0, made.stderr
    call = f"""\
import numpy as np, {name}, {name}_pmap

w, x = np.ones(4, "float32"), np.ones((24, 4), "float32")
assert {name}_pmap.loss(w, x) == {name}.loss(w, x) == 32.0
"""
    ran = subprocess.run([sys.executable, "-c", call], env=simulated(4), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


BALL = """
import optax


def ball(scores, one):
    return optax.projections.projection_l1_ball({"scores": scores, "one": one}, 2.0)["scores"]
"""


def test_a_call_of_a_library_is_blamed_and_not_what_it_is_given(shared: Project) -> None:
    shared.write("ball.py", BALL)
    given = ("--arg", "scores=f32[24]", "--arg", "one=f32[]")
    says = (
        '`optax.projections.projection_l1_ball({"scores": scores, "…` couples the examples',
        "Write what `optax.projections.projection_l1_ball` does in a function of your own",
    )
    shared.refused("JP043", "gen", "ball.py::ball", *given, says=says, exit_code=1)


BOUND_BALL = """
import functools

import jax
import jax.numpy as jnp
import optax

project = functools.partial(optax.projections.projection_l1_ball, scale=2.0)


def loss(w, scores):
    return jnp.sum(w * project(scores) ** 2)


def step(w, scores):
    return w - 0.1 * jax.grad(loss)(w, scores)
"""


def test_a_function_of_a_library_with_arguments_bound_at_the_top_of_a_file_is_blamed(shared: Project) -> None:
    shared.write("bound.py", BOUND_BALL)
    says = (
        "`functools.partial(optax.projections.projection_l1_ball, s…` couples the examples",
        "--> bound.py:7:",
        "Write what `optax.projections.projection_l1_ball` does in a function of your own",
    )
    given = ("--arg", "w=f32[]", "--arg", "scores=f32[24]")
    shared.refused("JP043", "gen", "bound.py::step", *given, says=says, exit_code=1)


def test_methods_of_values_are_looked_into(shared: Project) -> None:
    shared.write("models_v.py", MODELS)
    shared.write("updates_v.py", UPDATES)
    # A method of what a factory's function is given, differentiated in a helper.
    made = shared.run("gen", "updates_v.py::fit", "--inputs", "updates_v.py::lines")
    assert made.exit_code == 0, made.stderr
    text = " ".join(made.stdout.split())
    assert "def line_loss(self, batch): if type(self).loss is not Line.loss: raise TypeError(" in text
    assert "def make_loss(batch): def loss(line): return line_loss(line, batch)" in text
    assert '(jnp.sum(batch["mask"] * error), jnp.sum(batch["mask"])), axis_name=AXIS' in text
    # One method for two losses: the second needs its sums in itself, both the gradient before the optimiser.
    made = shared.run("gen", "updates_v.py::update", "--inputs", "updates_v.py::make")
    assert made.exit_code == 0, made.stderr
    text = " ".join(made.stdout.split())
    assert "from models_v import Model" in text
    assert 'model_apply_gradient(models["critic"], mean_loss)' in text
    assert "model_apply_gradient(critic, masked_loss)" in text
    assert 'jax.lax.psum( (jnp.sum(error * batch["mask"]), jnp.sum(batch["mask"])), axis_name=AXIS )' in text
    assert "loss = total / total_mask" in text
    assert "if self.clip: raise NotImplementedError(" in text
    assert "all_gather" not in text


OF_MODULES = """
import jax
import jax.numpy as jnp
from flax import struct


class Line(struct.PyTreeNode):
    w: jax.Array

    def loss(self, w, batch):
        return jnp.mean((batch @ w) ** 2)

    def fit(self, batch):
        grad = jax.grad(self.loss)(self.w, batch)
        return self.replace(w=self.w - grad / jnp.sqrt(grad**2 + 1e-3))


def rows():
    return jnp.arange(96.0).reshape(24, 4) / 50 - 1
"""
BY_MODULES = """
import jax.numpy as jnp
import lines_u
from lines_u import Line, rows

fit = Line.fit


class Steep(Line):
    def fit(self, batch):
        return lines_u.Line.fit(self, 2.0 * batch)


class Flat(Line):
    def fit(self, batch):
        return self.replace(w=self.w * jnp.sum(batch))


def step(line, batch):
    return line.fit(batch)


def both(line, others, batch):
    return Line.fit(line, batch), others["last"].fit(batch)


def one(): return Line(jnp.ones(4)), rows()
def steep(): return Steep(jnp.ones(4)), rows()
def two(): return Line(jnp.ones(4)), {"last": Line(jnp.ones(4) / 2)}, rows()
def flat(): return Line(jnp.ones(4)), {"last": Flat(jnp.ones(4) / 2)}, rows()
"""
CALLS_OF_MODULES = """
import jax
import numpy as np
import steps_u
import both_u, fit_u, step_u

for emitted, name, inputs in ((fit_u, "fit", "one"), (step_u, "step", "steep"), (both_u, "both", "two")):
    found, expected = (getattr(each, name)(*getattr(steps_u, inputs)()) for each in (emitted, steps_u))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
try:
    both_u.both(*steps_u.flat())
except ValueError as error:
    print(error)
"""


def test_methods_that_classes_and_modules_are_asked_for_are_looked_into(shared: Project) -> None:
    shared.write("lines_u.py", OF_MODULES)
    shared.write("steps_u.py", BY_MODULES)
    for name, inputs in (("fit", "one"), ("step", "steep"), ("both", "two")):
        words = (f"steps_u.py::{name}", "--inputs", f"steps_u.py::{inputs}", "-o", f"{name}_u.py")
        made = shared.run("gen", *words)
        assert made.exit_code == 0, made.stderr
        assert "pmean grad" in made.words
    # What is asked of the class is its method for all objects; an object that may have another one raises.
    text = (shared.folder / "both_u.py").read_text()
    assert len(re.findall(r"def \w*line_fit", text)) == 2
    assert text.count("if type(self).fit is not Line.fit") == 1
    done = subprocess.run(
        [sys.executable, "-c", CALLS_OF_MODULES],
        cwd=shared.folder,
        env=simulated(3),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "type(others['last']).__qualname__ = 'Line'" in done.stdout


OF_CLASSES = """
import jax
import jax.numpy as jnp
import optax

TX = optax.adam(1e-2)


class Fit:
    @classmethod
    def loss(cls, w, x, y, mask):
        return jnp.sum((jnp.tanh(x @ w) - y) ** 2 * mask) / jnp.sum(mask)

    @classmethod
    def step(cls, w, state, batch):
        loss, grads = jax.value_and_grad(cls.loss)(w, *batch)
        updates, state = TX.update(grads, state, w)
        return optax.apply_updates(w, updates), state, loss


def step(w, state, batch):
    return Fit.step(w, state, batch)


def inputs():
    keys = jax.random.split(jax.random.key(0), 3)
    x, y = jax.random.normal(keys[0], (24, 5)), jax.random.normal(keys[1], (24,))
    w = jax.random.normal(keys[2], (5,))
    return w, TX.init(w), (x, y, jnp.arange(24.0) % 3)
"""


def test_class_methods_that_call_each_other_are_looked_into(shared: Project) -> None:
    shared.write("of_classes.py", OF_CLASSES)
    made = shared.run("gen", "of_classes.py::step", "--inputs", "of_classes.py::inputs")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs" in made.stderr
    assert "jax.value_and_grad(functools.partial(fit_loss, cls))(w, *batch)" in made.stdout
    assert "return fit_step(Fit, w, state, batch)" in made.stdout
    assert "all_gather" not in made.stdout


def test_a_class_that_may_get_another_method_is_said_to(project: Project) -> None:
    of_classes = OF_CLASSES.replace("\n\ndef step", "\n\n@jax.jit\ndef step")
    project.write("reset.py", f"{of_classes}\n\ndef reset(name, value):\n    setattr(Fit, name, value)\n")
    says = ("reset.py assigns `.step` (or calls `setattr`), so `Fit` may have another",)
    inputs = ("--inputs", "reset.py::inputs")
    project.refused("JP067", "gen", "reset.py::step", *inputs, says=says, exit_code=1)


def test_methods_that_cannot_be_told_apart_are_refused(shared: Project) -> None:
    shared.write("models_v.py", MODELS)
    shared.write("updates_v.py", UPDATES)
    says = ("cannot read the source of `each.loss`: it is `Line.loss` and `Table.loss`",)
    inputs = ("--inputs", "updates_v.py::tables")
    shared.refused("JP067", "gen", "updates_v.py::several", *inputs, says=says, exit_code=1)


OBJECTS = """
import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Dense:
    w: jax.Array

    def __call__(self, x):
        return jnp.tanh(x @ self.w)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Centre:
    scale: jax.Array

    def __call__(self, x, mask):
        return (x - self.mean(x, mask)) * self.scale

    @staticmethod
    def mean(x, mask):
        return jnp.sum(x * mask[:, None], axis=0) / jnp.sum(mask)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Net:
    layers: list
    centre: Centre

    def __call__(self, x, mask):
        for layer in self.layers:
            x = layer(x)
        return self.centre(x, mask)


def inputs():
    keys = jax.random.split(jax.random.key(0), 3)
    layers = [Dense(jax.random.normal(keys[0], (5, 4))), Dense(jnp.ones((4, 3)) / 3)]
    mask = (jax.random.uniform(keys[1], (48,)) < jnp.linspace(0.2, 1, 48)).astype(jnp.float32)
    return Net(layers, Centre(jnp.ones(3))), jax.random.normal(keys[2], (48, 5)), mask


def step(net, x, mask):
    def loss_fn(net):
        return jnp.mean(net(x, mask) ** 4)

    loss, grads = jax.value_and_grad(loss_fn)(net)
    return jax.tree.map(lambda p, g: p - 0.1 * g, net, grads), loss
"""


def test_objects_that_are_called_are_looked_into(shared: Project) -> None:
    shared.write("objects.py", OBJECTS)
    made = shared.run("gen", "objects.py::step", "--inputs", "objects.py::inputs")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs" in made.stderr
    text = " ".join(made.stdout.split())
    # The sums of the mean are whole where it divides them.
    assert "(jnp.sum(x * mask[:, None], axis=0), jnp.sum(mask)), axis_name=AXIS" in text
    assert "return centre_call(self.centre, x, mask)" in text
    assert "jnp.mean(net_call(net, x, mask) ** 4)" in text
    # An object that is called is itself where it is handed on.
    assert "jax.value_and_grad(loss_fn)(net)" in text
    assert "if type(self).__call__ is not Centre.__call__: raise TypeError(" in text
    # A static method has no object to tell by, and is told by itself.
    assert "(x - in_place_of(self.mean, Centre.mean, centre_mean)(x, mask)) * self.scale" in text


def test_objects_that_are_called_have_copies_of_their_own_names_in_place(shared: Project) -> None:
    shared.write("objects.py", OBJECTS)
    made = shared.run("gen", "objects.py::step", "--inputs", "objects.py::inputs", "--in-place", "--diff")
    assert made.exit_code == 0, made.stderr
    assert "+def p_centre_call(self, x, mask):" in made.stdout
    assert "+    return p_centre_call(self.centre, x, mask)" in made.stdout
    assert "in_place_of(self.mean, Centre.mean, p_centre_mean)(x, mask)" in made.stdout
    assert "+        return jnp.mean(p_net_call(net, x, mask) ** 4)" in made.stdout


SAMPLERS = """
from typing import Any, NamedTuple

import jax


class Kernel(NamedTuple):
    step: Any


def leapfrog(density, size, rounds):
    def once(state, _):
        w, p = state
        p = p + size * jax.grad(density)(w)
        return (w + size * p, p), density(w)

    return Kernel(jax.jit(lambda w, p: jax.lax.scan(once, (w, p), None, length=rounds)))
"""
SAMPLED = """
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

sys.path.append(str(Path(__file__).parent / "site-packages"))

from samplers import leapfrog


def log_density(w, x, y):
    return -jnp.sum((x @ w - y) ** 2) - 0.5 * jnp.sum(w**2)


def named(w, p, x, y):
    kernel = leapfrog(lambda w: log_density(w, x, y), 1e-3, 3)
    return kernel.step(w, p)


def at_once(w, p, x, y):
    def density(w):
        return log_density(w, x, y)

    return leapfrog(density, 1e-3, 3).step(w, p)


def inputs():
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = (3,), (3,), (24, 3), (24,)
    return tuple(jax.random.normal(key, shape) for key, shape in zip(keys, shapes))
"""


def test_what_an_object_of_a_library_was_made_with_is_looked_into(shared: Project) -> None:
    shared.write("site-packages/samplers.py", SAMPLERS)
    shared.write("sampled.py", SAMPLED)
    for name in ("named", "at_once"):
        made = shared.run("gen", f"sampled.py::{name}", "--inputs", "sampled.py::inputs")
        assert made.exit_code == 0, made.stderr
        assert "derived for all inputs" in made.stderr
        text = " ".join(made.stdout.split())
        # The sum over the batch is whole beside what is none, and the library's gradient of it is averaged.
        assert "jax.lax.psum(-jnp.sum((x @ w - y) ** 2), axis_name=AXIS)" in text
        assert "log_density(jax.lax.pmean(w, axis_name=AXIS), x, y)" in text


SOLVERS = """
import jax
import jax.numpy as jnp


def descend(objective, w, rounds):
    def once(carry, _):
        w, size = carry
        value, slope = jax.value_and_grad(objective)(w)
        new = jax.tree.map(lambda p, g: p - size * g, w, slope)
        # Of a step that is no better, a shorter one is tried.
        worse = objective(new) > value
        shorter = lambda: jax.value_and_grad(objective)(jax.tree.map(lambda a, b: (a + b) / 2, w, new))[1]
        slope = jax.lax.cond(worse, shorter, lambda: slope)
        return (jax.tree.map(lambda p, g: p - size * g, w, slope), jnp.where(worse, size / 2, size)), value

    return jax.lax.scan(once, (w, 0.1), None, length=rounds)
"""
SOLVED = """
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

sys.path.append(str(Path(__file__).parent / "site-packages"))

from solvers_of_others import descend


def loss(w, x, y):
    score = x @ w["w"] + w["b"]
    return jnp.mean(jnp.logaddexp(0.0, score) - y * score) + 0.01 * jnp.sum(w["w"] ** 2)


def fit(w, x, y):
    return descend(lambda w: loss(w, x, y), w, 3)


def inputs():
    keys = jax.random.split(jax.random.key(0), 3)
    start = {"w": jax.random.normal(keys[0], (3,)), "b": jnp.zeros(())}
    return start, jax.random.normal(keys[1], (24, 3)), jax.random.normal(keys[2], (24,))
"""


def test_an_objective_is_whole_in_each_round_and_branch_of_a_library(shared: Project) -> None:
    """What it reads is whole at first, and partial in later rounds, and where a branch depends on it."""
    shared.write("site-packages/solvers_of_others.py", SOLVERS)
    shared.write("solved.py", SOLVED)
    made = shared.run("gen", "solved.py::fit", "--inputs", "solved.py::inputs")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs" in made.stderr
    assert "jax.lax.pmean(" in made.stdout
    assert "all_gather" not in made.stdout


def test_a_function_that_uses_an_attribute_of_its_own_is_not_copied(shared: Project) -> None:
    """Nor is one emitted for it, which would be without: the inputs are not to blame."""
    shared.write(
        "counted.py",
        "import jax.numpy as jnp\n\n\ndef loss(w, x):\n    return jnp.std(x @ w) * loss.scale\n\n\n"
        "loss.scale = 2.0\n\n\ndef step(w, x):\n    return w - loss(w, x)\n\n\n"
        "def total(w, x):\n    total = x @ w\n    return total.sum()\n\n\n"
        "def inputs():\n    return jnp.ones(3), jnp.arange(72.0).reshape(24, 3)\n",
    )
    inputs = ("--inputs", "counted.py::inputs")
    says = ("`loss.scale` belongs to `loss` itself",)
    shared.refused("JP049", "gen", "counted.py::loss", *inputs, says=says, exit_code=1)
    says = ("`loss` (counted.py:5) uses `loss.scale`, which a copy of it would not have",)
    shared.refused("JP067", "gen", "counted.py::step", *inputs, says=says, exit_code=1)
    assert shared.run("gen", "counted.py::total", *inputs).exit_code == 0


STATES = """
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState


class State(TrainState):
    def loss(self, params, x, y):
        return jnp.mean((x @ params["w"] - y) ** 2)

    def update(self, x, y):
        grads = jax.grad(self.loss)(self.params, x, y)
        return self.apply_gradients(grads=grads)


def with_loss(state, x, y):
    loss, grads = jax.value_and_grad(state.loss)(state.params, x, y)
    return state.apply_gradients(grads=grads), {"loss": loss}


def returned(state, x, y):
    return state.update(x, y)


def named(state, x, y):
    state = state.update(x, y)
    return state


def picked(state, x, y):
    return with_loss(state, x, y)[0]


def several(states, x, y):
    return [state.update(x, y) for state in states]


def again(state, x, y):
    def body(state, _):
        state = state.update(x, y)
        return state, state.params["w"].sum()

    return jax.lax.scan(body, state, None, length=2)


def inputs():
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=5).astype("f")}
    state = State.create(apply_fn=None, params=params, tx=optax.sgd(0.1))
    return state, rng.normal(size=(24, 5)).astype("f"), rng.normal(size=24).astype("f")


def many():
    state, *rest = inputs()
    return [state, state.replace(params={"w": -state.params["w"]})], *rest
"""


@pytest.mark.parametrize(
    ("name", "inputs", "syncs"),
    [
        ("returned", "inputs", ["grads"]),
        ("named", "inputs", ["grads"]),
        ("picked", "inputs", ["loss", "grads"]),
        ("several", "many", ["grads"]),
        ("again", "inputs", ["grads"]),
    ],
)
def test_what_no_collective_takes_apart_is_made_whole_inside(
    shared: Project, name: str, inputs: str, syncs: list[str]
) -> None:
    shared.write("states_v.py", STATES)
    words = ("--inputs", f"states_v.py::{inputs}", "--output-format", "json")
    found = shared.run("plan", f"states_v.py::{name}", *words)
    assert found.exit_code == 0, found.stderr
    plan = json.loads(found.stdout)["plan"]
    assert [(sync["op"], sync["value"]) for sync in plan["syncs"]] == [("pmean", each) for each in syncs]


BY_DEFAULT = """
import jax
import jax.numpy as jnp


def normalise(x):
    return (x - x.mean(0)) / x.std(0)


def loss(w, x, penalty=lambda w: jnp.sum(w**2)):
    return jnp.mean((normalise(x) @ w - 1) ** 2) + penalty(w)


def step(w, x):
    return w - jax.grad(loss)(w, x)
"""


def test_a_lambda_among_the_defaults_of_a_loss_is_let_alone(project: Project) -> None:
    project.write("by_default.py", BY_DEFAULT)
    words = ("gen", "by_default.py::step", "--arg", "w=f32[3]", "--arg", "x=f32[24,3]", "--no-run")
    made = project.run(*words)
    assert made.exit_code == 0, made.stderr
    assert "penalty=lambda w: jnp.sum(w**2)" in made.stdout


STARRED = """
from states_v import *


class Noisy(TrainState):
    def update(self, key, x, y):
        rows = x + jax.random.normal(key, x.shape)
        grads = jax.grad(lambda params: jnp.mean((rows @ params["w"] - y) ** 2))(self.params)
        return self.apply_gradients(grads=grads)


    def noised(self, x):
        return x + jax.random.normal(jax.random.key(self.step), x.shape)


class Inside(Noisy):
    def noised(self, x):
        return super().noised(x)


def updated(state, key, x, y):
    return state.update(key, x, y)


def kept(state, x):
    return jnp.ones(len(x)) @ state.noised(x) / len(x)


def noisy():
    state, *rest = inputs()
    made = Noisy.create(apply_fn=None, params=state.params, tx=optax.sgd(0.1))
    return made, jax.random.key(0), *rest


def inside():
    state, x, _ = inputs()
    return Inside.create(apply_fn=None, params=state.params, tx=optax.sgd(0.1)), x
"""


HELD = """
import flax
import jax
import jax.numpy as jnp

from states_v import State, inputs


class Held(flax.struct.PyTreeNode):
    state: State

    def loss(self, params, x, y):
        return jnp.std(x @ params["w"] - y)

    def step(self, x, y):
        loss, grads = jax.value_and_grad(self.loss)(self.state.params, x, y)
        return self.state.apply_gradients(grads=grads), loss


def step(held, x, y):
    return held.step(x, y)


def given():
    state, *rest = inputs()
    return Held(state=state), *rest
"""


def test_an_object_with_another_method_below_the_called_one_is_refused(shared: Project) -> None:
    shared.write("states_v.py", STATES)
    shared.write("held_v.py", HELD)
    made = shared.run("gen", "held_v.py::step", "--inputs", "held_v.py::given")
    assert made.exit_code == 0, made.stderr
    # A class that is derived later may have one of its own.
    for method in ("loss", "step"):
        assert f"if type(self).{method} is not Held.{method}:" in made.stdout


def test_methods_use_what_a_star_import_brings(shared: Project) -> None:
    shared.write("states_v.py", STATES)
    shared.write("starred_v.py", STARRED)
    made = shared.run("gen", "starred_v.py::updated", "--inputs", "starred_v.py::noisy")
    assert made.exit_code == 0, made.stderr
    assert "from starred_v import Noisy, jax, jnp" in made.stdout
    assert ".random.fold_in(key, " in made.stdout and ".lax.pmean(grads, " in made.stdout
    # What draws is a method that is not looked into.
    says = ("nor can jax-pmap read the source of `state.noised`: `Inside.noised`",)
    shared.refused(
        "JP051", "gen", "starred_v.py::kept", "--inputs", "starred_v.py::inside", says=says, exit_code=1
    )


#: A module whose names mean something else in the file of the target, functions among them.
SCORES = """
import jax.numpy as np
import jax.scipy.special as special

EPS, COUNT = 1e-6, 3


def spread(x, eps=EPS):
    return np.std(np.tanh(x), axis=0) + eps


def mean(values, weights):
    if COUNT < 0:
        return mean(-values, weights)
    return np.sum(values * weights) / (np.sum(weights) + EPS)


def penalty(x, weights):
    step = special.logsumexp(x)
    return mean(spread(x).sum() * weights, weights) + 0 * step
"""
SCORED = """
import jax
import jax.numpy as jnp
import numpy as np
import scores_n
from scores_n import penalty as special

EPS = 0.5


def mean(tree):
    return np.sum([np.size(leaf) for leaf in jax.tree.leaves(tree)])


def penalty(w):
    return EPS * jnp.sum(w**2)


def spread(x):
    return x


@jax.jit
def step(w, x, weights):
    def loss(w):
        error = spread(x) @ w
        return scores_n.mean(error**2, weights) + special(x * w, weights) + penalty(w)

    value, grads = jax.value_and_grad(loss)(w)
    return w - 0.1 * grads / mean(w), value


def inputs():
    rng = np.random.default_rng(0)
    weights = np.arange(24) % 3 > 0
    return rng.normal(size=3).astype("f"), rng.normal(size=(24, 3)).astype("f"), weights.astype("f")
"""


@pytest.mark.parametrize("in_place", [False, True])
def test_names_that_mean_something_else_beside_the_target_are_told_apart(
    shared: Project, in_place: bool
) -> None:
    shared.write("scores_n.py", SCORES)
    shared.write("scored.py", SCORED)
    options = ["--in-place", "--diff"] if in_place else []
    made = shared.run("gen", "scored.py::step", "--inputs", "scored.py::inputs", *options)
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs" in made.stderr
    text = " ".join(each.removeprefix("+") for each in made.stdout.splitlines())
    text = " ".join(text.split())
    # What the target's file has another name for is called that; the rest is named by where it comes from.
    assert "from scores_n import EPS as SCORES_N_EPS" in text
    assert "eps=SCORES_N_EPS" in text
    assert "all_gather" not in text
    copy = "p_mean" if in_place else "scores_n_mean"
    assert f"def {copy}(values, weights):" in text
    assert f"return {copy}(-values, weights)" in text
    assert "+ SCORES_N_EPS)" in text
    assert (
        f"return {copy}({'p_spread' if in_place else 'scores_n_spread'}(x).sum() * weights, weights)" in text
    )


TWICE = """
import jax.numpy as np

SCALE = 2.0


def norm(x):
    return np.sqrt(np.mean(x**2)) * SCALE + sum(SCALE for SCALE in (0.0, 0.0))
"""
USES_TWICE = """
import jax.numpy as jnp
import twice


def total(x):
    return jnp.sum(x) / twice.norm(x)
"""


def test_a_name_that_is_the_module_s_and_one_of_the_function_s_own_is_said(shared: Project) -> None:
    shared.write("twice.py", TWICE)
    shared.write("uses_twice.py", USES_TWICE)
    made = shared.run("gen", "uses_twice.py::total", "--arg", "x=f32[24]")
    assert made.exit_code == 1
    said = " ".join(made.stderr.split())
    assert "`SCALE` is the module's in `norm` (twice.py:6), and a variable of its own as well" in said


#: A class whose steps call a method that classes of other files define, and what imports them in turn.
LOOP = """
import jax


class Loop:
    def step(self, w, batch):
        value, grads = jax.value_and_grad(self.loss)(w, batch)
        return w - 0.1 * grads, value
"""
FITTING = """
import jax.numpy as jnp
from loops.loop import Loop


def error(w, batch):
    return (batch["x"] @ w - 1.0) ** 2


class Fitting(Loop):
    def loss(self, w, batch):
        return jnp.sum(error(w, batch) * batch["mask"]) / jnp.sum(batch["mask"])
"""
FITTED = """
import numpy as np
from loops import Fitting

rng = np.random.default_rng(0)
mask = (np.arange(24) % 3 > 0).astype("f")
print(Fitting().step(np.ones(3, "f"), {"x": rng.normal(size=(24, 3)).astype("f"), "mask": mask}))
"""


def test_an_import_that_would_come_back_to_the_file_stands_in_the_copy(shared: Project) -> None:
    shared.write("loops/__init__.py", "from .loop import Loop\nfrom .fitting import Fitting\n")
    shared.write("loops/loop.py", LOOP)
    shared.write("loops/fitting.py", FITTING)
    shared.write("fitted.py", FITTED)
    options = ["--run", "python fitted.py", "--in-place", "--diff"]
    made = shared.run("gen", "loops/loop.py::Loop.step", *options)
    assert made.exit_code == 0, made.stderr
    assert "+import jax.numpy as jnp" in made.stdout
    assert (
        "+def p_fitting_loss(self, w, batch):\n"
        "+    from loops.fitting import Fitting, error\n"
        "+    if type(self).loss is not Fitting.loss:\n"
    ) in made.stdout


FACTORIES = """
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


def masked(x, y, mask):
    def loss(w):
        error = (x @ w - y) ** 2 * mask
        return jnp.sum(error) / jnp.sum(mask), error

    return loss


def made_by_another(x, y, mask):
    return masked(x, y, mask)


class Trainer:
    def masked(self, x, y, mask):
        return lambda w: masked(x, y, mask)(w)


class Line(NamedTuple):
    w: Any

    def loss(self, x, y, mask):
        return jnp.sum((x @ self.w - y) ** 2 * mask) / jnp.sum(mask)


trainer = Trainer()
"""
MADE = """
import jax
import jax.numpy as jnp

from factories import Line, made_by_another, masked, trainer


def differentiated(w, x, y, mask):
    (loss, errors), grads = jax.value_and_grad(masked(x, y, mask), has_aux=True)(w)
    return w - 0.1 * grads, loss, errors


def over_lines(w, x, y, mask):
    (loss, errors), grads = jax.value_and_grad(
        masked(
            x,
            y,
            mask=mask,  # one number an example
        ),
        has_aux=True,
    )(w)
    return w - 0.1 * grads, loss, errors


def through_another(w, x, y, mask):
    return jax.grad(made_by_another(x, y, mask), has_aux=True)(w)


def compiled(w, x, y, mask):
    return jax.checkpoint(masked(x, y, mask))(w)


def of_a_method(w, x, y, mask):
    return jax.grad(trainer.masked(x, y, mask), has_aux=True)(w)


def called(w, x, y, mask):
    return masked(x, y, mask)(w)


def mapped(w, x, y, mask):
    return jax.vmap(masked(x, y, mask))(jnp.stack([w, w + 1]))[0]


def of_an_object(w, x, y, mask):
    return jax.value_and_grad(lambda w: Line(w).loss(x, y, mask))(w)


def of_an_object_in_parentheses(w, x, y, mask):
    line = Line(w)
    return (line.loss)(x, y, mask)


def by_default(w, x, y, mask, make=masked):
    grads, errors = jax.grad(make(x, y, mask), has_aux=True)(w)
    return w - 0.1 * grads, errors


def mean(x, y, mask):
    return jnp.sum((x - y) * mask) / jnp.sum(mask)


def of_a_default(w, x, y, mask, loss=mean):
    return jax.grad(lambda w: loss(x @ w, y, mask))(w)


def helped(w, x, y, mask, loss=mean):
    return loss(x @ w, y, mask)


def of_a_helper_s_default(w, x, y, mask):
    return helped(w, x, y, mask)


def error(w, x, y, mask):
    return mean(x @ w, y, mask)


def by_a_name_twice(w, x, y, mask, error=error):
    return jax.grad(error)(w, x, y, mask)
"""


@pytest.mark.parametrize(
    "function",
    [
        *("differentiated", "over_lines", "through_another", "compiled", "of_a_method", "called", "mapped"),
        *("of_an_object", "of_an_object_in_parentheses"),
        *("by_default", "of_a_default", "of_a_helper_s_default"),
    ],
)
def test_a_function_that_another_makes_where_it_is_called_is_looked_into(
    shared: Project, function: str
) -> None:
    shared.write("factories.py", FACTORIES)
    shared.write("made.py", MADE)
    arguments = ["--arg", "w=f32[4]", "--arg", "x=f32[24,4]", "--arg", "y=f32[24]", "--arg", "mask=f32[24]"]
    result = shared.run("plan", f"made.py::{function}", *arguments, "--output-format", "json")
    assert result.exit_code == 0, result.stderr
    whole = [each["value"] for each in json.loads(result.stdout)["plan"]["syncs"] if each["op"] == "psum"]
    assert "jnp.sum(mask)" in whole


def test_a_parameter_with_the_name_of_its_default_is_said(shared: Project) -> None:
    """The copy would be taken for whatever function it is given."""
    shared.write("factories.py", FACTORIES)
    shared.write("made.py", MADE)
    arguments = ["--arg", "w=f32[4]", "--arg", "x=f32[24,4]", "--arg", "y=f32[24]", "--arg", "mask=f32[24]"]
    says = ("`error` (made.py) has the name of a variable there: give that another name",)
    shared.refused("JP067", "gen", "made.py::by_a_name_twice", *arguments, says=says, exit_code=1)


LAID_OUT = """
import jax
import jax.numpy as jnp


def mean(values):
    return jnp.mean(values)


REDUCTIONS = {"mean": mean}


def spread(w, x, power=1
           + 1):
    value, grad = jax.value_and_grad(
        lambda w: 2
        * jnp.sum((x @ w) ** power)
        / jnp.sum(x**2)
    )(w)
    apart = jnp.std(x
                    @ w) + (REDUCTIONS
                            ["mean"])(x)
    return value, grad, apart, x - x.mean(
        0)
"""


@pytest.mark.parametrize("more", [(), ("--accumulate", "2")])
def test_an_expression_of_several_lines_is_read_as_one_of_one_line(
    shared: Project, more: tuple[str, ...]
) -> None:
    """A line of it on its own is no Python."""
    shared.write("laid_out.py", LAID_OUT)
    words = ("gen", "laid_out.py::spread", "--arg", "w=f32[3]", "--arg", "x=f32[48,3]", "--no-run", *more)
    made = shared.run(*words)
    if more:
        assert "JP074" in made.stderr, made.stderr
    else:
        assert made.exit_code == 0, made.stderr


ELSEWHERE = """import jax
import jax.numpy as jnp


def timed(function):
    def run(*args, **kwargs):
        return function(*args, **kwargs)

    return run


def predict(p, x):
    return jnp.tanh(x @ p)


class Trainer:
    rate = 0.1

    def loss(self, p, batch):
        errors = (predict(p, batch["x"]) - batch["y"]) ** 2
        return jnp.sum(errors * batch["m"]) / jnp.sum(batch["m"])

    def step(self, p, batch):
        loss, grads = jax.value_and_grad(self.loss)(p, batch)
        return p - self.rate * grads, loss
"""

OF_A_PACKAGE = """import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "{folder}"))

import jax
import jax.numpy as jnp

from {package}.trainer import Trainer, timed

trainer = Trainer()


@timed
def step(p, batch):
    return trainer.step(p, batch)


def inputs():
    rows = jax.random.normal(jax.random.key(0), (24, 3))
    return jnp.ones(3), {{"x": rows, "y": rows[:, 0], "m": jnp.arange(24.0) % 3}}
"""


@pytest.mark.parametrize(("folder", "package"), [("src", "inner"), ("../outside", "outer")])
def test_packages_outside_the_folder_of_the_script_are_looked_into(
    project: Project, folder: str, package: str
) -> None:
    """As of a project whose scripts are in one folder, and its package in another one, which may be any."""
    project.write("pyproject.toml", "")
    project.write("tests/test_trainer.py", "def test_loss(trainer):\n    trainer.loss = None\n")
    project.write(f"{folder}/{package}/__init__.py", "")
    project.write(f"{folder}/{package}/trainer.py", ELSEWHERE)
    project.write("scripts/train.py", OF_A_PACKAGE.format(folder=folder, package=package))
    target, inputs = "scripts/train.py::step", "scripts/train.py::inputs"
    made = project.run("gen", target, "--inputs", inputs, "-o", "scripts/train_pmap.py")
    assert made.exit_code == 0, made.stderr
    assert f"{folder}/{package}/trainer.py:" in made.stderr
    emitted = (project.folder / "scripts/train_pmap.py").read_text()
    assert "def trainer_loss(" in emitted
    # Where nothing but its own file has put the package on the path.
    run = [sys.executable, "-c", "import train_pmap"]
    done = subprocess.run(run, cwd=project.folder / "scripts", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


ADAPTED = """import jax
import jax.numpy as jnp


def update(p, grads):
    return jax.tree.map(lambda a, g: a - 0.1 * g, p, grads)


def loss(p, x, y):
    return jnp.mean((x @ p - y) ** 2)


def adapt(p, x, y):
    return loss(update(p, jax.grad(loss)(p, x[:2], y[:2])), x[2:], y[2:])


def step(p, x, y):
    def outer(p):
        tasks = jax.vmap(adapt, (None, 0, 0))
        return jnp.mean(tasks(p, x.reshape(-1, 4, 3), y.reshape(-1, 4)))

    return update(p, jax.grad(outer)(p))
"""


HANDED_ON = """
import jax
import jax.numpy as jnp
import numpy as np


def masked(w, x, mask):
    count = jnp.sum(mask)
    return jnp.sum(jnp.tanh(x @ w) * mask) / jnp.maximum(count, 1.0)


def with_count(w, x, mask):
    return masked(w, x, mask), jnp.sum(mask)


def gradients(w, rows, grad_fn):
    return grad_fn(w, *rows)


def shown(w, x, mask):
    loss, grads = gradients(w, (x, mask), jax.value_and_grad(masked))
    return w - 0.1 * grads, loss


def under_a_name(w, x, mask):
    grad_fn = jax.grad(with_count, has_aux=True)
    grads, count = gradients(w, (x, mask), grad_fn)
    return w - 0.1 * grads, count


def nested(w, x, mask):
    def loss_fn(w, x, mask):
        count = jnp.sum(mask)
        return jnp.sum(jnp.tanh(x @ w) * mask) / jnp.maximum(count, 1.0), {"count": count}

    (loss, seen), grads = gradients(w, (x, mask), grad_fn=jax.value_and_grad(loss_fn, has_aux=True))
    return w - 0.1 * grads, loss, seen


def inputs(seed=0):
    draw = np.random.default_rng(seed)
    w, x = draw.normal(size=(5, 3)).astype("float32"), draw.normal(size=(24, 5)).astype("float32")
    return w, x, (draw.normal(size=(24, 3)) > 0).astype("float32")
"""


def test_a_gradient_that_is_handed_to_a_function_is_looked_into(shared: Project) -> None:
    shared.write("handed_on.py", HANDED_ON)
    for name in ("shown", "under_a_name", "nested"):
        made = shared.run("gen", f"handed_on.py::{name}", "--inputs", "handed_on.py::inputs")
        assert made.exit_code == 0, made.stderr
        assert "derived for all inputs and device counts" in made.words
        assert "psum count" in made.words


METRICS = """
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Metrics:
    loss: jax.Array
    more: dict


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Named:
    loss: jax.Array
    rate: jax.Array
    name: str = dataclasses.field(default="", metadata={"static": True})


def measured(w, x, mask):
    hidden = jnp.tanh(x @ w)
    count = jnp.sum(mask)
    loss = jnp.sum(hidden * mask) / jnp.maximum(count, 1.0)
    rate = jnp.sum((hidden > 0) * mask) / jnp.maximum(count, 1.0)
    return loss, rate, jnp.mean(hidden)


def step(w, x, mask):
    def loss_fn(w):
        loss, rate, mean = measured(w, x, mask)
        return loss, Metrics(loss, {"rate": rate, "mean": mean})

    (_, metrics), grads = jax.value_and_grad(loss_fn, has_aux=True)(w)
    return w - 0.1 * grads, metrics


def evaluate(w, x, mask):
    def metrics():
        hidden = jnp.tanh(x @ w)
        count = jnp.sum(mask)
        loss = jnp.sum(hidden * mask) / jnp.maximum(count, 1.0)

        def masked_mean(of):
            return jnp.sum(of * mask) / jnp.maximum(count, 1.0)

        return Named(loss=loss + masked_mean(hidden > 0), rate=jnp.mean(hidden), name="test")

    found = metrics()
    return found


def inputs(seed=0):
    draw = np.random.default_rng(seed)
    w, x = draw.normal(size=(5, 3)).astype("float32"), draw.normal(size=(24, 5)).astype("float32")
    return w, x, (draw.normal(size=(24, 3)) > 0).astype("float32")
"""


def test_metrics_in_a_dataclass_are_made_whole_field_by_field_or_where_they_are_made(shared: Project) -> None:
    """One with a static field is not taken apart; sums that were whole where used are so only once."""
    shared.write("metrics.py", METRICS)
    for name, said in (("step", ("pmean metrics.more['mean']", "psum metrics.loss")), ("evaluate", ())):
        made = shared.run("gen", f"metrics.py::{name}", "--inputs", "metrics.py::inputs")
        assert made.exit_code == 0, made.stderr
        assert all(each in made.words for each in ("derived for all inputs and device counts", *said))


def test_gradients_are_averaged_in_the_statement_that_takes_them(shared: Project) -> None:
    """And not in the helper they are given to, which is called for each task as well."""
    shared.write("adapted.py", ADAPTED)
    given = ("--arg", "p=f32[3]", "--arg", "x=f32[32,3]", "--arg", "y=f32[32]")
    made = shared.run("gen", "adapted.py::step", *given, "-o", "adapted_pmap.py")
    assert made.exit_code == 0, made.stderr
    assert "from adapted import adapt, update" in (shared.folder / "adapted_pmap.py").read_text()


BOUND_AGAIN = """
from functools import partial

import jax
import jax.numpy as jnp

EXAMPLES = 24


def following(carry, reward, discount):
    carry = reward + discount * carry
    return carry, carry


following = partial(following, discount=0.5)


def returns(scale, rewards):
    _, found = jax.lax.scan(following, jnp.zeros((EXAMPLES,)), rewards, reverse=True)
    return scale * found


def spread(w, x, power=2):
    return jnp.std(x @ w) ** power


spread = partial(spread, power=3)


def step(w, x):
    return w - jax.grad(spread)(w, x)


def centred(w, x):
    return jnp.mean((x @ w - jnp.std(x)) ** 2)


centred = jax.jit(centred)


def compiled(w, x):
    return w - jax.grad(centred)(w, x)
"""


def test_what_partial_makes_of_a_function_under_its_name_is_not_that_function(shared: Project) -> None:
    shared.write("again.py", BOUND_AGAIN)
    rewards = ("--arg", "scale=f32[]", "--arg", "rewards=f32[4,24]")
    made = shared.run("gen", "again.py::returns", *rewards)
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs" in made.stderr
    given = ("--arg", "w=f32[3]", "--arg", "x=f32[24,3]")
    says = ("`spread` (again.py:22) is another one from line 26 on", "a name of its own")
    shared.refused("JP067", "gen", "again.py::step", *given, says=says, exit_code=1)
    # Compiled, it computes what it did.
    made = shared.run("gen", "again.py::compiled", *given, "--no-run")
    assert made.exit_code == 0, made.stderr


def test_the_project_is_not_searched_for_what_calls_lead_to(project, monkeypatch):
    # What else a name may mean is a hint to people, and takes seconds in a project of thousands of files.
    def searched(*_):
        raise AssertionError("all files of the project are read")

    monkeypatch.setattr("jax_pmap.locating.project.Project.candidates", searched)
    project.write("lines/__init__.py", "from lines.lines import *\n")
    project.write(
        "lines/lines.py",
        """
        import jax.numpy as jnp


        class Line:
            def loss(self, w, x):
                return jnp.mean((x @ w - 1) ** 2)
        """,
    )
    project.write(
        "train.py",
        """
        import jax
        import jax.numpy as jnp

        from lines import Line

        line = Line()


        def step(w, x):
            value, grads = jax.value_and_grad(line.loss)(w, x)
            return w - 0.1 * grads, value


        def inputs():
            return jnp.ones(3), jnp.arange(72.0).reshape(24, 3) / 72
        """,
    )
    result = project.run("gen", "train.py::step", "--inputs", "train.py::inputs")
    assert result.exit_code == 0, result.stderr


def test_a_lambda_with_a_name_is_told_to_be_written_with_def(project):
    code = """
        import jax
        import jax.numpy as jnp

        {objective}


        def step(w, x):
            value, grads = jax.value_and_grad(lambda w: objective(w, x))(w)
            return w - 0.1 * grads, value


        def inputs():
            return jnp.ones(3), jnp.arange(72.0).reshape(24, 3) / 72
        """
    words = ("gen", "ratio.py::step", "--inputs", "ratio.py::inputs")
    ratio = "jnp.sum((x @ w) ** 2) / jnp.sum(jnp.abs(x))"
    project.write("ratio.py", code.format(objective=f"objective = lambda w, x: {ratio}"))
    says = ("`objective(w, x)` couples", "a lambda (ratio.py:4); written with `def` it could be copied")
    project.refused("JP067", *words, says=says, exit_code=1)
    project.write("ratio.py", code.format(objective=f"def objective(w, x): return {ratio}"))
    result = project.run(*words)
    assert result.exit_code == 0, result.stderr


CLIPPED = """
import jax
import jax.numpy as jnp
import optax


def rms(tree):
    return jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(tree)) / 15)


def clipped(tree, most):
    norm = optax.global_norm(tree)
    return jax.tree.map(lambda g: g / jnp.maximum(1.0, norm / most), tree), norm


def fit(w, x, y):
    def gradient(x, y):
        return jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"] - y) ** 2))(w)

    loss, grad = gradient(x, y)
    log = {"rms": rms(grad)}
    grad, log["norm"] = clipped(grad, 1.0)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, grad), loss, log


def step(w, x, y):
    return fit(w, x, y)


def inputs(seed):
    keys = jax.random.split(jax.random.key(seed), 2)
    w = {"a": jnp.eye(3), "b": jnp.ones((3, 2))}
    return w, jax.random.normal(keys[0], (24, 3)), jax.random.normal(keys[1], (24, 2))
"""


def test_gradients_that_are_clipped_under_the_same_name_are_averaged_where_they_are_taken(
    shared: Project,
) -> None:
    """They are read twice, ahead of the name's next value: each time, they were averaged."""
    shared.write("clipped_again.py", CLIPPED)
    made = shared.run("gen", "clipped_again.py::step", "--inputs", "clipped_again.py::inputs")
    assert made.exit_code == 0, made.stderr
    assert made.stdout.count("jax.lax.pmean(grad") == 1


WEIGHED = """
import functools

import jax
from jax.scipy.optimize import minimize


def energy(w, x, y, weight=1.0):
    likelihood = -y * jax.nn.log_sigmoid(x @ w)
    prior = weight * w @ w / 2
    return prior + likelihood.sum()


def fit(w, x, y):
    objective = functools.partial(energy, x=x, y=y)
    return minimize(objective, w, method="BFGS", options={"maxiter": 2}).x
"""


def test_a_number_of_python_that_is_whole_is_not_averaged(shared: Project) -> None:
    shared.write("weighed.py", WEIGHED)
    specs = ("w=f32[3]", "x=f32[24,3]", "y=f32[24]")
    made = shared.run("plan", "weighed.py::fit", *(word for each in specs for word in ("--arg", each)))
    assert made.exit_code == 0, made.stderr
    assert "pmean  w " in made.stdout + made.stderr
    assert "pmean  weight" not in made.stdout + made.stderr


def test_methods_of_libraries_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    instructions = dis.get_instructions
    monkeypatch.setattr(dis, "get_instructions", lambda code: read.append(code) or instructions(code))
    seen = []
    for _ in range(2):
        callees.attributes_kept(string.Template("$x"))
        seen.append(len(read))
    assert seen[0] == seen[1]


BY_VALUE = """
import functools

import jax
import jax.numpy as jnp


class Base:
    def _loss_square(self, w, x, y, power=2):
        return jnp.sqrt(jnp.mean(jnp.abs(x @ w - y) ** power))


class Trainer(Base):
    def __init__(self):
        self.kind = "square"
        self.table = {"square": self._loss_square, "plain": self._loss_plain}

    def _loss_plain(self, w, x, y):
        return jnp.log(jnp.mean(jnp.abs(x @ w - y)))

    @classmethod
    def _loss_of_class(cls, w, x, y):
        return jnp.sqrt(jnp.mean(jnp.abs(x @ w - y)))

    @functools.partial(jax.jit, static_argnums=0)
    def _loss_compiled(self, w, x, y):
        return jnp.sqrt(jnp.mean(jnp.abs(x @ w - y)))

    def by_name(self, w, x, y):
        return getattr(
            self,
            f"_loss_{self.kind}",
        )(w, x, y)

    def of_table(self, w, x, y):
        return jax.grad(lambda w: self.table[self.kind](w, x, y))(w)

    def chosen(self, w, x, y):
        loss = self._loss_square if self.kind == "square" else self._loss_plain
        return jax.grad(lambda w: loss(w, x, y))(w)

    def bound(self, w, x, y):
        loss = functools.partial(getattr(self, "_loss_square"), power=3)
        return jax.value_and_grad(loss)(w, x, y)

    def of_class(self, w, x, y):
        return getattr(self, "_loss_of_class")(w, x, y)

    def compiled(self, w, x, y):
        return jax.grad(getattr(self, "_loss_compiled"))(w, x, y)


def inputs(seed):
    keys = jax.random.split(jax.random.key(seed), 3)
    x, y = jax.random.normal(keys[1], (24, 5)), jax.random.normal(keys[2], (24,))
    return Trainer(), jax.random.normal(keys[0], (5,)), x, y
"""


#: Another method than the one it was proved with is not taken for it.
ANOTHER = """
import by_value
import {name}_by_value as emitted

trainer = by_value.Trainer()
original = getattr(by_value.Trainer, "{copied}")
assert emitted.in_place_of(getattr(trainer, "{copied}"), original, id).func is id
try:
    emitted.in_place_of(trainer._loss_plain, original, id)
except TypeError as error:
    assert "which this code was proved with" in str(error)
else:
    raise AssertionError
"""


@pytest.mark.parametrize(
    ("name", "copied"),
    [
        ("by_name", "_loss_square"),
        ("of_table", "_loss_square"),
        ("chosen", "_loss_square"),
        ("bound", "_loss_square"),
        ("of_class", "_loss_of_class"),
        ("compiled", "_loss_compiled"),
    ],
)
def test_methods_that_values_hold_are_looked_into(shared: Project, name: str, copied: str) -> None:
    """No name in the source leads to them: `getattr` of a name that is made, tables, local variables."""
    shared.write("by_value.py", BY_VALUE)
    made = shared.run("gen", f"by_value.py::Trainer.{name}", "--inputs", "by_value.py::inputs")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs" in made.stderr
    owner = "Base" if copied == "_loss_square" else "Trainer"
    assert f"{owner}.{copied}, {owner.lower()}{copied}" in " ".join(made.stdout.split())
    (shared.folder / f"{name}_by_value.py").write_text(made.stdout)
    program = ANOTHER.format(name=name, copied=copied)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=shared.folder,
        env=simulated(2),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


RUN_BOUND = """
import functools

import jax
import jax.numpy as jnp


def scanned(w, x, y):
    def body(rate, c, t):
        c = c - rate * jnp.sqrt(jnp.mean((x * c - y) ** 2))
        return c, c

    return jax.lax.scan(functools.partial(body, 0.1), w, jnp.arange(3.0))


def chosen(w, x, y):
    def scaled(k, w):
        return jnp.sqrt(jnp.mean(w * x * k - y) ** 2 + 1)

    return jax.lax.cond(w > 0, functools.partial(scaled, 1.0), functools.partial(scaled, 2.0), w)


def named(w, x, y):
    def scaled(k, w):
        return jnp.sqrt(jnp.mean(w * x * k - y) ** 2 + 1)

    twice = functools.partial(scaled, 2.0)
    return jax.lax.cond(w > 0, true_fun=twice, false_fun=lambda w: w, operand=w)


def listed(w, x, y):
    def scaled(k, w):
        return jnp.sqrt(jnp.mean(w * x * k - y) ** 2 + 1)

    branches = [functools.partial(scaled, 1.0), functools.partial(scaled, 2.0)]
    return jax.lax.switch(jnp.int32(w), branches, w)


def made(w, x, y):
    def scaled(k):
        return jnp.sqrt(jnp.mean(w * x * k - y) ** 2 + 1)

    return jax.lax.switch(jnp.int32(w), [lambda k=k: scaled(k) for k in range(3)])


def of_itself(w, x, y):
    if x.ndim > 1:
        scale = functools.partial(scale, 2.0)
        return jax.lax.map(scale, w)
    return jnp.sqrt(jnp.mean(w * x - y) ** 2 + 1)


def inputs(seed):
    keys = jax.random.split(jax.random.key(seed), 2)
    return jnp.float32(1.5), jax.random.normal(keys[0], (24,)), jax.random.normal(keys[1], (24,))
"""


@pytest.mark.parametrize("name", ["scanned", "chosen", "named", "listed", "made", "of_itself"])
def test_functions_that_jax_runs_with_arguments_bound_to_them_are_looked_into(
    shared: Project, name: str
) -> None:
    shared.write("run_bound.py", RUN_BOUND)
    made = shared.run("gen", f"run_bound.py::{name}", "--inputs", "run_bound.py::inputs")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs" in made.stderr
    assert made.stdout.count("jax.lax.pmean") == 1


RANKS = """
import jax
import jax.numpy as jnp


def as_rows_of(values, x):
    while len(values.shape) < len(x.shape):
        values = values[..., None]
    return values * x


def loss(w, t, x):
    return jnp.sqrt(jnp.mean(as_rows_of(jnp.sin(w * t), x)))
"""


def test_how_many_axes_an_array_has_is_not_summed_over_the_devices(shared: Project) -> None:
    """The loop is a test, and sizes in tests are those of the whole batch."""
    shared.write("ranks.py", RANKS)
    specs = ("w=f32[]", "t=f32[24]", "x=f32[24,3,2]")
    made = shared.run("plan", "ranks.py::loss", *(word for each in specs for word in ("--arg", each)))
    assert made.exit_code == 0, made.stderr
    assert "pmean" in made.stdout + made.stderr
    assert "psum" not in made.stdout + made.stderr


def test_methods_that_values_hold_and_a_class_may_be_given_anew_are_as_it_defines_them(
    shared: Project,
) -> None:
    text = BY_VALUE
    for name in ("compiled", "of_class"):
        compiled = f"    @functools.partial(jax.jit, static_argnums=0)\n    def {name}("
        text = text.replace(f"    def {name}(", compiled)
    shared.write("replaced.py", f"{text}\n\ndef replace(name, value):\n    setattr(Trainer, name, value)\n")
    made = shared.run("gen", "replaced.py::Trainer.compiled", "--inputs", "replaced.py::inputs")
    assert made.exit_code == 0, made.stderr
    assert "Trainer._loss_compiled.__wrapped__.__qualname__" in made.stdout
    # Of a class method each look-up makes another object.
    says = ("replaced.py assigns `._loss_of_class` (or calls `setattr`)",)
    words = ("replaced.py::Trainer.of_class", "--inputs", "replaced.py::inputs")
    shared.refused("JP067", "gen", *words, says=says, exit_code=1)
