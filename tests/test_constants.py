"""Callables, configurations and objects among the arguments: constants that are told from other ones."""

import subprocess
import sys

import pytest
from project import Project, simulated

STEPS = """
    import dataclasses
    import enum
    import functools
    from collections.abc import Callable
    from typing import NamedTuple

    import jax
    import jax.numpy as jnp
    import numpy as np


    class Networks(NamedTuple):
        policy: Callable
        value: Callable
        weight: float


    @dataclasses.dataclass
    class Config:
        rates: list
        activation: Callable


    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True, eq=False)
    class Metrics:
        of: dict


    class Head(enum.Enum):
        REGRESSION = 1
        CLASSES = 2


    def scaled(weight):
        return lambda p, obs: weight * jnp.tanh(obs @ p)


    def actor_critic(params, obs, returns, networks):
        advantage = returns - networks.value(params, obs)
        return jnp.mean(networks.policy(params, obs) * advantage) + networks.weight * jnp.mean(advantage**2)


    def step(w, x, config, head):
        def loss(w):
            out = config.activation(x @ w)
            return jnp.mean(out**2) if head is Head.REGRESSION else jnp.mean(jax.nn.softplus(out))

        return w - config.rates[0] * jax.grad(loss)(w)


    @functools.partial(jax.jit, static_argnums=0)
    def score(metrics, w, x):
        return {name: jnp.mean(metric(x @ w)) for name, metric in metrics.of.items()}


    def rows():
        return np.random.default_rng(0).normal(size=(24, 4)).astype("float32")


    def networks(value=scaled(0.5)):
        x = rows()
        return jnp.ones(4), x, x[:, 0], Networks(lambda p, obs: obs @ p, value, 0.1)


    def metrics():
        # A copy that jax makes of it has the dict in another order.
        return Metrics({"square": jnp.square, "absolute": jnp.abs}), jnp.ones(4), rows()


    def config(activation=jnp.tanh, rate=0.1):
        return jnp.ones(4), rows(), Config([rate, 0.2], activation), Head.CLASSES
"""
PROGRAM = """
import dataclasses
import jax.numpy as jnp
import numpy as np
import networks_pmap, config_pmap, metrics_pmap, steps

np.testing.assert_allclose(
    networks_pmap.actor_critic(*steps.networks()), steps.actor_critic(*steps.networks()), rtol=1e-5
)
scores = steps.score(*steps.metrics())
for name, score in metrics_pmap.score(*steps.metrics()).items():
    np.testing.assert_allclose(score, scores[name], rtol=1e-5)
w, x, config, head = steps.config()
for _ in range(2):  # another object of the same contents
    np.testing.assert_allclose(config_pmap.step(*steps.config()), steps.step(w, x, config, head), rtol=1e-5)


def refused(function, arguments, name):
    try:
        function(*arguments)
    except ValueError as error:
        assert f"`{name}` is not the" in str(error), error
    else:
        raise AssertionError(f"another {name} was taken")


refused(networks_pmap.actor_critic, steps.networks(steps.scaled(0.25)), "networks")
refused(networks_pmap.actor_critic, steps.networks(lambda p, obs: obs @ p - jnp.mean(obs @ p)), "networks")
refused(config_pmap.step, steps.config(jnp.sin), "config")
refused(config_pmap.step, steps.config(rate=0.3), "config")
refused(config_pmap.step, (w, x, config, steps.Head.REGRESSION), "head")
"""


def test_functions_and_objects_are_constants_that_are_told_from_others(project: Project) -> None:
    project.write("steps.py", STEPS)
    for name, inputs in (("actor_critic", "networks"), ("step", "config"), ("score", "metrics")):
        words = (f"steps.py::{name}", "--inputs", f"steps.py::{inputs}", "-o", f"{inputs}_pmap.py")
        made = project.run("gen", *words)
        assert made.exit_code == 0, made.stderr
        assert f"`{inputs}` is static; the emitted function takes no" in made.words
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=project.folder, env=simulated(3), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


CHANGED = """
import numpy as np
from scaled import Scaling, inputs, fit
from fit_{backend} import fit as everywhere

scaling, w, x, settings = inputs()
for change in ("none", "assigned", "in place", "none"):
    if change == "assigned":
        scaling.mean = scaling.mean + 1
    elif change == "in place":
        scaling.mean[:] = 7
    expected = fit(scaling, w, x, settings)
    np.testing.assert_allclose(everywhere(scaling, w, x, settings), expected, rtol=1e-5, err_msg=change)
"""


@pytest.mark.parametrize("backend", ["pmap", "shard_map", "jit"])
def test_arrays_of_a_static_object_are_those_of_the_call(shared: Project, backend: str) -> None:
    text = """
        import jax
        import jax.numpy as jnp
        import numpy as np


        class Scaling:
            def __init__(self):
                self.mean = np.arange(4, dtype="f")

            def __call__(self, x):
                return (x - self.mean) * 2.0


        def fit(scaling, w, x, settings):
            loss = lambda w: settings["act"](jnp.mean((scaling(x) @ w) ** 2))
            return w - settings["rate"] * jax.grad(loss)(w)


        def inputs():
            x = jax.random.normal(jax.random.key(0), (24, 4))
            return Scaling(), jnp.ones(4), x, {"act": jnp.arctan, "rate": 0.1}
        """
    shared.write("scaled.py", text)
    words = ("gen", "scaled.py::fit", "--inputs", "scaled.py::inputs", "--static", "settings")
    made = shared.run(*words, "--backend", backend, "-o", f"fit_{backend}.py")
    assert made.exit_code == 0, made.stderr
    program = [sys.executable, "-c", CHANGED.format(backend=backend)]
    done = subprocess.run(program, cwd=shared.folder, env=simulated(4), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_numbers_that_tracing_cannot_take_are_static_unasked(project: Project) -> None:
    text = """
        import jax
        import jax.numpy as jnp

        def noisy(rng, x, sizes, samples, rate):
            keys = jax.random.split(rng, samples)
            noise = jax.vmap(lambda key: jax.random.normal(key))(keys).mean()
            return x.reshape(x.shape[0], *sizes).mean(axis=2) * rate + noise

        def inputs():
            return jax.random.key(0), jnp.arange(288.0).reshape(24, 12), [3, 4], 5, 0.5
    """
    project.write("f.py", text)
    made = project.run("gen", "f.py::noisy", "--inputs", "f.py::inputs")
    assert made.exit_code == 0, made.stderr
    assert "`sizes` was tried with [3, 4]; the emitted function takes no other value" in made.words
    assert "`samples` was tried with 5; the emitted function takes no other value" in made.words
    assert "rate replicated" in made.words


def test_a_module_among_the_arguments_is_no_array(project: Project) -> None:
    """`jax.numpy` has a `shape` and a `dtype`, and so has the class of arrays."""
    text = """
    import jax.numpy as jnp


    def rms(x, xp=jnp, kind=jnp.ndarray):
        return xp.sqrt(xp.mean(x**2)) if issubclass(kind, object) else x
    """
    project.write("steps.py", text)
    made = project.run("gen", "steps.py::rms", "--arg", "x=f32[24,3]")
    assert made.exit_code == 0, made.stderr
    assert "`xp` was tried with jnp; the emitted function takes no other value" in made.words
