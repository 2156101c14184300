"""Loops, branches, mapped functions and keys in the derivation: what is shown equal, and what must not be.

Each program is a function of an axis name, which is None where it is the reference on the whole batch.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jax_pmap.worker.placements.derive import derive, same_meaning
from jax_pmap.worker.protocol import Shown

if not hasattr(jax, "shard_map"):  # pragma: no cover - jax 0.6
    from jax.experimental.shard_map import shard_map
else:
    shard_map = jax.shard_map

ROWS = 24
COUNTS = (2, 4)
if "device_count" not in os.environ.get("XLA_FLAGS", ""):
    # While tests are collected: once a test has run something on jax, it would be too late.
    jax.config.update("jax_num_cpu_devices", 8)


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def whole_numbers(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def keys() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0))


X, Y, W, V = floats(ROWS, 3), floats(ROWS), floats(3), floats(ROWS, 5, 3)
Program = Callable[..., Any]


def mapped(program: Program, count: int, inward: Any, outward: Any, check: bool) -> Callable[..., Any]:
    """A program under `shard_map`."""
    mesh = Mesh(np.array(jax.devices()[:count]), ("i",))
    checked = {"check_vma" if hasattr(jax, "shard_map") else "check_rep": check}
    return shard_map(
        functools.partial(program, "i"), mesh=mesh, in_specs=inward, out_specs=outward, **checked
    )


def derived(program: Program, given: Sequence[Any], inward: Any, outward: Any, check: bool = False) -> Shown:
    """What is derived of a program under `shard_map`."""
    reference = jax.make_jaxpr(functools.partial(program, None))(*given)
    parallel = [jax.make_jaxpr(mapped(program, n, inward, outward, check))(*given) for n in COUNTS]
    return derive(reference, parallel, [f"a{i}" for i in range(len(given))])


def total(axis: str | None, x: Any) -> Any:
    return x if axis is None else lax.psum(x, axis)


def mean(axis: str | None, x: Any) -> Any:
    return x if axis is None else lax.pmean(x, axis)


def index(axis: str | None) -> Any:
    return 0 if axis is None else lax.axis_index(axis)


R, S = P(), P("i")
#: Minibatches, and the rows of each divided.
M, G = floats(4, ROWS, 3), P(None, "i")


# --- programs that are equal ------------------------------------------------------------------


def rows_of(taken: Callable[[Any, int, int], Any], loop: bool = True) -> Program:
    """Steps on four minibatches, of which ``taken(batch, i, rows)`` is each, of a batch (4, rows, 3)."""

    def program(axis: Any, w: Any, x: Any) -> Any:
        x = x.reshape(-1, 3)
        rows = x.shape[0] // 4

        def step(i: Any, w: Any) -> Any:
            grad = jax.grad(lambda w: jnp.mean(jnp.tanh(taken(x, i, rows) @ w - 1) ** 2))(w)
            return w - mean(axis, grad)

        return (
            lax.fori_loop(0, 4, step, w) if loop else functools.reduce(lambda w, i: step(i, w), range(4), w)
        )

    return program


def of_two(x: Any, i: Any, rows: int) -> Any:
    """Every minibatch twice, with what is the same for all examples beside it."""
    half = jnp.split(x, 2)[i // 2]
    return jnp.where(jnp.ones(half.shape, bool), half, 2.0) + jnp.zeros((len(half), 1))


def gradient(axis: Any, w: Any, x: Any, y: Any) -> Any:
    loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    return mean(axis, loss), mean(axis, grad)


def scattered(axis: Any, x: Any) -> Any:
    summed = x.T @ x @ jnp.ones((3, 8))
    if axis is None:
        return summed
    return lax.all_gather(
        lax.psum_scatter(summed, axis, scatter_dimension=1, tiled=True), axis, axis=1, tiled=True
    )


def gathered(axis: Any, x: Any) -> Any:
    rows = x if axis is None else lax.all_gather(x, axis).reshape(-1, *x.shape[1:])
    return jnp.sort(rows, 0)


def exchanged(axis: Any, x: Any) -> Any:
    wide = jnp.tile(x, (1, 8))
    if axis is not None:
        wide = lax.all_to_all(wide, axis, 1, 0, tiled=True)
    wide = jnp.cumsum(wide, 0)
    return wide if axis is None else lax.all_to_all(wide, axis, 0, 1, tiled=True)


def own_slice(axis: Any, table: Any, x: Any) -> Any:
    rows = table if axis is None else lax.dynamic_slice_in_dim(table, index(axis) * len(x), len(x))
    return rows * x


def own_rows(axis: Any, w: Any, x: Any) -> Any:
    return x + w[(index(axis) * len(x) + jnp.arange(len(x))) % 3, None]


def moments(axis: Any, w: Any, x: Any, order: Any = (0, 1)) -> Any:
    """Rows by both moments of each of two heads, which are averaged at once: `vmap` moves axes of size 1."""

    def standardised(h: Any) -> Any:
        both = h.mean(0), (h * h).mean(0)
        both = both if axis is None else lax.pmean(jnp.stack(both), axis)
        average, square = (both[i] for i in ((0, 1) if axis is None else order))
        return (h - average) / jnp.sqrt(square - average**2 + 1)

    return mean(axis, jnp.mean(jax.vmap(lambda w: standardised(x @ w))(w) ** 4))


def recurrent(axis: Any, w: Any, v: Any) -> Any:
    def loss(w: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = jnp.tanh(h * w + x)
            return h, h.sum(-1)

        h, out = lax.scan(step, jnp.zeros_like(v[:, 0]), jnp.swapaxes(v, 0, 1))
        return jnp.mean(h**2) + jnp.mean(out)

    return mean(axis, jax.grad(loss)(w))


def in_one_batch(axis: Any, w: Any, x: Any, y: Any) -> Any:
    """Pairs of examples, compared with guidance that is the same for all, through one network."""

    def loss(w: Any) -> Any:
        both = jnp.concatenate([x, y])
        when = jnp.tanh(jnp.broadcast_to(w[0], len(both))[:, None] @ w[None, 1:2] * jnp.ones((len(both), 1)))
        scores = jnp.tanh(both @ w + when[:, 0].reshape(-1))
        return jnp.mean(jax.nn.log_sigmoid(scores[: len(x)] - scores[len(x) :])) + jnp.mean(scores)

    return mean(axis, jax.grad(loss)(w))


def spectrum(axis: Any, w: Any, x: Any) -> Any:
    """The gradient through a complex number made of two real ones, one of which is zero."""

    def loss(w: Any) -> Any:
        kernel = jnp.exp(lax.complex(w, 2.0 * w))
        return jnp.mean((jnp.fft.ifft(jnp.fft.fft(x) * kernel) * lax.complex(w, jnp.zeros(3))).real ** 2)

    return mean(axis, jax.grad(loss)(w))


def filtered(axis: Any, w: Any, v: Any) -> Any:
    """The gradient of a Kalman filter: the gains are the same for all examples, the states are not."""

    def nll(w: Any, steps: Any) -> Any:
        def step(carry: Any, y: Any) -> Any:
            at, spread = carry
            spread = w[0] ** 2 * spread + jnp.exp(w[1])
            total = spread + jnp.exp(w[2])
            apart, gain = y - w[0] * at, spread / total
            after = w[0] * at + gain * apart, (1 - gain) * spread
            return after, -0.5 * (jnp.log(total) + apart**2 / total)

        return -lax.scan(step, (0.0, 1.0), steps)[1].sum()

    return mean(axis, jax.grad(lambda w: jnp.mean(jax.vmap(nll, (None, 0))(w, v[..., 0])))(w))


def gained(axis: Any, w: Any, v: Any) -> Any:
    """The same of several numbers: the first derivative that goes backwards is a product with zeros."""

    def nll(w: Any, steps: Any) -> Any:
        def step(carry: Any, y: Any) -> Any:
            at, spread = carry
            at, spread = jnp.diag(w) @ at, w[:, None] * spread * w + jnp.eye(3)
            apart, gain = y - at, jnp.linalg.inv(spread + jnp.eye(3))
            return (at + gain @ apart, spread - gain @ spread), apart @ gain @ apart + gain.sum()

        return lax.scan(step, (jnp.zeros(3), jnp.eye(3)), steps)[1].sum()

    return mean(axis, jax.grad(lambda w: jnp.mean(jax.vmap(nll, (None, 0))(w, v)))(w))


def resampled(axis: Any, w: Any, v: Any) -> Any:
    """The gradient of a particle filter: the first one that goes back through the indices is of zeros."""

    def nll(w: Any, steps: Any) -> Any:
        def step(at: Any, y: Any) -> Any:
            at = w * at + y
            return at[jnp.argsort(y)], jnp.sum((at - y) ** 2)

        return lax.scan(step, jnp.zeros(3), steps)[1].sum()

    return mean(axis, jax.grad(lambda w: jnp.mean(jax.vmap(nll, (None, 0))(w, v)))(w))


def bootstrapped(axis: Any, w: Any, v: Any) -> Any:
    """Targets that a loop makes, and no gradient goes through: back through it go zeros, to what has one."""

    def loss(w: Any) -> Any:
        values = jnp.swapaxes(v, 0, 1) @ w
        errors = lax.scan(
            lambda c, x: (0.9 * c + x,) * 2, jnp.zeros_like(values[0]), 1 - values, reverse=True
        )[1]
        target = lax.stop_gradient(errors + values) - values
        return jnp.mean(lax.select(True, target, errors) ** 2)

    return mean(axis, jax.grad(loss)(w))


def accumulated(axis: Any, w: Any, v: Any) -> Any:
    grads, _ = lax.scan(lambda g, x: (g + (x * w).T @ x, None), jnp.zeros((3, 3)), jnp.swapaxes(v, 0, 1))
    return total(axis, grads)


def added_to_whole(axis: Any, w: Any, v: Any, reduced: Any = mean, each: Any = jnp.mean) -> Any:
    """A loop begins with what is whole, and adds what is partial."""
    rows = jnp.swapaxes(v, 0, 1)
    return reduced(axis, lax.scan(lambda h, x: (h + each(x * w, 0), h.sum() * 2), w, rows)[0])


def iterated(axis: Any, w: Any, x: Any) -> Any:
    def body(state: Any) -> Any:
        i, w = state
        return i + 1, w - 0.1 * mean(axis, jnp.mean(x * (x @ w)[:, None], 0))

    return lax.while_loop(lambda state: (state[0] < 9) & (jnp.sum(state[1] ** 2) > 1), body, (0, w))[1]


def branched(axis: Any, w: Any, x: Any) -> Any:
    part = lax.cond(w[0] > 0, lambda: x.sum(0), lambda: (x**2).sum(0))
    return total(axis, part)


def looped(axis: Any, w: Any, x: Any) -> Any:
    return lax.fori_loop(0, 5, lambda i, h: jnp.sin(h) * w + i, x)


def divided_after(
    guard: Callable[[Any], Any],
    weigh: Callable[[Any], Any] = jnp.asarray,
    features: Callable[[Any, Any], Any] = lambda w, x: jnp.tanh(x * w),
) -> Program:
    """The gradient of a masked mean; on devices the sum of those of sums, divided by the count."""

    def sums(w: Any, x: Any, y: Any) -> Any:
        return jnp.sum(jnp.tanh(features(w, x) @ w) ** 2 * y), jnp.sum(y)

    def program(axis: Any, w: Any, x: Any, y: Any) -> Any:
        if axis is None:

            def loss(w: Any) -> Any:
                value, count = sums(w, x, y)
                return value / guard(count)

            return w - 0.1 * jax.grad(loss)(w)
        (_, count), grad = jax.value_and_grad(sums, has_aux=True)(w, x, y)
        grad, count = lax.psum((grad, weigh(count)), axis)
        return w - 0.1 * grad / guard(count)

    return program


def guarded(axis: Any, x: Any, y: Any) -> Any:
    """A mean of no rows that is zero; on devices it is not a number, divided too late to be left out."""
    count, rows = total(axis, jnp.sum(y)), total(axis, y @ x)
    return (
        jnp.where(count > 0, rows / count, 0.0) if axis is None else jnp.where(count > 0, rows, 0.0) / count
    )


def applied_after(axis: Any, x: Any, y: Any) -> Any:
    """A function of the rows' share in a total; on devices the share of a function of them."""
    count = total(axis, jnp.sum(y))
    if axis is None:
        return (x / count).at[:, 1].apply(jnp.exp)
    return x.at[:, 1].apply(jnp.exp) / count


