"""Targets that are called as they are: what variables hold, and what decorators make of functions."""

import subprocess
import sys

import pytest
from project import Project, simulated

OBJECTS = """
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np


    def loss(w, x, y):
        return (jnp.tanh(x @ w) - y) ** 2


    per_example = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0)))
    gradient = jax.value_and_grad(lambda w, x, y: jnp.mean(loss(w, x, y)))


    @functools.partial(jax.vmap, in_axes=(None, 1, 0))
    def scores(w, x, bias=1.0, /):
        return jnp.dot(w, x) + bias


    @jax.custom_vjp
    def clipped(x):
        return jnp.minimum(x * 3.0, 1.0)


    clipped.defvjp(lambda x: (jnp.minimum(x * 3.0, 1.0), x), lambda x, g: (g * 3.0,))


    def doubled(f):
        return lambda *args: 2 * f(*args)


    @doubled
    def energy(x):
        return jnp.mean(jnp.sum(x**2, axis=-1))


    def ranked(f):
        return lambda x: f(x) + jnp.median(x)


    @ranked
    def coupled(x):
        return x * 2


    class Net:
        def __init__(self):
            self.w = jnp.arange(12.0).reshape(4, 3) / 12

        def loss(self, x):
            return jnp.mean((x @ self.w) ** 2)


    objects = Net()
    net_loss = objects.loss
    log_mean = functools.partial(jax.scipy.special.logsumexp, axis=-1)


    def rows():
        return np.random.default_rng(0).normal(size=(24, 4)).astype("float32")


    def weights(): return jnp.ones(4), rows(), rows()[:, 0]
    def columns(): return jnp.ones(4), rows().T, rows()[:, 0]
    def batch(): return (rows(),)
"""
#: (target, its inputs, how many collectives)
CALLED = [
    ("per_example", "weights", 0),
    ("gradient", "weights", 1),
    ("scores", "columns", 0),
    ("clipped", "batch", 0),
    ("energy", "batch", 1),
    ("net_loss", "batch", 1),
    ("log_mean", "batch", 0),
]
PROGRAM = """
import importlib, jax, sys
import numpy as np
import objects
for name, inputs in CALLED:
    emitted = getattr(importlib.import_module(name + "_pmap"), name)
    original, given = getattr(objects, name), getattr(objects, inputs)()
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6),
        emitted(*given), original(*given),
    )
"""


def test_another_value_of_the_variable_makes_the_file_stale(project: Project) -> None:
    project.write("objects.py", OBJECTS)
    words = ("objects.py::per_example", "--inputs", "objects.py::weights", "-o", "made.py")
    assert project.run("gen", *words).exit_code == 0
    assert project.run("check", "--no-run", "made.py").exit_code == 0
    text = (project.folder / "objects.py").read_text()
    (project.folder / "objects.py").write_text(
        text.replace("jax.vmap(jax.grad(loss)", "jax.vmap(jax.jacrev(loss)")
    )
    assert "JP150" in project.run("check", "--no-run", "made.py").stdout


@pytest.fixture
def objects(shared: Project) -> Project:
    shared.write("objects.py", OBJECTS)
    return shared


def test_what_the_module_has_is_called_where_no_collective_stands_inside(objects: Project) -> None:
    for name, inputs, collectives in CALLED:
        made = objects.run(
            "gen", f"objects.py::{name}", "--inputs", f"objects.py::{inputs}", "-o", f"{name}_pmap.py"
        )
        assert made.exit_code == 0, made.stderr
        assert "which is called as it is: no collective stands inside it" in made.words
        code = (objects.folder / f"{name}_pmap.py").read_text()
        # A name of the module that is in use already is not hidden by the module's own.
        assert "import objects as objects_" in code
        assert f"objects_.{name}(" in code
        assert code.count("jax.lax.p") == collectives
    program = PROGRAM.replace("CALLED", repr([row[:2] for row in CALLED]))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=objects.folder, env=simulated(3), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_what_would_have_to_be_opened_is_refused(objects: Project) -> None:
    says = ("`objects_.coupled(x)` couples the examples",)
    objects.refused(
        "JP067", "gen", "objects.py::coupled", "--inputs", "objects.py::batch", says=says, exit_code=1
    )
    # A class is no function of arrays, whatever calling it gives.
    objects.refused("JP004", "gen", "objects.py::Net", says=("`Net` is a class",))


