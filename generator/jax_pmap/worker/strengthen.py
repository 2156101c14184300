"""What the given inputs cannot show, and other inputs, on which decisions go every way."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from . import arguments, prove
from .arguments import LeafAxes, Packed, Values
from .decisions import Decisions, Site
from .distance import same_bits
from .exceptions import attempted
from .jaxpr.trace import arrays_of
from .leaves import category, is_float, is_key_leaf, leaf_paths, shape_of, to_float64
from .perturb import along, exaggerate, in_floats, perturb, shifted, shrunk, vary_numbers
from .protocol import SHIFTED

if TYPE_CHECKING:
    from .trials import Question

#: Elements along an axis that is given with one.
COLUMNS = 3
#: Sets of inputs made from the first one in every proof, in order.
PERTURBED = ("generic", "wild", "back", "far", "near", "alike", "twice", "shifted")
#: What was done to the given inputs for them.
ALTERED = {
    "generic": "rows in another order, numbers changed by up to a fifth",
    "wild": "rows in another order and times -2 to 3, integers and masks drawn anew",
    "back": "rows times -2 to 3 and in the reverse order, integers and masks drawn anew",
    "far": "numbers far out, integers and masks drawn anew",
    "near": "smaller numbers",
    "alike": "the first half of the rows all alike",
    "twice": "each row twice, the second time in the reverse order",
    "shifted": SHIFTED,
}
#: Which rows are taken in some of them, by the numbers of all: in reverse, so that others come first; the
#: first half like the first one, as devices differ then in what holds for any or for all rows; and half of
#: them, then these in reverse, where it shows which of two that are alike counts.
ORDERS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "back": lambda rows: rows[::-1],
    "alike": lambda rows: np.where(rows < len(rows) // 2, 0, rows),
    "twice": lambda rows: np.minimum(rows, rows[::-1]),
}
#: What becomes of the floats in others.
FLOATS: Mapping[str, Callable[[Any, int], Any]] = {"near": shrunk, "shifted": shifted}
#: Sets of inputs that are tried, and how many that show something new are kept.
TRIED, KEPT = 80, 12
#: The same for inputs of more than `LARGE` bytes.
TRIED_LARGE, LARGE = 16, 1 << 22
#: How likely a row is left out, from the first to the last: none on the first of 8 devices, all on the last.
EMPTYING = (-0.3, 1.3)
#: Integer leaves that are given numbers outside their range, each in a set of its own.
STRAYS = 8
#: The first whole number that no float32 is.
UNEVEN = 2**24 + 1
#: Another one, of which two add up to more than 32 bits hold, and which leaves a counter room for thousands.
LATE = 2**30 + 1
#: Leaves that are changed one by one, the others staying as they are.
ALONE = 4
#: Sets with whole numbers moved round within their range, at most, and how many numbers these have in all.
MOVED_ROUND, MOVED_NUMBERS = 6, 64
#: Sets that are kept for each way a decision takes on none of the others: one may show it by accident right.
EACH = 2
#: What one kind of leaf is changed to: the leaf and its batch axis (None where it has none) to another.
Change = Callable[[Any, "int | None"], Any]
SCALES = (1e-8, 1e-4, 1e4, 1e8)


@dataclass(frozen=True)
class Found:
    """What a search for other ways of a function's decisions came to."""

    inputs: tuple[Values, ...] = ()
    #: ``file:line`` of decisions that went the same way on all inputs.
    stuck: tuple[str, ...] = ()
    #: Those of them in which devices exchange something else the other way.
    exchanges: tuple[str, ...] = ()
    #: Where results are made that are given as those of all devices, and are of each's own.
    own: tuple[str, ...] = ()


def perturbed(question: "Question", values: Values, form: str, seed: int) -> Values:
    """`values` in one of the forms of `PERTURBED`; constants keep everything, what is settled its numbers."""
    axes, settled = question.axes, question.settled
    # Labels: as many low ones as high ones, but for one form.
    skew = -0.4 if form == "back" else 0.0
    out = perturb(values, axes, question.statics, seed, wild=form in ("wild", "back", "far"), skew=skew)
    if order := ORDERS.get(form):
        out = arguments.map_batch(
            out, axes, lambda leaf, axis: arguments.take(leaf, axis, order(np.arange(shape_of(leaf)[axis])))
        )
    if change := FLOATS.get(form):
        out = in_floats(out, axes, change)
    if form == "far":
        out = exaggerate(out, axes, settled)
    return vary_numbers(out, settled, seed)