def masked(axis: Any, x: Any, y: Any) -> Any:
    return total(axis, jnp.sum(x * y[:, None])) / total(axis, jnp.sum(y))


def how_many(of_size: Callable[[Any, Any], Any], dtype: Any = jnp.int32) -> Program:
    """The part of examples that something holds for; on devices a count of them, divided afterwards."""

    def program(axis: Any, x: Any) -> Any:
        hits = x[:, 0] > 0
        if axis is None:
            return jnp.mean(hits)
        return lax.psum(jnp.sum(hits, dtype=dtype), axis).astype(jnp.float32) / of_size(axis, x)

    return program


def by_sizes(made: Callable[[Any, Any], Any]) -> Program:
    """A mean over rows and columns whose number is `made` of a table of sizes."""
    return lambda axis, x: total(axis, jnp.sum(x)) / made(axis, jnp.array(x.shape))


def softmax(axis: Any, x: Any) -> Any:
    top = jnp.max(x)
    top = top if axis is None else lax.pmax(top, axis)
    return top + jnp.log(total(axis, jnp.sum(jnp.exp(x - top))))


def solved(axis: Any, w: Any, x: Any, y: Any) -> Any:
    gram = total(axis, x.T @ x) + jnp.eye(3)
    return jnp.linalg.solve(gram, total(axis, x.T @ y)) + w


def split(x: Any) -> Any:
    """Rows in groups: of other rows on a device than in the whole batch."""
    return x.reshape(3, -1, *x.shape[1:])


def accumulating(axis: Any, w: Any, x: Any, y: Any, step: Any = None) -> Any:
    """The gradient of a mean, and the mean, over groups that a loop goes through."""

    def loss(w: Any, x: Any, y: Any) -> Any:
        return jnp.mean((jnp.tanh(x) @ w - y) ** 2)

    def body(carry: Any, rows: Any) -> Any:
        value, grad = jax.value_and_grad(loss)(w, *rows)
        number, total = carry
        total = total + grad if step is None else step(total, grad, number)
        return (number + 1, total), value

    (_, grads), values = lax.scan(body, (0, jnp.zeros(3)), (split(x), split(y)))
    return mean(axis, grads / 3), mean(axis, values.mean())


def accumulating_sums(axis: Any, w: Any, x: Any, y: Any) -> Any:
    """A masked mean: its two sums are added up over groups, and divided in the end."""

    def body(carry: Any, rows: Any) -> Any:
        x, y = rows
        mask = (y > 0).astype(x.dtype)
        return (carry[0] + jnp.sum((x @ w) * mask), carry[1] + mask.sum()), None

    (one, other), _ = lax.scan(body, (0.0, 0.0), (split(x), split(y)))
    return total(axis, one) / total(axis, other)


def each_group(axis: Any, w: Any, x: Any, y: Any) -> Any:
    def loss(w: Any, x: Any, y: Any) -> Any:
        return jnp.mean((x @ w - y) ** 2)

    values, grads = jax.vmap(jax.value_and_grad(loss), (None, 0, 0))(w, split(x), split(y))
    return mean(axis, values.mean()), mean(axis, grads.mean(0))


def layers(axis: Any, w: Any, x: Any) -> Any:
    """Layers of a network, by a loop in one over groups."""

    def body(carry: Any, rows: Any) -> Any:
        out, _ = lax.scan(lambda h, w: (jnp.tanh(h * w), None), rows, jnp.stack([w, 2 * w]))
        return carry + jnp.sum(out, 0), None

    return total(axis, lax.scan(body, jnp.zeros(3), split(x))[0])


def one_by_one(axis: Any, w: Any, x: Any) -> Any:
    """A loop over the examples, which adds up, and hands on what it does not touch."""

    def body(carry: Any, row: Any) -> Any:
        kept, added = carry
        out = jnp.tanh(row * kept)
        return (kept, added + out), out

    (_, added), out = lax.scan(body, (w, jnp.zeros(3)), x)
    return out, total(axis, added)


def one_by_one_gradient(axis: Any, w: Any, x: Any) -> Any:
    return mean(axis, jax.grad(lambda w: lax.map(lambda row: jnp.tanh(row @ w), x).mean())(w))


def each_its_way(axis: Any, w: Any, x: Any) -> Any:
    """Branches and loops of single examples."""

    def one(row: Any) -> Any:
        row = lax.cond(row[0] > 0, jnp.sin, lambda row: row * w, row)
        return lax.scan(lambda h, w: (jnp.tanh(h * w), None), row, jnp.stack([w, 2 * w]))[0]

    return lax.map(one, x)


def each_as_long_as_it_takes(axis: Any, w: Any, x: Any) -> Any:
    """Steps towards `w` from single examples, their number, and what is near it all along."""

    def rise(end: Any) -> Any:
        return lax.while_loop(lambda s: s < end, lambda s: s + w[0], 0.0)

    def one(row: Any) -> Any:
        def step(state: Any) -> Any:
            count, now, _ = state
            return count + 1, now - 0.5 * (now - w), rise(now[1])

        return lax.while_loop(lambda state: jnp.sum((state[1] - w) ** 2) > 1e-4, step, (0, row, w[2]))

    counts, ends, _ = lax.map(one, x)
    return counts, ends, total(axis, jnp.sum(counts))


def counted(start: Any, rows: Any) -> Any:
    """A loop with a counter, from 1 or as `start` says, in which `rows` have a part."""

    def body(carry: Any, _: Any) -> Any:
        number, value = carry
        return (number + 1, jnp.tanh(value * number)), None

    return lax.scan(body, (start, rows), None, length=3)[0][1]


def counted_each(axis: Any, x: Any) -> Any:
    return total(axis, lax.scan(lambda c, row: (c + counted(1.0, row), None), jnp.zeros(3), x)[0])


def counted_groups(axis: Any, x: Any) -> Any:
    """A sum over groups, each times what a loop with nothing of them in it gives."""

    def body(carry: Any, rows: Any) -> Any:
        return carry + counted(1.0, 0.5) * jnp.sum(rows, 0), None

    return total(axis, lax.scan(body, jnp.zeros(3), split(x))[0])


def counting_on(over: Any, inner: Any) -> Any:
    """The same where the counter of the inner loop goes on from that of the outer one."""

    def program(axis: Any, x: Any) -> Any:
        def body(carry: Any, rows: Any) -> Any:
            return (carry[0] + 1, carry[1] + inner(carry[0], rows)), None

        return total(axis, lax.scan(body, (1.0, jnp.zeros(3)), over(x))[0][1])

    return program


def root(x: Any, shift: Any = 0.0) -> Any:
    return lax.while_loop(lambda s: jnp.abs(s**2 - x) > 1e-4, lambda s: 0.5 * (s + x / s) + shift, x + 1.0)


def each_until_done(axis: Any, x: Any) -> Any:
    return jax.vmap(jax.vmap(root))(x)


def until_all_done(
    keep: Callable[..., Any],
    more: Callable[..., Any],
    behind: Callable[..., Any] = lambda done, near: done | near,
) -> Program:
    """A loop over a batch, written by hand: goes on while there is `more`, and a round may `keep` rows."""

    def program(axis: Any, x: Any) -> Any:
        def step(state: Any) -> Any:
            value, done = state
            new = 0.5 * (value + x / value)
            near = jnp.all(jnp.abs(new - value) < 1e-4, 1)
            return keep(done, value, new, x), behind(done, near)

        start = x + 1.0, jnp.zeros(len(x), bool)
        return lax.while_loop(lambda state: more(axis, *state), step, start)[0]

    return program