REBOUND = """
    import functools, typing

    import jax
    import jax.numpy as jnp


    LOSSES = []


    def scaled(f):
        @functools.wraps(f)
        def wrapper(x):
            return 2 * f(x) + 1

        return wrapper


    def assigned(x):
        return jnp.mean(x)


    assigned = scaled(assigned)


    def mapped(x):
        return jnp.mean(x)


    mapped = jax.vmap(mapped)


    def set_by_name(x):
        return jnp.mean(x)


    globals()["set_by_name"] = scaled(set_by_name)


    def compiled(x):
        return jnp.mean(x)


    compiled = jax.jit(compiled)


    def registered(f):
        LOSSES.append(f)
        return f


    @scaled
    @registered
    def root(x):
        return jnp.sqrt(jnp.mean(x**2))


    class Jittered:
        # It compiles nothing, whatever it is called.
        def __init__(self, f):
            functools.update_wrapper(self, f)
            self.f = f

        def __call__(self, x):
            return 2 * self.f(x) + 1


    def moved(x):
        return jnp.mean(x)


    moved = Jittered(moved)


    @typing.no_type_check
    def unchecked(x):
        return jnp.mean(x)


    unchecked = scaled(unchecked)


    def logged(f):
        @functools.wraps(f)
        def wrapper(*args, **kwargs):
            print("logged")
            return f(*args, **kwargs)

        return wrapper


    @logged
    def logged_twice(x):
        return jnp.mean(x)


    if not LOSSES:
        logged_twice = scaled(logged_twice.__wrapped__)


    def batch(): return (jnp.arange(96.0).reshape(24, 4),)
"""
NAMES = ("assigned", "mapped", "set_by_name", "compiled", "moved", "unchecked", "logged_twice")
CALLS = """
import importlib, jax, sys
import numpy as np
import rebound
for name in NAMES:
    emitted, original = getattr(importlib.import_module(name + "_pmap"), name), getattr(rebound, name)
    np.testing.assert_allclose(emitted(*rebound.batch()), original(*rebound.batch()), rtol=1e-5)
"""


def test_a_name_that_is_given_to_another_function_stands_for_that(shared: Project) -> None:
    shared.write("rebound.py", REBOUND)
    for name in NAMES:
        words = (f"rebound.py::{name}", "--inputs", "rebound.py::batch", "-o", f"{name}_pmap.py")
        made = shared.run("gen", *words)
        assert made.exit_code == 0, made.stderr
        assert ("which is called as it is" in made.words) == (name != "compiled")
    program = CALLS.replace("NAMES", repr(NAMES))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=shared.folder, env=simulated(3), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    asked = shared.run("plan", "rebound.py::assigned", "--inputs", "rebound.py::batch")
    assert "which is called as it is" in asked.words
    says = ("`assigned` is `scaled.<locals>.wrapper` (rebound.py:11) once `rebound.py` is imported",)
    words = ("assigned_pmap.py::assigned", "--against", "rebound.py::assigned")
    shared.refused("JP042", "verify", *words, "--inputs", "rebound.py::batch", says=says)


def test_what_stands_in_the_place_of_a_decorated_function_is_not_looked_into(shared: Project) -> None:
    shared.write("rebound.py", REBOUND)
    words = ("rebound.py::root", "--inputs", "rebound.py::batch")
    says = ("a `function` around `root` and may do more", "(rebound.py:54) is taken over the examples")
    shared.refused("JP067", "gen", *words, says=says, exit_code=1)


