"""Functions that are equal only where each device has a multiple of some number of rows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from project import Project, simulated

SIZES = """\
import jax
import jax.numpy as jnp


def pairs(z):
    return jnp.mean((z[0::2] - z[1::2]) ** 2)


def cut(x):
    return jnp.mean(x[: len(x) // 4 * 4] ** 2)


def padded(x):
    return jnp.mean(jnp.pad(x, (0, -len(x) % 8)) ** 2)


def groups(x):
    return jnp.mean(x.reshape(4, -1) ** 2)


def thirds(z):
    return jnp.mean(z[2::3] * z[::3])


def p_cut(x):
    return jax.lax.pmean(jnp.mean(x[: len(x) // 4 * 4] ** 2), "batch")


parallel = jax.pmap(p_cut, "batch", out_axes=None)


def drop_in(x):
    return parallel(x.reshape(jax.device_count(), -1))


def p_padded(x):
    rows = jax.lax.psum(len(x), "batch")
    return jax.lax.psum(jnp.sum(x**2), "batch") / rows


padded_by_nobody = jax.pmap(p_padded, "batch", out_axes=None)


def pooled(x):
    return jnp.mean(x.reshape(len(x) // 4, -1), axis=1)


def positive(x):
    return jnp.sum(x > 0, dtype=jnp.float16) / len(x)
"""
CALL = """\
import numpy as np
import sizes, sizes_pmap

x = np.arange(192.0) ** 2
assert np.allclose(sizes_pmap.{name}(x), sizes.{name}(x))
sizes_pmap.{name}(x[:40])
"""


@pytest.fixture
def sizes(project: Project) -> Project:
    project.write("sizes.py", SIZES)
    return project


@pytest.mark.parametrize(
    ("name", "backend", "multiple", "line"),
    [
        ("pairs", "pmap", 2, [6]),
        ("pairs", "shard_map", 2, [6]),
        ("cut", "pmap", 4, []),
        # On three devices, whose 32 rows do not suit it, the code does not even run.
        ("thirds", "pmap", 3, [22]),
        ("padded", "pmap", 8, []),
        # On shares of 6 rows it would be one group of 6.
        ("pooled", "pmap", 4, [45]),
    ],
)
def test_the_code_refuses_other_batches(
    sizes: Project, name: str, backend: str, multiple: int, line: list[int]
) -> None:
    argument = "x" if name in ("cut", "padded", "pooled") else "z"
    given = ("gen", f"sizes.py::{name}", "--arg", f"{argument}=f32[96]")
    made = sizes.run(*given, "--backend", backend, "--output-format", "json")
    assert made.exit_code == 0, made.stderr
    document = json.loads(made.stdout)
    derivation = document["evidence"]["derivation"]
    assert (derivation["complete"], derivation["multiple"]) == (True, multiple)
    assert [span["line"] for span in derivation["multiple_for"][:1]] == line
    assert document["plan"]["multiple_of"] == multiple
    assert document["evidence"]["checks"]
    assert f"batches give each device a multiple of {multiple} rows" in document["code"]
    Path("sizes_pmap.py").write_text(document["code"])
    Path("call.py").write_text(CALL.format(name=name))
    ran = subprocess.run([sys.executable, "call.py"], env=simulated(8), capture_output=True, text=True)
    words = " ".join(ran.stderr.split())
    assert f"[40]; expected float of rank 1, axis 0 a multiple of {8 * multiple} ({multiple} for" in words


def test_the_report_names_the_line(sizes: Project) -> None:
    made = sizes.run("gen", "sizes.py::pairs", "--arg", "z=f32[96]", "--no-run")
    assert made.exit_code == 0, made.stderr
    assert "each device takes a multiple of 2 rows (sizes.py:6), which the code checks" in made.words


@pytest.mark.parametrize(("name", "options"), [("groups", ()), ("cut", ("--backend", "jit"))])
def test_others_take_any_number(sizes: Project, name: str, options: tuple[str, ...]) -> None:
    """What raises by itself on other sizes, and what has no shares."""
    made = sizes.run(
        "gen", f"sizes.py::{name}", "--arg", "x=f32[96]", "--no-run", *options, "--output-format", "json"
    )
    assert made.exit_code == 0, made.stderr
    derivation = json.loads(made.stdout)["evidence"]["derivation"]
    assert (derivation["complete"], derivation["multiple"]) == (True, 1)


def test_uneven_batches_stay_errors(sizes: Project) -> None:
    says = ("a multiple of 2 rows", "Leave --remainder out")
    sizes.refused(
        "JP060", "gen", "sizes.py::pairs", "--arg", "z=f32[96]", "--remainder", "drop", says=says, exit_code=1
    )


def test_code_of_others_checks_nothing(sizes: Project) -> None:
    found = sizes.run("verify", "sizes.py::drop_in", "--against", "sizes.py::cut", "--arg", "x=f32[96]")
    assert "derived for all inputs and device counts" not in found.words


def test_a_batch_that_is_no_multiple_of_8_is_tried(sizes: Project) -> None:
    args = ("--against", "sizes.py::padded", "--arg", "x=f32[96]")
    says = ["on 3 devices", "with a batch of 93"]
    sizes.refused("JP045", "verify", "sizes.py::padded_by_nobody", *args, says=says, exit_code=1)


def test_an_edited_file_refuses_them_too(sizes: Project) -> None:
    made = sizes.run("gen", "sizes.py::pairs", "--arg", "z=f32[96]", "--in-place")
    assert made.exit_code == 0, made.stderr
    assert "shape[0] % (2 * count):" in Path("sizes.py").read_text()


@pytest.mark.parametrize("backend", ["pmap", "shard_map"])
def test_the_code_refuses_other_ranks(project: Project, backend: str) -> None:
    """With `y` of (B, 1) `x - y` is (B, B), and the mean of the shares is not that of the whole."""
    code = "import jax.numpy as jnp\n\n\ndef f(x, y):\n    return jnp.mean((x - y) ** 2)\n"
    project.write("sizes.py", code)
    made = project.run(
        "gen", "sizes.py::f", "--arg", "x=f32[24]", "--arg", "y=f32[24]", "--backend", backend,
        "-o", "sizes_pmap.py",
    )  # fmt: skip
    assert made.exit_code == 0, made.stderr
    Path("call.py").write_text(
        "import numpy as np\nimport sizes, sizes_pmap\n\nx = np.arange(24.0)\n"
        "assert np.allclose(sizes_pmap.f(x, x + 1), 1.0)\nsizes_pmap.f(x, x[:, None])\n"
    )
    ran = subprocess.run([sys.executable, "call.py"], env=simulated(8), capture_output=True, text=True)
    assert "f: y is float[24, 1]; expected float of rank 1" in ran.stderr


POOLS = """\
import jax.numpy as jnp
import numpy as np


def pooled(w, x):
    return jnp.mean((x.reshape(-1, 4, x.shape[-1]).mean(axis=1) @ w) ** 2)


def inputs(): return jnp.ones(3), np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
def few(): return jnp.ones(3), inputs()[1][:4]
"""
CALL_POOLS = """\
import numpy as np
import pools, pools_pmap

w, x = pools.inputs()
x = np.concatenate([x, x + 1])
assert np.allclose(pools_pmap.pooled(w, x), pools.pooled(w, x))
pools_pmap.pooled(w, x[:24])
"""


SEQUENCES = """\
import jax
import jax.numpy as jnp
import numpy as np


def step(state, batch):
    def loss(p):
        x = p["embed"][batch["tokens"]] + p["positions"]
        seen = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        weights = jax.nn.softmax(jnp.where(seen, x @ x.swapaxes(1, 2), -1e9))
        logits = jax.nn.log_softmax(weights @ x @ p["embed"].T)
        each = jnp.take_along_axis(logits, batch["targets"][..., None], 2)[..., 0]
        return -jnp.sum(each * batch["mask"]) / jnp.sum(batch["mask"])

    value, grads = jax.value_and_grad(loss)(state["params"])
    params = jax.tree.map(lambda a, b: a - 0.1 * b, state["params"], grads)
    return {"params": params, "step": state["step"] + 1}, value


def few():
    draw = np.random.default_rng(0)
    params = {"embed": draw.normal(size=(20, 4)), "positions": draw.normal(size=(16, 4))}
    state = {"params": jax.tree.map(jnp.asarray, params), "step": jnp.int32(0)}
    tokens, targets = jnp.asarray(draw.integers(0, 20, (2, 4, 16)))
    return state, {"tokens": tokens, "targets": targets, "mask": (tokens > 2).astype("f")}
"""


def test_a_few_sequences_are_repeated_where_their_positions_are_no_batch(project: Project) -> None:
    project.write("sequences.py", SEQUENCES)
    made = project.run("gen", "sequences.py::step", "--inputs", "sequences.py::few")
    assert made.exit_code == 0, made.stderr
    assert "its rows are repeated, to 96" in made.words


def test_rows_are_repeated_until_the_shares_suit_the_function(project: Project) -> None:
    project.write("pools.py", POOLS)
    made = project.run("gen", "pools.py::pooled", "--inputs", "pools.py::few", "-o", "pools_pmap.py")
    assert made.exit_code == 0, made.stderr
    assert "its rows are repeated, to 96" in made.words
    done = subprocess.run(
        [sys.executable, "-c", CALL_POOLS],
        cwd=project.folder,
        env=simulated(4),
        capture_output=True,
        text=True,
    )
    assert "axis 0 a multiple of 16 (4 for each of the devices)" in done.stderr


ONE_ROW = """\
import jax
import jax.numpy as jnp
import numpy as np


def step(params, tokens, mask):
    def loss_fn(params):
        hidden = jax.vmap(lambda row: jnp.tanh(params["table"][row] @ params["w"]))(tokens)
        return jnp.sum(hidden.mean(-1) * mask) / jnp.sum(mask)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def inputs():
    normal = np.random.default_rng(0).normal
    params = {"table": normal(size=(16, 8)).astype("float32"), "w": normal(size=(8, 8)).astype("float32")}
    return params, np.arange(8)[None], np.ones((1, 8), "float32")
"""


def test_one_example_is_a_batch_of_one_row(project: Project) -> None:
    """Nothing else is divided in its place: positions, of which there are as many as devices, or columns."""
    project.write("one.py", ONE_ROW)
    made = project.run("gen", "one.py::step", "--inputs", "one.py::inputs")
    assert made.exit_code == 0, made.stderr
    assert "the batch of 1 in the inputs has too few rows" in made.words
    assert "tokens batch axis 0 i32[24,8]" in made.words


def test_minibatches_of_a_shuffled_batch_need_rows_for_each(project: Project) -> None:
    """Each device works on its part of every minibatch: on some batches on three devices alone."""
    code = """\
import jax
import jax.numpy as jnp


def epochs(w, hidden, x, key):
    def epoch(w, key):
        order = jax.random.permutation(key, x.shape[0])
        minibatches = x[order].reshape(4, -1, x.shape[1])

        def step(w, rows):
            return w - 0.1 * jax.grad(lambda w: jnp.mean((jnp.tanh(rows @ hidden) @ w - 1) ** 2))(w), None

        return jax.lax.scan(step, w, minibatches)[0], None

    return jax.lax.scan(epoch, w, jax.random.split(key, 2))[0]
"""
    project.write("epochs.py", code)
    shapes = {"w": "f32[62]", "hidden": "f32[30,62]", "x": "f32[192,30]", "key": "key"}
    given = [word for name, shape in shapes.items() for word in ("--arg", f"{name}={shape}")]
    asked = ("--shard", "x", "--no-run", "--output-format", "json")
    made = project.run("gen", "epochs.py::epochs", *given, *asked)
    assert made.exit_code == 0, made.stderr
    document = json.loads(made.stdout)
    derivation = document["evidence"]["derivation"]
    assert (derivation["complete"], derivation["multiple"]) == (True, 4)
    # The batch alone is gathered, and each device goes on with its part of the minibatches.
    syncs = [(sync["op"], sync["value"]) for sync in document["plan"]["syncs"]]
    assert [value for op, value in syncs if op == "all_gather"] == ["x"]
    assert [value for op, value in syncs if op == "own_share"] == ["x[order].reshape(4, -1, x.shape[1])"]


def test_a_queue_that_holds_few_batches_asks_for_no_multiple(shared: Project) -> None:
    """Twice the given batch finds no room in it, and as many rows as columns give each of 8 devices one."""
    source = """\
import jax
import jax.numpy as jnp
import numpy as np


def loss(w, queue, x):
    scores = jnp.tanh(x @ w).reshape(int(np.prod(x.shape[:1])), 8) @ queue.T
    labels = jnp.zeros(scores.shape[0], dtype=int)
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], axis=-1).mean()


def enqueued(w, queue, at, x):
    keys = jnp.tanh(x @ w)
    w = w - 0.1 * jax.grad(loss)(w, queue, x)
    queue = jax.lax.dynamic_update_slice(queue, keys, (at, 0))
    return w, queue, (at + x.shape[0]) % queue.shape[0]
"""
    shared.write("contrast.py", source)
    given = {"w": "f32[6,8]", "queue": "f32[40,8]", "at": "i32[]", "x": "f32[24,6]"}
    words = [word for name, spec in given.items() for word in ("--arg", f"{name}={spec}")]
    made = shared.run("gen", "contrast.py::enqueued", *words, "--no-run")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs and device counts" in made.words
    assert "takes a multiple of" not in made.words
    assert "with 1 row on a device the function works in another way" in made.words


def test_a_search_in_as_many_rounds_as_the_rows_ask_for_takes_every_batch_but_of_few(shared: Project) -> None:
    """On some devices a batch of 24 gives each so few rows that the code refuses it: it is held on others."""
    source = """\
import jax
import jax.numpy as jnp


def resampled(points, logits):
    rows = points.shape[0]
    weights = jax.nn.softmax(logits)
    at = (jnp.arange(rows) + 0.5) / rows
    chosen = jnp.searchsorted(jnp.cumsum(weights), at)
    return jnp.tanh(points[chosen]).mean(axis=0)
"""
    shared.write("particles.py", source)
    words = ("gen", "particles.py::resampled", "--arg", "points=f32[48,3]", "--arg", "logits=f32[48]")
    made = shared.run(*words, "--shard", "logits", "--no-run")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs and device counts" in made.words
    assert "takes a multiple of" not in made.words
    assert "with 1 to 3 rows on a device the function works in another way" in made.words


ENSEMBLE = """\
import jax.numpy as jnp


def loss(logits, labels):
    return jnp.mean((logits - jnp.repeat(labels, 3, axis=0)) ** 2)


def by_count(logits, labels):
    times = max(len(logits) // len(labels), 1)
    return jnp.mean((logits - jnp.repeat(labels, times, axis=0)) ** 2)


def of_groups(logits, labels):
    return loss(logits.reshape(-1, *logits.shape[2:]), labels)
"""


def test_several_rows_for_each_example_are_handed_in_by_another_axis(project: Project) -> None:
    project.write("ensemble.py", ENSEMBLE)
    given = (
        "--arg",
        "logits=f32[72,5]",
        "--arg",
        "labels=f32[24,5]",
        "--shard",
        "logits",
        "--shard",
        "labels",
    )
    says = (
        "`logits` (72, 5), `labels` (24, 5)",
        "take `logits` as (24, 3, 5)",
        "and hand on `logits.reshape(-1, *logits.shape[2:])`",
    )
    project.refused("JP041", "gen", "ensemble.py::loss", *given, says=says, exit_code=1)
    # So it says where nobody named the batch, and the function fails on a share of one of them.
    project.refused("JP068", "gen", "ensemble.py::loss", *given[:4], says=says[1:], exit_code=1)
    # And where it counts them, so that a share of one fails in no shape.
    project.refused("JP043", "gen", "ensemble.py::by_count", *given[:4], says=says[1:], exit_code=1)
    given = ("--arg", "logits=f32[24,3,5]", "--arg", "labels=f32[24,5]", "--no-run")
    made = project.run("gen", "ensemble.py::of_groups", *given)
    assert "derived for all inputs and device counts" in made.words


WRITTEN = """\
import jax
import jax.numpy as jnp


def advantages(w, x, rewards, group_size=4):
    hidden = jnp.tanh(x @ jnp.ones((x.shape[1], 16)))
    groups = rewards.reshape(-1, group_size)
    groups = (groups - groups.mean(1, keepdims=True)) / (groups.std(1, keepdims=True) + 1e-4)
    return jax.grad(lambda w: jnp.mean(groups.reshape(-1) * (hidden @ w)))(w)


def top_k(w, x):
    def loss(w):
        hidden = x @ w
        values, chosen = jax.lax.top_k(hidden, 2)
        codes = jnp.zeros_like(hidden).at[jnp.arange(len(x))[:, None], chosen].set(jax.nn.relu(values))
        return jnp.mean((codes @ w.T - x) ** 2)

    return jax.grad(loss)(w)


def in_order(w, x):
    hidden = x @ w
    return jnp.mean(hidden.at[jnp.argsort(hidden.sum(1)), 0].set(0.0) ** 2)
"""


def test_a_number_in_the_code_is_no_size_that_devices_do_not_share(project: Project) -> None:
    """A batch of 16, which is a width here, gives 8 devices no groups of four."""
    project.write("written.py", WRITTEN)
    given = ("--arg", "w=f32[16]", "--arg", "x=f32[96,3]", "--arg", "rewards=f32[96]", "--no-run")
    made = project.run("gen", "written.py::advantages", *given)
    assert "each device takes a multiple of 4 rows" in made.words


def test_the_last_of_several_writes_is_each_examples_own(project: Project) -> None:
    project.write("written.py", WRITTEN)
    given = ("--arg", "w=f32[6,6]", "--arg", "x=f32[24,6]")
    made = project.run("gen", "written.py::top_k", *given)
    assert "derived for all inputs and device counts" in made.words
    assert "pmean jax.grad(loss)(w)" in made.words
    says = ("`hidden.at[jnp.argsort(hidden.sum(1)), 0].set(0.0)` couples the examples",)
    project.refused("JP043", "gen", "written.py::in_order", *given, says=says, exit_code=1)


def test_sizes_that_floats_of_few_bits_round_are_no_multiples(shared: Project) -> None:
    shared.write("sizes.py", SIZES)
    made = shared.run("gen", "sizes.py::positive", "--arg", "x=f32[24]")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs" in made.words
    assert "multiple of" not in made.words


PREFERENCES = """
import jax
import jax.numpy as jnp


def score(w, ids):
    h = jnp.tanh(w[ids])
    return (h[:, :-1] * h[:, 1:]).sum((-2, -1))


def preference(w, ids, reference):
    scores = score(w, ids.reshape(-1, ids.shape[-1]))
    size = len(reference)
    return -jax.nn.log_sigmoid(scores[:size] - scores[size:] - reference).mean()


def of_both(w, ids, reference):
    scores = score(w, ids)
    size = len(reference)
    return -jax.nn.log_sigmoid(scores[:size] - scores[size:] - reference).mean()
"""


def test_rows_of_one_example_that_lie_apart_are_handed_in_by_another_axis(project: Project) -> None:
    """Preferred answers, and behind all of them the others: along what is in a row, much is gathered."""
    project.write("preferences.py", PREFERENCES)
    given = ("--arg", "w=f32[9,9]", "--arg", "reference=f32[24]")
    found = project.run("plan", "preferences.py::of_both", *given, "--arg", "ids=i32[48,16]<9")
    assert found.exit_code == 0, found.stderr
    said = "take `ids` as (24, 2, 16), or as (2, 24, 16) where those of one example are not neighbours"
    assert said in found.words
    found = project.run("gen", "preferences.py::preference", *given, "--arg", "ids=i32[2,24,16]<9")
    assert found.exit_code == 0, found.stderr
    assert "ids batch axis 1" in found.words and "all_gather" not in found.words
