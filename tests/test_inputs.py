"""Example arguments: `--arg` texts, annotations, structure from the body, and the search for shapes."""

from __future__ import annotations

import importlib
import re
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_pmap.inputs.arguments import InputSearch, input_search
from jax_pmap.inputs.callers import command_of
from jax_pmap.inputs.collect import collect
from jax_pmap.inputs.spec import Spec, format_argument, format_spec, parse_argument
from jax_pmap.locate import locate
from jax_pmap.model import RefusalError, Request, Source
from jax_pmap.reading.read import read
from jax_pmap.syntax.parse import parse
from jax_pmap.worker.protocol import InputsFound, SearchInputs

HEAD = "import functools\nimport jax\nimport jax.numpy as jnp\nimport optax\n"


@pytest.fixture(scope="module")
def worker(repository: Path) -> types.SimpleNamespace:
    """The worker's modules, loaded as they are in the user's interpreter."""
    name = "_jax_pmap_worker"
    package = types.ModuleType(name)
    package.__path__ = [str(repository / "generator" / "jax_pmap" / "worker")]
    before = sys.modules.get(name)
    sys.modules[name] = package
    loaded = types.SimpleNamespace(
        guess=importlib.import_module(f"{name}.guess"), specs=importlib.import_module(f"{name}.specs")
    )
    if before is not None:
        sys.modules[name] = before
    return loaded


def question(code: str, name: str, given: dict[str, Spec], replicated: tuple[str, ...] = ()) -> InputSearch:
    source = Source(name, Path("/m.py"), "m.py", "m", Path("/"), name, HEAD + textwrap.dedent(code))
    parsed = parse(source)
    return input_search(parsed, read(source, parsed), given, replicated)


def namespace_of(code: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    exec(compile(HEAD + textwrap.dedent(code), "m.py", "exec", dont_inherit=True), namespace)
    return namespace


def parts(asked: InputSearch) -> tuple[Any, ...]:
    return asked.request.parameters, asked.request.readings


def found(worker: types.SimpleNamespace, code: str, name: str, *given: str, **more: Any) -> InputsFound:
    """The worker's answer, after checking that what it found really runs."""
    specs = dict(parse_argument(text) for text in given)
    asked = question(code, name, specs, more.pop("replicated", ()))
    namespace = namespace_of(code)
    fn = more.pop("wrap", lambda fn: fn)(namespace[name])
    answer: InputsFound = worker.guess.find_inputs(fn, *parts(asked), namespaces=[namespace], **more)
    if answer.failed is None:
        values = worker.specs.materialize_arguments(answer.specs, 3, namespace)
        how = {row["name"]: row["how"] for row in asked.request.parameters}
        args = [value for key, value in values.items() if how[key] == "positional"]
        fn(*args, **{key: value for key, value in values.items() if how[key] == "keyword"})
    return answer


def lines(answer: InputsFound) -> list[str]:
    assert answer.failed is None, answer
    return [format_argument(name, answer.specs[name]) for name in answer.assumed]


# --- the text of a spec --------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "f32[64,784]",
        "i32[64]<10",
        "u8[8,3]<256",
        "bool[64]",
        "bf16[]",
        "f32[3]>=0.1<0.9",
        "mask[24]",
        "key",
        "key[8]",
        "raw_key",
        "3",
        "-2",
        "0.1",
        "1e-05",
        "True",
        "None",
        "'train'",
        "default",
        "py:jnp.tanh",
        "{x: f32[64,784], y: i32[64]<10, 'odd key': f32[]}",
        "{0: f32[2], 'x.y': f32[1]}",
        "(f32[2], i32[])",
        "(f32[2],)",
        "()",
        "[(f32[5,3], f32[3]), (f32[3,7], f32[7])]",
        "Params{w: f32[5,3], b: f32[3]}",
        "{f: py:functools.partial(max, key=lambda r: (r[0], 1)), x: f32[2]}",
    ],
)
def test_spec_round_trip(text: str) -> None:
    name, spec = parse_argument(f"batch={text}")
    assert name == "batch"
    assert format_spec(spec) == text
    assert parse_argument(format_argument("batch", spec)) == (name, spec)


