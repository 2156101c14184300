"""Inputs on which two programs decide otherwise, though each decides every way on others."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from .arguments import Packed, Values, cut
from .decisions import Decisions
from .exceptions import attempted
from .jaxpr.trace import arrays_of
from .leaves import to_float64
from .strengthen import ALONE, LARGE, Change, changed, each_leaf, size_of
from .trials import Question

#: Of each family of inputs, how many are kept; numbers that counters are set to or near; columns in which one
#: number is none.
FAMILY, COUNTED, COLUMNS = 6, 12, 6
#: Steps between sizes of the rows that are made smaller.
REFINED = 16
#: Places at which a decision goes over that are looked for, and how often the way to one is halved.
TURNS, HALVINGS = 8, 50
#: The ways that the decisions of two programs go.
Ways = tuple[np.ndarray, np.ndarray]


def apart(
    programs: tuple[Callable[[Values], Any], Callable[[Values], Any]], question: "Question", size: int
) -> list[Values]:
    """Inputs on which two functions of the same values decide in combinations that are not seen elsewhere.

    Each goes every way by itself on inputs of `find`, and still two thresholds can lie apart: a schedule that
    counts devices for steps, the largest of some numbers for their mean. So rows are scaled and counters
    set in small steps, and single numbers of the rows are none.
    """
    data, axes, wide = question.data[0], question.axes, question.wide
    if size_of(data) > LARGE:
        return []

    def packed(values: Values) -> Packed:
        values = cut(values, axes, size)
        return Packed(to_float64(values) if wide else values, question.statics)

    def decisions() -> list[Decisions]:
        given = packed(data)
        return [Decisions(arrays_of(program, given), given.leaves) for program in programs]

    first, second = attempted(decisions) or (None, None)
    if first is None or second is None or not second.sites:
        return []
    numbers = list(dict.fromkeys((*first.numbers, *second.numbers)))
    tame = any(site.name == "while" for each in (first, second) for site in each.sites)

    def decided(values: Values) -> Ways | None:
        leaves = packed(values).leaves
        one, other = first(leaves), second(leaves)
        return None if one is None or other is None else (one, other)

    def ways(values: Values) -> Ways | None:
        return attempted(decided, values)

    kept = list(turns(question, ways, tame))
    if not first.sites:
        return kept
    for family in (
        scaled_rows(question, ways, tame),
        ((values, ways(values)) for values in set_counters(question, numbers, tame)),
        ((values, ways(values)) for values in single_holes(question)),
    ):
        tried = [(values, found) for values, found in family if found is not None]
        kept += [tried[index][0] for index in rarest([found for _, found in tried])]
    return kept


def rarest(ways: Sequence[Ways]) -> list[int]:
    """Indices of up to `FAMILY` of `ways` that show all pairs of ways of both programs, the rarest first."""
    if len(ways) < 2:
        return []
    left, right = (np.unique(np.stack(each), axis=1) for each in zip(*ways, strict=True))
    left, right = (np.concatenate([each, ~each], axis=1) for each in (left, right))
    pairs = (left[:, :, None] & right[:, None, :]).reshape(len(ways), -1)
    often = pairs.sum(axis=0)
    missing = (often > 0) & (often < len(ways))
    chosen: list[int] = []
    while missing.any() and len(chosen) < FAMILY:
        rare = np.flatnonzero(missing)[np.argmin(often[missing])]
        shown = np.where(pairs[:, rare], (pairs & missing).sum(axis=1), -1)
        chosen.append(int(np.argmax(shown)))
        missing &= ~pairs[chosen[-1]]
    return chosen


def scaled_rows(
    question: "Question", ways: Callable[[Values], Ways | None], tame: bool
) -> Iterator[tuple[Values, Ways | None]]:
    """The rows in many sizes, in smaller steps where decisions change, and the ways these go."""

    def scaled(factor: float) -> tuple[Values, Ways | None]:
        change: Change = lambda leaf, axis: leaf * factor  # noqa: E731
        values = changed(question.data[0], question.axes, question.settled, {"rows": change})
        return values, ways(values)

    exponents = np.linspace(-4, 4, 25) if tame else np.linspace(-8, 8, 49)
    coarse = [scaled(10.0**exponent) for exponent in exponents]
    yield from coarse
    refined = 0
    for (low, (_, below)), (high, (_, above)) in itertools.pairwise(zip(exponents, coarse, strict=True)):
        if below is None or above is None or all(map(np.array_equal, below, above)) or refined >= REFINED:
            continue
        refined += 1
        yield from (scaled(10.0**exponent) for exponent in np.linspace(low, high, 14)[1:-1])


def turns(question: "Question", ways: Callable[[Values], Ways | None], tame: bool) -> Iterator[Values]:
    """The rows scaled to either side of where a decision of the second function goes over, and near it.

    However narrow a gate is (``(loss > 3.3334) & (loss < 3.3337)``), it is open on one side of its limits.
    """
    data, axes, settled = question.data[0], question.axes, question.settled

    def scaled(exponent: float) -> Values:
        change: Change = lambda leaf, axis: leaf * 10.0**exponent  # noqa: E731
        return changed(data, axes, settled, {"rows": change})

    def taken(exponent: float) -> np.ndarray | None:
        found = ways(scaled(exponent))
        return None if found is None else found[1]

    # Near the sizes that are given first: that is where functions are meant to work.
    exponents = np.linspace(-4, 4, 25) if tame else np.linspace(-8, 8, 49)
    coarse = sorted(itertools.pairwise(exponents), key=lambda pair: abs(sum(pair)))
    known = {exponent: taken(exponent) for exponent in exponents}
    seen: set[int] = set()
    for low, high in coarse:
        below, above = known[low], known[high]
        if below is None or above is None:
            continue
        for turned in map(int, np.flatnonzero(below != above)):
            if turned in seen or len(seen) >= TURNS:
                continue
            seen.add(turned)
            ends = [low, high]
            for _ in range(HALVINGS):
                middle = sum(ends) / 2
                found = taken(middle)
                if found is None or middle in ends:
                    break
                ends[int(found[turned] != below[turned])] = middle
            yield from map(scaled, ends)


def set_counters(question: "Question", numbers: Sequence[float], tame: bool) -> Iterator[Values]:
    """Counters at and around the numbers that are compared with, and parts and multiples of them.

    Once more with single numbers of the other sign: no loss is below the best one so far then, which begins
    at infinity.
    """
    places = [kind for kind, _ in each_leaf(question.data[0], question.axes, question.settled)]
    whole = [int(n) for n in numbers if n == int(n) and 1 < n <= (1000 if tame else 1 << 30)][:COUNTED]
    if "counters" not in places:
        return
    near = {
        max(made + off, 0)
        for number in whole
        for times in (1, 2, 3, 4, 8)
        for made in (number // times, number * times)
        for off in (-1, 0, 1)
    }
    negative: Change = lambda leaf, axis: -leaf  # noqa: E731
    for others in ({}, {"numbers": negative}) if "numbers" in places else ({},):
        for number in sorted(near):
            change: Change = lambda leaf, axis, number=number: number  # type: ignore[misc]  # noqa: E731
            yield changed(question.data[0], question.axes, question.settled, {**others, "counters": change})


def single_holes(question: "Question") -> Iterator[Values]:
    """One number of the rows that is none, or infinite, on the first device or on the last."""
    values, axes = question.data[0], question.axes
    places = [place for kind, place in each_leaf(values, axes, question.settled) if kind == "rows"]
    for name, index in places[:ALONE]:
        leaf, axis = jax.tree.leaves(values[name])[index], axes[name][index]
        wide = np.complex128 if leaf.dtype.kind == "c" else np.float64
        others = leaf.size // max(leaf.shape[axis], 1)
        for row, column in itertools.product((0, leaf.shape[axis] - 1), range(min(others, COLUMNS))):
            for filling in (np.nan, np.inf):

                def change(
                    leaf: Any,
                    axis: int | None,
                    row: int = row,
                    at: int = column,
                    to: float = filling,
                    wide: type = wide,
                ) -> Any:
                    assert axis is not None
                    rows: np.ndarray = np.moveaxis(np.asarray(leaf, wide), axis, 0)
                    flat = np.array(rows).reshape(len(rows), -1)
                    flat[row, at] = to
                    return np.moveaxis(flat.reshape(rows.shape), 0, axis)

                yield changed(values, axes, question.settled, {"rows": change}, (name, index))