def test_a_name_that_a_script_gives_to_another_function_is_refused(shared: Project) -> None:
    """Its work is not run, and so it is not known what the name stands for."""
    script = (
        REBOUND
        + """
    def total(x):
        return jnp.sum(x)


    total = total(jnp.ones(3))
    for _ in range(3):
        print(compiled(jnp.ones(3)), assigned(jnp.ones(3)), mapped(jnp.ones(3)))
"""
    )
    shared.write("script.py", script)
    for name in ("compiled", "total"):
        made = shared.run("gen", f"script.py::{name}", "--inputs", "script.py::batch")
        assert made.exit_code == 0, made.stderr
    for name, line in (("assigned", 22), ("mapped", 29)):
        says = (f"`{name}` is another function from line {line} on", f"script.py:{line - 4}:")
        words = ("gen", f"script.py::{name}", "--inputs", "script.py::batch")
        shared.refused("JP042", *words, says=says, exit_code=1)


def test_what_is_compiled_and_called_as_it_is_keeps_what_it_read_first(shared: Project) -> None:
    """A variable that other code sets (a mesh, as a context) is read when the function is traced."""
    text = """
        import functools

        import jax
        import jax.numpy as jnp

        MESHES = []


        def use(mesh):
            MESHES.append(mesh)


        def checked(f):
            return functools.partial(f) if __debug__ else f


        @jax.jit
        @checked
        def step(w, x):
            return jnp.tanh(x @ w) * (2 if MESHES else 1)


        def inputs():
            return jnp.ones((4, 2)), jnp.arange(96.0).reshape(24, 4)
        """
    shared.write("compiled_whole.py", text)
    shared.write("called_whole.py", text.replace("@jax.jit", ""))
    made = shared.run("gen", "compiled_whole.py::step", "--inputs", "compiled_whole.py::inputs")
    assert made.exit_code == 0 and "which is called as it is" in made.words, made.stderr
    words = ("called_whole.py::step", "--inputs", "called_whole.py::inputs")
    shared.refused("JP062", "gen", *words, says=("put `@jax.jit` on it",), exit_code=1)


TYPED = """
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, jaxtyped

import type_checks
from type_checks import twice

typed = jaxtyped(typechecker=None)


@typed
def loss(w: Float[Array, "d"], x: Float[Array, "n d"]):
    return jnp.sqrt(jnp.mean((x @ w) ** 2))


@typed
@jax.jit
def by_name(w: Float[Array, "d"], x: Float[Array, "n d"]):
    return w - 0.1 * jax.grad(loss)(w, x)


@type_checks.typed
def by_module(w, x):
    return w - 0.1 * jax.grad(loss)(w, x)


@twice
def by_twice(w, x):
    return w - 0.1 * jax.grad(loss)(w, x)


def batch():
    return jnp.ones(3), jax.random.normal(jax.random.key(0), (24, 3))
"""
CHECKS = """
import functools
from typing import TypeVar, cast

from jaxtyping import jaxtyped

F = TypeVar("F")


def typed(function: F) -> F:
    \"\"\"Checks the types of what a function is called with.\"\"\"
    return cast(F, functools.partial(jaxtyped, typechecker=None)(function))


def twice(function):
    return lambda w, x: 2.0 * jaxtyped(function, typechecker=None)(w, x)
"""


def test_a_name_of_the_users_for_what_checks_types_is_that(shared: Project) -> None:
    pytest.importorskip("jaxtyping")
    shared.write("type_checks.py", CHECKS)
    shared.write("typed.py", TYPED)
    for name in ("by_name", "by_module"):
        made = shared.run("gen", f"typed.py::{name}", "--inputs", "typed.py::batch")
        assert made.exit_code == 0 and "derived for all inputs" in made.stderr, made.stderr
    made = shared.run("gen", "typed.py::by_module", "--inputs", "typed.py::batch", "--in-place", "--diff")
    assert made.exit_code == 0, made.stderr
    # It checks the whole batch, as before.
    assert " @type_checks.typed\n def by_module(w, x):" in made.stdout
    words = ("gen", "typed.py::by_twice", "--inputs", "typed.py::batch", "--in-place")
    shared.refused("JP042", *words, says=("`@twice`",), exit_code=1)