def left(axis: Any, value: Any, done: Any) -> Any:
    return jnp.any(~done)


kept = until_all_done(lambda done, old, new, x: jnp.where(done[:, None], old, new), left)
kept.__name__ = "kept"


def class_tokens(axis: Any, w: Any, x: Any) -> Any:
    """As many copies of a parameter as there are examples, by a primitive of its own from jax 0.10 on."""
    rows = jnp.concatenate([jnp.tile(w, (len(x), 1)), x], axis=1)
    return mean(axis, jnp.mean(jnp.tanh(rows)))


def prefixes(axis: Any, w: Any, v: Any) -> Any:
    """A recurrence by halves, the innermost of which has no element at the places in between."""

    def join(one: Any, other: Any) -> Any:
        return other[0] * one[0], other[0] * one[1] + other[1]

    def loss(w: Any) -> Any:
        _, states = lax.associative_scan(join, (jnp.broadcast_to(w, v.shape), v), axis=1)
        return jnp.mean(jnp.tanh(states))

    return mean(axis, jax.grad(loss)(w))


def loops_backwards(body: Callable[[Any, Any, Any], Any]) -> Program:
    """The gradient through a loop whose rounds take something over the batch."""

    def program(axis: Any, w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            return jnp.sum(lax.scan(lambda c, _: (body(axis, c * w, x),) * 2, w, None, length=3)[1])

        return mean(axis, jax.grad(loss)(w))

    return program


def smoothly(axis: Any, w: Any, x: Any) -> Any:
    """A maximum that stores other values for its gradient in a loop than `jax.nn.logsumexp` does."""
    if axis is None:
        return jax.nn.logsumexp(x * w, axis=0)
    top = lax.pmax(lax.stop_gradient(jnp.max(x * w, axis=0)), axis)
    top = jnp.where(jnp.isfinite(top), top, 0)
    return jnp.log(total(axis, jnp.sum(jnp.exp(x * w - top), axis=0))) + top


def normalised(axis: Any, w: Any, x: Any) -> Any:
    values = x @ w
    middle = mean(axis, jnp.mean(values))
    spread = mean(axis, jnp.mean((values - middle) ** 2))
    return mean(axis, jnp.mean(jnp.tanh((values - middle)[:, None] / jnp.sqrt(spread + 1) * x), axis=0))


def of_no_columns(axis: Any, w: Any, x: Any) -> Any:
    """What is looked up in columns of which there are none, as behind the first token of one."""
    behind = x[:, 3:]
    found = jnp.take_along_axis(jnp.exp(behind)[..., None] * w, jnp.argsort(behind, 1)[..., None], 2)
    return mean(axis, found.reshape(len(x), -1).sum(1).mean() + jnp.mean(x @ w))


def of_pairs_of_no_columns(axis: Any, w: Any, x: Any, y: Any) -> Any:
    """Two batches joined, and parted again behind a sum over columns of which there are none."""
    joined = jnp.concatenate([x, y])
    behind = jnp.take_along_axis(joined, jnp.zeros(joined[:, 3:].shape, int), 1)
    found = behind.sum(1)
    return mean(axis, jnp.tanh(found[: len(x)] - found[len(x) :] + x @ w).mean())


def gradient_of_variance(axis: Any, w: Any, x: Any) -> Any:
    """`jnp.var` keeps the axis of its mean at size 1, and sums over that in its gradient."""

    def spread(w: Any) -> Any:
        z = jnp.tanh(x @ w)
        if axis is None:
            return 3.0 * jnp.var(z)
        return 3.0 * mean(axis, jnp.mean((z - mean(axis, jnp.mean(z))) ** 2))

    return mean(axis, jax.grad(spread)(w))


def by_number(body: Any, start: Any, after: Any = lambda axis, made: made) -> Any:
    """A loop over the numbers of the examples, from 0 on."""

    def program(axis: Any, x: Any) -> Any:
        return after(axis, lax.fori_loop(0, len(x), functools.partial(body, x), start(x)))

    return program


def projected(axis: Any, x: Any) -> Any:
    """Parts of each row that are added to places of its own, one row after the other, and the gradient."""
    low, high = jnp.floor(jnp.abs(x)).astype(int) % 3, jnp.ceil(jnp.abs(x)).astype(int) % 3

    def loss(w: Any) -> Any:
        p = jax.nn.softmax(x * w)

        def body(i: Any, made: Any) -> Any:
            made = made.at[i, low[i]].add(p[i] * 0.3)
            return made.at[i, high[i]].add(p[i] * 0.7)

        return jnp.mean(lax.fori_loop(0, len(x), body, jnp.zeros_like(p)) ** 2)

    return mean(axis, jax.value_and_grad(loss)(jnp.ones(3)))


def by_positions(axis: Any, x: Any) -> Any:
    def body(made: Any, i: Any) -> Any:
        return made.at[i].set(jnp.tanh(x[i])), made[i] + x[i]

    return lax.scan(body, jnp.zeros_like(x), jnp.arange(len(x)))


def until_small(x: Any, i: Any, made: Any) -> Any:
    end = lax.while_loop(lambda v: v.sum() > 0.1, lambda v: v * 0.5, jnp.abs(x[i]))
    return lax.cond(x[i, 0] > 0, lambda made: made.at[i].multiply(end), lambda made: made, made)


def added_to_rows(then: Any) -> Any:
    """Of each row its own loss, with means over the share added: what `then` makes of these, made whole."""

    def program(axis: Any, w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            z = jnp.tanh(x * w)
            each = jnp.sum(z**2, axis=1) + 0.1 * jnp.mean(z)
            each -= jnp.sum(jnp.mean(z * x, axis=0))
            return then(x, each, z + jnp.mean(z, axis=0))

        return mean(axis, jax.value_and_grad(loss)(w))

    return program


EQUAL = [
    (gradient, (W, X, Y), (R, S, S), (R, R)),
    (scattered, (X,), (S,), R),
    (gathered, (X,), (S,), R),
    (exchanged, (X,), (S,), S),
    (own_slice, (X, X), (R, S), S),
    (own_rows, (W, X), (R, S), S),
    (recurrent, (W, V), (R, S), R),
    (accumulated, (W, V), (R, S), R),
    (iterated, (W, X), (R, S), R),
    (branched, (W, X), (R, S), R),
    (looped, (W, X), (R, S), S),
    (masked, (X, Y), (S, S), R),
    (softmax, (X,), (S,), R),
    (solved, (W, X, Y), (R, S, S), R),
    (accumulating, (W, X, Y), (R, S, S), (R, R)),
    (accumulating_sums, (W, X, Y), (R, S, S), R),
    (each_group, (W, X, Y), (R, S, S), (R, R)),
    (bootstrapped, (W, V), (R, S), R),
    *(
        (divided_after(guard), (W, X, Y), (R, S, S), R)
        for guard in (lambda n: n, lambda n: jnp.maximum(n, 1), lambda n: n + 1e-8)
    ),
    # The gradients of these put pieces together, each with what it is divided by.
    *(
        (divided_after(lambda n: n, features=features), (W, X, Y), (R, S, S), R)
        for features in (
            lambda w, x: w[jnp.argmax(x, 1)][:, None] * x,
            lambda w, x: jnp.sin(jnp.pad((x * w)[:, 1:], ((0, 0), (1, 0)))),
            lambda w, x: jnp.sin(jnp.concatenate([x[:, 1:] * w[:2], x[:, :1] * w[2:]], 1)),
            lambda w, x: jnp.sin((x * w).at[:, 1].set(w[1])),
            lambda w, x: jnp.sin((x * w).at[:, 1].multiply(-1)),
        )
    ),
    (layers, (W, X), (R, S), R),
    (one_by_one, (W, X), (R, S), (S, R)),
    (one_by_one_gradient, (W, X), (R, S), R),
    (counted_each, (X,), (S,), R),
    (counted_groups, (X,), (S,), R),
    (each_its_way, (W, X), (R, S), S),
    (each_as_long_as_it_takes, (W, X), (R, S), (S, S, R)),
    (each_until_done, (X,), (S,), S),
    (kept, (X,), (S,), S),
    (filtered, (W, V), (R, S), R),
    (gained, (W, V), (R, S), R),
    (resampled, (W, V), (R, S), R),
    (added_to_whole, (W, V), (R, S), R),
    (rows_of(lambda x, i, rows: lax.dynamic_slice_in_dim(x, i * rows, rows)), (W, M), (R, G), R),
    (rows_of(lambda x, i, rows: lax.dynamic_slice_in_dim(x, rows + i * rows, 2 * rows)), (W, M), (R, G), R),
    (rows_of(lambda x, i, rows: x[i * rows : (i + 1) * rows], loop=False), (W, M), (R, G), R),
    (rows_of(lambda x, i, rows: x[rows:], loop=False), (W, M), (R, G), R),
    (rows_of(of_two, loop=False), (W, M), (R, G), R),
    (how_many(lambda axis, x: lax.psum(x.shape[0], axis)), (X,), (S,), R),
    (by_sizes(lambda axis, sizes: total(axis, jnp.prod(sizes))), (X,), (S,), R),
    (by_sizes(lambda axis, sizes: total(axis, sizes[0]) * sizes[1]), (X,), (S,), R),
    (in_one_batch, (W, X, X), (R, S, S), R),
    (spectrum, (W, X), (R, S), R),
    (class_tokens, (W, X), (R, S), R),
    (moments, (floats(2, 3, 4), X), (R, S), R),
    (prefixes, (W, V), (R, S), R),
    (of_no_columns, (W, X), (R, S), R),
    (of_pairs_of_no_columns, (W, X, X), (R, S, S), R),
    (loops_backwards(smoothly), (W, X), (R, S), R),
    (loops_backwards(normalised), (W, X), (R, S), R),
    (lambda axis, x: total(axis, x.sum(0).at[1].multiply(3)), (X,), (S,), R),
    (lambda axis, x, y: jnp.exp(jnp.tile(x, (2, 1)))[len(x) :] * y, (X, X), (S, S), S),
    (gradient_of_variance, (W, X), (R, S), R),
    (projected, (X,), (S,), (R, R)),
    (by_positions, (X,), (S,), (S, S)),
    *(
        (by_number(body, start), (X,), (S,), S)
        for body, start in [
            (lambda x, i, made: made.at[i].set(jnp.where(made[i] > 0, x[i], 2 * made[i])), jnp.tanh),
            (lambda x, i, made: jnp.where(x[i, 0] > 0, made.at[i].min(x[i]), made), jnp.zeros_like),
            (lambda x, i, made: lax.dynamic_update_slice(made, x[i][None] * 2, (i, 0)), jnp.zeros_like),
            (until_small, jnp.ones_like),
        ]
    ),
    *(
        (by_number(body, lambda x: jnp.zeros(3), total), (X,), (S,), R)
        for body in [
            lambda x, i, added: added + jnp.sin(x[i]),
            lambda x, i, added: added.at[jnp.argmax(x[i])].add(1.0),
            lambda x, i, added: added.at[1].add(x[i, 0]),
        ]
    ),
    *(
        (added_to_rows(then), (W, X), (R, S), R)
        for then in [
            lambda x, each, rows: jnp.mean(each),
            lambda x, each, rows: -jnp.mean((3 * each - 1.0) / 2 + x[:, 0] ** 2),
            lambda x, each, rows: jnp.mean(rows) + jnp.sum(rows.T.reshape(1, -1, len(x)), axis=(0, 1)).mean(),
            lambda x, each, rows: jnp.mean(each[:, None] - rows * jnp.array([1.0, 2.0, 3.0])),
            lambda x, each, rows: jnp.mean(jnp.full(len(x), jnp.mean(x)) + each),
        ]
    ),
]


@pytest.mark.parametrize("case", EQUAL, ids=lambda case: case[0].__name__)
def test_equal(case: Any) -> None:
    found = derived(*case)
    assert found.complete, found.endings
    assert not found.draws


def whole_gradient(axis: Any, w: Any, x: Any, y: Any) -> Any:
    return jax.value_and_grad(lambda w: mean(axis, jnp.mean((x @ w - y) ** 2)))(w)


CHECKED = [(whole_gradient, *EQUAL[0][1:]), *EQUAL[8:10], EQUAL[12]]


@pytest.mark.parametrize("case", CHECKED, ids=lambda case: case[0].__name__)
def test_equal_with_checked_types(case: Any) -> None:
    found = derived(*case, check=True)
    assert found.complete, found.endings


@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="types are checked by another rule")
def test_checked_types_sum_gradients() -> None:
    # The gradient by what is whole is summed over the devices already, and its mean is N times too large.
    assert not derived(*EQUAL[0], check=True).complete


# --- programs that are not --------------------------------------------------------------------


def reducer(axis: Any, x: Any, product: bool) -> Any:
    function = (lambda p, q: p * q + p) if product else (lambda p, q: p * q - q)
    return lax.reduce(x, jnp.float32(1), function, (1,))


def swapped(axis: Any, x: Any, w: Any) -> Any:
    """A scan whose constant and whose carry are exchanged, between reference and parallel program."""
    a, b = (w, 2 * w) if axis is None else (2 * w, w)
    carry, _ = lax.scan(lambda c, t: (c[::-1] * t, None), b, jnp.arange(3.0))
    return x * (carry + a)


def steps(step: Any) -> Any:
    """`accumulating` in another way, of which the first result alone is asked for."""
    return lambda axis, w, x, y: accumulating(axis, w, x, y, step)[0]


def in_layers(axis: Any, x: Any) -> Any:
    """A sum over groups, of which each goes through a loop over what the number of the round makes."""

    def body(carry: Any, rows: Any) -> Any:
        out, _ = lax.scan(lambda h, w: (h * w, None), rows, jnp.stack([carry[0], 2.0]))
        return (carry[0] + 1, carry[1] + jnp.sum(out, 0)), None

    return total(axis, lax.scan(body, (0.0, jnp.zeros(3)), split(x))[0][1])


def one_behind(axis: Any, x: Any) -> Any:
    return lax.scan(lambda c, r: (r, r * c), split(x)[0] * 0, split(x))[1].reshape(-1, 3)


def halves(total: Any, grad: Any, number: Any) -> Any:
    return total * 0.5 + grad


def weighted(total: Any, grad: Any, number: Any) -> Any:
    return total + grad * number


def last(total: Any, grad: Any, number: Any) -> Any:
    return grad


def of_one_length(total: Any, grad: Any, number: Any) -> Any:
    return total + grad / jnp.sqrt(jnp.sum(grad**2))


def by_round(total: Any, grad: Any, number: Any) -> Any:
    return lax.cond(number > 1, jnp.add, jnp.subtract, total, grad)


def late(total: Any, grad: Any, number: Any) -> Any:
    return jnp.where(number > 1, total + grad, total)


def through(body: Any, start: Any) -> Any:
    """A loop over the examples, and what it carries and stacks summed up."""

    def program(axis: Any, x: Any) -> Any:
        carry, out = lax.scan(body, start, x)
        return total(axis, jnp.sum(carry)), total(axis, jnp.sum(out))

    return program


def by_pairs(body: Any) -> Any:
    """A loop over the numbers of the examples that carries two arrays of rows."""

    def program(axis: Any, x: Any) -> Any:
        start = jnp.tanh(x), jnp.sin(x)
        return lax.fori_loop(0, len(x), lambda i, pair: body(x, i, *pair), start)

    return program


def from_the_second(axis: Any, x: Any) -> Any:
    return lax.fori_loop(1, len(x), lambda i, made: made.at[i].set(2 * x[i]), jnp.tanh(x))


def counted_the_other_way(axis: Any, x: Any) -> Any:
    """The number of a round is not that of the row, which the loop goes over backwards."""
    return lax.scan(lambda i, row: (i + 1, row * x[i]), 0, x, reverse=True)[1]


def of_both(axis: Any, x: Any, y: Any) -> Any:
    return lax.map(lambda row: (row[:, None] * x.T).sum(), y)


def waiting(axis: Any, w: Any, x: Any) -> Any:
    def one(a: Any) -> Any:
        return lax.while_loop(lambda s: s < a, lambda s: s + mean(axis, w[0] ** 2), 0.1)

    return jax.vmap(one)(x[:, 0])


def meeting_in_each(axis: Any, w: Any, x: Any) -> Any:
    """Devices that wait for each other in every round of loops that they leave after different ones."""

    def one(row: Any) -> Any:
        return lax.while_loop(lambda s: s < row[0], lambda s: s + mean(axis, w[0] ** 2), 0.1)

    return lax.map(one, x)


def from_the_one_before(axis: Any, x: Any) -> Any:
    """Each example begins where the one before it, on this device, has ended."""

    def body(carry: Any, row: Any) -> Any:
        end = lax.while_loop(lambda s: s < row[0], lambda s: s + 0.1, carry)
        return end, end

    return lax.scan(body, 0.0, x)[1]


def kept(w: Any, other: float = 0) -> Any:
    """What is above zero where a mask is, and `other` elsewhere."""
    return jnp.where(w > 1, jnp.exp(w), other)


UNEQUAL = [
    (lambda axis, w, x: total(axis, w.at[1].multiply(jnp.sum(x))), (W, X), (R, S), R),
    (lambda axis, w, x: mean(axis, w.at[1].multiply(x.shape[0])), (W, X), (R, S), R),
    # Minibatches of other rows: from within one to within the next, and of rows that lie in one piece.
    (rows_of(lambda x, i, rows: lax.dynamic_slice_in_dim(x, i * rows + 1, rows)), (W, M), (R, G), R),
    (rows_of(lambda x, i, rows: lax.dynamic_slice_in_dim(x, i * (rows // 2), rows)), (W, M), (R, G), R),
    (rows_of(lambda x, i, rows: lax.dynamic_slice_in_dim(x, i, rows)), (W, M), (R, G), R),
    (rows_of(lambda x, i, rows: x[i * rows + 1 : (i + 1) * rows + 1], loop=False), (W, M), (R, G), R),
    (rows_of(lambda x, i, rows: x[: rows // 2], loop=False), (W, M), (R, G), R),
    (functools.partial(moments, order=(1, 0)), (floats(2, 3, 4), X), (R, S), R),
    (how_many(lambda axis, x: x.shape[0]), (X,), (S,), R),
    (how_many(lambda axis, x: lax.psum(x.shape[0], axis), jnp.int8), (X,), (S,), R),
    (by_sizes(lambda axis, sizes: jnp.prod(sizes)), (X,), (S,), R),
    (by_sizes(lambda axis, sizes: total(axis, jnp.sum(sizes))), (X,), (S,), R),
    (by_sizes(lambda axis, sizes: jnp.prod(total(axis, sizes))), (X,), (S,), R),
    (rows_of(lambda x, i, rows: lax.dynamic_slice_in_dim(x, i * rows, rows)), (W, X), (R, S), R),
    (rows_of(lambda x, i, rows: x[i * rows : (i + 1) * rows], loop=False), (W, X), (R, S), R),
    # Two batches, one behind the other, of which a device has rows of each.
    (lambda axis, x, y: jnp.concatenate([x, y]), (X, X), (S, S), S),
    (lambda axis, x, y: jnp.concatenate([x, y])[len(x) // 2 :][: len(x)], (X, X), (S, S), S),
    (lambda axis, x, y: jnp.cumsum(jnp.concatenate([x, y]), 0)[: len(x)], (X, X), (S, S), S),
    (lambda axis, x, y: jnp.concatenate([x, y]) * x.repeat(2, 0), (X, X), (S, S), S),
    (lambda axis, x, y: jnp.tile(x, (2, 1)) * x.repeat(2, 0), (X, X), (S, S), S),
    (lambda axis, x, y: jnp.concatenate([x, x]) * y, (X, floats(2 * ROWS, 3)), (S, S), S),
    (lambda axis, x, y: jnp.concatenate([x, y[:2]])[: len(x)], (X, X), (S, R), S),
    (lambda axis, x, y: jnp.pad(x, ((len(x) // 2, 0), (0, 0)))[: len(x)], (X, X), (S, S), S),
    (lambda axis, x, y: jnp.pad(x, ((0, len(x)), (0, 0)), constant_values=1)[::2], (X, X), (S, S), S),
    # Of what every device has whole, a row that the size of its share tells.
    (lambda axis, x, y: y[len(x) // 2 : len(x) // 2 + 1], (X, X), (S, R), R),
    (lambda axis, x, y: y.sum(0) + y[len(x) // 2 : len(x) // 2 + 1], (X, X), (S, R), R),
    # What is done is changed, or what goes on, or is kept, is told by something else.
    (until_all_done(lambda done, old, new, x: new, left), (X,), (S,), S),
    (until_all_done(lambda done, old, new, x: jnp.where(done[:, None], new, old), left), (X,), (S,), S),
    (until_all_done(lambda done, old, new, x: jnp.where(old > x, new, old), left), (X,), (S,), S),
    (
        until_all_done(
            lambda done, old, new, x: jnp.where(done[:, None], old, new), left, lambda done, near: near
        ),
        (X,),
        (S,),
        S,
    ),
    (
        until_all_done(
            lambda done, old, new, x: jnp.where(done[:, None], old, new),
            lambda axis, value, done: jnp.any(value > 9),
        ),
        (X,),
        (S,),
        S,
    ),
    (divided_after(lambda n: n, lambda n: n + 1e-3), (W, X, Y), (R, S, S), R),
    (divided_after(lambda n: n, lambda n: jnp.maximum(n, 1)), (W, X, Y), (R, S, S), R),
    (guarded, (X, Y), (S, S), R),
    (applied_after, (X, Y), (S, S), S),
    # Devices that go round more often would wait for others that do not.
    (waiting, (W, X), (R, S), S),
    (meeting_in_each, (W, X), (R, S), S),
    (from_the_one_before, (X,), (S,), S),
    (lambda axis, x: lax.map(lambda r: root(r[0]), x).sum(), (X,), (S,), R),
    (lambda axis, x: mean(axis, lax.map(lambda r: root(r[0] * len(x)), x).sum()), (X,), (S,), R),
    *(
        (through(body, start), (X,), (S,), (R, R))
        for body, start in [
            (lambda c, r: (c * 0.5 + r, r), jnp.zeros(3)),
            (lambda c, r: (c + r, r), jnp.ones(3)),
            (lambda c, r: (c + r, c), jnp.zeros(3)),
            (lambda c, r: (r, r), jnp.zeros(3)),
            (lambda c, r: (r, r * c), jnp.zeros(3)),
            (lambda c, r: (c + 1, r * c), 0.0),
            (lambda c, r: (c + 1, r), 0.0),
            (lambda c, r: (c + lax.cond(c[0] > 3, jnp.sin, jnp.cos, r), r), jnp.zeros(3)),
        ]
    ),
    *(
        (by_number(body, jnp.tanh), (X,), (S,), S)
        for body in [
            # Other rows are read, or changed, than that of the round.
            lambda x, i, made: made.at[i].add(x[i - 1]),
            lambda x, i, made: made.at[i].add(x[(i + 1) % len(x)]),
            lambda x, i, made: made.at[i].add(made[i - 1]),
            lambda x, i, made: made.at[i].add(made.sum(0)),
            lambda x, i, made: (made * 0.9).at[i].add(x[i]),
            lambda x, i, made: jnp.where(x[i, 0] > 0, made.at[i].add(x[i]), jnp.zeros_like(made)),
            lambda x, i, made: made.at[i // 2].add(x[i]),
            lambda x, i, made: made.at[i - i].add(x[i]),
            lambda x, i, made: lax.dynamic_update_slice(made, x[:2] * 2, (i, 0)),
            # The number of the row within the share is not that within the batch.
            lambda x, i, made: made.at[i].add(x[i] * i),
            lambda x, i, made: made.at[i, i % 3].add(x[i, 0]),
            lambda x, i, made: jnp.where(i > 2, made.at[i].add(x[i]), made),
            lambda x, i, made: made.at[i].set(x[i] * len(x)),
            lambda x, i, made: jnp.where(lax.convert_element_type(i, bool), made.at[i].add(x[i]), made),
            lambda x, i, made: made.at[i].add(jnp.real(i.astype("complex64"))),
            lambda x, i, made: made.at[i.astype("int8")].add(x[i]),
            # Indices that go along with an axis of what they point into, as `vmap` leaves them.
            lambda x, i, made: made.at[i].add(
                jax.vmap(lambda plane, a: plane[i, a])(jnp.stack([x] * 3), jnp.arange(3))
            ),
        ]
    ),
    # What a round writes into takes the place of another, or what it writes is of the round before.
    (by_pairs(lambda x, i, a, b: (b, a.at[i].add(x[i]))), (X,), (S,), (S, S)),
    (by_pairs(lambda x, i, a, b: (a.at[i].add(b[i]), b * 0.5)), (X,), (S,), (S, S)),
    (by_pairs(lambda x, i, a, b: (a.at[i].add(x[i]) + b, b)), (X,), (S,), (S, S)),
    (by_number(lambda x, i, made: jnp.tanh(made * x[i]), lambda x: jnp.ones(3)), (X,), (S,), R),
    (by_number(lambda x, i, made: made * 0.5, lambda x: jnp.ones(3)), (X,), (S,), R),
    (
        by_number(lambda x, i, made: made.at[jnp.argmax(x[i])].max(1.0), lambda x: jnp.zeros(3), total),
        (X,),
        (S,),
        R,
    ),
    # As many times as there are rows, for each row.
    (
        by_number(lambda x, i, made: lax.fori_loop(0, len(x), lambda j, m: m.at[i].add(1.0), made), jnp.tanh),
        (X,),
        (S,),
        S,
    ),
    (
        by_number(
            lambda x, i, made: lax.fori_loop(0, len(x), lambda j, m: m.at[i].add(x[j]), made), jnp.tanh
        ),
        (X,),
        (S,),
        S,
    ),
    (
        by_number(
            lambda x, i, made: lax.fori_loop(0, len(x), lambda j, m: m + x[i], made),
            lambda x: jnp.zeros(3),
            total,
        ),
        (X,),
        (S,),
        R,
    ),
    (
        by_number(lambda x, i, made: lax.scan(lambda m, _: (m, m), made, None, length=2)[1][1], jnp.tanh),
        (X,),
        (S,),
        S,
    ),
    (from_the_second, (X,), (S,), S),
    (counted_the_other_way, (X,), (S,), S),
    (of_both, (X, X), (S, S), S),
    (lambda axis, x: lax.map(lambda row: row * len(x), x), (X,), (S,), S),
    (lambda axis, x: lax.map(lambda r: r[0] * r[1], (x, jnp.arange(len(x)))), (X,), (S,), S),
    *((steps(s), (W, X, Y), (R, S, S), R) for s in (halves, weighted, last, of_one_length, by_round, late)),
    (in_layers, (X,), (S,), R),
    (counting_on(lambda x: x, counted), (X,), (S,), R),
    (counting_on(split, lambda n, rows: counted(n, 0.5) * jnp.sum(rows, 0)), (X,), (S,), R),
    (one_behind, (X,), (S,), S),
    (lambda axis, x: mean(axis, (split(x).mean(1) ** 2).mean(0)), (X,), (S,), R),
    (lambda axis, x: mean(axis, (split(x) * jnp.arange(3.0)[:, None, None]).mean()), (X,), (S,), R),
    (lambda axis, x: total(axis, split(x)[0].sum()), (X,), (S,), R),
    (lambda axis, x, y: mean(axis, (split(x)[..., 0] * y.reshape(-1, 3).T).mean()), (X, Y), (S, S), R),
    (lambda axis, w, x: jax.grad(lambda w: jnp.mean(x @ w))(w), (W, X), (R, S), R),
    (lambda axis, w, x: total(axis, jax.grad(lambda w: jnp.mean(x @ w))(w)), (W, X), (R, S), R),
    (lambda axis, w, x: mean(axis, jax.grad(lambda w: jnp.sum(x @ w))(w)), (W, X), (R, S), R),
    (lambda axis, x: x - jnp.mean(x, 0), (X,), (S,), S),
    (lambda axis, x: jnp.cumsum(x, 0), (X,), (S,), S),
    (lambda axis, x: jnp.sort(x, 0), (X,), (S,), S),
    (lambda axis, x: x[::-1], (X,), (S,), S),
    (lambda axis, x: x * jnp.arange(len(x))[:, None], (X,), (S,), S),
    (lambda axis, x: x ** len(x), (X,), (S,), S),
    (lambda axis, x: lax.integer_pow(x, len(x)), (X,), (S,), S),
    (lambda axis, x: lax.integer_pow(x.sum(1), len(x)), (X,), (S,), S),
    (lambda axis, w, x: lax.integer_pow(w, len(x)), (W, X), (R, S), R),
    (lambda axis, x: mean(axis, jnp.std(x, 0)), (X,), (S,), R),
    (lambda axis, x: mean(axis, jnp.var(x, 0, ddof=1)), (X,), (S,), R),
    (lambda axis, x: mean(axis, jnp.max(x)), (X,), (S,), R),
    (lambda axis, w, x: x * index(axis), (W, X), (R, S), S),
    (lambda axis, w, x: jnp.take(w, index(axis) + jnp.arange(len(x)), mode="clip"), (W, X), (R, S), S),
    (lambda axis, x: jnp.reshape(x, (2, -1, 3)).mean(1), (X,), (S,), P(None, None)),
    (lambda axis, x: mean(axis, jnp.reshape(x, (2, -1, 3)).max(1)), (X,), (S,), R),
    (lambda axis, x: jnp.ravel(x, order="F"), (X,), (S,), S),
    (lambda axis, t, x: t[: len(x)] * x, (X, X), (R, S), S),
    (lambda axis, x: reducer(axis, x, axis is None), (X,), (S,), S),
    (lambda axis, x: lax.reduce(x, jnp.float32(1), lambda p, q: p * q + p, (0,)), (X,), (S,), S),
    (lambda axis, x, w: swapped(axis, x, w), (X, W), (S, R), S),
    (lambda axis, x: lax.scan(lambda c, r: (c + r, c), jnp.zeros(3), x)[1], (X,), (S,), S),
    (lambda axis, x: lax.while_loop(lambda h: h.sum() < 9, lambda h: h + 1, x), (X,), (S,), S),
    (lambda axis, x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x), (X,), (S,), S),
    (lambda axis, x: x if axis is None else lax.ppermute(x, axis, [(0, 1), (1, 0)]), (X,), (S,), S),
    (lambda axis, x: x.sum() if axis is None else lax.psum(x, axis).sum(), (X,), (S,), R),
    (lambda axis, x: x.sum(0), (X,), (S,), S),
    (lambda axis, w, x: jnp.tile(w, (2 * len(x) if axis is None else len(x), 1)), (W, X), (R, S), S),
    (lambda axis, x: jnp.tile(x, (len(x), 1)), (X,), (S,), S),
    (lambda axis, x: jnp.tile(x, (1, len(x))), (X,), (S,), S),
    (lambda axis, w: w * 1.5 if axis is None else w * 1.50001, (W,), (R,), R),
    (lambda axis, w: w + w.sum() if axis is None else w + jnp.abs(w).sum(), (W,), (R,), R),
    # What is positive, what a mask counts, and what is less than every number.
    (lambda axis, w: jnp.abs(jnp.exp(w) - 1) if axis is None else jnp.exp(w) - 1, (W,), (R,), R),
    (lambda axis, w: jnp.sign(-2 * jnp.exp(w)) if axis is None else jnp.sign(jnp.exp(w)), (W,), (R,), R),
    (lambda axis, w: jnp.sign(kept(w)) if axis is None else jnp.ones_like(w), (W,), (R,), R),
    (lambda axis, w: jnp.abs(kept(w, -1)) if axis is None else kept(w, -1), (W,), (R,), R),
    (lambda axis, w: jnp.where(w > 0, *((1, 0) if axis is None else (0, 1))) * w, (W,), (R,), R),
    (lambda axis, w: jnp.maximum(w, -jnp.inf if axis is None else jnp.inf), (W,), (R,), R),
    (lambda axis, w: jnp.minimum(w, -jnp.inf) if axis is None else w, (W,), (R,), R),
    # One number is spread, and not one of each row.
    (lambda axis, w: jnp.zeros((2, 3)) + (w[:1] if axis is None else w[1:2])[None], (W,), (R,), R),
    # What a loop begins with is added once, and not on every device.
    (lambda axis, w, v: added_to_whole(axis, w, v, total, jnp.sum), (W, V), (R, S), R),
    (lambda axis, w, v: added_to_whole(axis, w, v, mean, jnp.sum), (W, V), (R, S), R),
    # What is added to rows is not the whole mean where these are more than summed up.
    *(
        (added_to_rows(then), (W, X), (R, S), R)
        for then in [
            lambda x, each, rows: jnp.mean(each**2),
            lambda x, each, rows: jnp.mean(each * x[:, 0]),
            lambda x, each, rows: jnp.mean(jnp.abs(each)),
            lambda x, each, rows: jnp.mean(jnp.where(x[:, 0] > 0, each, 0.0)),
            lambda x, each, rows: jnp.mean(each[: len(x) // 2]),
            lambda x, each, rows: jnp.mean(each) + jnp.mean(each) ** 2,
            lambda x, each, rows: jnp.mean(each / jnp.sum(each)),
            lambda x, each, rows: jnp.mean(x @ x.T @ rows),
            lambda x, each, rows: jnp.mean(jax.nn.softmax(rows, axis=1)[:, 0]),
            lambda x, each, rows: jnp.mean(jnp.sort(rows, axis=1) * jnp.array([1.0, 2.0, 3.0])),
            lambda x, each, rows: jnp.mean(each) * len(x),
            lambda x, each, rows: jnp.mean(jnp.cumsum(each)),
            lambda x, each, rows: jnp.sum(each),
        ]
    ),
    (lambda axis, x: x + jnp.mean(x), (X,), (S,), S),
    (lambda axis, x: x + jnp.sum(x), (X,), (S,), S),
    (lambda axis, x: mean(axis, jnp.mean(x[:, 0] + jnp.sum(x))), (X,), (S,), R),
    (lambda axis, x: total(axis, jnp.sum(x[:, 0] + jnp.mean(x), axis=0) / len(x)), (X,), (S,), R),
]


def fails(value: Any) -> Any:
    """What a check of one's own calls."""
    raise ValueError(f"not expected: {value}")


def fails_at_times(value: Any) -> Any:
    """Returns where it is called with numbers."""
    if np.isnan(value).any():
        raise ValueError("not a number")
    return value


def checked(
    test: Callable[[Any, Any], Any],
    called: Callable[[Any], Any] = fails,
    after: Callable[[Any], Any] = jnp.ravel,
) -> Program:
    """The rows, where a test does not raise."""

    def program(axis: Any, x: Any) -> Any:
        def otherwise() -> Any:
            return after(jax.pure_callback(called, jax.typeof(x), x)).reshape(x.shape)

        return lax.cond(test(axis, x), otherwise, lambda: x) * 2

    return program


RAISING: list[tuple[Program, bool]] = [
    # Some device raises where the original does.
    (checked(lambda axis, x: jnp.any(x > 9)), True),
    (checked(lambda axis, x: ~jnp.all(x < 9)), True),
    (checked(lambda axis, x: mean(axis, jnp.mean(x)) > 9), True),
    # None may, where it does.
    (checked(lambda axis, x: jnp.mean(x) > 9), False),
    (checked(lambda axis, x: x[0, 0] > 9), False),
    (checked(lambda axis, x: jnp.min(x) > 9), False),
    # It gives something.
    (checked(lambda axis, x: jnp.any(x > 9), fails_at_times), False),
    # The compiler need not call what nothing depends on.
    (checked(lambda axis, x: jnp.any(x > 9), after=lambda x: x * 0), False),
]


@pytest.mark.parametrize(("program", "equal"), RAISING, ids=range(len(RAISING)))
def test_checks_that_raise(program: Program, equal: bool) -> None:
    assert derived(program, (X,), (S,), S).complete == equal


def test_the_same_written_otherwise() -> None:
    def program(axis: Any, w: Any) -> Any:
        total, mask = jnp.exp(w).sum(), w > 0
        if axis is None:
            counted = mask.astype(int).astype(float)
            signed = jnp.sign(total), jnp.abs(kept(w).sum())
            return jnp.log(jnp.abs(total)), *signed, jnp.maximum(w, -jnp.inf), counted, w + w[:1]
        counted = jnp.where(mask, 1.0, 0.0)
        return jnp.log(total), jnp.ones_like(total), kept(w).sum(), w, counted, w + w[0]

    assert not derived(program, (W,), (R,), R).endings


def test_what_keeps_an_axis_of_one_element_is_what_does_not() -> None:
    """As a layer norm over the batch is written with and without `keepdims`."""

    def program(axis: Any, w: Any, x: Any) -> Any:
        kept = axis is None
        middle = mean(axis, jnp.mean(x, axis=0, keepdims=kept))
        spread = mean(axis, jnp.mean(x**2, axis=0, keepdims=kept)) - middle**2
        scaled = (x - middle) * lax.rsqrt(jnp.clip(2 * spread, 0) + 1e-5)
        # One number for each feature, and one for each row, are told apart.
        weight = jnp.exp(x[:, :1]) * 3 if kept else (jnp.exp(x[:, 0]) * 3)[:, None]
        return jnp.tanh(scaled) * weight, jnp.where(kept, w, w)

    def other(axis: Any, w: Any, x: Any) -> Any:
        middle = mean(axis, jnp.mean(x, axis=0, keepdims=axis is None))
        return x - (middle if axis is None else jnp.sqrt(middle)), w

    assert not derived(program, (W, X), (R, S), (S, R)).endings
    assert derived(other, (W, X), (R, S), (S, R)).endings


def two_loops(
    stacked: Callable[[Any, Any, Any], Any] = lambda before, after, row: before * row,
    used: Callable[[Any, Any], Any] = lambda item, row: item,
    start: float = 1.0,
    backwards: Sequence[int] = (),
) -> Callable[[Any], Any]:
    """A loop over rows, and another one over what that has stacked; those of `backwards` begin at the end."""

    def first(carry: Any, row: Any) -> Any:
        after = jnp.sin(carry) + row
        return after, stacked(carry, after, row)

    def second(carry: Any, item: Any) -> Any:
        return carry * 0.5 + used(*item), carry

    def program(rows: Any) -> Any:
        _, out = lax.scan(first, jnp.full(3, start), rows, reverse=0 in backwards)
        return lax.scan(second, jnp.zeros(3), (out, rows), reverse=1 in backwards)

    return program


WRITTEN_OTHERWISE: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"stacked": lambda before, after, row: before, "used": lambda item, row: item * row}, True),
    ({"stacked": lambda before, after, row: after - row, "used": lambda item, row: item * row}, False),
    ({"stacked": lambda before, after, row: after, "used": lambda item, row: item * row}, False),
    ({"stacked": lambda before, after, row: row, "used": lambda item, row: item * row}, False),
    ({"start": 2.0}, False),
    ({"backwards": (0,)}, False),
    ({"backwards": (1,)}, False),
]


@pytest.mark.parametrize(("other", "same"), WRITTEN_OTHERWISE)
@pytest.mark.parametrize("backwards", [(), (1,)])
def test_loops_over_what_another_has_stacked(
    other: dict[str, Any], same: bool, backwards: Sequence[int]
) -> None:
    turned = sorted({*backwards} ^ {*other.get("backwards", ())})
    one, two = two_loops(backwards=backwards), two_loops(**{**other, "backwards": turned})
    assert same_meaning(jax.make_jaxpr(one)(X), jax.make_jaxpr(two)(X), ["rows"]) == same


@pytest.mark.parametrize("second", [1, 2])
def test_second_derivatives_of_moments_that_one_collective_is_for(second: int) -> None:
    """As layers that normalise join them: the derivative of a slice is a pad, that of a pad one of less."""

    def penalty(joined: bool) -> Callable[[Any], Any]:
        def loss(x: Any) -> Any:
            mean, square = jnp.mean(x, 0), jnp.mean(x**2, 0)
            if joined:
                mean, square = jnp.split(jnp.concatenate([mean, square]), 2)
            return jnp.sum(jnp.tanh(x - mean) * square ** (second if joined else 2))

        return jax.grad(lambda x: jnp.sum(jax.grad(loss)(x) ** 2))

    one, other = (jax.make_jaxpr(penalty(joined))(X) for joined in (True, False))
    assert same_meaning(one, other, ["x"]) == (second == 2)


@pytest.mark.parametrize("carried", [False, True])
def test_loops_that_make_what_they_go_over_once_more(carried: bool) -> None:
    """Rows that a later loop makes as an earlier one has, beside rows that were made of these."""

    def program(axis: Any, w: Any, x: Any) -> Any:
        def first(carry: Any, row: Any) -> Any:
            made = jnp.tanh(row * w[0])
            return (made if carried else carry), made

        def second(carry: Any, row: Any) -> Any:
            return carry * 0.5, jnp.sin(row)

        def third(carry: Any, rows: Any) -> Any:
            return carry + rows[1] ** 2, jnp.tanh(rows[0] * w[0])

        def again(carry: Any, _: Any) -> Any:
            return lax.scan(second, carry, waves)

        _, made = lax.scan(first, jnp.zeros_like(x[:, 0]), x.T)
        _, waves = lax.scan(second, 1.0, made)
        carry, _ = lax.scan(third, jnp.zeros_like(x[:, 0]), (x.T, waves))
        _, rows = lax.scan(again, 1.0, None, length=2)
        return mean(axis, jnp.mean(rows * carry))

    assert derived(program, (W, X), (R, S), R).complete


@pytest.mark.parametrize("case", UNEQUAL, ids=range(len(UNEQUAL)))
def test_not_equal(case: Any) -> None:
    program, given, inward, outward = case
    try:
        found = derived(program, given, inward, outward)
    except (TypeError, ValueError) as error:
        pytest.fail(f"not traced: {error}")
    assert not found.complete


def test_relations_of_some_shares_alone() -> None:
    found = derived(lambda axis, x: mean(axis, jnp.mean(x[0::2] - x[1::2])), (X,), (S,), R)
    assert found.complete
    assert {(each.multiple, each.length, each.primitive) for each in found.conditions} == {(2, 24, "slice")}
    assert found.conditions[0].places[0].file == __file__


def test_relations_of_shares_that_were_not_traced() -> None:
    found = derived(lambda axis, x: x[0::4], (X,), (S,), S)
    assert not found.complete and not found.conditions
    assert [each.multiple for each in found.unmet] == [4]


@pytest.mark.parametrize("mode", ["edge", "maximum", "linear_ramp"])
def test_what_is_put_beside_examples_in_no_place_is_nothing(mode: str) -> None:
    """`jnp.pad` joins empty rows of the first and the last example with the batch."""

    def program(axis: Any, x: Any) -> Any:
        return jnp.pad(x, ((0, 0), (2, 1)), mode=mode)

    assert derived(program, (X,), (S,), S).complete

    def along_rows(axis: Any, x: Any) -> Any:
        return jnp.pad(x, ((0, 0) if axis is None else (1, 0), (2, 1)), mode=mode)[-ROWS // 2 :]

    assert not derived(along_rows, (X,), (S,), S).complete


def test_columns_that_are_none_are_joined_with_examples() -> None:
    """A model with an empty tape puts no columns between two that it has."""

    def program(axis: str | None, x: Any) -> Any:
        none = jnp.full((x.shape[0], 0), 5.0)
        marks = jnp.ones((x.shape[0], 2))
        return mean(axis, jnp.mean(jnp.sum(jnp.concatenate([x, none, marks], axis=1) ** 2, axis=1)))

    assert derived(program, (X,), (S,), R).complete


@pytest.mark.parametrize(
    ("table", "complete"),
    [
        (lambda rows: np.tril(np.ones((rows, 3, 3))), True),
        (lambda rows: np.tile(np.arange(3.0), (rows, 1))[:, None], True),
        # Numbers of the rows are others on each device, and so is what is like its neighbour alone.
        (lambda rows: np.arange(rows)[:, None, None] * np.ones((rows, 1, 3)), False),
        (lambda rows: (np.arange(rows) // (rows // 2))[:, None, None] * np.ones((rows, 1, 3)), False),
        (lambda rows: np.full((rows, 3, 3), float(rows)), False),
        (lambda rows: np.tile(np.arange(3.0) * rows, (rows, 1))[:, None], False),
    ],
)
def test_tables_of_numpy_with_a_row_for_each_example(table: Callable[[int], Any], complete: bool) -> None:
    """A mask that NumPy makes of the number of rows is divided with them, where all its rows are alike."""

    def program(axis: str | None, w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            return jnp.mean(jnp.tanh(table(x.shape[0]) * (x * w)[:, None, :]) ** 2)

        return mean(axis, jax.grad(loss)(w))

    assert derived(program, (W, X), (R, S), R).complete is complete


@pytest.mark.parametrize("how", ["stack", "select"])
def test_what_a_loop_keeps_and_nobody_returns_has_zeros_for_a_gradient_at_first(how: str) -> None:
    """Zeros are a share of zeros, whatever else is divided by the rows."""

    def program(axis: str | None, x: Any, w: Any, v: Any) -> Any:
        def kept(h: Any) -> Any:
            if how == "stack":
                return jnp.stack([h, 2.0 * h], axis=1)
            return jnp.stack([jax.nn.relu(h @ v) @ v] * 2, axis=1)

        def loss(w: Any) -> Any:
            def step(memory: Any, column: Any) -> Any:
                h = jnp.concatenate([column, memory[:, 0]], axis=1) @ w
                return kept(h), h

            first = jnp.zeros((x.shape[0], 2, 3))
            return jnp.mean(lax.scan(step, first, jnp.swapaxes(x, 0, 1))[1] ** 2)

        return mean(axis, jax.grad(loss)(w))

    assert derived(program, (V, floats(6, 3), floats(3, 3)), (S, R, R), R).complete


def test_keys_of_no_examples() -> None:
    def program(axis: Any, key: Any, x: Any) -> Any:
        return x, jax.random.split(key, (0,))

    derived(program, (keys(), X), (R, S), (S, R))


def moments(axis: Any, x: Any) -> Any:
    """Two means, on devices averaged in one array, as libraries do it."""
    both = jnp.mean(x, axis=0), jnp.mean(x**2, axis=0)
    if axis is not None:
        both = jax.lax.pmean(jnp.stack(both), axis)
    return jnp.sin(both[0]) + jnp.cos(both[1] - both[0] ** 2)


def test_what_is_stacked_and_taken_apart_again() -> None:
    found = derived(moments, (X,), S, R)
    assert found.complete, found.endings

    def gradient(axis: Any, w: Any, x: Any) -> Any:
        grads = jax.grad(lambda w: jnp.sum(moments(axis, x * w)))(w)
        return grads if axis is None else jax.lax.pmean(grads, axis)

    found = derived(gradient, (W, X), (R, S), R)
    assert found.complete, found.endings


def test_pieces_of_other_rows_are_no_pieces() -> None:
    def program(axis: Any, x: Any, w: Any) -> Any:
        joined = jnp.concatenate([x, w])
        return joined[: len(x)] if axis is None else joined[len(w) :]

    assert not derived(program, (W, floats(3)), (R, R), R).complete


def test_effects_are_not_followed() -> None:
    def called(axis: Any, x: Any) -> Any:
        return io_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    assert not derived(called, (W,), (R,), R).complete


def test_traces_that_are_wired_differently() -> None:
    def program(axis: Any, x: Any, w: Any) -> Any:
        a, b = jnp.sin(w), jnp.cos(w)
        return x * (a if len(x) > 6 else b)

    found = derived(program, (X, W), (S, R), S)
    assert not found.complete
    assert "on other numbers of devices, where shares have other sizes" in found.endings[0].why


def test_a_program_with_another_number_of_axes_on_other_numbers_of_devices_ends_it() -> None:
    def program(axis: str | None, x: Any) -> Any:
        # Shares of 12 rows, and of 6.
        shape = (-1, 9) if len(x) == 12 else (2, -1, 9)
        return total(axis, jnp.sum(jnp.sin(x.reshape(shape))))

    found = derived(program, (X,), P("i"), P())
    assert "other operations on other numbers of devices" in found.endings[0].why


def test_tables_for_some_numbers_of_devices_alone_end_it() -> None:
    def program(axis: str | None, x: Any) -> Any:
        return total(axis, jnp.sum(x * np.arange(3.0, dtype=np.float32) if len(x) == 12 else x * 2.0))

    found = derived(program, (X,), P("i"), P())
    assert "other operations on other numbers of devices" in found.endings[0].why


# --- keys -------------------------------------------------------------------------------------


def noise(axis: Any, key: Any, x: Any, own: bool = True) -> Any:
    key = jax.random.fold_in(key, index(axis)) if own and axis is not None else key
    return x + jax.random.normal(key, x.shape)


def test_keys() -> None:
    found = derived(noise, (keys(), X), (R, S), S)
    assert found.complete, found.endings
    assert found.draws


def test_one_key_for_all() -> None:
    found = derived(functools.partial(noise, own=False), (keys(), X), (R, S), S)
    assert not found.complete


def test_own_key_for_what_is_whole() -> None:
    def program(axis: Any, key: Any, w: Any) -> Any:
        key = key if axis is None else jax.random.fold_in(key, index(axis))
        return w + jax.random.normal(key, w.shape)

    assert not derived(program, (keys(), W), (R, R), R).complete


def test_split_keys() -> None:
    def program(axis: Any, key: Any, x: Any) -> Any:
        key = key if axis is None else jax.random.fold_in(key, index(axis))
        one, other = jax.random.split(key)
        return jnp.where(jax.random.bernoulli(one, 0.5, x.shape), x, jax.random.uniform(other, x.shape))

    found = derived(program, (keys(), X), (R, S), S)
    assert found.complete and found.draws, found.endings


def test_own_keys_that_are_cloned() -> None:
    """As `nn.scan` and `nn.RNN` of Flax Linen clone what they split for the rounds."""

    def program(axis: Any, key: Any, x: Any) -> Any:
        key = key if axis is None else jax.random.fold_in(key, index(axis))

        def step(h: Any, each: Any) -> Any:
            h = h * jax.random.bernoulli(each, 0.5, h.shape)
            return h, h

        return lax.scan(step, x, jax.random.split(jax.random.clone(key), 3))[1]

    found = derived(program, (keys(), X), (R, S), P(None, "i"))
    assert found.complete and found.draws, found.endings


@pytest.mark.parametrize("each", [1, 2])
def test_draws_for_batches_that_are_joined(each: int) -> None:
    """They are a device's for its rows of either batch, not for as many in a row."""

    def program(axis: Any, key: Any, x: Any) -> Any:
        key = key if axis is None else jax.random.fold_in(key, index(axis))
        joined = jnp.concatenate([jnp.repeat(x, each, axis=0), jnp.repeat(-x, each, axis=0)])
        kept = jax.random.bernoulli(key, 0.5, (joined.shape[0], 1))
        one, other = jnp.split(jnp.where(kept, joined, 0.0), 2)
        return one - 2.0 * other

    found = derived(program, (keys(), X), (R, S), S)
    assert found.complete and found.draws, found.endings


@pytest.mark.parametrize("groups", [1, 2])
def test_joined_batches_are_read_and_written_row_by_row(groups: int) -> None:
    """Columns of the rows of both batches go with these, and those of as many rows in one piece do not."""

    def program(axis: Any, w: Any, x: Any, i: Any, j: Any) -> Any:
        joined = jnp.concatenate([x, -x])
        columns = jnp.concatenate([i, i]) if groups == 2 else j

        def loss(w: Any) -> Any:
            values = joined * w
            rows = jnp.arange(len(values))
            written = jnp.full(values.shape, 2.0).at[rows, columns].add(jnp.sin(values[:, 0]))
            one, other = jnp.split(values[rows, columns] * written.sum(1), 2)
            return jnp.mean(one - 2.0 * jnp.tanh(other))

        return mean(axis, jax.grad(loss)(w))

    shapes = (W, X, whole_numbers(ROWS), whole_numbers(2 * ROWS))
    assert derived(program, shapes, (R, S, S, S), R).complete is (groups == 2)


def test_draws_for_joined_batches_and_for_as_many_rows_in_one_piece() -> None:
    """What is drawn for as many rows lies in one way: numbers that go to either cannot be both."""

    def program(axis: Any, key: Any, x: Any) -> Any:
        key = key if axis is None else jax.random.fold_in(key, index(axis))
        drawn = jax.random.normal(key, (2 * x.shape[0], 1))
        one, other = jnp.split(drawn * jnp.concatenate([x, -x]), 2)
        return one + other + (drawn * jnp.repeat(x, 2, axis=0))[::2]

    assert not derived(program, (keys(), X), (R, S), S).complete


@pytest.mark.parametrize("down", [True, False])
def test_own_keys_beside_others_of_the_same_key(down: bool) -> None:
    """A key of the program may be the one that a device makes with its index, unless that counts down."""

    def program(axis: Any, key: Any, x: Any, w: Any) -> Any:
        own = key
        if axis is not None:
            own = jax.random.fold_in(key, ~index(axis) if down else index(axis))
        other = jax.random.split(key)[1]
        return x + jax.random.normal(own, x.shape), w + jax.random.normal(other, w.shape)

    assert derived(program, (keys(), X, W), (R, S, R), (S, R)).complete is down


def test_own_keys_that_are_made_in_two_ways() -> None:
    def program(axis: Any, key: Any, x: Any) -> Any:
        one = key if axis is None else jax.random.fold_in(key, index(axis))
        other = key if axis is None else jax.random.fold_in(key, ~index(axis))
        return jax.random.normal(one, x.shape) + x * jax.random.normal(other, x.shape)

    assert not derived(program, (keys(), X), (R, S), S).complete


# --- pmap -------------------------------------------------------------------------------------


def pmapped(
    program: Program, given: Sequence[Any], inward: Any, outward: Any, before: Any, after: Any
) -> Shown:
    """What is derived of a program under `pmap`, with what its caller does before and after."""
    reference = jax.make_jaxpr(functools.partial(program, None))(*given)
    parallel = []
    for count in COUNTS:
        run = jax.pmap(
            functools.partial(program, "i"),
            "i",
            in_axes=inward,
            out_axes=outward,
            devices=jax.devices()[:count],
        )
        parallel.append(jax.make_jaxpr(lambda *a, run=run, n=count: after(run(*before(n, *a))))(*given))
    return derive(reference, parallel, [f"a{i}" for i in range(len(given))])


def stack(count: int, x: Any) -> Any:
    return x.reshape(count, -1, *x.shape[1:])


def copies(count: int, x: Any) -> Any:
    return jnp.broadcast_to(x, (count, *x.shape))


def flat(x: Any) -> Any:
    return x.reshape(-1, *x.shape[2:])


def test_pmap() -> None:
    found = pmapped(
        gradient,
        (W, X, Y),
        (None, 0, 0),
        None,
        lambda n, w, x, y: (w, stack(n, x), stack(n, y)),
        lambda out: out,
    )
    assert found.complete, found.endings


def test_pmap_of_copies() -> None:
    found = pmapped(
        gradient,
        (W, X, Y),
        0,
        0,
        lambda n, w, x, y: (copies(n, w), stack(n, x), stack(n, y)),
        lambda out: (out[0][0], out[1][0]),
    )
    assert found.complete, found.endings


def test_pmap_of_another_axis() -> None:
    found = pmapped(
        lambda axis, x: jnp.sin(x) * 2,
        (X,),
        1,
        1,
        lambda n, x: (jnp.moveaxis(stack(n, x), 0, 1),),
        lambda out: flat(jnp.moveaxis(out, 1, 0)),
    )
    # Moved along an axis that is stacked: not followed, and nothing is claimed.
    assert not found.complete


def test_pmap_stacks_shares() -> None:
    found = pmapped(lambda axis, x: jnp.sin(x), (X,), 0, 0, lambda n, x: (stack(n, x),), flat)
    assert found.complete, found.endings


def test_pmap_gives_another_order() -> None:
    found = pmapped(
        lambda axis, x: jnp.sin(x),
        (X,),
        0,
        0,
        lambda n, x: (stack(n, x),),
        lambda out: flat(jnp.swapaxes(out, 0, 1)),
    )
    assert not found.complete


def test_pmap_takes_one_device() -> None:
    found = pmapped(lambda axis, x: x.sum(), (X,), 0, 0, lambda n, x: (stack(n, x),), lambda out: out[0])
    assert not found.complete


def test_scan_outside_stacks_blocks() -> None:
    def outside(count: int | None, x: Any) -> Any:
        if count is None:
            return lax.scan(lambda c, _: (c * 2, jnp.sin(c)), x, None, 2)[1]
        run = jax.pmap(jnp.sin, "i", devices=jax.devices()[:count])
        out = lax.scan(lambda c, _: (c * 2, run(stack(count, c))), x, None, 2)[1]
        return out.reshape(2, -1, 3)

    reference = jax.make_jaxpr(functools.partial(outside, None))(X)
    found = derive(reference, [jax.make_jaxpr(functools.partial(outside, n))(X) for n in COUNTS], ["x"])
    wrong = derive(
        reference,
        [jax.make_jaxpr(lambda x, n=n: outside(n, x)[:, ::-1])(X) for n in COUNTS],
        ["x"],
    )
    assert not wrong.complete
    assert found.complete or found.endings


@pytest.mark.parametrize("moved", [0, 1])
def test_the_diagonal_of_what_examples_share_is_read_where_own_columns_are(moved: int) -> None:
    """`jnp.diag` computes otherwise in kernels that are written in Mosaic, which none of these is."""

    def likeness(axis: str | None, x: Any, y: Any) -> Any:
        if axis is None:
            return jnp.diag(x @ y.T)
        own = jnp.arange(len(x))
        made = x @ lax.all_gather(y, axis, tiled=True).T
        return made[own, lax.axis_index(axis) * len(x) + own + moved]

    assert derived(likeness, (X, X), (P("i"), P("i")), P("i")).complete == (not moved)


@pytest.mark.parametrize("moved", [0, 1])
@pytest.mark.parametrize("axis_of_own", [0, 1])
def test_the_trace_of_what_examples_share_is_summed_where_own_rows_are(moved: int, axis_of_own: int) -> None:
    """`jnp.trace` compares positions that were made for a matrix, and others those of its rows, spread."""

    def likeness(axis: str | None, x: Any, y: Any) -> Any:
        if axis is None:
            return jnp.trace(x @ y.T)
        own = lax.axis_index(axis) * len(x) + jnp.arange(len(x)) + moved
        if axis_of_own:
            made = lax.all_gather(x, axis, tiled=True) @ y.T
            kept = jnp.where(jnp.arange(len(made))[:, None] == own, made, 0)
        else:
            made = x @ lax.all_gather(y, axis, tiled=True).T
            kept = jnp.where(own[:, None] == jnp.arange(made.shape[1]), made, 0)
        return lax.psum(kept.sum(), axis)

    assert derived(likeness, (X, X), (P("i"), P("i")), P()).complete == (not moved)
