"""Rows that are added to uneven batches: of which functions it is derived that they count for nothing."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jax_pmap.worker.placements.derive import counted

SIZES, COUNTS = (8, 3), (3, 8)
NAMES = ("w", "x", "y", "m", "key")


def error(w: Any, x: Any, y: Any) -> Any:
    """Of each row."""
    return (x @ w - y) ** 2


def masked(w: Any, x: Any, y: Any, m: Any, key: Any) -> Any:
    """A mean of rows that count, with a term of the weights."""
    return (error(w, x, y) * m).sum() / jnp.maximum(m.sum(), 1) + (w**2).sum()


def recurrent(w: Any, x: Any, y: Any, m: Any, key: Any) -> Any:
    """A loss of what a scan carries."""
    last, _ = lax.scan(lambda h, t: (jnp.tanh(h * w[1] + t * w[0]), None), jnp.zeros_like(y), x.T)
    return ((last - y) ** 2 * m).sum() / m.sum()


def by_layers(w: Any, x: Any, y: Any, m: Any, key: Any) -> Any:
    """Gradients of layers that a scan goes through: sums over the batch inside it."""

    def loss(layers: Any) -> Any:
        out, _ = lax.scan(lambda h, layer: (jnp.tanh(h @ layer), None), x, layers)
        return (error(w, out, y) * m).sum() / m.sum()

    return jax.grad(loss)(jnp.ones((2, 5, 5)))


def dropped(w: Any, x: Any, y: Any, m: Any, key: Any) -> Any:
    """With noise for each row, and noise for all."""
    kept = x * jax.random.bernoulli(key, 0.5, x.shape)
    return (error(w, kept, y) * m).sum() / m.sum() + jax.random.normal(key, w.shape)


def classified(w: Any, x: Any, y: Any, m: Any, key: Any) -> Any:
    """The gradient of a loss of labels, which adds to the places that these name."""
    labels = jnp.argmax(x, 1)

    def loss(w: Any) -> Any:
        chances = jax.nn.log_softmax(x * w)
        return -(chances[jnp.arange(y.size), labels] * m).sum() / m.sum()

    return jax.grad(loss)(w)


def attended(w: Any, x: Any, y: Any, m: Any, key: Any) -> Any:
    """A softmax that leaves out what the mask does, and where that is all, is one of numbers still."""
    weights = jax.nn.softmax(jnp.where(m[:, None] > 0, x, -1e9))
    return jax.grad(lambda w: (((weights * x) @ w - y) ** 2 * m).sum() / m.sum())(w)


def standardised(w: Any, x: Any, y: Any, m: Any, key: Any) -> Any:
    """The variance of rows that count."""
    mean = (y * m).sum() / m.sum()
    return ((y - mean) ** 2 * m).sum() / m.sum()


NOTHING = {
    "masked mean": masked,
    "gradient": jax.grad(masked),
    "mean over mean": lambda w, x, y, m, key: (y * m).mean() / m.mean(),
    "where": lambda w, x, y, m, key: jnp.where(m > 0, y, 0).sum() / (m > 0).sum(),
    "mean where": lambda w, x, y, m, key: jnp.mean(y, where=m > 0),
    "average": lambda w, x, y, m, key: jnp.average(y, weights=m),
    "counts": lambda w, x, y, m, key: ((jnp.sign(x @ w) == y) & (m > 0)).sum(),
    "weights made of masks": lambda w, x, y, m, key: (y * (m / m.sum())).sum(),
    "products": lambda w, x, y, m, key: jnp.einsum("bi,b,bj->ij", x, m, x),
    "a table": lambda w, x, y, m, key: jnp.zeros(5).at[jnp.argmax(x, 1)].add(y * m),
    "rows": lambda w, x, y, m, key: (x @ w * m, jnp.arange(y.size) * y),
    "labels": lambda w, x, y, m, key: (x[jnp.arange(y.size), jnp.argmax(x, 1)] * m).sum(),
    "a branch": lambda w, x, y, m, key: lax.cond(w[0] > 0, lambda: y * m, lambda: m).sum(),
    "zeros that are carried": lambda w, x, y, m, key: lax.scan(lambda h, t: (h * t, h), m, x.T)[1].sum(),
    "standardised": standardised,
    "recurrent": jax.grad(recurrent),
    "layers": by_layers,
    "dropout": dropped,
    "labels of classes": classified,
    "attention": attended,
    "the largest of each row": lambda w, x, y, m, key: (
        jnp.max(jnp.exp(x * m[:, None]) ** 2, 1, initial=-jnp.inf) * m
    ).sum(),
}
SOMETHING = {
    "a mean": lambda w, x, y, m, key: (y * m).mean(),
    "a count beside": lambda w, x, y, m, key: masked(w, x, y, m, key) + (y > 30).sum(),
    "on other inputs": lambda w, x, y, m, key: jnp.where(w[0] > 30, y.sum(), (y * m).sum()),
    "the rest": lambda w, x, y, m, key: (y * (1 - m)).sum(),
    "not less": lambda w, x, y, m, key: (y * (m >= 0)).sum(),
    "zero over zero": lambda w, x, y, m, key: (y * m / m).sum(),
    "zero times infinity": lambda w, x, y, m, key: (jnp.log(m) * m).sum(),
    "zero times a softmax of infinities": lambda w, x, y, m, key: (
        jax.nn.softmax(jnp.where(m[:, None] > 0, x, -jnp.inf)).sum(1) * m
    ).sum(),
    "zero over what may be zero": lambda w, x, y, m, key: (m / (y + m)).sum(),
    "zero times a root": lambda w, x, y, m, key: (jnp.sqrt(m - 1) * m).sum(),
    "one of zero": lambda w, x, y, m, key: jnp.exp(y * m).sum(),
    "the size": lambda w, x, y, m, key: (y * m).sum() * y.size,
    "the largest": lambda w, x, y, m, key: (y * m).max(),
    "the last": lambda w, x, y, m, key: y[-1] * m.sum(),
    "normalised": lambda w, x, y, m, key: ((x - x.mean(0)) @ w * m).sum() / m.sum(),
    "carried, and changed": lambda w, x, y, m, key: lax.scan(lambda h, t: (h + m * t + 1, None), m * 0, x.T)[
        0
    ].sum(),
    "carried, and exchanged": lambda w, x, y, m, key: lax.scan(
        lambda h, t: ((h[1], h[0]), None), (m, y), x.T
    )[0][0].sum(),
    "a loop of unknown length": lambda w, x, y, m, key: lax.while_loop(
        lambda s: s[1] < w[0], lambda s: (s[0] + y, s[1] + 1), (m, 0.0)
    )[0].sum(),
    "another branch": lambda w, x, y, m, key: lax.cond(w[0] > 0, lambda: y * m, lambda: y).sum(),
}


def ended(function: Any) -> Any:
    """Where added rows are seen to count, in a function that is traced for batches of two sizes."""
    single = jnp.float32

    def traced(rows: int) -> Any:
        shapes = [(5,), (rows, 5), (rows,), (rows,)]
        given = [jax.ShapeDtypeStruct(shape, single) for shape in shapes]
        return jax.make_jaxpr(function)(*given, jax.random.key(0))

    return counted([traced(rows) for rows in SIZES], COUNTS, NAMES, (None, 0, 0, 0, None), ("m",))


@pytest.mark.parametrize("name", NOTHING)
def test_added_rows_count_for_nothing(name: str) -> None:
    assert ended(NOTHING[name]) is None


@pytest.mark.parametrize("name", SOMETHING)
def test_added_rows_that_count_are_seen(name: str) -> None:
    assert ended(SOMETHING[name]) is not None


def test_what_is_zero_is_asked_for() -> None:
    """Rows of another array may be anything."""
    assert ended(lambda w, x, y, m, key: (y * x[:, 0]).sum()).why
