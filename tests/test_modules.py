"""Functions of the user's other modules, looked into and carried with the collectives they need."""

import re

import pytest

from jax_pmap.emit.callees import CallGraph
from jax_pmap.locate import locate
from jax_pmap.model import Request
from jax_pmap.reading.target import read_target

LOSSES = '''
import jax.numpy as jnp

EPSILON = 1e-6


def weighted(values, mask):
    return jnp.sum(values * mask) / (jnp.sum(mask) + EPSILON)


def masked_error(params, x, y, mask):
    """Mean square where the mask is one."""
    return weighted(jnp.mean((jnp.tanh(x @ params["w"]) - y) ** 2, axis=-1), mask)
'''
HELPERS = """
from . import losses


def objective(params, x, y, mask):
    return losses.masked_error(params, x, y, mask) + 1e-3 * sum((p**2).sum() for p in params.values())
"""
TRAIN = """
import jax
import jax.numpy as jnp
import numpy as np

from pkg import helpers, losses
from pkg.losses import masked_error as error_of

weights = 3.0


def by_alias(params, x, y, mask):
    return jax.value_and_grad(error_of)(params, x, y, mask)


def by_module(params, x, y, mask):
    grads = jax.grad(lambda p: helpers.objective(p, x, y, mask))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), losses.EPSILON


def own(params, x, y, mask):
    return jnp.sum(jnp.mean((jnp.tanh(x @ params["w"]) - y) ** 2, -1) * mask) / jnp.sum(mask)


def through_a_lambda(params, x, y, mask):
    return jax.value_and_grad(lambda p: own(p, x, y, mask))(params)


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(24, 6)), rng.normal(size=(24, 4))
    mask = (rng.random(24) < 0.6).astype(float)
    return {"w": rng.normal(size=(6, 4))}, x, y, mask
"""


@pytest.mark.parametrize(
    ("target", "carried"),
    [
        ("by_alias", ["def weighted(", "def error_of("]),
        ("by_module", ["def weighted(", "def masked_error(", "def objective("]),
        ("through_a_lambda", ["def own("]),
    ],
)
def test_what_other_modules_hold_is_carried(project, target, carried):
    project.write("pkg/__init__.py", "")
    project.write("pkg/losses.py", LOSSES)
    project.write("pkg/helpers.py", HELPERS)
    project.write("train.py", TRAIN)
    result = project.run("gen", f"train.py::{target}", "--inputs", "train.py::inputs")
    assert result.exit_code == 0, result.stderr
    assert [line for line in carried if line not in result.stdout] == []
    # By itself, or together with the sum that it divides.
    text = " ".join(result.stdout.split())
    assert re.search(r"lax\.psum\(\s?(\( ?[^=]*, )?jnp\.sum\(mask\)", text)


def test_a_name_that_means_something_else_there_is_carried_as_another(project):
    project.write("pkg/__init__.py", "")
    project.write("pkg/losses.py", LOSSES)
    project.write("train.py", TRAIN.replace("weights = 3.0", "EPSILON = 0.5").replace("helpers, ", ""))
    result = project.run("gen", "train.py::by_alias", "--inputs", "train.py::inputs")
    assert result.exit_code == 0, result.stderr
    assert "from pkg.losses import EPSILON as LOSSES_EPSILON\n" in result.stdout
    assert "/ (total_mask + LOSSES_EPSILON)" in result.stdout  # EPSILON is that of train.py.
    assert "jax.lax.all_gather(" not in result.stdout


def test_names_of_a_star_import_are_found_in_the_users_module(project):
    project.write(
        "shapes.py", "import jax.numpy as jnp\nSCALE = 2.0\ndef act(x): return jnp.tanh(x) * SCALE\n"
    )
    project.write("model.py", "from shapes import *\ndef f(w, x): return act(x @ w) / SCALE\n")
    result = project.run("gen", "model.py::f", "--arg", "w=f32[5]", "--arg", "x=f32[16,5]")
    assert result.exit_code == 0, result.stderr
    assert "from model import SCALE, act\n" in result.stdout


METHODS = """
class Base:
    def _above(self, x): return x

class Agent(Base):
    def step(self, x): return self._loss(x), self._set(x), self._above(x)
    def _loss(self, x): return x
    def _private(self, x): return self.__scale * x
    def _super(self, x): return super().step(x)
    @property
    def _property(self): return 1
    @classmethod
    def _class(cls, x): return x
    @staticmethod
    def _static(x): return x
    def _set(self, x): return x
    def change(self, f): self._set = f
"""


def test_methods_of_the_object_are_found_where_they_are_surely_those(project):
    def methods(text, **others):
        project.write("a.py", text)
        for name, other in others.items():
            project.write(f"{name}.py", other)
        request = Request("a.py::Agent.step", project.folder, run="python a.py", in_place=True)
        around = CallGraph(read_target(locate(request.target, request.directory), request))
        names = ["_loss", "_private", "_super", "_property", "_class", "_static", "_set", "_above", "missing"]
        found = {name: around.find(f"self.{name}", around.origin) for name in names}
        return {name: beside.name for name, beside in found.items() if beside is not None}

    every = {name: f"Agent.{name}" for name in ("_loss", "_class", "_static")} | {"_above": "Base._above"}
    assert methods(METHODS) == every
    # Called on an object of this class, it is another one.
    del every["_loss"]
    assert methods(METHODS + "class Other(Agent):\n    def _loss(self, x): return -x\n") == every
    del every["_above"]
    derived = "import a\nclass More(a.Base): pass\nclass Most(More):\n    def _above(self, x): return -x\n"
    assert (
        methods(METHODS, b="import a\nclass D(a.Agent):\n    def _loss(self, x): return 0\n", c=derived)
        == every
    )
