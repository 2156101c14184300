"""Batches that the devices do not share evenly: padded where that is neutral, cut where that is asked."""

import json
import subprocess
import sys

import pytest
from project import simulated

FUNCTIONS = """
import jax
import jax.numpy as jnp


def masked(w, batch):
    def loss_fn(w):
        error = (batch["x"] @ w - batch["y"]) ** 2
        return jnp.sum(error * batch["mask"]) / jnp.sum(batch["mask"])

    loss, grad = jax.value_and_grad(loss_fn)(w)
    return w - 0.1 * grad, loss


def counted(x, mask):
    return jnp.sum(x * mask[:, None]) / x.shape[0]


def mean(x):
    return jnp.mean(x, axis=0)


def outliers(x, mask):
    # Of the given rows none is so far out: another last one would be counted with each that is added.
    return jnp.sum(x * mask[:, None]) / jnp.sum(mask) + jnp.sum(jnp.abs(x) > 30)


def noisy(key, x, mask):
    return jnp.sum((x + jax.random.normal(key, x.shape)) * mask[:, None]) / jnp.sum(mask)


def kept(x, mask):
    kept = mask[:, None] > 0
    of_length_1 = x[:, 0] / jnp.linalg.norm(x[:, 0] * mask)
    return jnp.mean(x, 0, where=kept), jnp.var(x, where=kept), jnp.average(x[:, 0], weights=mask), of_length_1


def normed(x, mask):
    return jnp.sum(x * mask[:, None]) / jnp.linalg.norm(x)


def kept_and_all(x, mask):
    return jnp.mean(x, where=mask[:, None] > 0), jnp.std(x)


def worst(x, mask):
    return jnp.max(x * mask[:, None])


def centred(x):
    return x - jnp.mean(x)


def moved(x, y):
    return y + jnp.mean(x), jnp.mean(x * y[:, None])


def each(w, x, y):
    return jnp.tanh(x @ w), w, y * 2


def rated(w, x, mask):
    # Of a batch of 999 rows 8 devices get 1000.
    return x @ w * mask * (1.0 if x.shape[0] < 1000 else 2.0)


def stepped(x, mask):
    return jnp.sum(x * mask[:, None]) / jnp.sum(mask) * max(len(x), 500)


def of_one(w, x):
    return jnp.squeeze(x @ w[:, None])


def make(seed=0):
    key = jax.random.key(seed)
    x = jax.random.normal(key, (24, 3))
    mask = (jnp.arange(24) % 5 > 0).astype(jnp.float32)
    return x[0], {"x": x, "y": x[:, 1], "mask": mask}
"""
X, MASK = "x=f32[24,3]", "mask=mask[24]"
RATED = ("rated", "--arg", "w=f32[3]", "--arg", X, "--arg", MASK)


def run(project, *words):
    project.write("fns.py", FUNCTIONS)
    return project.run("gen", *words)


def test_added_rows_count_for_nothing(shared):
    """A masked training step: proved on uneven batches, then run on sizes down to one row."""
    sizes = {"pmap": [1, 2, 7, 8, 23], "jit": [1, 7, 23]}
    for backend in sizes:
        options = ("--inputs", "fns.py::make", "--remainder", "pad", "--backend", backend)
        result = run(shared, "fns.py::masked", *options)
        assert result.exit_code == 0, result.stderr
        assert "# Uneven batch: rows are added, with batch['mask'] zero in them; proved" in result.stdout
        assert "derived for all inputs" in result.stdout
        (shared.folder / f"by_{backend}.py").write_text(result.stdout)
    program = f"""
import importlib, jax, json, fns
w, batch = fns.make()
errors = []
for backend, sizes in {sizes}.items():
    for size in sizes:
        part = jax.tree.map(lambda leaf: leaf[:size] if size > 1 else leaf[3:4], batch)
        got = importlib.import_module("by_" + backend).masked(w, part)
        errors.append(max(float(abs(a - b).max()) for a, b in zip(got, fns.masked(w, part))))
print(json.dumps(errors))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=shared.folder, env=simulated(4), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert max(json.loads(done.stdout)) < 1e-5


def test_means_of_what_is_kept_are_those_of_the_rows_that_there_are(shared):
    result = run(shared, "fns.py::kept", "--arg", X, "--arg", MASK, "--remainder", "pad", "-o", "kept_all.py")
    assert result.exit_code == 0, result.stderr
    assert "derived for all inputs" in result.stderr
    program = """
