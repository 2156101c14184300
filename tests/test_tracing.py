"""How often the target is traced: of a model of real size, that is nearly all of the time an answer takes."""

import pytest

MODULE = """
import os

import jax
import jax.numpy as jnp


def noted():
    with open(os.environ["TRACES"], "a") as file:
        file.write("traced\\n")


def step(params, x, y, mask):
    noted()

    def loss(params):
        errors = jnp.tanh(x @ params["w"] + params["b"]) - y
        return jnp.sum(mask * errors**2) / jnp.sum(mask)

    value, gradients = jax.value_and_grad(loss)(params)
    scale = jnp.minimum(1.0, 1.0 / jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradients))))
    return jax.tree.map(lambda p, g: p - 0.1 * scale * g, params, gradients), value


def squeezed(params, x, y, key):
    noted()
    noisy = x + jax.random.normal(key, x.shape)
    return jnp.mean((jnp.squeeze(noisy @ params["w"][:, None]) - y) ** 2)


def in_thirds(params, x, y, mask):
    noted()
    size = len(x) // 3
    for at in range(0, len(x), size):
        loss = lambda w: jnp.mean((x[at : at + size] @ w - y[at : at + size]) ** 2)
        params = {**params, "w": params["w"] - 0.1 * jax.grad(loss)(params["w"])}
    return params


def inputs():
    params = {"b": jnp.zeros(()), "w": jnp.ones((3,))}
    return params, jnp.ones((48, 3)), jnp.ones(48), jnp.ones(48)


def shapes():
    return *jax.eval_shape(inputs)[:3], jax.eval_shape(lambda: jax.random.key(0))
"""


@pytest.mark.parametrize(
    ("words", "most"),
    [
        # As it is called, with NumPy's arrays too, for all sizes of the batch, and on a share of any size in
        # three rounds.
        pytest.param(["plan", "train.py::step", "--inputs", "train.py::inputs"], 6, id="rounds"),
        # Nine sizes, one row, another width of the weights and other parts of them, each once, and the code
        # that refuses one row derived once.
        pytest.param(
            ["gen", "train.py::squeezed", "--inputs", "train.py::shapes", "--no-run"], 50, id="few rows"
        ),
        # Of two searches with the same first rounds these are traced once, and the whole batch for all three.
        pytest.param(["plan", "train.py::in_thirds", "--inputs", "train.py::inputs"], 46, id="minibatches"),
    ],
)
def test_a_function_is_traced_as_often_as_an_answer_takes(project, monkeypatch, words, most):
    traces = project.folder / "traces.txt"
    monkeypatch.setenv("TRACES", str(traces))
    project.write("train.py", MODULE)
    made = project.run(*words)
    assert made.exit_code == 0, made.stderr
    assert 0 < len(traces.read_text().splitlines()) <= most
