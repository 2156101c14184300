"""Plans made by reading alone: roles, collectives and their places, refusals, notes."""

from pathlib import Path

import pytest

from jax_pmap.model import AxesNode, Plan, Refusal, RefusalError, Request, Source
from jax_pmap.planning.static import plan_statically
from jax_pmap.reading.parse import parse
from jax_pmap.reading.read import read

HEAD = """\
import functools
import jax
import jax.numpy as jnp
import optax
from jax import lax
from elsewhere import loss_fn, model
tx = optax.adam(1e-3)
"""


def plan(code: str, name: str = "f", **options: object) -> Plan:
    text = HEAD + code
    source = Source(name, Path("/p/train.py"), "train.py", "train", Path("/p"), name, text)
    parsed = parse(source)
    request = Request(name, proof=False, directory=Path("/p"), **options)  # type: ignore[arg-type]
    return plan_statically(source, parsed, read(source, parsed), request)


def syncs(made: Plan) -> list[tuple[str, str, str]]:
    return [(sync.op, sync.value, sync.where) for sync in made.syncs]


def roles(made: Plan) -> dict[str, str]:
    return {argument.name: str(argument.role) for argument in made.arguments}


def refused(code: str, **options: object) -> Refusal:
    with pytest.raises(RefusalError) as caught:
        plan(code, **options)
    assert caught.value.refusal.span is not None
    return caught.value.refusal


# --- nothing to do --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "return x * 2",
        "return jax.nn.relu(x) + jnp.sin(x)",
        "return jnp.sum(x, axis=1)",
        "return x.mean(axis=(1, 2))",
        "return x.reshape(x.shape[0], -1)",
        "n, d = x.shape\n    return x.reshape(n, d) / d",
        "return jax.vmap(g)(x)",
        "return jnp.einsum('bi,ij->bj', x, w)",
        "return x @ w",
        "return jax.tree.map(lambda a: a * 2, x)",
        "return jax.nn.softmax(x)",
        "return x[:, 0]",
        "y = jnp.zeros(x.shape)\n    return x + y",
    ],
)
def test_work_example_by_example_needs_no_collective(body: str) -> None:
    made = plan(f"def g(a):\n    return a.sum()\ndef f(x, w):\n    {body}\n")
    assert syncs(made) == [] and made.output_axes == 0


def test_replicated_work_needs_no_collective() -> None:
    made = plan("def f(x, w):\n    return x, jnp.sum(w), jnp.cumsum(w) @ jnp.sort(w)\n")
    assert syncs(made) == [] and made.output_axes == AxesNode("tuple", (), (0, None, None))


def test_collectives_of_the_body_are_kept() -> None:
    made = plan("def f(x):\n    return lax.pmean(jnp.mean(x), axis_name='i')\n")
    assert syncs(made) == [] and made.axis_name == "i" and made.output_axes is None


# --- collectives ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return jnp.mean(x)", [("pmean", "jnp.mean(x)", "wrap")]),
        ("y = x.sum()\n    return y", [("psum", "y", "after")]),
        ("return jnp.max(x, axis=0)", [("pmax", "jnp.max(x, axis=0)", "wrap")]),
        ("return x.min(axis=(0, 1))", [("pmin", "x.min(axis=(0, 1))", "wrap")]),
        ("y = 0.5 * jnp.mean(x) + 1\n    return y", [("pmean", "y", "after")]),
        ("y = 1 - jnp.sum(x)\n    return y", [("psum", "jnp.sum(x)", "wrap")]),
        ("return jnp.exp(jnp.mean(x))", [("pmean", "jnp.mean(x)", "wrap")]),
        ("return jnp.sqrt(jnp.sum(x) / x.shape[0])", [("pmean", "jnp.sum(x) / x.shape[0]", "wrap")]),
        ("n = len(x)\n    return x.reshape(n, -1).sum(1) / n", [("psum", "n", "wrap")]),
        ("return x - x.max()", [("pmax", "x.max()", "wrap")]),
        ("t = 0.\n    for i in range(3):\n        t += x.sum()\n    return t", [("psum", "x.sum()", "wrap")]),
        ("a, b = x.mean(), 2\n    return a, b", [("pmean", "a", "after")]),
        ("return x.T @ x", [("psum", "x.T @ x", "wrap")]),
        ("m = {'a': x.sum(), 'b': x}\n    return m['a']", [("psum", "m", "after")]),
        ("return g(x)", [("pmean", "g(x)", "wrap")]),
        ("return -jnp.max(x)", [("pmax", "jnp.max(x)", "wrap")]),
        (
            "v = jnp.mean(x**2) - jnp.mean(x)**2\n    return v",
            [("pmean", "v", "after"), ("pmean", "jnp.mean(x)", "wrap")],
        ),
    ],
)
def test_reductions(body: str, expected: list[tuple[str, str, str]]) -> None:
    made = plan(f"def g(a):\n    return 2 * jnp.mean(a)\ndef f(x):\n    {body}\n")
    assert syncs(made) == expected


