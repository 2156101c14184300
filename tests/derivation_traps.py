"""Programs that a person would write to fool the derivation by placements, each with the truth about it.

Most are wrong by little: what is derived equal of them would be a bug. Run as a script, it prints one line of
JSON for each: its name, whether it is equal, whether it was derived, and whether it ran equal; with `--all`
also of what was not derived.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from derivation_fuzz import close, derive, jax, jnp, np
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

WHOLE = P()
I = P("i")  # noqa: E741
WHOLES = (P(), P(), P(), P(), P())
#: Inputs: parameters, and examples that are divided over the devices.
GIVEN = ("w", "x", "y", "k", "m")


@dataclass(frozen=True)
class Trap:
    """A reference and a parallel program."""

    equal: bool
    reference: Callable[..., Any]
    #: What it is on a device; the reference itself where it is left out.
    parallel: Callable[..., Any] | None = None
    out: Any = WHOLE
    ins: tuple[Any, ...] = (WHOLE, I, I, I, I)
    #: Sizes of the mesh that are traced, and that it is run on.
    traced: tuple[Any, ...] = (2, 4)
    run: tuple[Any, ...] = (3,)
    axes: tuple[str, ...] = ("i",)
    #: It is mapped by a function of the number of devices, not by `shard_map` of `parallel`.
    whole: Callable[..., Any] | None = None
    dtype: str = "float64"

    def mapped(self, sizes: Any) -> Callable[..., Any]:
        """The parallel program on so many devices."""
        shape = sizes if isinstance(sizes, tuple) else (sizes,)
        mesh = Mesh(np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape), self.axes)
        if self.whole is not None:
            made: Callable[..., Any] = self.whole(mesh)
            return made
        return jax.shard_map(
            self.parallel or self.reference, mesh=mesh, in_specs=self.ins, out_specs=self.out, check_vma=False
        )


def blocks(x: Any) -> Any:
    """Rows as one block for each device."""
    return x.reshape(lax.axis_size("i"), -1, *x.shape[1:])


def inputs(dtype: str) -> tuple[Any, ...]:
    """`w` (6,), `x` (24, 6), `y` (24,), whole numbers `k`, weights `m` that are unlike on each device."""
    draw = np.random.default_rng(3)
    x = draw.normal(size=(24, 6)) * np.linspace(0.3, 2.0, 24)[:, None]
    k = draw.integers(0, 6, 24)
    m = np.arange(24) % 7 + 0.5 * (np.arange(24) > 9)
    return tuple(
        jnp.asarray(a, None if a.dtype == np.int64 else dtype)
        for a in (draw.normal(size=6), x, x[:, 0] ** 2 + 3, k, m)
    )


def psum(value: Any) -> Any:
    """Over the one axis."""
    return lax.psum(value, "i")


def primitive(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as a primitive of the user's own, whatever its name."""
    made = Primitive(name)
    made.def_impl(function)
    made.def_abstract_eval(lambda x, **params: x)
    mlir.register_lowering(made, mlir.lower_fun(function, multiple_results=False))
    return made.bind


def divided(x: Any) -> Any:
    """A sum that says itself how it is divided, and forgets to add up what the devices have."""
    made = custom_partitioning(lambda x: x.sum())
    made.def_partition(
        partition=lambda mesh, given, out: (
            mesh,
            lambda x: x.sum(),
            NamedSharding(mesh, P()),
            (NamedSharding(mesh, P("i")),),
        ),
        infer_sharding_from_operands=lambda mesh, given, out: NamedSharding(mesh, P()),
        sharding_rule="i -> ",
    )
    return made(x)


def pmean(value: Any) -> Any:
    """Over the one axis."""
    return lax.pmean(value, "i")


def gathered(value: Any) -> Any:
    """All rows."""
    return lax.all_gather(value, "i", tiled=True)


def hypot(a: Any, b: Any) -> Any:
    """A reducer that jax has no primitive for."""
    return jnp.sqrt(a * a + b * b)


def masked_groups(w: Any, x: Any, y: Any, k: Any, m: Any) -> Any:
    """The mean over two microbatches of the weighted mean in each."""
    return ((y * m).reshape(2, -1).sum(1) / m.reshape(2, -1).sum(1)).mean()


def accumulated(w: Any, x: Any, y: Any, k: Any, m: Any) -> Any:
    """Gradients of a plain mean, added up over microbatches."""

    def step(total: Any, rows: Any) -> Any:
        g = jax.grad(lambda w: jnp.mean((rows[0] @ w - rows[1]) ** 2))(w)
        return total + g, None

    rows = x.reshape(2, -1, 6), y.reshape(2, -1)
    return lax.scan(step, jnp.zeros_like(w), rows)[0] / 2


def loss(w: Any, x: Any, y: Any, k: Any, m: Any) -> Any:
    """A plain mean."""
    return jnp.mean((x @ w - y) ** 2)


def last_group(part: Callable[..., Any], groups: int = 2) -> Callable[..., Any]:
    """What `part` makes of the last group of a device's rows."""

    def kept(w: Any, *batch: Any) -> Any:
        rows = tuple(each.reshape(groups, -1, *each.shape[1:]) for each in batch)
        given = [each[0] for each in rows]
        zero = jnp.zeros_like(jax.eval_shape(part, w, *given))
        return lax.scan(lambda _, row: (part(w, *row), None), zero, rows)[0]

    return kept


def in_groups(part: Callable[..., Any], groups: int = 2) -> Callable[..., Any]:
    """The sum of what `part` makes of each group of a device's rows."""

    def added(w: Any, *batch: Any) -> Any:
        rows = tuple(each.reshape(groups, -1, *each.shape[1:]) for each in batch)
        like = jax.eval_shape(part, w, *(each[0] for each in rows))
        zero = jnp.zeros(like.shape, like.dtype)
        return lax.scan(lambda total, row: (total + part(w, *row), None), zero, rows)[0]

    return added


def weighted(w: Any, x: Any, y: Any, k: Any, m: Any) -> Any:
    """The gradient of a weighted mean."""
    return jax.grad(lambda w: ((x @ w - y) ** 2 * m).sum() / m.sum())(w)


def with_total(w: Any, x: Any, y: Any, k: Any, m: Any) -> Any:
    """The same in groups, with the sum of the weights first."""
    total = psum(m.sum())
    part = in_groups(lambda w, x, y, k, m: jax.grad(lambda w: ((x @ w - y) ** 2 * m).sum() / total)(w))
    return psum(part(w, x, y, k, m))


def two_pass(w: Any, x: Any, y: Any, k: Any, m: Any) -> Any:
    """The variance as it is written in books."""
    return ((y - y.mean()) ** 2).mean()