def test_spec_spellings() -> None:
    assert parse_argument(" x = ( float32[ 2 , 3 ] ) ")[1] == parse_argument("x=f32[2,3]")[1]
    assert parse_argument("x=i32[4]>0<=3")[1] == {
        "kind": "array",
        "dtype": "int32",
        "shape": [4],
        "low": 1,
        "high": 4,
    }


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("batch", 5),
        ("1x=f32[2]", 0),
        ("x=", 2),
        ("x=f32", 5),
        ("x=f32(64)", 5),
        ("x=f33[64]", 2),
        ("x=f32[6 4]", 8),
        ("x=f32[a]", 6),
        ("x=f32[2", 7),
        ("x=i32[2]<1.5", 9),
        ("x=i32[2]<0", 8),
        ("x={a: f32[2]", 12),
        ("x={a: f32[2], a: f32[2]}", 14),
        ("x='abc", 2),
        ("x=train", 2),
        ("x=f32[2] f32[3]", 9),
        ("x=py:1 +", 5),
    ],
)
def test_bad_spec_marks_the_column(text: str, column: int) -> None:
    with pytest.raises(RefusalError) as caught:
        parse_argument(text)
    refusal = caught.value.refusal
    assert refusal.code == "JP006"
    assert refusal.details == (f"{text}\n{' ' * column}^",)
    assert f"column {column + 1}" in refusal.reason
    assert "f32[64,784]" in refusal.hint


# --- annotations ---------------------------------------------------------------------------


def test_jaxtyping_shares_dims() -> None:
    asked = question(
        """
        from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
        def f(w: Float[Array, "dim out"], x: Float[Array, "batch dim"], y: "Int[Array, 'batch']",
              ok: Bool[Array, "batch dim-1"], s: Float[Array, ""], t: Float[Array, "3 *batch out"],
              key: PRNGKeyArray, n: int = 3):
            return x @ w
        """,
        "f",
        {},
    )
    assert asked.specs is not None
    assert {name: format_spec(spec) for name, spec in asked.specs.items()} == {
        "w": "f32[5,3]",
        "x": "f32[24,5]",
        "y": "i32[24]<3",
        "ok": "bool[24,4]",
        "s": "f32[]",
        "t": "f32[3,24,3]",
        "key": "key",
        "n": "default",
    }
    assert asked.annotated == ("w", "x", "y", "ok", "s", "t", "key")


def test_first_dim_of_the_data_is_the_batch_when_none_is_named_so() -> None:
    code = """
        from jaxtyping import Array, Float
        def f(params: Float[Array, "dim out"], x: Float[Array, "rows dim"]):
            return x @ params
        """
    asked = question(code, "f", {})
    assert asked.specs is not None
    assert format_spec(asked.specs["x"]) == "f32[24,5]"


def test_given_arguments_win_and_defaults_stay() -> None:
    asked = question("def f(x, y=1.0, *, mode='a'): return x", "f", {"x": parse_argument("x=f32[8]")[1]})
    assert asked.specs == {
        "x": {"kind": "array", "dtype": "float32", "shape": [8]},
        "y": {"kind": "default"},
        "mode": {"kind": "default"},
    }


# --- the search ----------------------------------------------------------------------------

LINEAR = """
    def loss_fn(params, batch):
        pred = batch["x"] @ params["w"] + params["b"]
        return jnp.mean((pred - batch["y"]) ** 2)
    tx = optax.adam(1e-3)
    """
STEP = """
    def train_step(params, batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss
    """
ADAM = """
    def step(params, opt_state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss
    """
