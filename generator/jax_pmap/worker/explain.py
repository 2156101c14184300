"""Why a value differs: which other value of the reference it is instead."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from . import prove
from .arguments import LeafAxes, Values, batch_size, cut, map_batch, take
from .distance import distance
from .exceptions import attempted
from .leaves import category
from .protocol import Failure
from .prove import host
from .trials import Question

#: An explanation has to leave this share of the error at most.
LEFT = 1e-3


def explain(
    reference: Callable[[Values], Any],
    values: Values,
    axes: LeafAxes,
    count: int,
    leaf: int,
    got: np.ndarray,
    want: np.ndarray,
) -> str:
    """The value that `got` is in place of `want`, by name, or ``""``.

    ``"first"`` and ``"last"``: one device's own; ``"mean"``, ``"sum"``, ``"max"``, ``"min"`` of what
    each device has by itself; ``"order"``: the same numbers in another order; ``"zero"``; ``"kept"``: what
    was given; ``"nan"``, and ``"let in"`` where some inputs are no numbers.
    """
    if got.shape != want.shape or got.dtype.kind not in "biuf" or want.dtype.kind not in "biuf":
        return ""
    error = distance(got, want)[0]

    def is_it(other: np.ndarray) -> bool:
        if other.shape != got.shape:
            return False
        left = distance(got.astype(np.float64), other.astype(np.float64))[0]
        if got.dtype.kind in "biu":
            return left == 0.0
        return left <= LEFT * error if np.isfinite(error) else left <= 1e-5 * (1 + np.max(np.abs(other)))

    if np.isnan(got.astype(np.float64)).any() and not np.isnan(want.astype(np.float64)).any():
        return "nan" if prove.finite(values) else "let in"
    if got.size and not got.any() and want.any():
        return "zero"
    if any(is_it(host(each)) for each in whole_leaves(values, axes) if host(each).dtype == got.dtype):
        return "kept"
    if got.ndim and got.size > 1 and is_it(want[::-1]):
        return "order"
    if got.ndim and got.size > 1:
        left, right = np.sort(got.astype(np.float64), axis=None), np.sort(want.astype(np.float64), axis=None)
        # Of integers any difference is infinitely far off.
        if distance(left, right)[0] <= (LEFT * error if np.isfinite(error) else 0.0):
            return "order"
    size = batch_size(values, axes) // count

    def of_device(device: int) -> np.ndarray:
        rows = slice(device * size, (device + 1) * size)
        share = map_batch(values, axes, lambda x, axis: take(x, axis, rows))
        return host(jax.tree.leaves(reference(share))[leaf]).astype(np.float64)

    # The reference may not take so few rows.
    own = attempted(lambda: [*map(of_device, range(count))])
    if own is None or any(part.shape != got.shape for part in own):
        return ""
    every = np.stack(own)
    if all(is_it(part) for part in own):
        return ""  # It says nothing that it is what one of them has.
    for name, made in (
        ("first", own[0]),
        ("last", own[-1]),
        ("mean", every.mean(0)),
        ("sum", every.sum(0)),
        ("max", every.max(0)),
        ("min", every.min(0)),
    ):
        if is_it(made):
            return name
    return ""


def whole_leaves(values: Values, axes: LeafAxes) -> list[Any]:
    """The floats among the inputs that are not split."""
    return [
        leaf
        for name, value in values.items()
        for index, leaf in enumerate(jax.tree.leaves(value))
        if index not in axes.get(name, {}) and category(leaf) == "array" and host(leaf).dtype.kind == "f"
    ]


def explain_all(copies: Mapping[int, Sequence[np.ndarray]], want: Sequence[np.ndarray]) -> str:
    """The one combination of copies that would make all outputs the reference's, or ``""``.

    Of an output that is the same on every device there is one copy: it has to be right as it is.
    """
    found = set()
    for index, each in copies.items():
        if len(each) > 1:
            found.add(explain_copies(each, want[index]))
        elif each[0].dtype.kind in "iuf" and not alike(each[0].astype(np.float64), want[index]):
            return ""
    return found.pop() if len(found) == 1 else ""


def alike(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether one is the other but for rounding."""
    scale = max(float(np.max(np.abs(want), initial=0.0)), 1e-300)
    return got.shape == want.shape and bool(np.allclose(got, want, rtol=1e-4, atol=1e-5 * scale))


def explain_copies(copies: Sequence[np.ndarray], want: np.ndarray) -> str:
    """Which combination of copies that differ would be the reference's value, or ``""``."""
    if copies[0].dtype.kind not in "iuf":
        return ""
    wide = np.stack([copy.astype(np.float64) for copy in copies])
    for name, made in (("pmean", wide.mean(0)), ("psum", wide.sum(0)), ("pmax", wide.max(0))):
        if alike(made, want):
            return f"missing {name}"
    return ""


def with_cause(differs: prove.Differs, question: Question, trial: prove.Trial, count: int) -> Failure:
    """The failure, with what the output is instead."""
    failure, copies = differs.failure, differs.copies
    if failure.leaf is None or not copies:
        return failure
    step, leaves = failure.step, jax.tree.leaves(trial.results[failure.step])
    if failure.what == "value":
        got, want = copies[failure.leaf][0], host(leaves[failure.leaf])
        values, axes = trial.values[step], question.axes
        cause = explain(question.reference, values, axes, count, failure.leaf, got, want)
    else:
        cause = explain_all(copies, [host(leaf) for leaf in leaves])
    return dataclasses.replace(failure, cause=cause)


def with_ragged_cause(differs: prove.Differs, question: Question, trial: prove.Trial, count: int) -> Failure:
    """The failure, with what became of the rows of a batch that `count` devices do not share evenly.

    ``"dropped"``: the last ones are left out; ``"zeros"`` and ``"repeated"``: rows were added, and count.
    """
    failure, step, index = differs.failure, differs.failure.step, differs.failure.leaf
    if failure.what != "value" or index is None:
        return failure
    got, want = differs.copies[index][0], host(jax.tree.leaves(trial.results[step])[index])
    error, rows = distance(got, want)[0], batch_size(trial.values[step], question.axes)
    used, whole = rows // count * count, -(-rows // count) * count

    def added(mode: str) -> Values:
        def more(leaf: Any, axis: int) -> Any:
            widths = [(0, whole - rows if each == axis else 0) for each in range(leaf.ndim)]
            return np.pad(np.asarray(leaf), widths, mode=mode)  # type: ignore[call-overload]

        return map_batch(trial.values[step], question.axes, more)

    def other_result(mode: str) -> np.ndarray:
        made = added(mode) if mode else cut(trial.values[step], question.axes, used)
        return host(jax.tree.leaves(question.reference(made))[index])

    for name, mode in (("dropped", ""), ("zeros", "constant"), ("repeated", "edge")):
        if (other := attempted(other_result, mode)) is None:
            continue  # It takes no such rows.
        left = distance(got, other)[0] if other.shape == got.shape else np.inf
        if left <= (LEFT * error if np.isfinite(error) else 0.0):
            return dataclasses.replace(failure, cause=name, ratio=None)
    return failure