def test_a_sync_has_the_span_of_its_statement_or_expression() -> None:
    made = plan("def f(x):\n    y = jnp.mean(x)\n    return x / jnp.sum(x)\n")
    spans = [(s.span.line - 7, s.span.column, s.span.end_line - 7, s.span.end_column) for s in made.syncs]
    assert spans == [(2, 4, 2, 19), (3, 15, 3, 25)]


STEP = """\
def train_step(params, opt_state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    updates, opt_state = tx.update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    return params, opt_state, loss
"""


def test_train_step() -> None:
    made = plan(STEP, "train_step")
    assert roles(made) == {"params": "replicated", "opt_state": "replicated", "batch": "batch"}
    assert syncs(made) == [("pmean", "loss", "after"), ("pmean", "grads", "after")]
    assert made.output_axes == AxesNode("tuple", (), (None, None, None))
    assert made.chain == (("params", "[0]"), ("opt_state", "[1]"))
    assert any("loss_fn" in note and "average" in note for note in made.notes)
    assert not made.observed and made.target == "train.py::train_step" and made.source_hash


def test_a_loss_of_the_file_is_read() -> None:
    code = (
        "def f(state, batch):\n    def loss(p):\n        logits = state.apply_fn(p, batch['x'])\n"
        "        each = optax.softmax_cross_entropy(logits, batch['y'])\n"
        "        return jnp.sum(each), {'n': each.shape[0], 'logits': logits}\n"
        "    (value, aux), grads = jax.value_and_grad(loss, has_aux=True)(state.params)\n"
        "    return state.apply_gradients(grads=grads), value, aux\n"
    )
    made = plan(code)
    assert roles(made) == {"state": "replicated", "batch": "batch"}
    assert syncs(made) == [("psum", name, "after") for name in ("value", "aux", "grads")]
    assert made.syncs[1].paths == ("['n']",)
    assert made.output_axes == AxesNode(
        "tuple", (), (None, None, AxesNode("dict", ("'n'", "'logits'"), (None, 0)))
    )


@pytest.mark.parametrize("maker", ["jax.grad(loss)", "g", "jax.jit(jax.grad(loss))"])
def test_gradients_by_any_name(maker: str) -> None:
    code = (
        "def loss(p, x):\n    return jnp.mean(x @ p)\ng = jax.grad(loss)\n"
        f"def f(params, x):\n    grads = {maker}(params, x)\n    return grads\n"
    )
    assert syncs(plan(code)) == [("pmean", "grads", "after")]


# --- roles ----------------------------------------------------------------------------------


def test_roles_by_kind_name_and_structure() -> None:
    made = plan(
        "@functools.partial(jax.jit, static_argnums=3)\n"
        "def f(theta, images, rng, config, mode='a', lr=0.1, *, flag: bool, act, n: int):\n"
        "    if mode == 'b':\n        pass\n    return act(images) * n\n"
    )
    assert roles(made) == {
        "theta": "replicated", "images": "batch", "rng": "key", "config": "static", "mode": "static",
        "lr": "replicated", "flag": "static", "act": "static", "n": "replicated",
    }  # fmt: skip


