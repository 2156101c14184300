"""Every rule of the placements held against its primitive, on random arrays divided in every way.

For each combination of placements of its operands, values for each device are made of whole values `V`, so
that no two devices hold the same and parts of sums look like nothing; the primitive runs on them, and what
its rule claims of the result must hold of what the primitive makes of `V`.

    python tests/test_placement_rules.py

prints the relations that hold and that no rule claims: by chance, on these numbers, or for a rule to come.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from placement_examples import EXAMPLES, FLOAT_STEPS, WHOLE_STEPS, Example
from placement_numbers import apply, evaluated

from jax_pmap.worker.jaxpr.versions import inner_jaxpr, opened, primitive_name
from jax_pmap.worker.placements.equation import RULES, Same, Stuck, Value
from jax_pmap.worker.placements.interpreter import Apart, Interpreter
from jax_pmap.worker.placements.lattice import (
    Blocks,
    Copies,
    Diagonal,
    Extreme,
    Index,
    Loose,
    Mixed,
    Offset,
    Partial,
    Placement,
    Positions,
    Replicated,
    Sharded,
    Spread,
    Unknown,
    shown,
)
from jax_pmap.worker.placements.terms import Terms

#: Rows of the whole batch, and the numbers of devices of the two traces; values are made for the last.
ROWS = 12
COUNTS = (2, 3)
#: Primitives of other versions of jax, and those that only stand in mapped functions (`test_mapped`).
NOT_HERE = {
    "log2",
    "one_minus_square",
    "polynomial",
    "stack",
    "unstack",
    "tile",
    "mulhi",
    "eq_to",
    "le_to",
    "lt_to",
}
NOT_HERE |= {"scatter_sub", "geqp3", "ormqr", "symmetric_product", "split", "pvary"}
#: Rules that never claim anything.
ALWAYS_STUCK = {"pgather", "ppermute", "ragged_all_to_all", "rng_uniform"}
MODULES = [getattr(jax._src.lax, name) for name in ("lax", "slicing", "linalg", "parallel", "special")]
#: Whether relations that hold and are not claimed are looked for as well, which takes longer.
SEARCHING = __name__ == "__main__"


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    before = jax.config.jax_enable_x64, jax.config.jax_traceback_filtering
    jax.config.update("jax_enable_x64", True)
    # Operands that do not fit are tried by the hundred.
    jax.config.update("jax_traceback_filtering", "off")
    yield
    jax.config.update("jax_enable_x64", before[0])
    jax.config.update("jax_traceback_filtering", before[1])


# --- operands ---------------------------------------------------------------------------------


def made(spec: str, seed: int) -> np.ndarray:
    """Random numbers: ``"f:12,3"`` are floats of shape (12, 3), ``"x5:12"`` indices below 5."""
    kind, _, sizes = spec.partition(":")
    shape = tuple(int(size) for size in sizes.split(",") if size)
    random = np.random.default_rng([seed, *spec.encode()])
    if kind[0] == "x":
        return random.integers(0, int(kind[1:]), shape)
    if kind[0] == "s":  # Symmetric and positive definite.
        root = random.normal(size=shape)
        return root @ np.swapaxes(root, -1, -2) + 3 * np.eye(shape[-1])
    if kind[0] == "d":  # Zero outside the blocks on the diagonal of the axes of all rows.
        rows = [axis for axis, size in enumerate(shape) if size == ROWS]
        block = np.arange(ROWS) // (ROWS // COUNTS[-1])
        return random.normal(size=shape) * np.expand_dims(
            block[:, None] == block, [axis for axis in range(len(shape)) if axis not in rows]
        )
    if kind[0] == "t":  # Triangular, and far from singular.
        return np.tril(random.normal(size=shape)) + 3 * np.eye(shape[-1])
    return {
        "f": lambda: random.normal(size=shape),
        "f32": lambda: random.normal(size=shape).astype(np.float32),
        "p": lambda: random.uniform(0.2, 2.0, shape),
        "g": lambda: random.uniform(1.1, 3.0, shape),
        "j": lambda: np.where(random.random(shape) < 0.5, np.inf, 1.0),
        "r": lambda: random.integers(0, 3, shape).astype(float),
        "u": lambda: random.uniform(-0.9, 0.9, shape),
        "h": lambda: random.uniform(0.1, 0.9, shape),
        "i": lambda: random.integers(-5, 6, shape),
        "n": lambda: random.integers(1, 6, shape),
        "m": lambda: random.integers(-5, 6, shape) * 12,
        "w": lambda: random.integers(0, 2**32, shape, dtype=np.uint32),
        "b": lambda: random.random(shape) < 0.5,
        "c": lambda: random.normal(size=shape) + 1j * random.normal(size=shape),
    }[kind]()


def ways(value: np.ndarray, few: bool, outside: bool) -> list[Placement]:
    """Placements in which an operand may be."""
    kind = value.dtype.kind
    rows = [axis for axis, size in enumerate(value.shape) if size == ROWS]
    found: list[Placement] = [Replicated()]
    found += [Sharded(axis, 0, outer) for axis in rows for outer in (1, 2)]
    if kind != "b":
        found += [Partial(), Replicated(1)]
    if kind != "c":
        found += [Extreme("max")]
    if len(rows) == 2:
        block = Diagonal((rows[0], rows[1]), 0, alone=False)
        alone = [replace(block, alone=True)]
        found += [
            block,
            *(each for each in alone if holds(each, squares(each, value, COUNTS[-1]), value, COUNTS[-1])),
        ]
        found += [replace(each, power=1) for each in found[-1:] if kind != "b" and not few]
    if few:
        return found
    if kind != "b":
        found += [Partial(-1), Partial(1), Replicated(-1), *(Sharded(axis, 1) for axis in rows)]
    if kind in "fc":
        found += [Replicated(Fraction(1, 2)), *(Sharded(axis, -1) for axis in rows)]
        found += [Offset(axis, power) for axis in rows for power in (0, -1)]
    if kind != "c":
        found += [Extreme("min")]
    if outside:
        found += [Blocks(axis) for axis in rows] + [Copies(axis) for axis in range(value.ndim + 1)]
    return found


def local_shape(place: Placement, shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The shape on a device of a value in a placement."""
    if isinstance(place, (Sharded, Spread, Offset, Positions, Mixed)):
        axis = place.axis
        return (*shape[:axis], shape[axis] // count, *shape[axis + 1 :])
    if isinstance(place, Diagonal):
        return tuple(size // count if axis in place.axes else size for axis, size in enumerate(shape))
    if isinstance(place, Blocks):
        axis = place.axis
        return (*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :])
    if isinstance(place, Copies):
        return (*shape[: place.axis], count, *shape[place.axis :])
    return shape


def share(place: Sharded, value: np.ndarray, count: int, device: int) -> np.ndarray:
    """A device's part of a whole value."""
    axis = place.axis
    size = value.shape[axis]
    grouped = value.reshape(*value.shape[:axis], place.outer, count, -1, *value.shape[axis + 1 :])
    part = np.take(grouped, device, axis + 1)
    return part.reshape(*value.shape[:axis], size // count, *value.shape[axis + 1 :])


def squares(place: Diagonal, value: np.ndarray, count: int) -> list[np.ndarray]:
    """The devices' blocks on the diagonal of a whole value."""
    rows, columns = (Sharded(axis) for axis in place.axes)
    return [share(columns, share(rows, value, count, at), count, at) for at in range(count)]


def divided(place: Placement, value: np.ndarray, count: int, random: Any) -> list[np.ndarray] | None:
    """Values of the devices in a placement, or None where there are none of this dtype."""
    power = getattr(place, "power", 0)
    if power:
        whole = value / float(count) ** float(power)
        if value.dtype.kind in "iu" and not np.array_equal(whole, np.round(whole)):
            return None
        value = whole.astype(value.dtype)
    if isinstance(place, Replicated):
        return [value] * count
    if isinstance(place, Sharded):
        return [share(place, value, count, device) for device in range(count)]
    if isinstance(place, Offset):
        size = (count, *value.shape[: place.axis], 1, *value.shape[place.axis + 1 :])
        added = random.normal(size=size)
        added -= added.mean(0)
        return [share(Sharded(place.axis), value, count, i) + added[i] for i in range(count)]
    if isinstance(place, Diagonal):
        return squares(place, value, count)
    if isinstance(place, Partial):
        if value.dtype.kind in "iu":
            parts = list(random.integers(-9, 10, (count - 1, *value.shape)).astype(value.dtype))
        else:
            parts = list(random.normal(size=(count - 1, *value.shape)).astype(value.dtype))
        return [*parts, (value - sum(parts)).astype(value.dtype)]
    if isinstance(place, Extreme):
        holder = random.integers(0, count, value.shape)
        if value.dtype == bool:
            noise = random.random((count, *value.shape)) < 0.5
            others = [value & each if place.op == "max" else value | each for each in noise]
        else:
            sign = -1 if place.op == "max" else 1
            noise = random.integers(0, 4, (count, *value.shape))
            if value.dtype.kind == "u":
                noise = np.minimum(noise, value if sign < 0 else 2**31)
            others = [(value + sign * each).astype(value.dtype) for each in noise]
        return [np.where(holder == device, value, other) for device, other in enumerate(others)]
    if isinstance(place, Blocks):
        return [value.reshape(local_shape(place, value.shape, count))] * count
    if isinstance(place, Copies):
        return [np.stack([value] * count, place.axis)] * count
    raise AssertionError(place)


def joined(place: Mixed, values: Sequence[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """The whole value of which devices hold groups: their elements along the axes of these in one row."""
    rest = [axis for axis in range(len(shape)) if axis not in place.axes]
    order = [*place.axes, *rest]
    others = [shape[axis] for axis in rest]
    rows = np.stack([each.transpose(order).reshape(place.ahead, -1, *others) for each in values], 1)
    return rows.reshape([shape[axis] for axis in order]).transpose(np.argsort(order))


def close(one: Any, other: Any) -> bool:
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape:
        return False
    if one.dtype.kind in "fc" or other.dtype.kind in "fc":
        scale = 1e-5 if {"float32", "complex64"} & {str(one.dtype), str(other.dtype)} else 1e-9
        return bool(np.allclose(one, other, rtol=scale, atol=scale, equal_nan=True))
    return bool(np.array_equal(one, other))


def holds(place: Placement, values: Sequence[np.ndarray], whole: np.ndarray, count: int) -> bool:
    """Whether values of the devices stand in the relation to a whole value that a placement claims."""
    if any(each.shape != local_shape(place, whole.shape, count) for each in values):
        return False
    power = float(count) ** float(getattr(place, "power", 0))
    if isinstance(place, Replicated):
        return all(close(power * each if power != 1 else each, whole) for each in values)
    if isinstance(place, Sharded):
        if whole.shape[place.axis] % (count * place.outer):
            return False
        return all(
            close(power * each if power != 1 else each, share(place, whole, count, device))
            for device, each in enumerate(values)
        )
    if isinstance(place, Diagonal):
        parts = squares(place, whole, count)
        same = all(
            close(power * own if power != 1 else own, part) for own, part in zip(values, parts, strict=True)
        )
        return same and (not place.alone or sum(map(np.count_nonzero, parts)) == np.count_nonzero(whole))
    if isinstance(place, Partial):
        return close(power * sum(each.astype(whole.dtype) for each in values), whole)
    if isinstance(place, Spread):
        parts = power * sum(each.astype(whole.dtype) for each in values)
        shares = (share(Sharded(place.axis), whole, count, device) for device in range(count))
        return all(close(parts, each) for each in shares)
    if isinstance(place, Offset):
        rows = (share(Sharded(place.axis), whole, count, device) for device in range(count))
        added = [power * each - own for each, own in zip(values, rows, strict=True)]
        alike = all(close(each, np.broadcast_to(each.take([0], place.axis), each.shape)) for each in added)
        return alike and close(sum(added), np.zeros_like(added[0]))
    if isinstance(place, Mixed):
        return close(power * joined(place, values, whole.shape), whole)
    if isinstance(place, Loose):
        return close(power * sum(each.sum(place.axes) for each in values), whole.sum(place.axes))
    if isinstance(place, Extreme):
        return close(np.max(values, 0) if place.op == "max" else np.min(values, 0), whole)
    if isinstance(place, Positions):
        assert whole.shape[place.axis] == place.length
        others = Sharded(place.axis, outer=place.outer or 1)
        column = slice(None) if place.column is None else slice(place.column, place.column + 1)
        rest = [i for i in range(whole.shape[-1]) if i != place.column] if place.column is not None else []
        return all(
            close(each[..., column], share(Sharded(place.axis), whole, count, 0)[..., column])
            and close(each[..., rest], share(others, whole, count, device)[..., rest])
            for device, each in enumerate(values)
        )
    if isinstance(place, Index):
        step = place.length // count if place.length else 1
        return all(close(each, np.full(each.shape, device * step)) for device, each in enumerate(values))
    if isinstance(place, (Blocks, Copies)):
        expected = divided(
            Blocks(place.axis) if isinstance(place, Blocks) else Copies(place.axis), whole, count, None
        )
        assert expected is not None
        return all(close(power * each if power != 1 else each, expected[0]) for each in values)
    raise AssertionError(place)


# --- running ----------------------------------------------------------------------------------

Forms = tuple[tuple[tuple[int, ...], Any], ...]


def bound(jaxpr: Any) -> set[str]:
    """Names of all primitives in a jaxpr."""
    found = set()
    for equation in opened(jaxpr)[0].eqns:
        found.add(primitive_name(equation))
        inner = inner_jaxpr(equation.params)
        if inner is not None:
            found |= bound(inner)
        for jaxprs in (equation.params.get("branches", ()), equation.params.get("jaxprs", ())):
            for each in jaxprs or ():
                found |= bound(each) if each is not None else set()
    return found


@dataclass
class Trial:
    """One combination of placements of an example's operands, and what the rules claim of it."""

    placements: tuple[Placement, ...]
    found: list[Value]
    #: What the devices made of the operands.
    ran: list[list[np.ndarray]]


class Trials:
    """All trials of one example."""

    def __init__(self, case: Example) -> None:
        self.case = case
        self.wholes = [made(spec, index) for index, spec in enumerate(case.operands)]
        self.forms = tuple((value.shape, value.dtype) for value in self.wholes)
        self.jaxprs: dict[tuple[Forms, int], Any] = {}
        self.whole = self.traced(self.forms, 1)
        self.terms = Terms()
        self.inputs = [
            self.terms.make("input", index, (), value.shape, str(value.dtype))
            for index, value in enumerate(self.wholes)
        ]
        self.wanted = Interpreter(self.terms, {}, 1).run(
            [self.whole], [Value(term, ()) for term in self.inputs]
        )
        self.results = [row[0] for row in evaluated(self.whole, [[value] for value in self.wholes], 1)]
        outside = not case.takes_rows and all(not value.ndim for value in self.wholes[1:])
        choices = [ways(value, case.few or len(self.wholes) > 2, outside) for value in self.wholes]
        self.trials = [
            trial for places in itertools.product(*choices) if (trial := self.trial(places)) is not None
        ]

    def traced(self, forms: Forms, count: int) -> Any:
        """A jaxpr for operands of these shapes and dtypes, or None where there is none."""
        if (forms, count) not in self.jaxprs:
            given = {"b": ROWS // count} if self.case.takes_rows else {}
            function = self.case.run if count > 1 or self.case.whole is None else self.case.whole
            axes = [("i", count)] if count > 1 else None
            arrays = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in forms]
            try:
                made = jax.make_jaxpr(functools.partial(function, **given), axis_env=axes)(*arrays)
            except (TypeError, ValueError, NotImplementedError):
                if count == 1:
                    raise
                made = None
            self.jaxprs[forms, count] = made
        return self.jaxprs[forms, count]

    def bound(self) -> set[str]:
        """Names of the primitives that are bound on devices."""
        return {
            name for (_, count), jaxpr in self.jaxprs.items() if count > 1 and jaxpr for name in bound(jaxpr)
        }

    def trial(self, places: tuple[Placement, ...]) -> Trial | None:
        """What the rules claim; None where there is no such combination, or nothing is claimed of it."""
        forms = [
            tuple((local_shape(p, v.shape, n), v.dtype) for p, v in zip(places, self.wholes, strict=True))
            for n in COUNTS
        ]
        jaxprs = [self.traced(form, n) for form, n in zip(forms, COUNTS, strict=True)]
        if any(each is None for each in jaxprs):
            return None
        walk = Interpreter(self.terms, {"i": COUNTS}, len(COUNTS))
        try:
            found = walk.run(jaxprs, [Value(t, (p,)) for t, p in zip(self.inputs, places, strict=True)])
        except Apart:
            return None
        if not SEARCHING and all(isinstance(value.places[0], Unknown) for value in found):
            return None
        random = np.random.default_rng(7)
        local = [
            divided(place, value, COUNTS[-1], random)
            for place, value in zip(places, self.wholes, strict=True)
        ]
        if any(each is None for each in local):
            return None
        try:
            ran = evaluated(jaxprs[-1], [each for each in local if each is not None], COUNTS[-1])
        except Exception as error:
            # Shapes that do not fit and that no rule of the primitive looks at; numbers out of its range.
            if not isinstance(error, TypeError) and not SEARCHING:
                raise
            return None
        return Trial(places, found, ran)

    def wrong(self) -> Iterator[str]:
        """Claims that do not hold."""
        for trial in self.trials:
            for index, (value, reference, whole) in enumerate(
                zip(trial.found, self.wanted, self.results, strict=True)
            ):
                (place,) = value.places
                if isinstance(place, Unknown):
                    continue
                if value.term in self.inputs:
                    whole = self.wholes[self.inputs.index(value.term)]
                text = (
                    f"{self.case.operands} as {[shown(p) for p in trial.placements]}: result {index} is not "
                )
                try:
                    holding = holds(place, trial.ran[index], whole, COUNTS[-1])
                except (AssertionError, IndexError):
                    holding = False
                if not holding:
                    yield text + shown(place)
                elif value.term != reference.term and not same_by_hand(self, trial, value):
                    yield text + f"{self.terms.text(reference.term, 5)} but {self.terms.text(value.term, 5)}"

    def missed(self) -> Iterator[str]:
        """Relations that hold and are not claimed."""
        for trial in self.trials:
            for index, (value, whole) in enumerate(zip(trial.found, self.results, strict=False)):
                (place,) = value.places
                if isinstance(place, Unknown):
                    for each in possible(trial.ran[index], whole, COUNTS[-1]):
                        given = [shown(p) for p in trial.placements]
                        yield f"{given} -> {index}: {shown(each)}: {place.reason}"


def same_by_hand(trials: Trials, trial: Trial, value: Value) -> bool:
    """Whether a meaning was compared with numbers already, or is of what is outside of a mapped function."""
    outside = any(isinstance(place, (Blocks, Copies)) for place in trial.placements)
    return outside or value.term in trials.inputs or isinstance(value.places[0], Index)


def possible(values: Sequence[np.ndarray], whole: np.ndarray, count: int) -> list[Placement]:
    """The first relation that holds of some values, if any does."""
    found: list[Placement] = []
    for power in (0, 1, -1, 2, -2):
        found.append(Replicated(power))
        found += [Sharded(axis, power) for axis in range(whole.ndim)]
        if whole.dtype != bool:
            found.append(Partial(power))
    found += [Extreme("max"), Extreme("min")] if whole.dtype.kind != "c" else []
    return [place for place in found if holds(place, values, whole, count)][:1]


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_claims_hold(name: str) -> None:
    group = [Trials(case) for case in EXAMPLES[name]]
    wrong = [text for trials in group for text in trials.wrong()]
    assert not wrong, "\n".join(wrong[:20])
    idle = [trials.case for trials in group if not set(trials.case.names) <= trials.bound()]
    assert not idle


def test_every_rule_has_an_example() -> None:
    given = {name for cases in EXAMPLES.values() for case in cases for name in case.names}
    without = set(RULES) - given
    here = {each.name for module in MODULES for each in vars(module).values() if isinstance(each, Primitive)}
    assert sorted(without - (NOT_HERE - here) - ALWAYS_STUCK - {"pvary", "jax_pmap_mark"}) == []


@pytest.mark.parametrize("name", sorted(ALWAYS_STUCK))
def test_nothing_is_claimed(name: str) -> None:
    with pytest.raises(Stuck):
        RULES[name](None, Replicated())


def test_marks_are_identities() -> None:
    found = RULES["jax_pmap_mark"](None, Partial(), Sharded(1))
    assert found == (Same(Partial(), 0), Same(Sharded(1), 1))


# --- meanings ---------------------------------------------------------------------------------


def value_of(terms: Terms, term: int, inputs: Sequence[np.ndarray], known: dict[int, Any]) -> Any:
    """The numbers that a term stands for."""
    if term in known:
        return known[term]
    node = terms[term]
    dtype = node.dtype
    if node.op == "input":
        made = inputs[node.params]
    elif node.op == "fill":
        made = np.full(node.shape or (), terms.value(term))
    elif node.op == "const":
        made = next(array for array, made in terms._constants.values() if made == term)
    else:
        given = [value_of(terms, each, inputs, known) for each in node.operands]
        with np.errstate(all="ignore"):
            if node.op == "scale":
                made = node.params * given[0]
            elif node.op == "sum":
                made = sum(np.asarray(factor * each) for factor, each in zip(node.params, given, strict=True))
            elif node.op == "prod":
                over, under = given[: node.params], given[node.params :]
                made = np.prod(np.broadcast_arrays(1, *over), 0) if over else 1.0
                made = made / np.prod(np.broadcast_arrays(1, *under), 0) if under else made
            elif node.op == "reshape":
                made = np.reshape(given[0], node.shape)
            else:
                made = apply(node.op, dict(node.params), given, node.shape)
    if node.op in ("sum", "scale", "fill") and np.dtype(dtype).kind in "iu":
        made = np.asarray(made).astype(object) % 2 ** (8 * np.dtype(dtype).itemsize)
        made = np.asarray(made).astype(np.uint64).astype(f"u{np.dtype(dtype).itemsize}")
    with np.errstate(all="ignore"):
        known[term] = np.asarray(made).astype(dtype)
    assert known[term].shape == node.shape, (node.op, known[term].shape, node.shape)
    return known[term]


def program(random: np.random.Generator, *inputs: Any) -> list[Any]:
    """Random steps of operands, which are of the shapes (4, 3) and (), floats, integers and bytes."""
    pool = list(inputs)
    for _ in range(14):
        kind = "fffffiu"[random.integers(7)]
        fit = [value for value in pool if value.dtype.kind == kind]
        x = fit[random.integers(len(fit))]
        others = [value for value in pool if (value.shape, value.dtype) == (x.shape, x.dtype)]
        y = others[random.integers(len(others))]
        if random.random() < 0.4:
            numbers = [0.0, 1.0, -1.0, 2.5, 1 / 3, -0.25, 12.0] if kind == "f" else [0, 1, 3, 7, 200]
            y = jnp.asarray(numbers[random.integers(len(numbers))], x.dtype)
            y = y if random.random() < 0.5 else jnp.full(x.shape, y)
        steps = FLOAT_STEPS if kind == "f" else WHOLE_STEPS
        result = steps[random.integers(len(steps))](x, y)
        if result.size <= 64:
            pool.append(result)
    return pool[len(inputs) :]


PROGRAM_INPUTS = ("f:4,3", "f:4,3", "f:", "i:4,3")


@pytest.mark.parametrize("seed", range(100))
def test_normal_forms_keep_values(seed: int) -> None:
    random = np.random.default_rng(seed)
    inputs = [made(spec, index + 10 * seed) for index, spec in enumerate(PROGRAM_INPUTS)]
    inputs.append(random.integers(0, 256, (4, 3)).astype(np.uint8))
    jaxpr = jax.make_jaxpr(functools.partial(program, random))(*inputs)
    terms = Terms()
    given = [terms.make("input", i, (), v.shape, str(v.dtype)) for i, v in enumerate(inputs)]
    found = Interpreter(terms, {}, 1).run([jaxpr], [Value(term, ()) for term in given])
    wanted = [row[0] for row in evaluated(jaxpr, [[value] for value in inputs], 1)]
    known: dict[int, Any] = {}
    for value, want in zip(found, wanted, strict=True):
        got = value_of(terms, value.term, inputs, known)
        assert got.dtype == want.dtype and got.shape == want.shape
        sure = (
            np.isfinite(want) & (np.abs(want) < 1e12) if want.dtype.kind == "f" else np.full(want.shape, True)
        )
        assert np.allclose(got[sure], want[sure], rtol=1e-5, atol=1e-5), (
            terms.text(value.term, 8),
            got,
            want,
        )


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_traceback_filtering", "off")
    for primitive in EXAMPLES:
        for number, found in enumerate(EXAMPLES[primitive]):
            for text in Trials(found).missed():
                print(f"{primitive} {number} {found.operands}: {text}")