def begins_at(x: Any, start: Any) -> Any:
    """Half of the rows."""
    return lax.dynamic_slice_in_dim(x, jnp.int32(start), x.shape[0] // 2)


def beyond_the_end(w: Any, x: Any, y: Any, k: Any, m: Any) -> Any:
    """The last half of the rows, where a slice that reaches further ends."""
    return begins_at(x, k[0] + 15)


def own_slice(rows: Any, axis: int = 0, dtype: Any = jnp.int32) -> Any:
    """A device's part of what is whole, from where `dtype` says that it begins."""
    size = rows.shape[axis] // lax.axis_size("i")
    start = lax.axis_index("i").astype(dtype) * jnp.array(size).astype(dtype)
    return lax.dynamic_slice_in_dim(rows, start.astype(int), size, axis)


def shares(mesh: Mesh, part: Callable[..., Any], given: Any = I) -> Callable[..., Any]:
    """`part` of each device's share."""
    return jax.shard_map(part, mesh=mesh, in_specs=given, out_specs=I, check_vma=False)


def held(mesh: Mesh, rows: Any) -> Any:
    """What the compiler takes as it is, and whole."""
    return lax.with_sharding_constraint(lax.optimization_barrier(rows), NamedSharding(mesh, P()))


def summed(w: Any, x: Any, y: Any, k: Any, m: Any) -> Any:
    """Of all rows."""
    return x.sum(0)


TRAPS: dict[str, Trap] = {
    # What is summed how.
    "psum of rows": Trap(False, lambda w, x, y, k, m: y * 2, lambda w, x, y, k, m: psum(y * 2), I),
    "psum of a sum": Trap(True, summed, lambda w, x, y, k, m: psum(x.sum(0))),
    "psum twice": Trap(False, summed, lambda w, x, y, k, m: psum(psum(x.sum(0)))),
    "pmean of a sum": Trap(False, summed, lambda w, x, y, k, m: pmean(x.sum(0))),
    "no collective": Trap(False, summed, lambda w, x, y, k, m: x.sum(0)),
    "pmax of a sum": Trap(False, summed, lambda w, x, y, k, m: lax.pmax(x.sum(0), "i")),
    "max of partial sums": Trap(
        False, lambda w, x, y, k, m: x.sum(0).max(), lambda w, x, y, k, m: psum(x.sum(0).max())
    ),
    "sum of maxima": Trap(
        False, lambda w, x, y, k, m: x.max(0).sum(), lambda w, x, y, k, m: lax.pmax(x.max(0).sum(), "i")
    ),
    "pmax of a decreasing function": Trap(
        False, lambda w, x, y, k, m: 1 / (5 + y.max()), lambda w, x, y, k, m: lax.pmax(1 / (5 + y.max()), "i")
    ),
    "pmin of a negated maximum": Trap(
        True, lambda w, x, y, k, m: -y.max(), lambda w, x, y, k, m: lax.pmin(-y.max(), "i")
    ),
    "maximum times a negative number": Trap(
        False, lambda w, x, y, k, m: y.max() * -2.0, lambda w, x, y, k, m: lax.pmax(y.max() * -2.0, "i")
    ),
    "maximum as unsigned": Trap(
        False,
        lambda w, x, y, k, m: (jnp.arange(k.size) - 10).max().astype(jnp.uint32),
        lambda w, x, y, k, m: lax.pmax(
            (jnp.arange(k.size) + lax.axis_index("i") * k.size - 10).max().astype(jnp.uint32), "i"
        ),
    ),
    "mean of maxima": Trap(False, lambda w, x, y, k, m: y.max(), lambda w, x, y, k, m: pmean(y.max())),
    "ratio of partial sums": Trap(
        False,
        lambda w, x, y, k, m: (y * m).sum() / m.sum(),
        lambda w, x, y, k, m: pmean((y * m).sum() / m.sum()),
    ),
    "ratio of whole sums": Trap(
        True,
        lambda w, x, y, k, m: (y * m).sum() / m.sum(),
        lambda w, x, y, k, m: psum((y * m).sum()) / psum(m.sum()),
    ),
    "ratio of means": Trap(
        True,
        lambda w, x, y, k, m: (y * m).sum() / m.sum(),
        lambda w, x, y, k, m: pmean((y * m).mean()) / pmean(m.mean()),
    ),
    "one part of a ratio whole": Trap(
        True,
        lambda w, x, y, k, m: (y * m).sum() / m.sum(),
        lambda w, x, y, k, m: psum((y * m).sum() / psum(m.sum())),
    ),
    "ridge in each part": Trap(
        False, lambda w, x, y, k, m: x.T @ x + jnp.eye(6), lambda w, x, y, k, m: psum(x.T @ x + jnp.eye(6))
    ),
    "ridge divided": Trap(
        True,
        lambda w, x, y, k, m: x.T @ x + jnp.eye(6),
        lambda w, x, y, k, m: psum(x.T @ x + jnp.eye(6) / lax.axis_size("i")),
    ),
    "penalty in a summed loss": Trap(
        False,
        lambda w, x, y, k, m: jax.grad(lambda w: ((x @ w) ** 2).sum() + (w**2).sum())(w),
        lambda w, x, y, k, m: psum(jax.grad(lambda w: ((x @ w) ** 2).sum() + (w**2).sum())(w)),
    ),
    "penalty in an averaged loss": Trap(
        True,
        lambda w, x, y, k, m: jax.grad(lambda w: ((x @ w) ** 2).mean() + (w**2).sum())(w),
        lambda w, x, y, k, m: pmean(jax.grad(lambda w: ((x @ w) ** 2).mean() + (w**2).sum())(w)),
    ),
    "clip before the mean": Trap(
        False,
        lambda w, x, y, k, m: (lambda g: g / jnp.linalg.norm(g))(jax.grad(loss)(w, x, y, k, m)),
        lambda w, x, y, k, m: pmean((lambda g: g / jnp.linalg.norm(g))(jax.grad(loss)(w, x, y, k, m))),
    ),
    "collective in the loss": Trap(
        False,
        lambda w, x, y, k, m: jax.grad(loss)(w, x, y, k, m),
        lambda w, x, y, k, m: jax.grad(lambda w: pmean(loss(w, x, y, k, m)))(w),
    ),
    "collective in the loss and after it": Trap(
        True,
        lambda w, x, y, k, m: jax.grad(loss)(w, x, y, k, m),
        lambda w, x, y, k, m: pmean(jax.grad(lambda w: pmean(loss(w, x, y, k, m)))(w)),
    ),
    "standard deviations averaged": Trap(
        False, lambda w, x, y, k, m: y.std(), lambda w, x, y, k, m: pmean(y.std())
    ),
    "variance of a share": Trap(False, two_pass, lambda w, x, y, k, m: pmean(two_pass(w, x, y, k, m))),
    "variance in two passes": Trap(
        True, two_pass, lambda w, x, y, k, m: pmean(((y - pmean(y.mean())) ** 2).mean())
    ),
    "variance in one pass": Trap(
        True, two_pass, lambda w, x, y, k, m: pmean((y**2).mean()) - pmean(y.mean()) ** 2
    ),
    "variance in one pass, partly": Trap(
        False, two_pass, lambda w, x, y, k, m: pmean((y**2).mean() - y.mean() ** 2)
    ),
    "stopped gradient": Trap(
        False,
        lambda w, x, y, k, m: jax.grad(lambda w: ((x @ w) ** 2).mean() * (w**2).sum())(w),
        lambda w, x, y, k, m: pmean(
            jax.grad(lambda w: lax.stop_gradient(((x @ w) ** 2).mean()) * (w**2).sum())(w)
        ),
    ),
    "standardised by the share": Trap(
        False,
        lambda w, x, y, k, m: (x - x.mean(0)) / x.std(0),
        lambda w, x, y, k, m: (x - x.mean(0)) / x.std(0),
        I,
    ),
    "softmax over the batch": Trap(False, lambda w, x, y, k, m: jax.nn.softmax(y), None, I),
    "softmax over the batch, shifted by another number": Trap(
        True,
        lambda w, x, y, k, m: jnp.exp(y - y.max()) / jnp.exp(y - y.max()).sum(),
        lambda w, x, y, k, m: (lambda top: jnp.exp(y - top) / psum(jnp.exp(y - top).sum()))(
            lax.pmax(y.max(), "i")
        ),
        I,
    ),
    "softmax shifted by each one's own maximum": Trap(
        False,
        lambda w, x, y, k, m: jnp.exp(y - y.max()) / jnp.exp(y - y.max()).sum(),
        lambda w, x, y, k, m: jnp.exp(y - y.max()) / psum(jnp.exp(y - y.max()).sum()),
        I,
    ),
    # Microbatches and layouts.
    "what the last microbatch has is the same for each": Trap(
        True, lambda w, *_: jnp.tanh(w) * 3, last_group(lambda w, *_: jnp.tanh(w) * 3)
    ),
    "a sum that the last microbatch has": Trap(
        False, lambda w, x, *_: x.sum(0), lambda *a: psum(last_group(lambda w, x, *_: x.sum(0))(*a))
    ),
    "a mean that the last microbatch has": Trap(
        False, lambda w, x, *_: x.mean(0), lambda *a: pmean(last_group(lambda w, x, *_: x.mean(0))(*a))
    ),
    "a maximum that the last microbatch has": Trap(
        False, lambda w, x, *_: x.max(0), lambda *a: lax.pmax(last_group(lambda w, x, *_: x.max(0))(*a), "i")
    ),
    "how many rows the last microbatch has": Trap(
        False, lambda w, x, *_: w * len(x), lambda *a: psum(last_group(lambda w, x, *_: w * len(x))(*a))
    ),
    "weighted mean in microbatches": Trap(False, masked_groups, lambda *a: pmean(masked_groups(*a))),
    "accumulated gradients": Trap(True, accumulated, lambda *a: pmean(accumulated(*a))),
    "accumulated without the mean": Trap(False, accumulated, accumulated),
    "group maxima": Trap(
        False,
        lambda w, x, y, k, m: y.reshape(2, -1).max(1).sum(),
        lambda w, x, y, k, m: psum(y.reshape(2, -1).max(1).sum()),
    ),
    "small groups": Trap(
        True,
        lambda w, x, y, k, m: y.reshape(-1, 2).max(1).sum(),
        lambda w, x, y, k, m: psum(y.reshape(-1, 2).max(1).sum()),
    ),
    "time first": Trap(
        True, lambda w, x, y, k, m: x.T.reshape(-1).sum(), lambda w, x, y, k, m: psum(x.T.reshape(-1).sum())
    ),
    "time first, joined": Trap(False, lambda w, x, y, k, m: x.T.reshape(-1), None, I),
    "time first, there and back": Trap(
        True, lambda w, x, y, k, m: jnp.tanh(x.T.reshape(-1)).reshape(6, -1).T, None, I
    ),
    "time first, times positions": Trap(
        False,
        lambda w, x, y, k, m: (x.T.reshape(-1) * jnp.arange(x.size)).sum(),
        lambda w, x, y, k, m: psum(
            (x.T.reshape(-1) * (jnp.arange(x.size) + lax.axis_index("i") * x.size)).sum()
        ),
    ),
    "rows first, times positions": Trap(
        True,
        lambda w, x, y, k, m: (x.reshape(-1) * jnp.arange(x.size)).sum(),
        lambda w, x, y, k, m: psum(
            (x.reshape(-1) * (jnp.arange(x.size) + lax.axis_index("i") * x.size)).sum()
        ),
    ),
    "labels of the share's entries": Trap(
        False, lambda w, x, y, k, m: x[:, :2] * (jnp.arange(2 * y.size).reshape(-1, 2) + 1), None, I
    ),
    "a label is compared with numbers": Trap(
        False,
        lambda w, x, y, k, m: y * ((jnp.arange(y.size) + 1)[:, None] == jnp.arange(1, 7)).any(1),
        None,
        I,
    ),
    "a label from zero is told from none": Trap(
        False, lambda w, x, y, k, m: y * (2 * jnp.arange(y.size) == jnp.arange(y.size)), None, I
    ),
    "labels that count otherwise are compared": Trap(
        False,
        lambda w, x, y, k, m: y * (jnp.arange(2 * y.size).reshape(-1, 2)[:, 0] + 1 == jnp.arange(y.size) + 4),
        None,
        I,
    ),
    "the label of the last writer is read": Trap(
        False,
        lambda w, x, y, k, m: (
            jnp.zeros_like(x).at[jnp.arange(y.size), k].set(jnp.arange(y.size) + 1.0).sum(1) * y
        ),
        None,
        I,
    ),
    "labels of other rows are read": Trap(
        False,
        lambda w, x, y, k, m: (
            y * (jnp.zeros(6).at[k].set(jnp.arange(y.size) + 1.0)[k] == jnp.arange(y.size) + 1)
        ),
        None,
        I,
    ),
    "the last writer into a place of the example's own": Trap(
        True,
        lambda w, x, y, k, m: jax.grad(
            lambda x: (
                x.at[jnp.arange(y.size)[:, None], jnp.stack([k, k % 2], 1)].set(jnp.stack([y, x[:, 0]], 1))
                ** 3
            ).sum()
        )(x),
        None,
        I,
    ),
    "the last writer into a place of all": Trap(
        False,
        lambda w, x, y, k, m: jax.grad(lambda y: (jnp.zeros(6).at[k].set(y) ** 3).sum())(y),
        None,
        I,
    ),
    "positions of the share": Trap(False, lambda w, x, y, k, m: y * jnp.arange(y.size), None, I),
    "reversed": Trap(False, lambda w, x, y, k, m: y[::-1], None, I),
    "rolled": Trap(False, lambda w, x, y, k, m: jnp.roll(y, 1), None, I),
    "sorted": Trap(False, lambda w, x, y, k, m: jnp.sort(y), None, I),
    "cumulative": Trap(False, lambda w, x, y, k, m: jnp.cumsum(y), None, I),
    "cumulative, the last": Trap(
        True, lambda w, x, y, k, m: jnp.cumsum(y)[-1], lambda w, x, y, k, m: psum(jnp.cumsum(y)[-1])
    ),
    "every other row": Trap(
        True, lambda w, x, y, k, m: y[::2].sum(), lambda w, x, y, k, m: psum(y[::2].sum())
    ),
    "every third row": Trap(
        False, lambda w, x, y, k, m: y[::5].sum(), lambda w, x, y, k, m: psum(y[::5].sum())
    ),
    "the first row": Trap(False, lambda w, x, y, k, m: x[0], lambda w, x, y, k, m: pmean(x[0])),
    "ties of argmax": Trap(
        False,
        lambda w, x, y, k, m: jnp.argmax(k),
        lambda w, x, y, k, m: lax.pmax(jnp.argmax(k) + lax.axis_index("i") * k.size, "i"),
    ),
    "argmax of the share": Trap(
        False, lambda w, x, y, k, m: jnp.argmax(y), lambda w, x, y, k, m: pmean(jnp.argmax(y))
    ),
    # Gathers and scatters.
    "labels of the row": Trap(
        True,
        lambda w, x, y, k, m: x[jnp.arange(y.size), k].mean(),
        lambda w, x, y, k, m: pmean(x[jnp.arange(y.size), k].mean()),
    ),
    "row of the label": Trap(
        False, lambda w, x, y, k, m: x[k].mean(), lambda w, x, y, k, m: pmean(x[k].mean())
    ),
    "negative rows": Trap(False, lambda w, x, y, k, m: y[-1 - k], None, I),
    "rows out of bounds": Trap(
        False, lambda w, x, y, k, m: y.at[k + 19].get(mode="fill", fill_value=0), None, I
    ),
    "shifted positions": Trap(False, lambda w, x, y, k, m: y[(jnp.arange(y.size) + 1) % y.size], None, I),
    "embedding": Trap(
        True,
        lambda w, x, y, k, m: jax.grad(lambda w: (w[k] * y).mean())(w),
        lambda w, x, y, k, m: pmean(jax.grad(lambda w: (w[k] * y).mean())(w)),
    ),
    "scatter-max of parts": Trap(
        False,
        lambda w, x, y, k, m: w.at[k].max(y),
        lambda w, x, y, k, m: psum(w.at[k].max(y)),
    ),
    "scatter-add on weights": Trap(
        False, lambda w, x, y, k, m: w.at[k].add(y), lambda w, x, y, k, m: psum(w.at[k].add(y))
    ),
    "rows added to the first places of a partial sum": Trap(
        False,
        lambda w, x, y, k, m: jax.ops.segment_sum(y, k, num_segments=30).at[: y.size].add(y),
        lambda w, x, y, k, m: psum(jax.ops.segment_sum(y, k, num_segments=30).at[: y.size].add(y)),
    ),
    "last write wins": Trap(
        False, lambda w, x, y, k, m: w.at[k].set(y), lambda w, x, y, k, m: pmean(w.at[k].set(y))
    ),
    "fill that is not scaled": Trap(
        False,
        lambda w, x, y, k, m: (2 * w).at[jnp.array([1, 9])].get(mode="fill", fill_value=7.0),
        lambda w, x, y, k, m: 2 * w.at[jnp.array([1, 9])].get(mode="fill", fill_value=7.0),
    ),
    "own part, one too far": Trap(
        False,
        lambda w, x, y, k, m: x * 2,
        lambda w, x, y, k, m: (
            lax.dynamic_slice_in_dim(
                x,
                lax.axis_index("i") * (x.shape[0] // lax.axis_size("i")) + 1,
                x.shape[0] // lax.axis_size("i"),
            )
            * 2
        ),
        I,
        (P(), P(), P(), P(), P()),
    ),
    "own part, from a place that wraps around": Trap(
        False,
        lambda w, x, y, k, m: jnp.repeat(x, 40, 0),
        lambda w, x, y, k, m: own_slice(jnp.repeat(x, 40, 0), dtype=jnp.uint8),
        I,
        (P(), P(), P(), P(), P()),
    ),
    "own part, from a place beyond all numbers": Trap(
        False,
        lambda w, x, y, k, m: jnp.repeat(x, 4000, 0),
        lambda w, x, y, k, m: own_slice(jnp.repeat(x, 4000, 0), dtype=jnp.float16),
        I,
        (P(), P(), P(), P(), P()),
    ),
    "own part": Trap(
        True,
        lambda w, x, y, k, m: x * 2,
        lambda w, x, y, k, m: (
            lax.dynamic_slice_in_dim(
                x, lax.axis_index("i") * (x.shape[0] // lax.axis_size("i")), x.shape[0] // lax.axis_size("i")
            )
            * 2
        ),
        I,
        (P(), P(), P(), P(), P()),
    ),
    "own block": Trap(
        True,
        lambda w, x, y, k, m: x * 2,
        lambda w, x, y, k, m: lax.dynamic_index_in_dim(blocks(x), lax.axis_index("i"), 0, keepdims=False) * 2,
        I,
        (P(), P(), P(), P(), P()),
    ),
    "the block of the next device": Trap(
        False,
        lambda w, x, y, k, m: x * 2,
        lambda w, x, y, k, m: (
            lax.dynamic_index_in_dim(
                blocks(x), (lax.axis_index("i") + 1) % lax.axis_size("i"), 0, keepdims=False
            )
            * 2
        ),
        I,
        (P(), P(), P(), P(), P()),
    ),
    "one row of each block": Trap(
        False,
        lambda w, x, y, k, m: x * 2,
        lambda w, x, y, k, m: (
            lax.dynamic_index_in_dim(
                x.reshape(-1, lax.axis_size("i"), *x.shape[1:]), lax.axis_index("i"), 1, keepdims=False
            )
            * 2
        ),
        I,
        (P(), P(), P(), P(), P()),
    ),
    "own part of half the size": Trap(
        False,
        lambda w, x, y, k, m: x[:12] * 2,
        lambda w, x, y, k, m: (
            lax.dynamic_slice_in_dim(
                x, lax.axis_index("i") * (x.shape[0] // lax.axis_size("i")), 12 // lax.axis_size("i")
            )
            * 2
        ),
        I,
        (P(), P(), P(), P(), P()),
    ),
    # Slices of slices, of which XLA makes one.
    "a part of what is sliced beyond the end": Trap(
        False, beyond_the_end, lambda w, x, y, k, m: own_slice(beyond_the_end(w, x, y, k, m)), I, WHOLES
    ),
    "a part of what is sliced beyond the end, and moved": Trap(
        False,
        beyond_the_end,
        lambda w, x, y, k, m: own_slice(beyond_the_end(w, x, y, k, m).T[None] + 0, 2)[0].T,
        I,
        WHOLES,
    ),
    "a part of what is sliced, and computed with": Trap(
        True,
        lambda *given: jnp.tanh(beyond_the_end(*given)),
        lambda *given: own_slice(jnp.tanh(beyond_the_end(*given))),
        I,
        WHOLES,
    ),
    "a part of what is sliced, behind a barrier": Trap(
        True,
        beyond_the_end,
        lambda *given: own_slice(lax.optimization_barrier(beyond_the_end(*given))),
        I,
        WHOLES,
    ),
    "an equal part of what is sliced": Trap(
        True,
        beyond_the_end,
        lambda *given: blocks(beyond_the_end(*given))[lax.axis_index("i")],
        I,
        WHOLES,
    ),
    "a part of a slice that begins where there is room": Trap(
        True,
        lambda w, x, y, k, m: begins_at(x, 4),
        lambda w, x, y, k, m: own_slice(begins_at(x, 4)),
        I,
        WHOLES,
    ),
    "what is sliced outside, and cut inside": Trap(
        False,
        beyond_the_end,
        whole=lambda mesh: jax.jit(lambda *g: shares(mesh, own_slice, P())(beyond_the_end(*g))),
    ),
    "what is sliced outside, and divided": Trap(
        False,
        beyond_the_end,
        whole=lambda mesh: jax.jit(lambda *g: shares(mesh, jnp.copy)(beyond_the_end(*g))),
    ),
    "what is sliced outside, computed with, and divided": Trap(
        False,
        lambda *given: jnp.tanh(beyond_the_end(*given)),
        whole=lambda mesh: jax.jit(lambda *g: shares(mesh, jnp.copy)(jnp.tanh(beyond_the_end(*g)))),
    ),
    "what is sliced outside, and divided by the compiler": Trap(
        False,
        beyond_the_end,
        whole=lambda mesh: jax.jit(
            lambda *g: lax.with_sharding_constraint(beyond_the_end(*g), NamedSharding(mesh, I))
        ),
    ),
    "what is sliced outside, and whole behind a barrier": Trap(
        True,
        beyond_the_end,
        whole=lambda mesh: jax.jit(lambda *g: shares(mesh, jnp.copy)(held(mesh, beyond_the_end(*g)))),
    ),
    # Gathering.
    "gathered, mean over devices": Trap(
        False, lambda w, x, y, k, m: x.mean(0), lambda w, x, y, k, m: lax.all_gather(x, "i").mean(0)[0]
    ),
    "gathered, wrong axis": Trap(
        False, lambda w, x, y, k, m: x.sum(1), lambda w, x, y, k, m: lax.all_gather(x, "i").sum(1).sum(1), I
    ),
    "gathered weights": Trap(
        False, lambda w, x, y, k, m: w * w, lambda w, x, y, k, m: lax.all_gather(w, "i").sum(0) * w
    ),
    "contrast": Trap(
        True, lambda w, x, y, k, m: (x @ x.T).max(1), lambda w, x, y, k, m: (x @ gathered(x).T).max(1), I
    ),
    "contrast on a share": Trap(False, lambda w, x, y, k, m: (x @ x.T).max(1), None, I),
    "axis of a stack": Trap(
        False,
        lambda w, x, y, k, m: (x.T @ x).sum(1),
        lambda w, x, y, k, m: lax.all_gather(psum(x.T @ x) * jnp.arange(6), "i").sum(1).max(0),
    ),
    # Control flow.
    "branch on a local value": Trap(False, lambda w, x, y, k, m: lax.cond(y.sum() > 50, jnp.sin, jnp.cos, w)),
    "branch on a whole value": Trap(
        True,
        lambda w, x, y, k, m: lax.cond(y.sum() > 50, jnp.sin, jnp.cos, w),
        lambda w, x, y, k, m: lax.cond(psum(y.sum()) > 50, jnp.sin, jnp.cos, w),
    ),
    "loop until a local value": Trap(
        False, lambda w, x, y, k, m: lax.while_loop(lambda v: (v * y.sum()).sum() > 1, lambda v: v / 2, w**2)
    ),
    "carry that starts whole": Trap(
        False,
        lambda w, x, y, k, m: lax.scan(lambda c, _: (c + x.sum(0), None), w, None, length=3)[0],
        lambda w, x, y, k, m: psum(lax.scan(lambda c, _: (c + x.sum(0), None), w, None, length=3)[0]),
    ),
    "carry that starts at zero": Trap(
        True,
        lambda w, x, y, k, m: lax.scan(lambda c, _: (c + x.sum(0), None), jnp.zeros(6), None, length=3)[0],
        lambda w, x, y, k, m: psum(
            lax.scan(lambda c, _: (c + x.sum(0), None), jnp.zeros(6), None, length=3)[0]
        ),
    ),
    "another order of a loop": Trap(
        False,
        lambda w, x, y, k, m: lax.scan(lambda c, t: (c * 0.5 + t, None), jnp.zeros(y.size), x.T)[0],
        lambda w, x, y, k, m: lax.scan(
            lambda c, t: (c * 0.5 + t, None), jnp.zeros(y.size), x.T, reverse=True
        )[0],
        I,
    ),
    "loop over the rows": Trap(
        False,
        lambda w, x, y, k, m: lax.scan(lambda c, r: (c * 0.9 + r, None), w, x)[0],
        lambda w, x, y, k, m: pmean(lax.scan(lambda c, r: (c * 0.9 + r, None), w, x)[0]),
    ),
    "carries exchanged": Trap(
        False,
        lambda w, x, y, k, m: lax.scan(lambda c, _: ((c[1], c[0]), None), (w, w * 2), None, length=3)[0][0],
        lambda w, x, y, k, m: lax.scan(lambda c, _: ((c[0], c[1]), None), (w, w * 2), None, length=3)[0][0],
    ),
    "a reducer of one's own": Trap(
        False,
        lambda w, x, y, k, m: lax.reduce(x, np.float64(0), hypot, (0,)).sum(),
        lambda w, x, y, k, m: psum(lax.reduce(x, np.float64(0), hypot, (0,)).sum()),
    ),
    "another reducer": Trap(
        False,
        lambda w, x, y, k, m: lax.reduce_window(x, np.float64(0), hypot, (1, 2), (1, 2), "VALID"),
        lambda w, x, y, k, m: lax.reduce_window(
            x, np.float64(0), lambda a, b: a + b * b, (1, 2), (1, 2), "VALID"
        ),
        I,
    ),
    "vmapped axis in a collective": Trap(
        False,
        summed,
        lambda w, x, y, k, m: jax.vmap(lambda p: lax.psum(p, ("i", "v")), axis_name="v")(x.sum(0)),
    ),
    # Numbers that depend on the share.
    "one less than the share": Trap(
        False,
        lambda w, x, y, k, m: y.sum() / (y.size - 1),
        lambda w, x, y, k, m: psum(y.sum() / (y.size - 1)) / lax.axis_size("i"),
    ),
    "a fifth of the share": Trap(
        False,
        lambda w, x, y, k, m: y.sum() * (y.size // 5),
        lambda w, x, y, k, m: psum(psum(y.sum()) * (y.size // 5)),
        traced=(2, 3, 4),
    ),
    "root of the share": Trap(
        False,
        lambda w, x, y, k, m: y.sum() / np.sqrt(y.size),
        lambda w, x, y, k, m: psum(y.sum() / np.sqrt(y.size)),
    ),
    "root of the share, made good": Trap(
        True,
        lambda w, x, y, k, m: y.sum() / np.sqrt(y.size),
        lambda w, x, y, k, m: psum(y.sum() / np.sqrt(y.size)) / np.sqrt(lax.axis_size("i")),
    ),
    "half the share as a whole number": Trap(
        False,
        lambda w, x, y, k, m: y.sum() * (jnp.float32(y.size) * 0.25).astype(int),
        lambda w, x, y, k, m: psum(psum(y.sum()) * (jnp.float32(y.size) * 0.25).astype(int)),
        run=(8,),
    ),
    "24 is no size": Trap(
        False,
        lambda w, x, y, k, m: y.sum() / y.size,
        lambda w, x, y, k, m: psum(y.sum()) / (24 * lax.axis_size("i")),
    ),
    "24 is the size": Trap(
        True, lambda w, x, y, k, m: y.sum() / y.size, lambda w, x, y, k, m: psum(y.sum()) / 24
    ),
    "as many features as rows": Trap(
        False,
        lambda w, x, y, k, m: x.sum() / 6,
        lambda w, x, y, k, m: psum(x.sum()) / x.shape[0],
        traced=(2, 4),
        run=(3,),
    ),
    "a branch in python": Trap(
        False,
        lambda w, x, y, k, m: jnp.sin(y) * 2,
        lambda w, x, y, k, m: (lambda a, b: a if y.size > 6 else b)(jnp.sin(y), jnp.cos(y)) * 2,
        I,
        run=(4,),
    ),
    # Specs.
    "whole on paper": Trap(False, lambda w, x, y, k, m: y.sum(), lambda w, x, y, k, m: y.sum()),
    "divided on paper": Trap(
        False, lambda w, x, y, k, m: jnp.tile(w, 3), lambda w, x, y, k, m: w, I, run=(4,)
    ),
    "a part of the weights": Trap(
        False, lambda w, x, y, k, m: (w**2).sum() * y, None, I, (I, I, I, I, I), traced=(2, 3), run=(3,)
    ),
    "weights divided and summed": Trap(
        True,
        lambda w, x, y, k, m: (w**2).sum(),
        lambda w, x, y, k, m: psum((w**2).sum()),
        ins=(I, I, I, I, I),
        traced=(2, 3),
    ),
    # Several mesh axes.
    "over the wrong mesh axis": Trap(
        False,
        summed,
        lambda w, x, y, k, m: lax.psum(x.sum(0), "j"),
        traced=((2, 2), (4, 2), (2, 4)),
        run=((2, 3),),
        axes=("i", "j"),
    ),
    "over the right mesh axis": Trap(
        True,
        summed,
        lambda w, x, y, k, m: lax.psum(x.sum(0), "i"),
        traced=((2, 2), (4, 2), (2, 4)),
        run=((2, 3),),
        axes=("i", "j"),
    ),
    "mesh axes in another order": Trap(
        False,
        lambda w, x, y, k, m: x * 2,
        lambda w, x, y, k, m: x * 2,
        P(("i", "j")),
        (P(), P(("j", "i")), P(), P(), P()),
        traced=((2, 2), (4, 2), (2, 4)),
        run=((2, 4),),
        axes=("i", "j"),
    ),
    "gathered in another order": Trap(
        False,
        lambda w, x, y, k, m: x * 2,
        lambda w, x, y, k, m: lax.all_gather(x * 2, ("j", "i"), tiled=True),
        P(),
        (P(), P(("i", "j")), P(), P(), P()),
        traced=((2, 2), (4, 2), (2, 4)),
        run=((2, 4),),
        axes=("i", "j"),
    ),
    # Groups of a device's rows, one after the other.
    "a sum in groups": Trap(
        True, summed, lambda w, x, y, k, m: psum(in_groups(lambda w, x, y, k, m: x.sum(0))(w, x, y, k, m))
    ),
    "a mean in groups": Trap(True, loss, lambda w, x, y, k, m: pmean(in_groups(loss)(w, x, y, k, m) / 2)),
    "a mean in groups that is not divided": Trap(
        False, loss, lambda w, x, y, k, m: pmean(in_groups(loss)(w, x, y, k, m))
    ),
    "a mean in groups divided by the devices": Trap(
        False, loss, lambda w, x, y, k, m: psum(in_groups(loss)(w, x, y, k, m) / lax.psum(1, "i"))
    ),
    "a weighted mean in groups, its weights first": Trap(True, weighted, with_total),
    "the mean of weighted means in groups": Trap(
        False, weighted, lambda w, x, y, k, m: pmean(in_groups(weighted)(w, x, y, k, m) / 2)
    ),
    "a number beside each group": Trap(
        False,
        lambda w, x, y, k, m: x.sum(0) + w,
        lambda w, x, y, k, m: psum(
            in_groups(lambda w, x, y, k, m: x.sum(0) + w / lax.psum(1, "i"))(w, x, y, k, m)
        ),
    ),
    "a number that is that of the device in each group": Trap(
        False,
        lambda w, x, y, k, m: x.sum(0) * 6 / 24,
        lambda w, x, y, k, m: psum(
            in_groups(lambda w, x, y, k, m: x.sum(0) * 6 / len(x))(w, x, y, k, m) / lax.psum(1, "i")
        ),
    ),
    "the whole share in each group": Trap(
        False, summed, lambda w, x, y, k, m: psum(in_groups(lambda w, _, *rest: x.sum(0))(w, x, y, k, m))
    ),
    "a collective in each group": Trap(
        False,
        summed,
        lambda w, x, y, k, m: psum(in_groups(lambda w, x, y, k, m: psum(x.sum(0)))(w, x, y, k, m)),
    ),
    "one draw for all groups": Trap(
        False,
        lambda w, x, y, k, m: (y * jax.random.normal(jax.random.key(0), y.shape)).sum(),
        lambda w, x, y, k, m: psum(
            in_groups(
                lambda w, x, y, k, m: (
                    y * jax.random.normal(jax.random.fold_in(jax.random.key(0), lax.axis_index("i")), y.shape)
                ).sum()
            )(w, x, y, k, m)
        ),
    ),
    "groups that are squared as they are added": Trap(
        False,
        lambda w, x, y, k, m: (x.sum(0)) ** 2,
        lambda w, x, y, k, m: psum(in_groups(lambda w, x, y, k, m: x.sum(0) ** 2)(w, x, y, k, m)),
    ),
    "the largest of each group, added": Trap(
        False,
        lambda w, x, y, k, m: y.max(),
        lambda w, x, y, k, m: lax.pmax(in_groups(lambda w, x, y, k, m: y.max())(w, x, y, k, m), "i"),
    ),
    "groups stacked and joined": Trap(
        True,
        lambda w, x, y, k, m: y * 2,
        lambda w, x, y, k, m: lax.scan(
            lambda total, rows: (total + rows[1].sum(), rows[0] * 2),
            0.0,
            (y.reshape(2, -1), m.reshape(2, -1)),
        )[1].reshape(-1),
        I,
    ),
    "groups stacked and joined in another order": Trap(
        False,
        lambda w, x, y, k, m: y * 2,
        lambda w, x, y, k, m: lax.scan(
            lambda total, rows: (total + rows.sum(), rows * 2), 0.0, y.reshape(2, -1), reverse=True
        )[1].T.reshape(-1),
        I,
    ),
    # Keys.
    "one key for all devices": Trap(
        False, lambda w, x, y, k, m: y + jax.random.normal(jax.random.key(0), y.shape), None, I
    ),
    "two keys for one": Trap(
        False,
        lambda w, x, y, k, m: (
            y + jax.random.normal(jax.random.key(0), y.shape) - jax.random.normal(jax.random.key(0), y.shape)
        ),
        lambda w, x, y, k, m: (
            lambda one, two: y + jax.random.normal(one, y.shape) - jax.random.normal(two, y.shape)
        )(
            jax.random.fold_in(jax.random.key(0), lax.axis_index("i")),
            jax.random.fold_in(
                jax.random.fold_in(jax.random.key(0), lax.axis_index("i")), lax.axis_index("i")
            ),
        ),
        I,
    ),
    "a key that is another one on the second device": Trap(
        False,
        lambda w, x, y, k, m: (
            y + jax.random.normal(jax.random.key(0), y.shape),
            w + jax.random.normal(jax.random.split(jax.random.key(0))[1], w.shape),
        ),
        lambda w, x, y, k, m: (
            y + jax.random.normal(jax.random.fold_in(jax.random.key(0), lax.axis_index("i")), y.shape),
            w + jax.random.normal(jax.random.split(jax.random.key(0))[1], w.shape),
        ),
        (I, WHOLE),
    ),
    "a key that is one of several, and another one on the second device": Trap(
        False,
        lambda w, x, y, k, m: (
            y + jax.random.normal(jax.random.key(0), y.shape),
            w + jax.random.normal(jnp.stack([jax.random.key(1), *jax.random.split(jax.random.key(0))])[2]),
        ),
        lambda w, x, y, k, m: (
            y + jax.random.normal(jax.random.fold_in(jax.random.key(0), lax.axis_index("i")), y.shape),
            w + jax.random.normal(jnp.stack([jax.random.key(1), *jax.random.split(jax.random.key(0))])[2]),
        ),
        (I, WHOLE),
    ),
    "a key that a loop starts with, and another one on the second device": Trap(
        False,
        lambda w, x, y, k, m: (
            lax.map(lambda each: jax.random.normal(each, y.shape), jax.random.split(jax.random.key(0)))[0],
            w + jax.random.normal(jax.random.split(jax.random.split(jax.random.key(0))[0])[1], w.shape),
        ),
        lambda w, x, y, k, m: (
            lax.map(
                lambda each: jax.random.normal(jax.random.fold_in(each, lax.axis_index("i")), y.shape),
                jax.random.split(jax.random.key(0)),
            )[0],
            w + jax.random.normal(jax.random.split(jax.random.split(jax.random.key(0))[0])[1], w.shape),
        ),
        (I, WHOLE),
    ),
    "a key that is another one on the second device, of those that are split for the devices": Trap(
        False,
        lambda w, x, y, k, m: (
            y + jax.random.normal(jax.random.key(0), y.shape),
            w + jax.random.normal(jax.random.split(jax.random.key(0))[1], w.shape),
        ),
        whole=lambda mesh: (
            lambda w, x, y, k, m: (
                jax.shard_map(
                    lambda y, keys: y + jax.random.normal(keys[0], y.shape),
                    mesh=mesh,
                    in_specs=(I, I),
                    out_specs=I,
                    check_vma=False,
                )(y, jax.random.split(jax.random.key(0), mesh.size)),
                w + jax.random.normal(jax.random.split(jax.random.key(0))[1], w.shape),
            )
        ),
    ),
    "noise of each device's own on the weights": Trap(
        False,
        lambda w, x, y, k, m: w + jax.random.normal(jax.random.key(0), w.shape),
        lambda w, x, y, k, m: (
            w + jax.random.normal(jax.random.fold_in(jax.random.key(0), lax.axis_index("i")), w.shape)
        ),
    ),
    # dtypes and constants.
    "summed in half the bits": Trap(
        False,
        summed,
        lambda w, x, y, k, m: psum(x.astype(jnp.bfloat16).sum(0)).astype(x.dtype),
        dtype="float32",
    ),
    "a result in half the bits": Trap(
        False, summed, lambda w, x, y, k, m: psum(x.sum(0)).astype(jnp.float32)
    ),
    "a small number left out beside one": Trap(
        False,
        lambda w, x, y, k, m: jnp.log(1 - jax.nn.sigmoid(y) + 1e-7).sum(),
        lambda w, x, y, k, m: psum(jnp.log(1 - jax.nn.sigmoid(y)).sum()),
        dtype="float32",
    ),
    "one for a number just below it": Trap(
        False,
        lambda w, x, y, k, m: jnp.log(1 - jnp.minimum(jax.nn.sigmoid(9 * y), 1 - 1e-7)).sum(),
        lambda w, x, y, k, m: psum(jnp.log(1 - jnp.minimum(jax.nn.sigmoid(9 * y), 1.0)).sum()),
        dtype="float32",
    ),
    "a slow decay left out": Trap(
        False,
        lambda w, x, y, k, m: w * (1 - 5e-5 * 0.01) - 5e-5 * jax.grad(loss)(w, x, y, k, m),
        lambda w, x, y, k, m: w - 5e-5 * pmean(jax.grad(loss)(w, x, y, k, m)),
        dtype="float32",
    ),
    "a slow decay": Trap(
        True,
        lambda w, x, y, k, m: w * (1 - 5e-5 * 0.01) - 5e-5 * jax.grad(loss)(w, x, y, k, m),
        lambda w, x, y, k, m: pmean(w - 5e-5 * (jax.grad(loss)(w, x, y, k, m) + 0.01 * w)),
        dtype="float32",
    ),
    "the inverse of the size, rounded": Trap(
        True,
        lambda w, x, y, k, m: 0.1 * y.mean(),
        lambda w, x, y, k, m: pmean(y.sum() * (0.1 / y.size)),
        dtype="float32",
    ),
    "the root of the size, rounded": Trap(
        True,
        lambda w, x, y, k, m: y.sum() / np.sqrt(y.size),
        lambda w, x, y, k, m: psum(y.sum() / np.sqrt(y.size)) / np.sqrt(lax.axis_size("i")),
        dtype="float32",
    ),
    "0.9 for 0.95 in bfloat16": Trap(
        False,
        lambda w, x, y, k, m: (w * 0.9, w * 0.95),
        lambda w, x, y, k, m: (w * 0.9, w * 0.9),
        dtype="bfloat16",
    ),
    "whole numbers that wrap": Trap(
        False,
        lambda w, x, y, k, m: jnp.where(jnp.int32(200).astype(jnp.int8) > 0, y, -y),
        lambda w, x, y, k, m: y * 1.0,
        I,
    ),
    "unsigned parts that wrap": Trap(
        False,
        lambda w, x, y, k, m: (k.astype(jnp.uint32).sum() - (k * k).astype(jnp.uint32).sum()).astype(float),
        lambda w, x, y, k, m: psum(
            (k.astype(jnp.uint32).sum() - (k * k).astype(jnp.uint32).sum()).astype(float)
        ),
    ),
    "parts of few bits that wrap": Trap(
        False,
        lambda w, x, y, k, m: (k * 40).astype(jnp.int8).sum(dtype=jnp.int8).astype(float),
        lambda w, x, y, k, m: psum((k * 40).astype(jnp.int8).sum(dtype=jnp.int8).astype(float)),
    ),
    "unsigned maximum negated": Trap(
        False,
        lambda w, x, y, k, m: -(jnp.maximum(y - 6, 0).astype(jnp.uint8).max()),
        lambda w, x, y, k, m: lax.pmin(-(jnp.maximum(y - 6, 0).astype(jnp.uint8).max()), "i"),
    ),
    "imaginary part of a complex maximum": Trap(
        False,
        lambda w, x, y, k, m: lax.complex(jnp.floor(y), -m).max().imag,
        lambda w, x, y, k, m: lax.pmax(lax.complex(jnp.floor(y), -m).max().imag, "i"),
    ),
    "modulus of a complex exponential": Trap(
        False,
        lambda w, x, y, k, m: jnp.abs(jnp.exp(1j * y)) + jnp.exp(1j * y),
        lambda w, x, y, k, m: 2 * jnp.exp(1j * y),
        I,
    ),
    "zeros with a sign": Trap(
        False,
        lambda w, x, y, k, m: jnp.arctan2(jnp.where(k > 2, 0.0, -0.0), -y),
        lambda w, x, y, k, m: jnp.arctan2(jnp.where(k > 2, 0.0, 0.0), -y),
        I,
    ),
    "zeros with a sign in an array": Trap(
        False,
        lambda w, x, y, k, m: jnp.arctan2(np.array([0.0, -0.0, 0.0]), -1.0),
        lambda w, x, y, k, m: jnp.arctan2(np.zeros(3), -1.0),
    ),
    "positions in few bits": Trap(
        False,
        lambda w, x, y, k, m: x[jnp.arange(y.size, dtype=jnp.uint4), k].mean(),
        lambda w, x, y, k, m: pmean(x[jnp.arange(y.size, dtype=jnp.uint4), k].mean()),
    ),
    "positions that are cut to few bits": Trap(
        False,
        lambda w, x, y, k, m: x[jnp.arange(y.size).astype(jnp.uint4), k].mean(),
        lambda w, x, y, k, m: pmean(x[jnp.arange(y.size).astype(jnp.uint4), k].mean()),
    ),
    "almost the size": Trap(
        False,
        lambda w, x, y, k, m: jnp.exp(12 * (y.sum() / 24.00002)),
        lambda w, x, y, k, m: jnp.exp(12 * pmean(y.sum() / y.size)),
        dtype="float32",
    ),
    "ones of another length": Trap(
        False,
        lambda w, x, y, k, m: (jnp.ones(3) * w[0]).sum(),
        lambda w, x, y, k, m: (jnp.ones(5) * w[0]).sum(),
    ),
    "zeros and a number": Trap(
        False, lambda w, x, y, k, m: w[0] * 1.0, lambda w, x, y, k, m: jnp.zeros(5) + w[0]
    ),
    "division of whole numbers": Trap(
        False, lambda w, x, y, k, m: k.sum() // 5, lambda w, x, y, k, m: psum(k.sum() // 5)
    ),
    "rounded parts": Trap(
        False, lambda w, x, y, k, m: jnp.round(y.sum()), lambda w, x, y, k, m: psum(jnp.round(y.sum()))
    ),
    "what a policy of jax.checkpoint keeps": Trap(
        True,
        lambda w, x, y, k, m: jax.grad(lambda w: jnp.tanh(x @ w).mean())(w),
        lambda w, x, y, k, m: pmean(
            jax.grad(
                lambda w: jax.checkpoint(
                    lambda w: jnp.tanh(x @ w).mean(), policy=jax.checkpoint_policies.dots_saveable
                )(w)
            )(w)
        ),
    ),
    "kept in fewer bits": Trap(
        False, lambda w, x, y, k, m: y * 2, lambda w, x, y, k, m: lax.reduce_precision(y, 8, 7) * 2, I
    ),
    "a part of a sum, times zero": Trap(
        True, lambda w, x, y, k, m: w * 2, lambda w, x, y, k, m: w * 2 + 0.0 * x.sum(0) - 0.0 * x.max(0)
    ),
    "a part of a sum, times zero on one device": Trap(
        False,
        lambda w, x, y, k, m: w * 2,
        lambda w, x, y, k, m: w * 2 + lax.axis_index("i") * x.sum(0),
    ),
    "a stack outside, summed along another axis": Trap(
        False,
        lambda w, x, y, k, m: (x[:, :, None] * x[:, None] * w).sum(2),
        whole=lambda mesh: (
            lambda w, x, y, k, m: jax.shard_map(
                lambda z: z, mesh=mesh, in_specs=I, out_specs=I, check_vma=False
            )((x[:, :, None] * x[:, None] * w).reshape(mesh.size, -1, 6, 6).sum(2)).reshape(-1, 6)
        ),
    ),
}


NAMESAKES = {
    "copy": lambda x: x - x.mean(),
    "square": lambda x: x * x.sum(),
    "neg": jnp.cumsum,
    "mark": jnp.cumsum,
}


def of_own(of: Callable[..., Any]) -> Trap:
    """A function of all examples, on a share."""
    return Trap(False, lambda w, x, y, k, m: of(y), out=I)


TRAPS |= {
    f"a primitive of one's own that is called {name}": of_own(primitive(name, function))
    for name, function in NAMESAKES.items()
}
ONE, OTHER = primitive("power", lambda x, name: x ** len(name)), primitive("power", lambda x, name: -x)
TRAPS |= {
    "two primitives of one name": Trap(
        False, lambda w, x, y, k, m: ONE(w, name="ab"), lambda w, x, y, k, m: OTHER(w, name="ab")
    ),
    "a name that is a parameter with a meaning": Trap(
        False, lambda w, x, y, k, m: ONE(w, name="ab"), lambda w, x, y, k, m: ONE(w, name="abc")
    ),
    "it says itself how it is divided": Trap(
        False,
        lambda w, x, y, k, m: y.sum(),
        whole=lambda mesh: (
            lambda w, x, y, k, m: divided(lax.with_sharding_constraint(y, NamedSharding(mesh, I)))
        ),
    ),
    "it says itself how it is divided, and is divided by hand": Trap(
        True, lambda w, x, y, k, m: y.sum(), lambda w, x, y, k, m: psum(divided(y))
    ),
}


def judged(trap: Trap, run: bool) -> tuple[bool, bool | None]:
    """Whether it is derived, and whether it runs equal; what is not derived is run only if asked."""
    given = inputs(trap.dtype)
    parallel = [jax.make_jaxpr(trap.mapped(sizes))(*given) for sizes in trap.traced]
    found = derive(jax.make_jaxpr(trap.reference)(*given), parallel, GIVEN)
    if not (run or found.complete):
        return False, None
    wanted = jax.tree.leaves(jax.jit(trap.reference)(*given))
    same = True
    for sizes in trap.run:
        got = jax.tree.leaves(jax.jit(trap.mapped(sizes))(*given))
        for one, other in zip(got, wanted, strict=True):
            same &= one.shape == other.shape and all(
                close(shard.data, other[shard.index], "float64") for shard in one.addressable_shards
            )
    return found.complete, same


def main() -> None:
    """Print what is found of each."""
    jax.config.update("jax_enable_x64", True)
    for name, trap in TRAPS.items():
        complete, same = judged(trap, "--all" in sys.argv)
        print(json.dumps({"name": name, "equal": trap.equal, "derived": complete, "same": same}), flush=True)


if __name__ == "__main__":
    main()