def find(
    question: "Question", programs: Sequence[Callable[[Values], Any]], counts: Sequence[int], seed: int
) -> Found:
    """Inputs on which decisions of the reference and of `programs` go other ways than in every proof.

    Results of the reference must be numbers there where they are on the first inputs. A program that cannot
    be traced is left out. The batch is cut for the first of the `counts` of devices that it is large enough
    for.
    """
    data, axes, settled, base = question.data, question.axes, question.settled, question.rows
    size = next((base // count * count for count in counts if base >= count), base)

    def prepared(values: Values) -> Values:
        values = arguments.cut(values, axes, size)
        return to_float64(values) if question.wide else values

    known = [
        *data,
        *(perturbed(question, data[0], form, seed + i) for i, form in enumerate(PERTURBED)),
    ]
    packed = Packed(prepared(data[0]), question.statics)
    every = (
        attempted(Decisions, arrays_of(program, packed), packed.leaves)
        for program in (question.traceable, *programs)
    )
    traced = [each for each in every if each is not None]
    sites = [site for each in traced for site in each.sites]
    first_result: list[Any] = []

    def run(values: Values) -> list[np.ndarray | None]:
        leaves = Packed(prepared(values), question.statics).leaves
        return [each(leaves) for each in traced]

    def reached(values: Values) -> np.ndarray | None:
        if (ways := attempted(run, values)) is None:
            return np.zeros(sum(site.ways for site in sites), bool)
        found = [way for way in ways if way is not None]
        return np.concatenate(found) if len(found) == len(ways) else None

    def result(values: Values) -> Any:
        if sites and reached(values) is None:
            return None  # It may have no end.
        return attempted(lambda: question.reference(prepared(values)))

    def sound(values: Values) -> bool:
        if not first_result:
            first_result.append(result(data[0]))
        found, first = result(values), first_result[0]
        if found is None:
            return False
        return first is None or not prove.finite(first) or prove.finite(found) or guarded(found, first)

    def is_told(candidate: Values, others: Sequence[Values]) -> bool:
        """Whether the reference tells inputs from each of some others."""
        if not others:
            return True
        first, *rest = ([*map(prove.host, jax.tree.leaves(result(each)))] for each in (candidate, *others))
        return not any(len(each) == len(first) and all(map(same_bits, first, each)) for each in rest)

    lengths = sorted({length for each in traced for length in each.lengths})
    outside = strays(data[0], axes, settled, seed, sound, lengths, is_told)
    own = tuple(dict.fromkeys(place for each in traced for place in each.own))
    if not sites or reached(data[0]) is None:
        return Found(tuple(outside), own=own)
    numbers = list(dict.fromkeys(number for each in traced for number in each.numbers))
    tame = any(site.name == "while" for site in sites)
    first = known[len(data)]
    kept, taken = search(first, axes, settled, numbers, reached, sound, [*known, *outside], seed, tame=tame)
    found = stuck(sites, taken)
    exchanges = places_of(site for site in found if site.exchanges)
    return Found((*kept, *outside), places_of(found), exchanges, own)


def guarded(result: Any, first: Any) -> bool:
    """Whether some floats in a result are numbers that the inputs changed, while others are none.

    An update that is left out where the loss is no number: what it leaves of the parameters can be compared.
    """
    if jax.tree.structure(result) != jax.tree.structure(first):
        return False
    pairs = zip(jax.tree.leaves(result), jax.tree.leaves(first), strict=True)
    hosts = [(prove.host(a), prove.host(b)) for a, b in pairs if is_float(a) and is_float(b)]
    return any(np.isfinite(a).all() and not np.array_equal(a, b) for a, b in hosts)


def strays(
    values: Values,
    axes: LeafAxes,
    settled: Sequence[str],
    seed: int,
    sound: Callable[[Values], bool],
    lengths: Sequence[int] = (),
    is_told: Callable[[Values, Sequence[Values]], bool] = lambda _, __: True,
) -> list[Values]:
    """Inputs in which some integers of one leaf lie outside the range of those given, or none is the least.

    A label that is none (-1, -100, one class too many) makes a row of zeros in `jax.nn.one_hot`, and falls
    out of a `segment_sum`: what counts rows by their labels gives the number of rows on all others. No
    comparison need stand in the function for that. Whole numbers that are summed as floats are others from
    2^24 on, those that are summed as integers wrap around, and a sum below zero is rounded the other way. A
    class that no row is of has no mean and no largest. One leaf at a time, as one may index what has no such
    row.

    A negative one that is nothing to the reference but an index from the end, of an axis with one of some
    `lengths`, is no label that anybody gives: what counts rows by labels of each device is not held to it.
    """
    found: list[Values] = []
    random = np.random.default_rng(seed)
    for name, by_leaf in axes.items():
        leaves = jax.tree.leaves(values[name])
        for index, axis in by_leaf.items():
            leaf = leaves[index]
            if len(found) >= STRAYS or name in settled or kind_of(leaf, axis) != "labels" or not leaf.size:
                continue
            share = along(np.linspace(*EMPTYING, leaf.shape[axis]), leaf, axis)
            away = random.random(leaf.shape) < share
            low, high, given = int(np.min(leaf)), int(np.max(leaf)), np.asarray(leaf, object)

            def replaced(number: int) -> Any:
                return np.where(away, number, given)  # noqa: B023

            below, deep, taken = min(low, 0) - 1, -2 * abs(high) - 1, set[int | None]()
            for number in (below, deep, high + 1, UNEVEN if is_mask(leaf) else LATE, None):
                if number == deep and below not in taken:
                    continue  # An index far outside is no more than one that is just outside.
                other = without_least(given, axis) if number is None else replaced(number)
                made = like(other, leaf)
                candidate = with_leaf(values, name, index, made)
                if made is leaf or not sound(candidate):
                    continue
                counted = (number + n for n in lengths) if number is not None and number < 0 else ()
                others = [with_leaf(values, name, index, like(replaced(each), leaf)) for each in counted]
                if is_told(candidate, others):
                    taken.add(number)
                    found.append(candidate)
    # A class is of no row where neither the label nor what is predicted is that.
    none = changed(values, axes, settled, {"labels": without_least})
    return [*found, none] if len(found) > 1 and sound(none) else found


def without_least(leaf: Any, axis: int | None) -> Any:
    """The largest of an array's numbers in the place of the least."""
    return np.where(np.asarray(leaf) == np.min(leaf), np.max(leaf), leaf) if leaf.size else leaf


def with_leaf(values: Values, name: str, index: int, leaf: Any) -> Values:
    """`values` with one leaf of an argument in the place of another."""
    leaves, tree = jax.tree.flatten(values[name])
    leaves[index] = leaf
    return {**values, name: jax.tree.unflatten(tree, leaves)}


def with_columns(values: Values, axes: LeafAxes, statics: Sequence[str]) -> Iterator[Values]:
    """The same values with `COLUMNS` elements along all axes that have one, but along those of the batch.

    What is whole on every device has them too (weights, their optimiser's state), and then none of it.
    """

    def several(leaf: Any, axis: int | None) -> Any:
        shape = shape_of(leaf) if category(leaf) == "array" else ()
        for at in (at for at, size in enumerate(shape) if size == 1 and at != axis):
            parts = [np.roll(leaf, number, axis or 0) for number in range(COLUMNS)]
            if leaf.dtype.kind == "f" and axis is None:
                parts = [part * leaf.dtype.type(1 + number / 2) for number, part in enumerate(parts)]
            leaf = np.concatenate(parts, at)
        return leaf

    def of(name: str, *, whole: bool) -> Any:
        leaves, tree = jax.tree.flatten(values[name])
        split = axes.get(name, {})
        return tree.unflatten(
            several(leaf, split.get(i)) if whole or i in split else leaf for i, leaf in enumerate(leaves)
        )

    seen = [[shape_of(leaf) for leaf in jax.tree.leaves(dict(values))]]
    for whole in (True, False):
        made = {name: values[name] if name in statics else of(name, whole=whole) for name in values}
        shapes = [shape_of(leaf) for leaf in jax.tree.leaves(made)]
        if shapes not in seen:
            seen.append(shapes)
            yield made


def shapes_of(values: Values, axes: LeafAxes, statics: Sequence[str]) -> list[tuple[int, ...]]:
    """The shapes of the arrays, without the batch, that have any."""
    found = []
    for name in [name for name in values if name not in statics]:
        split = axes.get(name, {})
        for index, leaf in enumerate(jax.tree.leaves(values[name])):
            shape = list(shape_of(leaf)) if category(leaf) == "array" else []
            if index in split:
                del shape[split[index]]
            found.append(tuple(shape))
    return [*filter(None, found)]


def lengthened(
    values: Values, axes: LeafAxes, statics: Sequence[str], sizes: Sequence[int], times: int
) -> Values:
    """The same values with axes of such `sizes` so many times as long, but for those of the batch.

    Each part has other numbers; of what is whole on every device they are smaller, as those of wide layers.
    """
    random = np.random.default_rng(times)

    def repeated(leaf: Any, axis: int | None) -> Any:
        if category(leaf) != "array":
            return leaf
        for at, length in enumerate(shape_of(leaf)):
            if length in sizes and at != axis:
                leaf = np.concatenate([np.asarray(leaf)] * times, at)
                if leaf.dtype.kind in "fc" and not is_mask(leaf):
                    scale = random.uniform(0.5, 1.5, leaf.shape) / (times**0.5 if axis is None else 1.0)
                    leaf = (leaf * scale).astype(leaf.dtype)
        return leaf

    def of(name: str) -> Any:
        leaves, tree = jax.tree.flatten(values[name])
        split = axes.get(name, {})
        return tree.unflatten(repeated(leaf, split.get(i)) for i, leaf in enumerate(leaves))

    return {name: values[name] if name in statics else of(name) for name in values}


def extremes(values: Values, axes: LeafAxes, settled: Sequence[str]) -> list[Values]:
    """The same values with rows very large and very small, single numbers so, and flags the other way.

    Smooth functions are alike in between. What a Python `if` does on other numbers is no decision of a
    program that is traced. Rows of a few numbers alone are equal to others on other devices. Of rows below
    zero throughout, ``jnp.max(x, initial=0)`` is none.
    """
    ways: list[tuple[str, Change]] = [
        (kind, lambda leaf, axis, factor=factor: leaf * factor)  # type: ignore[misc]
        for kind in ("rows", "numbers")
        for factor in (SCALES[0], SCALES[-1])
    ]
    ways += [("flags", inverted), ("rows", coarse), ("rows", one_sided(-1)), ("rows", one_sided(1))]
    present = {kind for kind, _ in each_leaf(values, axes, settled)}
    return [changed(values, axes, settled, {kind: way}) for kind, way in ways if kind in present]


def emptied(values: Values, axes: LeafAxes, settled: Sequence[str]) -> list[Values]:
    """The same values with nothing in some rows: at ``-inf``, as a bias is that masks them, or no mask left.

    Of one array at a time, the rows in front: a device's largest number is that, too. What a program makes of
    no number hangs on how it is compiled, so these are for a reference that gives numbers alone.
    """
    places = [place for kind, place in each_leaf(values, axes, settled) if kind == "rows"]
    found = [changed(values, axes, settled, {"rows": closed}, place) for place in places[:ALONE]]
    split = (leaf for name, by_leaf in axes.items() for leaf in in_batch(values[name], by_leaf))
    if any(map(is_mask, split)):
        none: Change = lambda leaf, axis: np.zeros_like(leaf) if is_mask(leaf) else leaf  # noqa: E731
        found.append(changed(values, axes, settled, dict.fromkeys(("masks", "rows", "labels"), none)))
    return found


def coarse(leaf: Any, axis: int | None) -> Any:
    """Floats rounded to about as few as ``-1, 0, 1``."""
    wide = np.asarray(leaf, np.complex128 if leaf.dtype.kind == "c" else np.float64)
    with np.errstate(all="ignore"):
        unit = np.std(wide)
    return np.round(wide / unit) * unit if np.isfinite(unit) and unit else leaf


def one_sided(sign: int) -> Change:
    """Of numbers of either sign those of one; what has one, as weights do, stays as it is."""

    def change(leaf: Any, axis: int | None) -> Any:
        kept = leaf.dtype.kind == "c" or not leaf.size or np.min(leaf) >= 0 or np.max(leaf) <= 0
        return leaf if kept else sign * np.abs(leaf)

    return change


def closed(leaf: Any, axis: int | None) -> Any:
    """The first half of the rows at ``-inf``."""
    assert axis is not None
    return np.where(along(np.arange(leaf.shape[axis]) < leaf.shape[axis] // 2, leaf, axis), -np.inf, leaf)


def far_on(values: Values, axes: LeafAxes, settled: Sequence[str]) -> list[Values]:
    """The same values with counters so far on that float32 holds no odd number, and that products wrap.

    Not with numbers of Python: those may be exponents.
    """
    kinds = each_leaf(values, axes, settled)
    counters = [jax.tree.leaves(values[name])[index] for kind, (name, index) in kinds if kind == "counters"]
    if all(type(counter) is int for counter in counters):
        return []

    def counted(number: int) -> Change:
        return lambda leaf, axis: leaf if type(leaf) is int else number

    return [changed(values, axes, settled, {"counters": counted(number)}) for number in (UNEVEN, LATE)]


def inverted(leaf: Any, axis: int | None) -> Any:
    """A truth value the other way."""
    return np.logical_not(leaf)


def lone(values: Values, axes: LeafAxes, settled: Sequence[str]) -> list[Values]:
    """The same values with all masks True throughout, in all places but the first, and in the first alone.

    ``mean(mask) > 0.99`` is ``all(mask)`` wherever a mask lacks several rows. Zeros and ones are masks too.
    What stands for the numbers of rows that a mask leaves out, as ``where(mask, score, -100)`` has it, tells
    beside one row alone, whose number is very large, of either sign.
    """

    def filled(rest: int, first: int) -> Change:
        def change(leaf: Any, axis: int | None) -> Any:
            if not is_mask(leaf):
                return leaf
            made = np.full(leaf.shape, rest)
            made.flat[0] = first
            return made

        return change

    places = [leaf for name, by_leaf in axes.items() for leaf in in_batch(values[name], by_leaf)]
    if not any(map(is_mask, places)):
        return []

    def masked(rest: int, first: int) -> Values:
        return changed(values, axes, settled, dict.fromkeys(("masks", "rows", "labels"), filled(rest, first)))

    def grown(by: float) -> Change:
        return lambda leaf, axis: leaf if is_mask(leaf) else leaf * by

    one = masked(0, 1)
    far = [changed(one, axes, settled, {"rows": grown(by)}) for by in (SCALES[-1], -SCALES[-1])]
    return [masked(1, 1), masked(1, 0), one, *far]


def moved_round(values: Values, axes: LeafAxes, settled: Sequence[str]) -> list[Values]:
    """The same values with whole numbers moved round within their range, of arrays without a batch axis.

    Where the classes are divided and not the rows, every device has all labels, and looks for its own: which
    one a label is next to is another thing for others. What is different, or one of a range, stays so; what
    rises, as offsets do, stays as it is. Several times, where the arrays are small.
    """

    def around(turn: int) -> Change:
        def change(leaf: Any, axis: int | None) -> Any:
            low, high = int(np.min(leaf)), int(np.max(leaf))
            size = high - low + 1
            # By steps that have no factor in common: of what each device has so many, another one.
            by = size * turn // (number + 1) + turn
            return low + (np.asarray(leaf, np.int64) - low + by) % size

        return change

    sizes = [
        np.size(jax.tree.leaves(values[name])[index])
        for kind, (name, index) in each_leaf(values, axes, settled)
        if kind == "indices"
    ]
    number = min(MOVED_ROUND, -(-MOVED_NUMBERS // min(sizes))) if sizes else 0
    return [changed(values, axes, settled, {"indices": around(1 + turn)}) for turn in range(number)]


def names_rows(values: Values, axes: LeafAxes, size: int) -> bool:
    """Whether whole numbers in arrays without a batch axis may be those of rows beyond the first `size`."""
    rows = arguments.batch_size(values, axes)
    whole = (
        jax.tree.leaves(values[name])[index]
        for kind, (name, index) in each_leaf(values, axes, ())
        if kind == "indices"
    )
    return any(np.size(leaf) and size <= int(np.max(leaf)) < rows for leaf in whole)


def in_batch(value: Any, by_leaf: Mapping[int, int]) -> list[Any]:
    """The leaves of an argument that have a batch axis."""
    leaves = jax.tree.leaves(value)
    return [leaves[index] for index in by_leaf]


def is_mask(leaf: Any) -> bool:
    """Whether an array has nothing but zeros and ones, or truth values."""
    if category(leaf) != "array" or leaf.dtype.kind not in "biuf" or not leaf.size:
        return False
    return bool(leaf.dtype.kind == "b" or np.isin(np.asarray(leaf), (0, 1)).all())


def stuck(sites: Sequence[Site], taken: np.ndarray) -> list[Site]:
    """The decisions that did not go every way."""
    ends = np.cumsum([site.ways for site in sites])
    return [site for site, end in zip(sites, ends, strict=True) if not taken[end - site.ways : end].all()]


def places_of(sites: Iterable[Site]) -> tuple[str, ...]:
    """Where some decisions are, in order, each place once."""
    return tuple(sorted({site.where for site in sites if site.where}))


def kind_of(leaf: Any, axis: int | None) -> str:
    """As what a leaf is changed together with others of its kind; ``""`` for what is not changed.

    A float by itself is one of the ``"numbers"``. A rate is no weight: where weights are so large that no
    gradient is left, it shows nowhere.
    """
    form = category(leaf)
    if form == "bool" or (form == "array" and leaf.dtype.kind == "b" and axis is None):
        return "flags"
    if form == "float" or is_float(leaf):
        if axis is not None:
            return "rows"
        return "state" if np.ndim(leaf) else "numbers"
    if form == "int" or (form == "array" and leaf.dtype.kind in "iu" and not leaf.ndim):
        return "counters"
    if form == "array" and axis is None and leaf.dtype.kind in "iu":
        rises = leaf.size > 1 and bool(np.all(np.diff(np.asarray(leaf).ravel().astype(np.int64)) >= 0))
        return "" if is_key_leaf(leaf) or rises or not leaf.size else "indices"
    if form == "array" and axis is not None:
        return {"b": "masks", "i": "labels", "u": "labels"}.get(leaf.dtype.kind, "")
    return ""


def changed(
    values: Values,
    axes: LeafAxes,
    settled: Sequence[str],
    changes: Mapping[str, Change],
    alone: tuple[str, int] | None = None,
) -> Values:
    """`values` with every leaf of a kind in `changes` changed, in its own dtype; or `alone` that leaf."""
    out = dict(values)
    for name, value in values.items():
        if name in settled:
            continue
        leaves, tree = jax.tree.flatten(value)
        fixed = arguments.constants(value)
        for index, leaf in enumerate(leaves):
            axis = axes.get(name, {}).get(index)
            change = changes.get(kind_of(leaf, axis))
            if change is not None and index not in fixed and alone in (None, (name, index)):
                leaves[index] = like(change(leaf, axis), leaf)
        out[name] = jax.tree.unflatten(tree, leaves)
    return out


def like(new: Any, old: Any) -> Any:
    """`new` as the kind of leaf that `old` is; `old` where it does not fit in."""
    if not hasattr(old, "dtype"):
        return type(old)(new)
    with np.errstate(all="ignore"):
        if old.dtype.kind in "iu":
            bounds = np.iinfo(old.dtype)
            if np.size(new) and (np.min(new) < bounds.min or np.max(new) > bounds.max):
                return old
        return np.asarray(new).astype(old.dtype)


def changes(numbers: Sequence[float], random: np.random.Generator, *, tame: bool) -> dict[str, list[Change]]:
    """Ways to change each kind of leaf; `numbers` are those the program compares with.

    Only `tame` ones for a program with a loop that ends when its numbers say so: it must end.
    """

    def scaled(factor: float) -> Change:
        return lambda leaf, axis: leaf * factor

    def spread(leaf: Any, axis: int | None) -> Any:
        assert axis is not None
        return leaf * along(random.permutation(np.logspace(-4, 6, leaf.shape[axis])), leaf, axis)

    def blank(number: float) -> Change:
        # Rows of padding: the same number throughout.
        return somewhere(*EMPTYING, random, lambda leaf: number, rows=True)

    def turned(first: float, last: float) -> Change:
        # Sums of rows of one sign have that sign on every device, and so has that of all.
        return somewhere(first, last, random, np.negative, rows=True)

    def around(number: float) -> Change:
        return lambda leaf, axis: number * (1.0 + 0.3 * random.uniform(-1.0, 1.0, np.shape(leaf)))

    def beyond(number: float) -> Change:
        # All of them are: the largest of rows on both sides of a limit is above it.
        return lambda leaf, axis: number * (1.5 + 0.3 * random.uniform(-1.0, 1.0, np.shape(leaf)))

    def counted(number: int) -> Change:
        return lambda leaf, axis: number

    def labelled(number: int) -> Change:
        return somewhere(*EMPTYING, random, lambda leaf: number)

    def shuffled(leaf: Any, axis: int | None) -> Any:
        low, high = min(int(np.min(leaf, initial=0)), 0), max(int(np.max(leaf, initial=1)), 1)
        return random.integers(low, high + 1, leaf.shape)

    scales = [scaled(factor) for factor in SCALES if not tame or factor < 1e5]
    peaks = somewhere(0.15, 0.15, random, lambda leaf: np.asarray(leaf, np.float64) * 1e8, rows=True)
    infinite = [] if tame else [holes(np.inf, 0.7, -0.5, random), holes(np.inf, -0.5, 0.7, random)]
    written = [number for number in numbers if number]
    # `jnp.finfo(x.dtype).min`, for minus infinity, is a whole number too, and no integer holds it.
    most = 1000 if tame else np.iinfo(np.int32).max
    whole = [int(n) for n in numbers if n == int(n) and abs(n) <= most]
    negative: Change = lambda leaf, axis: -leaf  # noqa: E731
    rounded: Change = lambda leaf, axis: np.round(np.asarray(leaf, np.float64))  # noqa: E731
    floats: list[Change] = [*scales, negative, *map(around, written)]
    return {
        "rows": [
            *scales,
            negative,
            turned(1.3, -0.3),
            turned(-0.3, 1.3),
            *([] if tame else [spread, peaks]),
            holes(np.nan, 0.7, -0.5, random),
            holes(np.nan, -0.5, 0.7, random),
            *infinite,
            *map(blank, (0.0, *written)),
            rounded,
            *map(around, written),
            *map(beyond, written),
        ],
        "state": floats,
        "numbers": floats,
        "counters": [
            *(counted(number + off) for number in whole for off in (0, -1, 1)),
            *(counted(number) for number in (1, 2, 3, 5, 10, 100, *([] if tame else [10**6]))),
            *(counted(int(number)) for number in random.integers(0, 20, 4)),
        ],
        "flags": [inverted],
        "labels": [shuffled, *map(labelled, whole)],
        "masks": [masked(1.0, 0.0, random), masked(0.5, 0.5, random), masked(0.0, 0.2, random)],
    }


def candidates(
    values: Values,
    axes: LeafAxes,
    settled: Sequence[str],
    numbers: Sequence[float],
    seed: int,
    *,
    tame: bool,
) -> Iterator[Values]:
    """Other inputs of the same form: each kind of leaf changed alone, single leaves, then all at random."""
    random = np.random.default_rng(seed)
    known = changes(numbers, random, tame=tame)
    kinds = {kind for kind, _ in each_leaf(values, axes, settled)}
    present = [kind for kind in known if kind in kinds]
    longest = max((len(known[kind]) for kind in present), default=0)
    yield from single(values, axes, settled, random)
    # In turns, so that a long list of one kind leaves room for the others.
    for turn in range(longest):
        for kind in present:
            if turn < len(known[kind]):
                yield changed(values, axes, settled, {kind: known[kind][turn]})
    while present:
        chosen = {kind: known[kind][random.integers(len(known[kind]))] for kind in present}
        yield changed(values, axes, settled, chosen)


def each_leaf(
    values: Values, axes: LeafAxes, settled: Sequence[str]
) -> Iterator[tuple[str, tuple[str, int]]]:
    """Kind and place of every leaf that may be changed."""
    for name, value in values.items():
        for index, leaf in enumerate(jax.tree.leaves(value) if name not in settled else ()):
            yield kind_of(leaf, axes.get(name, {}).get(index)), (name, index)


def single(
    values: Values, axes: LeafAxes, settled: Sequence[str], random: np.random.Generator
) -> Iterator[Values]:
    """Inputs in which one leaf of several has rows that are missing: labels that are NaN, another mask.

    Where all leaves have them, no result is a number. Or one that is whole is large: where all layers are,
    what is between them has no slope left, and gradients are clipped by no limit.
    """
    for kind, ways in (
        ("rows", [holes(np.nan, 0.7, -0.5, random), holes(np.nan, -0.5, 0.7, random)]),
        ("masks", [masked(0.9, 0.1, random)]),
        ("state", [lambda leaf, axis: leaf * SCALES[2]]),
    ):
        places = [place for found, place in each_leaf(values, axes, settled) if found == kind]
        for place in places[:ALONE] if len(places) > 1 else ():
            for way in ways:
                yield changed(values, axes, settled, {kind: way}, place)


def holes(filling: float, first: float, last: float, random: np.random.Generator) -> Change:
    """Some shards have many numbers that are none, and some no such number."""
    return somewhere(first, last, random, lambda leaf: filling)


def masked(first: float, last: float, random: np.random.Generator) -> Change:
    """A mask with more rows in some shards than in others."""
    return lambda leaf, axis: somewhere(first, last, random, np.ones_like)(np.zeros_like(leaf), axis)


def somewhere(
    first: float, last: float, random: np.random.Generator, new: Callable[[Any], Any], *, rows: bool = False
) -> Change:
    """What `new` makes of a leaf in some of its places, or of its `rows`; the share of these changes.

    It is `first` in the first row and `last` in the last one: some devices have many of them, and some none.
    """

    def change(leaf: Any, axis: int | None) -> Any:
        assert axis is not None
        share = np.linspace(first, last, leaf.shape[axis])
        if rows:
            return np.where(along(random.random(len(share)) < share, leaf, axis), new(leaf), leaf)
        return np.where(random.random(leaf.shape) < along(share, leaf, axis), new(leaf), leaf)

    return change


def search(
    values: Values,
    axes: LeafAxes,
    settled: Sequence[str],
    numbers: Sequence[float],
    reached: Callable[[Values], "np.ndarray | None"],
    sound: Callable[[Values], bool],
    known: Sequence[Values],
    seed: int,
    *,
    tame: bool,
) -> tuple[list[Values], np.ndarray]:
    """Inputs on which decisions go in ways that they do not on those `known`; and all ways taken.

    Args:
        values: what the others are made from.
        axes: batch axes of their leaves.
        settled: arguments that are not changed.
        numbers: those that decisions compare with.
        reached: the ways taken on some inputs; None where they are not used, as they take too long.
        sound: whether inputs that show something new may be used.
        known: inputs that are used anyway.
        seed: of the random choices.
        tame: whether numbers must stay near those given.
    """
    first = [ways for each in known if (ways := reached(each)) is not None]
    taken = EACH * np.any(first, axis=0).astype(int)
    kept: list[Values] = []
    tried = TRIED if size_of(values) <= LARGE else TRIED_LARGE
    for number, candidate in enumerate(candidates(values, axes, settled, numbers, seed, tame=tame)):
        if (taken >= EACH).all() or number >= tried or len(kept) >= KEPT:
            break
        ways = reached(candidate)
        if ways is not None and (ways & (taken < EACH)).any() and sound(candidate):
            kept.append(candidate)
            taken += ways
    return kept, taken > 0


def size_of(values: Values) -> int:
    """Bytes of all arrays."""
    return sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(values) if category(leaf) == "array")


def weaknesses(values: Values, axes: LeafAxes, counts: Sequence[int]) -> list[str]:
    """What the given inputs could not show by themselves, in words; `counts` are the device counts."""
    found: dict[str, None] = {}
    size = arguments.batch_size(values, axes)
    same = bool(counts) and size > 0
    for name, by_leaf in axes.items():
        paths, leaves = leaf_paths(values[name]), jax.tree.leaves(values[name])
        for index, axis in by_leaf.items():
            leaf, path = leaves[index], f"`{name}{paths[index]}`"
            if category(leaf) != "array":
                same = False
                continue
            rows = np.moveaxis(np.asarray(leaf), axis, 0)
            flat = rows.reshape(size, -1)
            if rows.dtype.kind == "b" and flat.all():
                found[f"{path} is True throughout"] = None
            elif rows.dtype.kind == "b" and not flat.any():
                found[f"{path} is False throughout"] = None
            elif rows.size > 1 and (flat == flat.ravel()[0]).all():
                found[f"{path} is {flat.ravel()[0]} throughout"] = None
            same = same and all(equal_shares(rows, size, count) for count in counts if size >= count)
    if same:
        found["every device gets the same data"] = None
    if size in counts:
        found[f"the batch is {size}, one example a device on {size} devices"] = None
    return list(found)


def equal_shares(rows: np.ndarray, size: int, count: int) -> bool:
    """Whether `count` devices all get the same rows."""
    each = size // count
    parts = rows[: each * count].reshape(count, each, -1)
    return count > 1 and bool((parts == parts[:1]).all())