def test_options_decide() -> None:
    code = "def f(x, y, z):\n    return x + y, z\n"
    made = plan(code, shard=("y:1",), replicate=("x",), static=("z",))
    assert roles(made) == {"x": "replicated", "y": "batch", "z": "static"}
    assert made.arguments[1].axes == 1 and made.output_axes == AxesNode("tuple", (), (1, None))
    assert plan(code, axis_name="rows").axis_name == "rows"


def test_items_of_a_dict_can_be_named() -> None:
    made = plan("def f(batch):\n    return batch['x'] @ batch['table']\n", replicate=("batch['table']",))
    assert made.arguments[0].axes == AxesNode("dict", ("'table'", "'x'"), (None, 0))
    assert made.arguments[0].role == "mixed" and made.output_axes == 0
    assert any("no others" in note for note in made.notes)


def test_time_major_data() -> None:
    made = plan(
        "def f(tokens):\n    return tokens.sum(0), tokens.mean((0, 1)), tokens.sum(-1)\n", shard=("tokens:1",)
    )
    assert made.output_axes == AxesNode("tuple", (), (0, None, 1))
    assert syncs(made) == [("pmean", "tokens.mean((0, 1))", "wrap")]


def test_in_axes_of_a_pmap_in_the_file_count() -> None:
    made = plan("def f(x, y):\n    return x + y\np = jax.pmap(f, axis_name='k', in_axes=(0, None))\n")
    assert roles(made) == {"x": "batch", "y": "replicated"} and made.axis_name == "k"


def test_what_nothing_tells_is_a_note() -> None:
    made = plan("def f(left, right):\n    return model(left, right)\n")
    assert roles(made) == {"left": "batch", "right": "replicated"}
    assert len(made.notes) == 3 and all(
        word in " ".join(made.notes) for word in ("`left`", "`right`", "`model`")
    )


# --- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("return jnp.cumsum(x, axis=0)", "JP043"),
        ("return jnp.median(x)", "JP043"),
        ("return x.std()", "JP043"),
        ("return x @ x.T", "JP043"),
        ("return x[:, None] - x[None]", "JP043"),
        ("return x[1:] - x[:-1]", "JP043"),
        ("return jax.grad(lambda p: jnp.sum(x * p) / jnp.sum(x))(w)", "JP043"),
        ("return jax.grad(lambda p: jnp.exp(jnp.mean(x * p)))(w)", "JP043"),
        ("return jax.lax.scan(lambda c, r: (c, r), w, x)", "JP043"),
        ("return x + jax.random.normal(key, x.shape)", "JP051"),
        ("return model(w, x, rngs={'dropout': key})", "JP051"),
        ("return x.T", "JP014"),
    ],
)
def test_what_shares_cannot_give_is_refused(body: str, code: str) -> None:
    found = refused(f"def f(w, x, key):\n    {body}\n")
    assert found.code == code and found.span is not None and found.span.line == 9


def test_options_and_missing_batches_are_refused() -> None:
    assert refused("def f(x):\n    return x\n", shard=("xx",)).code == "JP007"
    assert "Did you mean `batch`?" in refused("def f(batch):\n    return batch\n", replicate=("bacth",)).hint
    assert refused("def f():\n    return 1\n").code == "JP040"
    assert refused("def f(params):\n    return params\n").code == "JP040"
    assert refused("def f(batch):\n    return batch\n", shard=("batch[0].x",)).code == "JP054"


def test_time_is_linear_in_statements_and_calls() -> None:
    chain = "".join(f"def g{i + 1}(a):\n    return g{i}(a) + g{i}(a) + g{i}(a)\n" for i in range(30))
    body = "".join(f"    y{i} = g30(x) + y{i - 1}\n" for i in range(1, 300))
    made = plan(f"def g0(a):\n    return a * 2\n{chain}def f(x, y0):\n{body}    return y299\n")
    assert made.output_axes == 0
