"""Attributes of the same name in other classes, beside methods that need collectives."""

from __future__ import annotations

import subprocess
import sys

import pytest
from project import Project, simulated

from jax_pmap.emit.stored import kin_of, may_store

MODEL = """\
import jax
import jax.numpy as jnp


class Model:
    def __init__(self, rate):
        self.rate = rate

    def step(self, w, x, mask):
        grad = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) * mask) / jnp.sum(mask))(w)
        return w - self.rate * grad


model = Model(0.1)


def train(w, x, mask):
    return model.step(w, x, mask)
"""
COUNTER = """\
class Counter:
    def __init__(self, **given):
        self.step = 0
        for name, value in given.items():
            setattr(self, name, value)


def start(model):
    setattr(model, "count", Counter())
"""
#: What makes an object of the class one that `Counter` sets the attribute of.
ONES = {
    "a subclass of both": "class Both(Model, Counter): pass",
    "by another name": "from counter import Counter as C\nclass Both(Model, C): pass",
    "made by a call": "Both = type('Both', (Model, Counter), {})",
    "a base that is called": "class Both(Model, made()): pass",
    "by its name": "def f(model):\n setattr(model, 'step', None)",
    "by any name": "class Other:\n def f(self, model, name):\n  setattr(model, name, self)",
    "of another object": "class Other:\n def change(self, model):\n  model.step = None",
    "of a class": "class Other:\n @classmethod\n def change(cls):\n  cls.step = None",
    "of what it is bound to": "class Other:\n def f(self, m):\n  self = m\n  self.step = None",
    "in a function of its own": "class Other:\n def f(self):\n  def g(self):\n   self.step = 1",
}


def test_what_other_classes_set_of_their_objects_is_no_method_of_this_one(project: Project) -> None:
    project.write("counter.py", COUNTER)
    project.write("model.py", MODEL)
    words = ("--arg", "w=f32[3]", "--arg", "x=f32[24,3]", "--arg", "mask=mask[24]")
    made = project.run("gen", "model.py::train", *words)
    assert made.exit_code == 0, made.stderr
    assert "jnp.sum(mask)" in made.stdout
    assert "psum" in made.stdout


@pytest.mark.parametrize("name", ONES)
def test_what_may_be_set_of_an_object_of_the_class_is_seen(name: str) -> None:
    files = [COUNTER, MODEL, ONES[name]]
    kin = kin_of("Model", files)
    assert any(may_store(code, "step", kin) for code in files)
    assert not any(may_store(code, "step", kin_of("Model", files[:2])) for code in files[:2])


def test_bases_of_a_base_set_it_too() -> None:
    files = [
        "class A:\n    def f(self):\n        self.x = 1\n",
        "class B(a.A[int], metaclass=M):\n    pass\n",
    ]
    assert kin_of("B", files) == {"A", "B"}
    assert may_store(files[0], "x", kin_of("B", files))


#: A method with a mean over the batch, and a project with code that may set anything of any object.
ROUTED = """
import jax
import jax.numpy as jnp


class Router:
    def route(self, w, x):
        probs = jax.nn.softmax(x @ w)
        return probs, jnp.sum(jnp.mean(probs, axis=0) ** 2)


ROUTER = Router()


def loss(w, x):
    probs, balance = ROUTER.route(w, x)
    return jnp.mean(probs[:, 0]) + balance
"""
SETTING = """
def configure(target, **options):
    for name, value in options.items():
        setattr(target, name, value)
"""
CALLS = """
import jax
import jax.numpy as jnp
import numpy as np

import functools, options, routed, routed_pmap

w, x = jax.random.normal(jax.random.key(0), (5, 4)), jax.random.normal(jax.random.key(1), (24, 5))
np.testing.assert_allclose(routed_pmap.loss(w, x), routed.loss(w, x), rtol=1e-5)
written = routed.Router.route


def route(self, w, x):
    return x @ w, jnp.mean(x)


class Router:
    def route(self, w, x):
        return x @ w, jnp.mean(x)


def wrapped(*args):
    return written(*args)


wrapped.__qualname__, wrapped.__module__ = written.__qualname__, written.__module__
for target, other in (
    (routed.ROUTER, route.__get__(routed.ROUTER)),
    (routed.Router, route),
    (routed.Router, Router.route),
    (routed.Router, wrapped),
    (routed.Router, functools.wraps(written)(wrapped) if hasattr(written, "lower") else wrapped),
):
    options.configure(target, route=other)
    try:
        routed_pmap.loss(w, x[: 12])
    except TypeError as error:
        print(error)
    else:
        raise AssertionError(other)
    if target is routed.ROUTER:
        del target.route
    else:
        target.route = written
"""


@pytest.mark.parametrize("compiled", [False, True])
def test_a_copied_method_raises_where_an_object_has_another_one_by_then(
    project: Project, *, compiled: bool
) -> None:
    decorated = "    @partial(jax.jit, static_argnums=0)\n    def route("
    text = f"from functools import partial\n{ROUTED}" if compiled else ROUTED
    project.write("routed.py", text.replace("    def route(", decorated) if compiled else text)
    project.write("options.py", SETTING)
    words = ("--arg", "w=f32[5,4]", "--arg", "x=f32[24,5]")
    made = project.run("gen", "routed.py::loss", *words, "-o", "routed_pmap.py")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs" in made.stderr
    done = subprocess.run(
        [sys.executable, "-c", CALLS],
        cwd=project.folder,
        env=simulated(3),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("`Router.route` is not `Router.route` as its class defines it") == 5, done.stdout


def test_an_object_that_has_another_method_is_not_looked_into(project: Project) -> None:
    own = "\n\nROUTER = Router()\nROUTER.route = ROUTER.route\n"
    project.write("routed.py", ROUTED.replace("\n\nROUTER = Router()\n", own))
    says = ("cannot read the source of `ROUTER.route`",)
    words = ("--arg", "w=f32[5,4]", "--arg", "x=f32[24,5]")
    project.refused("JP067", "gen", "routed.py::loss", *words, says=says, exit_code=1)
