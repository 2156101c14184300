"""Methods of modules that a library runs: of Flax Linen and Haiku, with sums over the batch in them."""

import inspect

import jax
import jax.numpy as jnp
import pytest
from project import Project

from jax_pmap.worker.modules import with_copies

LINEN = """
import flax.linen as nn
import jax
import jax.numpy as jnp


def masked_mean(x, mask):
    return jnp.sum(x * mask[:, None], axis=0) / jnp.sum(mask)


class Centre(nn.Module):
    momentum: float = 0.9

    @nn.compact
    def __call__(self, x, mask, train=True):
        kept = self.variable("stats", "mean", jnp.zeros, x.shape[-1:])
        mean = masked_mean(x, mask) if train else kept.value
        if train and not self.is_initializing():
            kept.value = self.momentum * kept.value + (1 - self.momentum) * mean
        return (x - mean) * self.param("scale", nn.initializers.ones, x.shape[-1:])


class Codes(nn.Module):
    @nn.compact
    def __call__(self, x):
        counts = self.variable("stats", "counts", jnp.ones, (4,))
        chosen = jax.nn.one_hot(jnp.argmax(x[:, :4], axis=-1), 4)
        self.sow("metrics", "second", jnp.mean(x[:, 0]) ** 2)
        # What is kept of the batch goes into no result.
        counts.value = jnp.log1p(jnp.sum(chosen, axis=0))
        return x


class Later(Centre):
    pass


class Net(nn.Module):
    def setup(self):
        self.first = nn.Dense(6)
        self.centre = nn.remat(Later)()
        self.codes = Codes()

    def body(self, x, mask):
        return self.codes(jnp.tanh(self.centre(self.first(x), mask)))

    def __call__(self, x, mask):
        return self.body(x, mask)
"""
STEP = """
import jax
from flax import linen as nn
from jax import numpy as jnp
from nets_l import Net

net = Net()


def inputs():
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (24, 5))
    mask = (jax.random.uniform(keys[1], (24,)) < jnp.linspace(0.3, 1, 24)).astype(jnp.float32)
    made = net.init(keys[2], x, mask)
    return made["params"], made["stats"], x, mask


def step(params, stats, x, mask):
    def loss_fn(params):
        out, new = net.apply({"params": params, "stats": stats}, x, mask, mutable=["stats", "metrics"])
        return jnp.mean(nn.softplus(out) ** 4), (new["stats"], new["metrics"]["codes"])

    (loss, (stats, metrics)), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), stats, loss, metrics
"""


def test_methods_of_linen_modules_run_as_copies(shared: Project) -> None:
    shared.write("nets_l.py", LINEN)
    shared.write("steps_l.py", STEP)
    made = shared.run("gen", "steps_l.py::step", "--inputs", "steps_l.py::inputs")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs" in made.stderr and "run on 3, 8 devices" in made.stderr
    text = " ".join(made.stdout.split())
    # The copy runs in place of the method wherever that is run, also for a class that inherits it.
    assert "Centre.__call__.__wrapped__: centre_call" in text
    assert "with nn.intercept_methods(copied): return function(*args, **kwargs)" in text
    assert "(jnp.sum(x * mask[:, None], axis=0), jnp.sum(mask)), axis_name=AXIS" in text
    # What a module further below keeps passes through no result.
    assert "jnp.log1p(jax.lax.psum(jnp.sum(chosen, axis=0), axis_name=AXIS))" in text
    assert 'self.sow("metrics", "second", jax.lax.pmean(jnp.mean(x[:, 0]), axis_name=AXIS) ** 2)' in text
    # Modules that need nothing stay the library's own.
    assert "def net_" not in text
    # What the files import in other words is the same, and imported once.
    assert text.count(" as jnp") == text.count(" as nn") == 1 and "from flax import linen as nn" in text
    # A way that was not taken raises in the copy.
    assert "was not reached by the inputs this code was proved with" in text
    given = ("--inputs", "steps_l.py::inputs", "--no-run")
    edited = shared.run("gen", "steps_l.py::step", "--in-place", "--diff", *given)
    assert edited.exit_code == 0, edited.stderr
    assert " as jnp" not in edited.stdout.replace(" from jax import numpy as jnp", "")


HAIKU = """
import haiku as hk
import jax
import jax.numpy as jnp


class Centre(hk.Module):
    def __call__(self, x):
        x = hk.Linear(4)(x)
        return x / jnp.sqrt(jnp.mean(x**2, axis=0))


def forward(x):
    return hk.Linear(2)(Centre()(x))


net = hk.without_apply_rng(hk.transform(forward))


def inputs():
    x = jax.random.normal(jax.random.key(0), (24, 5))
    return net.init(jax.random.key(1), x), x


def loss(params, x):
    return jnp.mean(net.apply(params, x) ** 4)
"""


def test_methods_of_haiku_modules_run_as_copies(shared: Project) -> None:
    shared.write("nets_h.py", HAIKU)
    made = shared.run("gen", "nets_h.py::loss", "--inputs", "nets_h.py::inputs", "--backend", "shard_map")
    assert made.exit_code == 0, made.stderr
    text = " ".join(made.stdout.split())
    assert "jnp.sqrt(jax.lax.pmean(jnp.mean(x**2, axis=0), axis_name=AXIS))" in text
    assert "with hk.intercept_methods(copied): return function(*args, **kwargs)" in text


UNNAMED = """
import flax.linen as nn
import jax
import jax.numpy as jnp


def make():
    class Centre(nn.Module):
        @nn.compact
        def __call__(self, x):
            return jnp.sqrt(jnp.mean(x**2, axis=0))

    return Centre()


net = make()


def root(x):
    return net.apply({}, x)
"""


def test_a_module_of_a_class_that_has_no_name_is_refused_with_its_line(shared: Project) -> None:
    shared.write("nets_u.py", UNNAMED)
    says = (
        "the class of `make.Centre.__call__` (nets_u.py:8) is not found in a module by its name",
        "`return jnp.sqrt(jnp.mean(x**2, axis=0))` (nets_u.py:10) is taken over the examples",
    )
    shared.refused("JP067", "gen", "nets_u.py::root", "--arg", "x=f32[24,3]", says=says, exit_code=1)


def test_compiled_functions_keep_nothing_of_the_copies_in_them() -> None:
    linen = pytest.importorskip("flax.linen")

    class Root(linen.Module):
        def __call__(self, x):
            return jnp.sqrt(x)

    net = Root()
    compiled = jax.jit(lambda x: net.apply({}, x))

    def called(x):
        return compiled(x) + 1

    def traced(copies):
        return str(jax.make_jaxpr(with_copies(called, copies))(1.0))

    method = inspect.unwrap(Root.__call__)
    assert "sqrt" in traced({})
    assert "cbrt" in traced({method: lambda self, x: jnp.cbrt(x)})
    assert "tanh" in traced({method: lambda self, x: jnp.tanh(x)})
    assert "sqrt" in traced({})
