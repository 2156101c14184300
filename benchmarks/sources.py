"""The targets that are measured."""

TRAIN_STEP = '''\
import jax
import jax.numpy as jnp
import numpy as np
import optax

tx = optax.adam(1e-2)


def loss_fn(params, batch):
    return jnp.mean((predict(params, batch["x"]) - batch["y"]) ** 2)


def predict(params, x):
    return jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"]


def train_step(params, opt_state, batch):
    """One Adam step."""
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    updates, opt_state = tx.update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    return params, opt_state, loss


def inputs(seed=0, rows=24, width=8):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    params = {"w1": normal(4, width), "b1": np.zeros(width, np.float32), "w2": normal(width, 1)}
    return params, tx.init(params), {"x": normal(rows, 4), "y": normal(rows, 1)}
'''

#: What somebody would write to check one pmap version once.
BY_HAND = """\
import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import functools

import jax
import numpy as np
import optax

import step


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, None, 0), out_axes=None)
def parallel_step(params, opt_state, batch):
    loss, grads = jax.value_and_grad(step.loss_fn)(params, batch)
    loss, grads = jax.lax.pmean((loss, grads), axis_name="batch")
    updates, opt_state = step.tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


params, opt_state, batch = step.inputs()
one = jax.jit(step.train_step)(params, opt_state, batch)
split = jax.tree.map(lambda a: a.reshape(8, -1, *a.shape[1:]), batch)
many = parallel_step(params, opt_state, split)
jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), one, many)
"""


def many_statements(count):
    """A function of `count` assignments, one of them in ten a sum over the batch."""
    lines = ["import jax.numpy as jnp", "", "", "def f(x):", "    total = 0.0"]
    for i in range(count):
        if i % 10 == 9:
            lines.append("    total = total + jnp.sum(x, axis=0)")
        else:
            lines.append(f"    x = x * {1 + i / 10000:.4f} + 0.001")
    return "\n".join([*lines, "    return x, total", ""])


def many_leaves(count):
    """A training step with `count` parameter arrays."""
    return f"""\
import jax
import jax.numpy as jnp
import numpy as np


def loss_fn(params, batch):
    h = batch["x"]
    for w in params:
        h = h * w
    return jnp.mean(h**2)


def train_step(params, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    params = [(1 + 0.001 * rng.normal(size=4)).astype(np.float32) for _ in range({count})]
    return params, {{"x": rng.normal(size=(24, 4)).astype(np.float32)}}
"""


def many_modules(count):
    """A step, and the `count` modules that its file imports: texts by file."""
    layer = '''
class Layer{index}:
    """A layer that keeps what it is made of."""

    def __init__(self, width, depth=2):
        self.width, self.sizes = width, {{}}
        for at in range(depth):
            self.sizes[at] = width * at

    def apply(self, params, x):
        for at in self.sizes:
            x = jnp.tanh(x @ params[at]) + LIMIT
        return x


def loss{index}(params, x, y):
    layer = Layer{index}(3)
    out = layer.apply(params, x)
    return jnp.mean((out - y) ** 2)
'''
    text = "import jax.numpy as jnp\n\nLIMIT = 0.1\n" + "".join(layer.format(index=i) for i in range(3))
    step = """
import jax
import jax.numpy as jnp


def step(w, x, y):
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    return w - 0.1 * grads, loss


def inputs():
    return jnp.ones(4), jnp.ones((24, 4)), jnp.ones(24)
"""
    names = [f"part_{index}" for index in range(count)]
    return {f"{name}.py": text for name in names} | {
        "step.py": "".join(f"import {name}\n" for name in names) + step
    }