import fns, jax.numpy as jnp, kept_all
_, batch = fns.make()
for size in (1, 7, 23):
    x, mask = batch["x"][1 : 1 + size], batch["mask"][1 : 1 + size]
    assert kept_all.kept(x, mask)[3].shape == (size,)
    assert all(jnp.allclose(a, b, atol=1e-6) for a, b in zip(kept_all.kept(x, mask), fns.kept(x, mask)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=shared.folder, env=simulated(4), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_results_of_examples_are_cut_to_the_batch(shared):
    arguments = ("--arg", "w=f32[3]", "--arg", X, "--arg", "y=f32[24]")
    result = run(shared, "fns.py::each", *arguments, "--remainder", "pad", "--replicate", "w")
    assert result.exit_code == 0, result.stderr
    assert "rows are added, which are cut off again" in result.stdout
    assert "x, y, rows = fit(x, y)" in result.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("mean", "--arg", X), "counts every row of the batch (pmean)"),
        (("mean", "--arg", X), "`mask`, `weights`, `valid` or `w`, or as in `loss_mask`"),
        (("centred", "--arg", X), "counts every row of the batch"),
        (
            ("counted", "--arg", X, "--arg", MASK),
            "with --remainder pad and a batch of 23 the added rows count",
        ),
        (
            ("outliers", "--arg", X, "--arg", MASK),
            "with --remainder pad and a batch of 23 the added rows count",
        ),
        (("noisy", "--arg", X, "--arg", MASK), "`key` draws numbers for the rows"),
        (("worst", "--arg", X, "--arg", MASK), "is made whole by pmax"),
        (("kept_and_all", "--arg", X, "--arg", MASK), "the added rows count"),
        (RATED, "for a batch of 999 than for one of 1,000"),
        ((*RATED, "--devices", "8"), "than for one of 1,000"),
        ((*RATED, "--backend", "jit"), "than for one of 1,000"),
        (("stepped", "--arg", X, "--arg", MASK), "added to an uneven batch may make it the other function"),
        (("normed", "--arg", X, "--arg", MASK), "the added rows count"),
    ],
)
def test_padding_that_is_not_neutral_is_refused(shared, words, says):
    name, *others = words
    result = run(shared, f"fns.py::{name}", *others, "--remainder", "pad")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "error[JP060]" in result.stderr
    assert says in result.words
    assert "--remainder drop" in result.words


def test_a_function_that_is_another_with_few_rows_is_padded_where_it_has_more(shared):
    result = run(shared, "fns.py::of_one", "--arg", "w=f32[3]", "--arg", X, "--remainder", "pad")
    assert result.exit_code == 0, result.stderr
    (shared.folder / "of_one_pmap.py").write_text(result.stdout)
    program = """
import jax.numpy as jnp, fns, of_one_pmap
w, x = jnp.arange(3.0), jnp.arange(51.0).reshape(17, 3)
assert abs(of_one_pmap.of_one(w, x) - fns.of_one(w, x)).max() < 1e-5
try:
    of_one_pmap.of_one(w, x[:1])
except ValueError as error:
    assert "not 1 row for a device" in str(error)
else:
    raise AssertionError
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=shared.folder, env=simulated(4), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_rows_that_a_call_returns_go_into_the_next_one_without_those_dropped(shared):
    result = run(shared, "fns.py::moved", "--arg", X, "--arg", "y=f32[24]", "--remainder", "drop")
    assert result.exit_code == 0, result.stderr


def test_the_last_rows_are_dropped_where_asked_and_said_so(shared):
    result = run(shared, "fns.py::mean", "--arg", X, "--remainder", "drop")
    assert result.exit_code == 0, result.stderr
    assert "# Uneven batch: its last rows are DROPPED" in result.stdout
    assert "--remainder drop" in result.stdout.splitlines()[1]
    assert "only the first rows are used" in result.words
    (shared.folder / "fns_pmap.py").write_text(result.stdout)
    program = """
import jax.numpy as jnp, fns, fns_pmap
x = jnp.arange(69.0).reshape(23, 3)
assert abs(fns_pmap.mean(x) - fns.mean(x[:20])).max() < 1e-5
try:
    fns_pmap.mean(x[:3])
except ValueError as error:
    assert "a batch of 3 is too small for 4 devices" in str(error)
else:
    raise AssertionError
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=shared.folder, env=simulated(4), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_an_unknown_way_is_refused(shared):
    shared.write("fns.py", FUNCTIONS)
    shared.refused("JP018", "gen", "fns.py::mean", "--remainder", "padd", says=("--remainder pad",))
