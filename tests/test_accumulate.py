"""`--accumulate`: the same step in microbatches, of masked losses too, or the line that stands in the way."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from project import Project, simulated

STEPS = """\
import jax
import jax.numpy as jnp


def masked(w, batch):
    x, y, mask = batch
    return jnp.sum((x @ w - y) ** 2 * mask) / jnp.sum(mask)


def step(w, batch):
    loss, grads = jax.value_and_grad(masked)(w, batch)
    return w - 0.1 * grads, loss


def flax_like(w, x, y, mask):
    def loss_fn(w):
        kept = mask > 0.5
        error = jnp.where(kept, (x @ w - y) ** 2, 0.0)
        count = kept.sum()
        loss = error.sum() / count + 0.1 * jnp.sum(w**2)
        return loss, {"kept": count}

    (loss, aux), grads = jax.value_and_grad(loss_fn, has_aux=True)(w)
    grads = grads / jnp.maximum(1.0, jnp.sqrt(jnp.sum(grads**2)))
    return w - 0.1 * grads, {"loss": loss, **aux, "mean": (x @ w).mean()}


def whitened(w, x, y):
    x = (x - x.mean(0)) / (x.std(0) + 1e-6)
    return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)


def clipped_inside(w, x, y):
    def loss(w):
        return jnp.minimum(jnp.mean((x @ w - y) ** 2), 1.0)

    return w - 0.1 * jax.grad(loss)(w)


def noisy(w, x, y, key):
    def loss(w):
        keep = jax.random.bernoulli(key, 0.9, x.shape)
        return jnp.mean(((x * keep) @ w - y) ** 2)

    return w - 0.1 * jax.grad(loss)(w)


def with_predictions(w, x, y):
    predicted = x @ w
    return jnp.mean((predicted - y) ** 2), predicted


def weighted(w, x, y):
    def loss(w):
        def weight():
            return y * y

        return jnp.sum((x @ w - y) ** 2) / jnp.sum(weight())

    return w - 0.1 * jax.grad(loss)(w)