CASES = {
    "scale_by_two": ("def scale_by_two(x):\n    return x * 2", "x=f32[24,5]"),
    "scale_and_add": ("def scale_and_add(x, y):\n    return x * 2 + y", "x=f32[24,5] y=f32[24,5]"),
    "compute_fn": ("def compute_fn(x):\n    return jnp.sum(x ** 2)", "x=f32[24,5]"),
    "shard_data": (
        "def shard_data(data, num_devices):\n    return data.reshape(num_devices, -1, *data.shape[1:])",
        "data=f32[24,5] num_devices=4",
    ),
    "train_step": (
        LINEAR + STEP,
        "params={w: f32[5,3], b: f32[3]} batch={x: f32[24,5], y: f32[24,3]}",
    ),
    "step": (
        LINEAR + ADAM,
        "params={w: f32[5,3], b: f32[3]} opt_state=py:tx.init(params) batch={x: f32[24,5], y: f32[24,3]}",
    ),
    "momentum": (
        """
        @jax.jit
        def momentum(params, velocity, batch, lr):
            x, y = batch
            def loss(p):
                return jnp.mean((x @ p["w"] - y) ** 2)
            grads = jax.grad(loss)(params)
            velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
            return jax.tree.map(lambda p, v: p - lr * v, params, velocity), velocity
        """,
        "params={w: f32[5,3]} velocity={w: f32[5,3]} batch=(f32[24,5], f32[24,3]) lr=0.1",
    ),
    "mlp": (
        """
        def predict(params, x):
            for w, b in params[:-1]:
                x = jnp.tanh(x @ w + b)
            w, b = params[-1]
            return x @ w + b
        def xent(params, images, labels):
            logits = predict(params, images.reshape(images.shape[0], -1))
            return -jnp.mean(jnp.sum(jax.nn.one_hot(labels, 10) * jax.nn.log_softmax(logits), axis=-1))
        def mlp(params, images, labels):
            grads = jax.grad(xent)(params, images, labels)
            return [(w - 0.1 * dw, b - 0.1 * db) for (w, b), (dw, db) in zip(params, grads)]
        """,
        "params=[(f32[192,5], f32[5]), (f32[5,10], f32[10])] images=f32[24,8,8,3] labels=i32[24]<3",
    ),
    "two_layers": (
        """
        def two_layers(params, batch):
            def loss(params):
                h = jax.nn.relu(batch["x"] @ params["w1"] + params["b1"])
                return jnp.mean((h @ params["w2"] + params["b2"] - batch["y"]) ** 2)
            return jax.grad(loss)(params)
        """,
        "params={w1: f32[5,3], b1: f32[3], w2: f32[3,7], b2: f32[7]} batch={x: f32[24,5], y: f32[24,7]}",
    ),
    "rmse": (
        "def rmse(pred, target):\n    return jnp.sqrt(jnp.mean((pred - target) ** 2))",
        "pred=f32[24,5] target=f32[24,5]",
    ),
    "accuracy": (
        "def accuracy(logits, labels):\n    return jnp.mean(jnp.argmax(logits, -1) == labels)",
        "logits=f32[24,5] labels=i32[24]<3",
    ),
    "cross_entropy": (
        """
        def cross_entropy(logits, y):
            hot = jax.nn.one_hot(y, logits.shape[-1])
            return -jnp.mean(jnp.sum(hot * jax.nn.log_softmax(logits), -1))
        """,
        "logits=f32[24,5] y=i32[24]<3",
    ),
    "sgd": ("def sgd(w, g, lr):\n    return w - lr * g", "w=f32[3,5] g=f32[3,5] lr=0.1"),
    "masked": (
        "def masked(x, mask):\n    return jnp.sum(x * mask) / jnp.sum(mask)",
        "x=f32[24,5] mask=mask[24,5]",
    ),
    "attention": (
        """
        def attention(query, key, value):
            a = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", query, key))
            return jnp.einsum("bhqk,bkhd->bqhd", a, value)
        """,
        "query=f32[24,5,3,7] key=f32[24,5,3,7] value=f32[24,5,3,7]",
    ),
    "project": ("def project(x, w):\n    return jnp.einsum('bsd,dh->bsh', x, w)", "x=f32[24,5,3] w=f32[3,7]"),
    "noisy": ("def noisy(x, key):\n    return x + jax.random.normal(key, x.shape)", "x=f32[24,5] key=key"),
    "embedded": (
        "def embedded(params, tokens):\n    return params['table'][tokens].mean(1) @ params['out']",
        "params={table: f32[3,5], out: f32[5,6]} tokens=i32[24,7]<3",
    ),
    "moded": (
        "def moded(x, mode):\n    return x * 2 if mode == 'double' else x",
        "x=f32[24,5] mode='double'",
    ),
    "flagged": (
        "def flagged(x, train):\n    if train:\n        return x * 2\n    return x",
        "x=f32[24,5] train=True",
    ),
    "activated": (
        "def activated(x, activation):\n    return activation(x)",
        "x=f32[24,5] activation=py:jnp.tanh",
    ),
    "divergence": (
        "def divergence(p, q):\n    return jnp.sum(p * (jnp.log(p) - jnp.log(q)))",
        "p=f32[24,5]>=0.1<0.9 q=f32[24,5]>=0.1<0.9",
    ),
    "positions": (
        "def positions(params, batch):\n    return batch[0] @ params[0] + params[1] - batch[1]",
        "params=(f32[5,3], f32[3]) batch=(f32[24,5], f32[24,3])",
    ),
    "images_only": (
        "def images_only(x):\n    b, h, w, c = x.shape\n    return x.mean((1, 2))",
        "x=f32[24,8,8,3]",
    ),
    "record": (
        """
        from typing import NamedTuple
        class Params(NamedTuple):
            w: jax.Array
            b: jax.Array
        def record(params: Params, x: jax.Array, n: int, s: float):
            return (x @ params.w + params.b) * n * s
        """,
        "params=Params{w: f32[5,3], b: f32[3]} x=f32[24,5] n=3 s=0.7",
    ),
    "chosen": (
        """
        def chosen(logits, act):
            if not jnp.issubdtype(act.dtype, jnp.integer):
                raise TypeError("an index is a whole number")
            return jnp.take_along_axis(jax.nn.log_softmax(logits), act[:, None], -1).mean()
        """,
        "logits=f32[24,5] act=i32[24]<3",
    ),
    "keyword": ("def keyword(x, *, temperature):\n    return x / temperature", "x=f32[24,5] temperature=0.7"),
    "teacher": (
        """
        def net(w, x):
            return jnp.tanh(x @ w["a"] + w["b"]) @ w["c"]
        def teacher(student, fixed, x):
            def loss(student):
                return jnp.mean((net(student, x) - net(fixed, x)) ** 2)
            return jax.grad(loss)(student)
        """,
        "student={a: f32[5,3], b: f32[3], c: f32[3,7]} "
        "fixed={a: f32[5,6], b: f32[6], c: f32[6,7]} x=f32[24,5]",
    ),
    "joined": (
        """
        def joined(critic, batch):
            def loss(critic):
                both = jnp.concatenate([batch["obs"], batch["move"]], -1)
                values = (both @ critic["w"])[:, 0]
                return jnp.mean((values - batch["reward"]) ** 2)
            return jax.grad(loss)(critic)
        """,
        "critic={w: f32[10,3]} batch={obs: f32[24,5], move: f32[24,5], reward: f32[24]}",
    ),
    "halves": (
        """
        def halves(w, x):
            one, other = jnp.split(x, 2, -1)
            return (jnp.tanh(one @ w) - other).mean()
        """,
        "w=f32[6,6] x=f32[24,12]",
    ),
    "carried": (
        """
        def carried(p, tokens):
            def cell(h, token):
                h = jnp.tanh(h @ p["w"] + jnp.take(p["table"], token, axis=0))
                return h, h @ p["table"].T
            return jax.lax.scan(cell, jnp.zeros((tokens.shape[0], 6)), tokens.T)
        """,
        "p={w: f32[6,6], table: f32[9,6]} tokens=i32[24,5]<3",
    ),
    "gated": (
        """
        def gated(p, xs, ys):
            def cell(carry, x):
                h, c = carry
                i, f, g, o = jnp.split(x @ p["wx"] + h @ p["wh"] + p["b"], 4, -1)
                c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
                return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None
            start = jnp.zeros((xs.shape[0], p["wh"].shape[0]))
            (h, _), _ = jax.lax.scan(cell, (start, start), xs.swapaxes(0, 1))
            return jnp.mean(((h @ p["out"])[:, 0] - ys) ** 2)
        """,
        "p={wh: f32[3,12], wx: f32[3,12], b: f32[12], out: f32[3,7]} xs=f32[24,5,3] ys=f32[24]",
    ),
    "made_inside": (
        """
        def made_inside(params, state, x):
            tx = optax.chain(optax.clip(1.0), optax.adam(1e-3))
            grads = jax.grad(lambda p: jnp.mean((x @ p["w"]) ** 2))(params)
            updates, state = tx.update(grads, state, params)
            return optax.apply_updates(params, updates), state
        """,
        "params={w: f32[5,3]} "
        "state=py:optax.chain(optax.clip(1.0), optax.adam(0.001)).init(params) x=f32[24,5]",
    ),
    "averaged": (
        """
        def averaged(w, mom, x):
            grads = jax.grad(lambda w: jnp.mean((x @ w["a"]) ** 2))(w)
            mom = jax.tree.map(lambda m, g: 0.9 * m + g, mom, grads)
            return jax.tree.map(lambda p, m: p - 0.1 * m, w, mom), mom
        """,
        "w={a: f32[5,3]} mom={a: f32[5,3]} x=f32[24,5]",
    ),
    "convolved": (
        """
        def convolved(params, images):
            y = jax.lax.conv_general_dilated(images, params["kernel"], (1, 1), "SAME",
                                             dimension_numbers=("NHWC", "HWIO", "NHWC"))
            return jax.nn.relu(y + params["bias"]).mean((1, 2)) @ params["w"]
        """,
        "params={kernel: f32[3,3,3,5], bias: f32[5], w: f32[5,7]} images=f32[24,8,8,3]",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_search(worker: types.SimpleNamespace, name: str) -> None:
    code, expected = CASES[name]
    answer = found(worker, textwrap.dedent(code), name)
    assert " ".join(lines(answer)) == expected
    assert answer.tried <= (80 if name == "gated" else 40)


def test_collectives_in_the_body_trace_under_the_callers_axis(worker: types.SimpleNamespace) -> None:
    import jax

    def bind(fn: Any) -> Any:
        return lambda *args: jax.vmap(lambda _: fn(*args), axis_name="devices", axis_size=1, in_axes=None)(0)

    code = """
        def scale_and_sum(x):
            print("tracing")
            return x * 2, jax.lax.psum(jnp.sum(x * 2), axis_name="devices")
        """
    assert lines(found(worker, code, "scale_and_sum", wrap=bind)) == ["x=f32[24,5]"]


def test_a_network_of_many_widths(worker: types.SimpleNamespace) -> None:
    layers = "".join(f"    x = jnp.tanh(x @ p['w{i}'] + p['b{i}'])\n" for i in range(20))
    answer = found(worker, f"def deep(p, x):\n{layers}    return x.mean()", "deep")
    [weights, _] = lines(answer)
    assert len(set(re.findall(r"w\d+: f32\[\d+,(\d+)\]", weights))) == 20


def test_given_arrays_set_the_sizes(worker: types.SimpleNamespace) -> None:
    code = "def f(x, y):\n    return jnp.where(x > 0, x, y)"
    assert lines(found(worker, code, "f", "x=f32[64,7]")) == ["y=f32[64,7]"]


def test_replicated_arguments_get_no_batch_axis(worker: types.SimpleNamespace) -> None:
    code = "def f(x, y):\n    return x * 2 + y"
    assert lines(found(worker, code, "f", replicated=("y",))) == ["x=f32[24,5]", "y=f32[5]"]


def test_what_the_user_prints_stays_out_of_the_way(
    worker: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "def f(x):\n    print('tracing')\n    return x"
    asked = question(code, "f", {})
    worker.guess.find_inputs(namespace_of(code)["f"], *parts(asked))
    assert capsys.readouterr().out == ""


def test_search_restores_what_it_replaced(worker: types.SimpleNamespace) -> None:
    import jax

    before = (jax.grad, jax.value_and_grad, jax.jit)
    found(worker, textwrap.dedent(LINEAR + STEP), "train_step")
    assert (jax.grad, jax.value_and_grad, jax.jit) == before


def test_objects_are_named_as_what_is_missing(worker: types.SimpleNamespace) -> None:
    code = "def f(state, batch):\n    return state.apply_fn(state.params, batch['x'])"
    failed = found(worker, code, "f").failed
    assert failed is not None
    assert failed.argument == "state"
    assert "object" in failed.reason


def test_failure_carries_the_closest_error(worker: types.SimpleNamespace) -> None:
    code = "def f(x):\n    return x @ jnp.zeros((5, 4)) @ jnp.zeros((7, 7))"
    answer = found(worker, code, "f", limit=100)
    assert answer.failed.argument == "x"
    assert "dot_general" in answer.failed.error
    assert answer.tried <= 100
    broken = found(worker, "def g(x):\n    return undefined_name(x)", "g")
    assert "undefined_name" in broken.failed.error


# --- values --------------------------------------------------------------------------------


def test_values_are_in_generic_position(worker: types.SimpleNamespace) -> None:
    import jax

    make = worker.specs.materialize
    floats = make(parse_argument("x=f32[64,7]")[1], 0, {})
    assert floats.dtype == np.float32
    assert len(np.unique(floats)) == floats.size
    assert not np.array_equal(floats, make(parse_argument("x=f32[64,7]")[1], 1, {}))
    whole = make(parse_argument("x=i32[64]<10")[1], 0, {})
    assert whole.dtype == np.int32
    assert set(whole) <= set(range(10))
    assert len(set(whole)) > 1
    for size in (2, 3, 24):
        assert set(make(parse_argument(f"x=mask[{size}]")[1], 0, {})) == {0.0, 1.0}
    bounded = make(parse_argument("x=f32[64]>=0.1<0.9")[1], 0, {})
    assert bounded.min() >= 0.1
    assert bounded.max() < 0.9
    assert jax.dtypes.issubdtype(make({"kind": "key", "typed": True}, 0, {}).dtype, jax.dtypes.prng_key)
    assert make({"kind": "key", "typed": False}, 0, {}).shape == (2,)
    assert str(make(parse_argument("x=bf16[3]")[1], 0, {}).dtype) == "bfloat16"
    pair = make(parse_argument("x={a: f32[3], b: f32[3]}")[1], 0, {})
    assert not np.array_equal(pair["a"], pair["b"])


def test_arguments_of_one_call_differ_and_see_each_other(worker: types.SimpleNamespace) -> None:
    specs = dict(map(parse_argument, ["s=py:double(x)", "x=f32[3]", "y=f32[3]", "k=default"]))
    values = worker.specs.materialize_arguments(specs, 0, {"double": lambda x: 2 * x})
    assert list(values) == ["s", "x", "y"]
    assert np.array_equal(values["s"], 2 * values["x"])
    assert not np.array_equal(values["x"], values["y"])


# --- all of it together --------------------------------------------------------------------


class Worker:
    """A session that answers in this process."""

    directory = Path("/")

    def __init__(self, guess: Any, code: str, name: str) -> None:
        self.guess, self.namespace, self.name = guess, namespace_of(code), name

    def ask(self, request: SearchInputs, doing: str) -> Any:
        asked = request.parameters, request.readings
        return self.guess.find_inputs(self.namespace[self.name], *asked, namespaces=[self.namespace])


def collected(worker: types.SimpleNamespace, code: str, *texts: str) -> tuple[dict[str, Spec], list[str]]:
    source = Source("f", Path("/m.py"), "m.py", "m", Path("/"), "f", HEAD + textwrap.dedent(code))
    parsed = parse(source)
    session: Any = Worker(worker.guess, code, "f")
    return collect(session, parsed, read(source, parsed), Request("f", args=texts), lambda _: None)


def test_collect(worker: types.SimpleNamespace) -> None:
    specs, assumed = collected(worker, "def f(x, y, z=1): return x * y + z", "x=f32[8,2]")
    assert list(specs) == ["x", "y", "z"]
    assert assumed == ["y=f32[8,2]"]


def test_collect_refuses(worker: types.SimpleNamespace) -> None:
    with pytest.raises(RefusalError) as unknown:
        collected(worker, "def f(batch): return batch", "bacth=f32[8]")
    assert unknown.value.refusal.code == "JP007"
    assert "`batch`" in unknown.value.refusal.hint
    with pytest.raises(RefusalError) as missing:
        collected(worker, "def f(state): return state.step(1)")
    assert missing.value.refusal.code == "JP014"
    assert "--inputs" in missing.value.refusal.hint
    assert "f32[" not in missing.value.refusal.hint
    with pytest.raises(RefusalError) as by_keyword:
        collected(worker, "def f(x, *, config): return x * config.rate")
    assert "(args, kwargs)" in by_keyword.value.refusal.hint
    with pytest.raises(RefusalError) as gone:
        collected(worker, "def f(x): return jnp.clip(x, a_min=0.0)")
    assert "no parameter `a_min` of `jax.numpy.clip`: it is called `min`" in gone.value.refusal.hint
    with pytest.raises(RefusalError) as failed:
        collected(worker, "def f(x): return x @ jnp.zeros((5, 4)) @ jnp.zeros((7, 7))")
    assert failed.value.refusal.code == "JP014"
    assert "--arg 'x=f32[24,8]'" in failed.value.refusal.hint
    with pytest.raises(RefusalError) as nested:
        collected(worker, "def f(w): return w['a'] @ jnp.zeros((5, 4)) @ jnp.zeros((7, 7)) + w['b']")
    assert "--arg 'w={a: f32[24,8], b: f32[24,8]}'" in nested.value.refusal.hint


# --- which program calls a function -------------------------------------------------------

CALLED = "def step(model, x):\n    return model(x)\n"


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ({"m.py": CALLED}, None),
        ({"m.py": CALLED + "\nif __name__ == '__main__':\n    step(1, 2)\n"}, "python m.py"),
        ({"m.py": CALLED + "\nprint(step(1, 2))\n"}, "python m.py"),
        # A guard that runs something else.
        ({"m.py": CALLED + "\nif __name__ == '__main__':\n    print(1)\n"}, None),
        ({"m.py": CALLED, "train it.py": "import m\n\nm.step(1, 2)\n"}, "python 'train it.py'"),
        ({"m.py": CALLED, "library.py": "import m\n\ndef main():\n    m.step(1, 2)\n"}, None),
        ({"m.py": CALLED, "test_m.py": "import m\n\nm.step(1, 2)\n"}, None),
        (
            {"m.py": CALLED, "far/run.py": "from m import step\nstep(1, 2)\n", "run.py": "step(\n"},
            "python far/run.py",
        ),
    ],
)
def test_the_program_that_calls_a_function(
    tmp_path: Path, files: dict[str, str], command: str | None
) -> None:
    (tmp_path / "pyproject.toml").touch()
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    source = locate("m.py::step", tmp_path)
    assert command_of(source, tmp_path) == command
    assert command_of(source, tmp_path, own=True) == (command if command == "python m.py" else None)