def perturbed(w, x, y, key):
    def loss_fn(w):
        noisy = w + 0.1 * jax.random.normal(key, w.shape)
        return jnp.mean((x @ noisy - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(w)
    return w - 0.1 * grads, loss


def loss_and_state(w, count, batch):
    x, y, mask = batch
    kept = jnp.sum(mask)
    loss = jnp.sum((x @ w - y) ** 2 * mask) / kept
    state = {"step": count + 1, "rate": 0.1 / (1.0 + count)}
    return loss, {"loss": loss, "kept": kept, "rows": len(x), "norm": jnp.linalg.norm(w), **state}


def with_whole(w, count, batch):
    (_, aux), grads = jax.value_and_grad(loss_and_state, has_aux=True)(w, count, batch)
    return w - aux["rate"] * grads, aux


def in_a_tuple(w, x, y, count):
    def loss_fn(w):
        out = x @ w
        return jnp.mean((out - y) ** 2), (jnp.sum(out > 0), count + 1, jnp.exp(w))

    (loss, aux), grads = jax.value_and_grad(loss_fn, has_aux=True)(w)
    return w - 0.1 * grads, loss, aux


def centred(w, x, y):
    middle = y.mean()

    def loss_fn(w):
        return jnp.mean((x @ w - (y - middle)) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(w)
    return w - 0.1 * grads, loss


def sharpness(w, x, y):
    loss_of = lambda w: jnp.mean((x @ w - y) ** 2)
    first = jax.grad(loss_of)(w)
    loss, grads = jax.value_and_grad(loss_of)(w + 0.05 * first / jnp.linalg.norm(first))
    return w - 0.1 * grads, loss


def in_a_lambda(w, x, y):
    return w - 0.1 * jax.grad(lambda w: jnp.log1p(jnp.mean((x @ w - y) ** 2)))(w)


def by_rows(w, x, y):
    rate = 0.1 * min(1.0, len(x) / 256)
    return w - rate * jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)


def next_words(w, tokens, mask):
    mask, logits = mask[:, 1:], tokens[:, :-1, None] * w
    losses = jax.nn.logsumexp(logits, -1) - logits.mean(-1)
    return jnp.sum(losses * mask) / jnp.sum(mask), jnp.sum(losses * (1 - mask)) / jnp.sum(1 - mask)


def shifted(w, tokens, mask):
    (loss, rest), grads = jax.value_and_grad(next_words, has_aux=True)(w, tokens, mask)
    return w - 0.1 * grads, loss, rest


def by_kind(w, x, y):
    kind = y > 0
    ones = jnp.sum(kind)
    weight = (len(y) - ones) / jnp.maximum(ones, 1)
    return jnp.mean((x @ w - y) ** 2 * jnp.where(kind, weight, 1.0))


def balanced(w, x, y):
    loss, grads = jax.value_and_grad(by_kind)(w, x, y)
    return w - 0.1 * grads, loss


def softened(w, x, y, mask):
    mask = mask + 0.5
    loss, grads = jax.value_and_grad(masked)(w, (x, y, mask))
    return w - 0.1 * grads, loss


def called_later(w, x, y, mask):
    count = lambda: jnp.sum(mask)
    mask = mask + 0.5
    return jnp.sum((x @ w - y) ** 2 * mask) / count()


def late(w, x, y, mask):
    return w - 0.1 * jax.grad(called_later)(w, x, y, mask)
"""
COUNT = ("--arg", "count=i32[]<9")
W, X, Y = ("--arg", "w=f32[4]"), ("--arg", "x=f32[96,4]"), ("--arg", "y=f32[96]")
MASK = ("--arg", "mask=f32[96]>0<1")
TOKENS = ("--arg", "tokens=f32[96,6]", "--arg", "mask=f32[96,6]>0<1")
BATCH = ("--arg", "batch=(f32[96,4], f32[96], mask[96])")
CALL = """\
import jax, jax.numpy as jnp, numpy as np
import made, steps

draw = np.random.default_rng(0)
batch = draw.normal(size=(64, 4)), draw.normal(size=64), (np.arange(64) % 5 > 1) * 1.0
one, other = steps.step(np.ones(4), batch), made.step(np.ones(4), batch)
assert np.allclose(one[0], other[0], rtol=1e-5) and np.allclose(one[1], other[1], rtol=1e-5)
text = str(jax.make_jaxpr(made.step)(np.ones(4), batch))
assert text.count("scan[") == 1
try:
    made.step(np.ones(4), tuple(each[:24] for each in batch))
except ValueError as error:
    assert "a multiple of 32 (4 for each of the devices)" in str(error), error
else:
    raise AssertionError("a batch of 24 was taken")
"""


@pytest.fixture
def steps(project: Project) -> Project:
    project.write("steps.py", STEPS)
    return project


@pytest.mark.parametrize("backend", ["pmap", "shard_map"])
def test_a_masked_loss_divides_by_the_whole_mask(steps: Project, backend: str) -> None:
    words = ("gen", "steps.py::step", *W, *BATCH, "--accumulate", "4", "--backend", backend, "-o", "made.py")
    made = steps.run(*words)
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs" in made.words and "run on 3, 8 devices" in made.words
    assert "without microbatches" in made.words
    subprocess.run([sys.executable, "-c", CALL], env=simulated(8), check=True, timeout=300)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("flax_like", (*X, *Y, *MASK)),
        ("whitened", (*X, *Y)),
        ("centred", (*X, *Y)),
        ("by_rows", (*X, *Y)),
        ("shifted", TOKENS),
        ("balanced", (*X, *Y)),
    ],
    ids=[
        "closure",
        "statistics first",
        "under their own name",
        "number of rows",
        "two, of a name bound anew",
        "one of the other",
    ],
)
def test_sums_that_are_needed_first_are_taken_first(
    steps: Project, name: str, words: tuple[str, ...]
) -> None:
    asked = ("gen", f"steps.py::{name}", *W, *words, "--accumulate", "3", "--output-format", "json")
    made = steps.run(*asked)
    assert made.exit_code == 0, made.stderr
    document = json.loads(made.stdout)
    assert document["evidence"]["derivation"]["complete"]
    body = document["code"].partition("def sums(")[2]
    assert "lax.p" not in body.partition("accumulated(")[0], "a collective in each microbatch"


def test_noise_on_parameters_is_the_same_in_each_microbatch(steps: Project) -> None:
    """It is drawn in a loop that the original does not have, and belongs to no example for all that."""
    made = steps.run("gen", "steps.py::perturbed", *W, *X, *Y, "--arg", "key=key", "--accumulate", "2")
    assert made.exit_code == 0, made.stderr
    assert "run on 3, 8 devices" in made.words


@pytest.mark.parametrize(
    ("name", "words"), [("with_whole", (*W, *BATCH)), ("in_a_tuple", (*W, *X, *Y))], ids=["dict", "tuple"]
)
def test_what_is_the_same_for_each_microbatch_is_kept(
    steps: Project, name: str, words: tuple[str, ...]
) -> None:
    asked = ("gen", f"steps.py::{name}", *words, *COUNT, "--accumulate", "3", "-o", "made.py")
    made = steps.run(*asked, "--no-run")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs" in made.words
    if name == "in_a_tuple":
        # The last microbatch has seen some of the rows.
        code = (steps.folder / "made.py").read_text()
        assert code.count("jax.lax.psum(local,") == 1
        steps.write("wrong.py", code.replace("jax.lax.psum(local,", "jax.lax.psum(aux[0],"))
        against = ("--against", f"steps.py::{name}", *words, *COUNT, "--devices", "2")
        assert steps.run("verify", "made.py::in_a_tuple", *against).exit_code == 0
        steps.refused("JP045", "verify", "wrong.py::in_a_tuple", *against, says=("differ",), exit_code=1)


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        ("clipped_inside", (), ("jnp.mean((x @ w - y) ** 2)", "differentiated", "steps.py:35")),
        ("noisy", ("--arg", "key=key"), ("`key`", "each microbatch would draw", "steps.py:42")),
        ("with_predictions", (), ("`predicted` is of each example", "steps.py:50")),
        ("weighted", (), ("is needed of the whole batch", "steps.py:58")),
        ("sharpness", (), ("would be gone through twice", "steps.py:107")),
        ("softened", MASK, ("`mask` is one value", "a name of its own", "steps.py:144")),
        (
            "late",
            MASK,
            ("`count()` is needed of the whole batch", "not bound by one assignment", "steps.py:152"),
        ),
        ("in_a_lambda", (), ("is needed of the whole batch", "of the lambda", "steps.py:112")),
    ],
)
def test_what_changes_the_meaning_is_refused(
    steps: Project, name: str, words: tuple[str, ...], says: tuple[str, ...]
) -> None:
    asked = ("gen", f"steps.py::{name}", *W, *X, *Y, *words, "--accumulate", "2")
    steps.refused("JP074", *asked, says=says, exit_code=1)


@pytest.mark.parametrize(
    ("code", "words", "says"),
    [
        ("JP046", ("2", "--backend", "jit"), "Use --backend shard_map"),
        ("JP018", ("1",), "not a number of microbatches from 2 on"),
        ("JP018", ("2", "--remainder", "drop"), "Drop one: `--accumulate`, or `--remainder`"),
        ("JP018", ("2", "--in-place"), "makes a file of its own"),
    ],
)
def test_what_does_not_go_with_microbatches(
    steps: Project, code: str, words: tuple[str, ...], says: str
) -> None:
    asked = ("gen", "steps.py::step", *W, *BATCH, "--accumulate", *words)
    steps.refused(code, *asked, says=(says,), exit_code=1 if code == "JP046" else 2)
