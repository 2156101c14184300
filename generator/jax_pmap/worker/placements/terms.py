"""Meanings: hash-consed terms of the whole-batch program, in a normal form.

Two values with one term are equal on all inputs, as real numbers: sums and products are sorted, and constant
factors stand in front. What may differ is rounding, overflow, and what becomes of NaN where a factor is zero.
"""

import bisect
import cmath
import collections
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np

from .arithmetic import (
    FOLDED,
    ROUNDED,
    SINGLE,
    Number,
    eps_of,
    fold,
    kind_of,
    largest_integer,
    largest_of,
    likely,
    name_of,
    wrapped,
    written,
)
from .families import COMMUTATIVE, ELEMENTWISE, IDENTITIES, MOVES, REAL, SPREADING, linear_in, linear_together
from .freezing import Kept

#: A term by its number in the table.
Term: TypeAlias = int
Shape: TypeAlias = "tuple[int, ...]"
#: The dtype of derivatives by integers.
WITHOUT_VALUES = str(jax.dtypes.float0)
#: Sums and products with more members are taken as they are written, so that long chains stay linear.
MOST_MEMBERS = 64
#: The dtypes of whole numbers in which no count of true values wraps around.
COUNTING = frozenset({"int32", "int64"})


@dataclass(frozen=True, slots=True)
class Node:
    """One term. `shape` is None of what has no size of its own."""

    op: str
    params: Any
    operands: tuple[Term, ...]
    shape: "Shape | None"
    dtype: str


class Terms:
    """The table of terms of one derivation."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._numbers: dict[Any, Term] = {}
        #: Of each term, the loops from round to round of which it may differ, as bits.
        self._loops: list[int] = []
        #: Of each term, the axes along which it is seen to hold the same.
        self._alike: list[frozenset[int]] = []
        #: Numbers seen, in order: those a few roundings apart are one.
        self._seen: list[float] = []
        self._rounded: dict[Any, Number] = {}
        #: Arrays that are no single number, kept so that their ids stay their own.
        self._constants: dict[int, tuple[Any, Term]] = {}
        #: The equation that made a term first, and those in whose jaxprs it stands.
        self.made_by: dict[Term, tuple[Any, ...]] = {}

    def __getitem__(self, term: Term) -> Node:
        """The node of a term."""
        return self.nodes[term]

    def make(self, op: str, params: Any, operands: Sequence[Term], shape: "Shape | None", dtype: str) -> Term:
        """The term as it is written."""
        # A node itself is slow to make and to hash, and most are here already.
        key = (op, params, tuple(operands), shape, dtype)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.nodes)
            self.nodes.append(Node(*key))
            loops = 0
            for term in operands:
                loops |= self._loops[term]
            if op == "carry":
                loops |= 1 << params[0] | params[2]
            elif op == "item":
                loops |= 1 << params[0]
            elif op in ("scan", "while"):
                loops &= ~(1 << params[0])
            self._loops.append(loops)
            self._alike.append(self._alike_along(self.nodes[found]))
        return found

    def loops(self, term: Term) -> int:
        """The loops from round to round of which a term may differ, as bits."""
        return self._loops[term]

    def varies(self, term: Term, loop: int) -> bool:
        """Whether a term may differ from round to round of a loop, by the loop's nesting depth."""
        return bool(self._loops[term] >> loop & 1)

    def carries(self, round_: Sequence[Term], loop: int) -> list[int]:
        """Of what a round of a loop makes, first of all what is carried, the carried values each depends on.

        Args:
            round_: the terms of a round.
            loop: the loop's nesting depth.

        Returns:
            For each the numbers of those values as bits, in whatever round it is.
        """
        reached = {term for term in round_ if self.varies(term, loop)}
        ahead = list(reached)
        while ahead:
            inner = {term for term in self.nodes[ahead.pop()].operands if self.varies(term, loop)} - reached
            reached |= inner
            ahead += inner
        found: dict[Term, int] = {}
        for term in sorted(reached):  # Operands are made ahead of what is made of them.
            node = self.nodes[term]
            own = 1 << node.params[1] if node.op == "carry" and node.params[0] == loop else 0
            for each in node.operands:
                own |= found.get(each, 0)
            found[term] = own
        needed = [found.get(term, 0) for term in round_]
        while True:
            more = [own | _joined(own, needed) for own in needed]
            if more == needed:
                return needed
            needed = more

    def constant_along(self, term: Term, axes: Sequence[int]) -> bool:
        """Whether an array is known to hold the same along some axes."""
        shape = self.nodes[term].shape
        return shape == () or all(axis in self._alike[term] for axis in axes)

    def _alike_along(self, node: Node) -> frozenset[int]:
        """The axes along which a term is seen to hold the same, given that of its operands."""
        shape = node.shape
        if not shape:
            return frozenset()
        every = frozenset(range(len(shape)))
        single = {axis for axis, size in enumerate(shape) if size == 1}
        if node.op == "fill":
            return every
        if node.op in ELEMENTWISE:
            for term in node.operands:
                given = self.nodes[term].shape
                every &= self._alike[term] if given == shape else every if given == () else frozenset()
            return every | single
        params = (
            dict(node.params) if node.op in ("iota", "broadcast_in_dim", "transpose", "dot_general") else {}
        )
        if node.op == "iota":
            return every - {params["dimension"]} | single
        if not node.operands:
            return frozenset(single)
        first = node.operands[0]
        given, alike = self.nodes[first].shape, self._alike[first]
        if given is None:
            return frozenset(single)
        if node.op == "broadcast_in_dim":
            kept = params["broadcast_dimensions"]
            spread = {axis for i, axis in enumerate(kept) if given[i] != 1 and i not in alike}
            return every - spread
        if node.op == "transpose":
            return frozenset(axis for axis, i in enumerate(params["permutation"]) if i in alike) | single
        if node.op == "reshape":
            # An axis that stays as it is, with as many elements ahead of it.
            ahead = {math.prod(given[:i]): i for i in range(len(given)) if given[i] != 1}
            found = ((axis, ahead.get(math.prod(shape[:axis]))) for axis in every)
            return frozenset(a for a, i in found if i in alike and given[i or 0] == shape[a]) | single
        if node.op == "dot_general":
            (contracted, _), (batch, _) = params["dimension_numbers"]
            # Behind the axes that go along with each other, those of the first operand alone.
            left = [i for i in range(len(given)) if i not in (*contracted, *batch)]
            return frozenset(len(batch) + at for at, i in enumerate(left) if i in alike) | single
        return frozenset(single)

    def spread_from(self, term: Term, rank: int) -> "Term | None":
        """The array of `rank` axes that a term is along axes of its own behind those, or None."""
        node = self.nodes[term]
        if node.shape is None or len(node.shape) <= rank:
            return term
        inner = self.nodes[node.operands[0]] if node.operands else None
        if inner is None or inner.shape is None:
            return None
        if node.op == "reshape":
            behind = node.shape[len(inner.shape) :]
            ahead = node.shape[: len(inner.shape)] == inner.shape
            return self.spread_from(node.operands[0], rank) if ahead and set(behind) == {1} else None
        if node.op == "broadcast_in_dim":
            axes = dict(node.params)["broadcast_dimensions"]
            in_order = tuple(axes) == tuple(range(len(inner.shape)))
            whole = in_order and inner.shape[:rank] == node.shape[:rank]
            return self.spread_from(node.operands[0], rank) if whole else None
        return None

    # --- constants ------------------------------------------------------------------------

    def number(self, value: Any, dtype: str) -> Number:
        """`value` as a number that is the same for all that are a few roundings of float64 from it."""
        if dtype == WITHOUT_VALUES:
            return False
        key = (dtype, value.__class__, value)
        found = self._rounded.get(key)
        if found is None:
            found = self._rounded[key] = self._number(value, dtype)
        return found

    def _number(self, value: Any, dtype: str) -> Number:
        kind = kind_of(dtype)
        if kind == "c":
            return complex(
                self.number(complex(value).real, "float32"), self.number(complex(value).imag, "float32")
            )
        if kind == "b":
            return bool(value)
        if kind != "f":
            return wrapped(int(value), dtype)
        given = float(value)
        if abs(given) > largest_of(dtype):
            given = math.copysign(math.inf, given)
        if given == 0.0 or not math.isfinite(given):
            return given if given == given else math.nan
        known = self._near(given, ROUNDED)
        if known is not None:
            return known
        bisect.insort(self._seen, given)
        return given

    def _near(self, given: float, unit: float) -> "float | None":
        """The number seen that is nearest to one, no further than `unit` of its size; None of none."""
        at = bisect.bisect_left(self._seen, given)
        near = min(self._seen[max(at - 1, 0) : at + 1], key=lambda each: abs(each - given), default=None)
        return near if near is not None and abs(near - given) <= unit * abs(given) else None

    def multiplied(self, value: Number, dtype: str) -> Number:
        """What a number stands for that was rounded before it was multiplied by a power of a device count.

        One that is known already, as that of a reference is, or what is most likely.
        """
        if isinstance(value, complex):
            part = "float32" if dtype == "complex64" else "float64"
            return complex(*(self.multiplied(each, part) for each in (value.real, value.imag)))
        if kind_of(dtype) != "f" or not value or not math.isfinite(value):
            return value
        unit = 8 * min(eps_of(dtype), SINGLE)
        known = self._near(float(value), unit)
        if known is not None:
            return known
        return next((each for each in likely(float(value)) if abs(each - value) <= unit * abs(value)), value)

    def fill(self, value: Any, shape: "Shape", dtype: str) -> Term:
        """An array that holds one number throughout."""
        value = self.number(value, dtype)
        # NaN is not equal to itself; -0.0 is equal to 0.0.
        key = "nan" if value != value else value
        return self.make("fill", (type(value).__name__, key), (), tuple(shape), dtype)

    def constant(self, array: Any) -> Term:
        """The term of an array of numbers that are known."""
        if not isinstance(array, (np.ndarray, np.generic, jax.Array, bool, int, float, complex)):
            return self.make("object", Kept(array), (), None, "object")
        dtype = name_of(array.dtype if hasattr(array, "dtype") else np.result_type(array))
        if isinstance(array, jax.Array) and jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
            data = np.asarray(jax.random.key_data(array))
            return self.make("const", (dtype, data.tobytes()), (), tuple(array.shape), dtype)
        known = self._constants.get(id(array))
        if known is not None:
            return known[1]
        data = np.asarray(array)
        if not data.size and kind_of(dtype) in "fciub":
            return self.fill(0, data.shape, dtype)
        flat = data.reshape(-1)
        if (
            data.size
            and data.dtype.kind in "biufcV"
            and flat[0] == flat[-1]
            and bool(np.all(flat == flat[0]))
            and (bool(flat[0]) or not any(data.tobytes()))  # -0.0 is written otherwise than 0.0.
        ):
            return self.fill(written(flat[0], dtype), data.shape, dtype)
        made = self.make("const", hashlib.sha256(data.tobytes()).hexdigest(), (), data.shape, dtype)
        self._constants[id(array)] = array, made
        return made

    def value(self, term: Term) -> "Number | None":
        """The number that a term holds throughout, or None."""
        node = self.nodes[term]
        if node.op != "fill":
            return None
        found: Number = math.nan if node.params[1] == "nan" else node.params[1]
        return found

    def is_zero(self, term: Term) -> bool:
        """Whether a term is zero throughout, as a number times zero is."""
        return self.factor(term)[0] == 0 or self.value(term) == 0

    def not_negative(self, term: Term) -> bool:
        """Whether every element of an array of integers is known to be at least zero."""
        node = self.nodes[term]
        if node.op == "fill":
            return bool(self.value(term) >= 0)  # type: ignore[operator]
        if node.op in ("iota", "argmax", "argmin", "axis_index"):
            # Positions that the dtype does not hold wrap around.
            shape = self.nodes[node.operands[0]].shape if node.operands else node.shape
            return shape is not None and max(shape, default=0) <= largest_integer(node.dtype)
        if node.op in ("reshape", "broadcast_in_dim", "transpose", "convert_element_type", "slice", "item"):
            inner = self.nodes[node.operands[0]]
            if kind_of(inner.dtype) not in "iub" or kind_of(node.dtype) not in "iu":
                return False
            fits = kind_of(inner.dtype) == "b" or largest_integer(inner.dtype) <= largest_integer(node.dtype)
            return fits and self.not_negative(node.operands[0])
        return kind_of(node.dtype) == "u"

    def is_multiple(self, term: Term, number: int) -> bool:
        """Whether every element of an array of integers is known to be a multiple of a number."""

        def fits(base: Term, factor: Number) -> bool:
            if not isinstance(factor, int) or factor % number == 0:
                return isinstance(factor, int)
            node = self.nodes[base]
            return node.op == "select_n" and all(self.is_multiple(each, number) for each in node.operands[1:])

        return all(fits(base, factor) for base, factor in self.linear(term))

    def positive(self, term: Term, *, or_zero: bool = False) -> bool:
        """Whether every element of an array of floats is known to be above zero, as a real number."""
        node = self.nodes[term]
        if node.op == "fill":
            return or_zero and self.value(term) == 0
        if node.op == "select_n":
            return all(self.positive(each, or_zero=or_zero) for each in node.operands[1:])
        if node.op == "scale":
            by = node.params
            return not isinstance(by, complex) and by > 0 and self.positive(node.operands[0], or_zero=or_zero)
        if node.op == "reduce_sum":
            given = self.nodes[node.operands[0]].shape
            some = or_zero or (given is not None and math.prod(given) > 0)
            return some and self.positive(node.operands[0], or_zero=or_zero)
        if node.op in MOVES or node.op == "sqrt":
            return self.positive(node.operands[0], or_zero=or_zero)
        if node.op == "rsqrt":
            return self.positive(node.operands[0])
        return node.op in ("exp", "exp2", "logistic") and kind_of(node.dtype) == "f"

    # --- building -------------------------------------------------------------------------

    def apply(
        self, op: str, params: Any, operands: Sequence[Term], shape: "Shape | None", dtype: str
    ) -> Term:
        """The term of an operation on terms, in normal form.

        Args:
            op: the primitive's name as `versions.primitive_name` has it.
            params: its parameters at whole size, frozen.
            operands: terms of its operands.
            shape: the shape of the result at whole size.
            dtype: the dtype of the result.
        """
        if op in IDENTITIES:
            return operands[0]
        if shape and 0 in shape and kind_of(dtype) in "fciub":
            return self.fill(0, shape, dtype)  # All arrays with no element are one.
        if shape and op in SPREADING:
            operands = [self.spread(term, shape) for term in operands]
        if shape and op in ELEMENTWISE and (flat := self._without_single(operands, shape)) is not None:
            inner, sizes = flat
            made = self.apply(op, params, inner, sizes, dtype)
            return self.apply("reshape", (), (made,), shape, dtype)
        pulled = self._pulled(op, params, operands, shape, dtype)
        if pulled is not None:
            return pulled
        normal = NORMAL.get(op)
        found = normal(self, params, tuple(operands), shape, dtype) if normal is not None else None
        if found is None:
            found = self._generic(op, params, tuple(operands), shape, dtype)
        return found

    def _without_single(self, operands: Sequence[Term], shape: Shape) -> "tuple[list[Term], Shape] | None":
        """Operands ahead of the axes of size 1 that all were given, and their shape; None where not all were.

        ``rsqrt(x[None])`` is ``rsqrt(x)[None]``: a mean with `keepdims` goes on as one without.
        """
        rows = [(*self.factor(term), term) for term in operands]
        spread = [self.nodes[base] for _, base, _ in rows if self.nodes[base].op == "reshape"]
        given = {self.nodes[node.operands[0]].shape for node in spread}
        sizes = given.pop() if len(given) == 1 else None
        if not sizes or without_ones(sizes) != without_ones(shape) or math.prod(sizes) == 1:
            return None
        inner: list[Term] = []
        for factor, base, term in rows:
            node = self.nodes[base]
            if node.op == "reshape":
                inner.append(self.scale(factor, node.operands[0]))
            elif node.op == "fill" and node.shape:
                inner.append(self.fill(self.value(base), sizes, node.dtype))
            elif node.shape == ():
                inner.append(term)
            else:
                return None
        return inner, sizes

    def _pulled(
        self, op: str, params: Any, operands: Sequence[Term], shape: "Shape | None", dtype: str
    ) -> "Term | None":
        """A linear operation with the scalars that its operands are multiples of in front; None without any.

        A sum that is divided by a count before it goes through a gradient is the gradient divided by it.
        """
        if shape is None or kind_of(dtype) not in "fc" or op == "conj":
            return None
        together = [at for at in linear_together(op, params, len(operands)) if not self.is_zero(operands[at])]
        if together:
            return self._pulled_together(op, params, operands, together, shape, dtype)
        places = linear_in(op, params)
        over: list[Term] = []
        under: list[Term] = []
        inner = list(operands)
        for place in places:
            if kind_of(self.nodes[operands[place]].dtype) != kind_of(dtype):
                continue
            inner[place], above, below = self.without_scalars(operands[place])
            over += above
            under += below
        if not over and not under:
            return None
        made = self.apply(op, params, inner, shape, dtype)
        return self.multiply(
            [made, *(self.spread(self._as(term, dtype), shape) for term in over)],
            [self.spread(self._as(term, dtype), shape) for term in under],
            shape,
            dtype,
        )

    def _pulled_together(
        self, op: str, params: Any, operands: Sequence[Term], places: Sequence[int], shape: Shape, dtype: str
    ) -> "Term | None":
        """`_pulled` for what operands have in common in which together an operation is linear."""
        taken = [operands[at] for at in places]
        over, under = self._common(taken)
        factors = {self.factor(term)[0] for term in taken}
        front = factors.pop() if len(factors) == 1 else 1
        if front == 1 and not over and not under:
            return None
        inner = list(operands)
        for at, term in zip(places, taken, strict=True):
            base = self.factor(term)[1] if front != 1 else term
            inner[at] = self._without(base, over, under)
        sides = [[self.spread(self.nodes[t].operands[0], shape) for t in side] for side in (over, under)]
        made = self.apply(op, params, inner, shape, dtype)
        return self.scale(front, self.multiply([made, *sides[0]], sides[1], shape, dtype))

    def _as(self, term: Term, dtype: str) -> Term:
        """A scalar in another float dtype."""
        return self.apply("convert_element_type", (("new_dtype", dtype),), (term,), (), dtype)

    def without_scalars(self, term: Term) -> "tuple[Term, list[Term], list[Term]]":
        """An array without the scalars that it is multiplied with, those, and those that it is divided by."""
        factor, base = self.factor(term)
        node = self.nodes[base]
        if node.op != "prod" or not node.shape:
            return term, [], []
        over = [self.scalar(each) for each in node.operands[: node.params]]
        under = [self.scalar(each) for each in node.operands[node.params :]]
        if not any(each is not None for each in (*over, *under)):
            return term, [], []
        kept = [t for t, each in zip(node.operands[: node.params], over, strict=True) if each is None]
        below = [t for t, each in zip(node.operands[node.params :], under, strict=True) if each is None]
        rest = self.multiply(kept, below, node.shape, node.dtype)
        return (
            self.scale(factor, rest),
            [each for each in over if each is not None],
            [each for each in under if each is not None],
        )

    def scalar(self, term: Term) -> "Term | None":
        """The scalar that an array holds throughout, where it is one that was spread."""
        node = self.nodes[term]
        spread = node.op in ("broadcast_in_dim", "reshape") and self.nodes[node.operands[0]].shape == ()
        return node.operands[0] if spread else None

    def spread(self, term: Term, shape: "Shape") -> Term:
        """A scalar, or an array with axes of size 1, in `shape`, as work element by element takes it."""
        node = self.nodes[term]
        if node.shape is None or node.shape == shape or len(node.shape) not in (0, len(shape)):
            return term
        params = (("broadcast_dimensions", tuple(range(len(node.shape)))), ("shape", tuple(shape)))
        return self.apply("broadcast_in_dim", params, (term,), tuple(shape), node.dtype)

    def _generic(
        self, op: str, params: Any, operands: tuple[Term, ...], shape: "Shape | None", dtype: str
    ) -> Term:
        if shape is not None and op in FOLDED and all(self.nodes[t].op == "fill" for t in operands):
            folded = fold(op, params, [self.value(t) for t in operands], dtype)
            if folded is not None:
                return self.fill(folded, shape, dtype)
        if shape is not None and op in MOVES and operands and self._filled(operands[0]):
            return self.fill(self.value(operands[0]), shape, dtype)
        pulled = linear_in(op, params)
        if pulled and kind_of(dtype) in "fc":
            factor: Any = 1
            inner = list(operands)
            for index in pulled:
                by, base = self.factor_of_all(operands[index])
                if kind_of(self.nodes[base].dtype) not in "fc" or (op in REAL and isinstance(by, complex)):
                    continue
                inner[index] = base
                factor = factor * by
            if factor != 1:
                return self.scale(factor, self.apply(op, params, inner, shape, dtype))
        if op in COMMUTATIVE:
            operands = tuple(sorted(operands))
        return self.make(op, params, operands, shape, dtype)

    def _filled(self, term: Term) -> bool:
        """Whether a term is one number throughout, and that at least once."""
        node = self.nodes[term]
        return node.op == "fill" and math.prod(node.shape or ()) > 0

    def factor(self, term: Term) -> "tuple[Number, Term]":
        """The constant factor in front of a term, and the term without it."""
        node = self.nodes[term]
        return (node.params, node.operands[0]) if node.op == "scale" else (1, term)

    def factor_of_all(self, term: Term) -> "tuple[Any, Term]":
        """`factor`, and of one finite number throughout that number, and ones."""
        factor, base = self.factor(term)
        value, node = self.value(base), self.nodes[base]
        if value is None or node.shape is None or not cmath.isfinite(value):
            return factor, base
        return factor * value, self.fill(1, node.shape, node.dtype)

    def scale(self, factor: Any, term: Term) -> Term:
        """``factor * term``."""
        node = self.nodes[term]
        if node.op == "fill" and node.shape is not None:
            return self.fill(factor * self.value(term), node.shape, node.dtype)
        by, base = self.factor(term)
        factor = self.number(factor * by, node.dtype)
        if factor == 1:
            return base
        inner = self.nodes[base]
        if inner.op == "sum" and kind_of(inner.dtype) not in "fc":
            factors = tuple(self.number(factor * c, inner.dtype) for c in inner.params)
            return self.make("sum", factors, inner.operands, inner.shape, inner.dtype)
        return self.make("scale", factor, (base,), inner.shape, inner.dtype)

    def linear(self, term: Term) -> "list[tuple[Term, Number]]":
        """A term as a sum of factors times terms."""
        node = self.nodes[term]
        if node.op == "fill" and node.shape is not None:
            value = self.value(term)
            return [] if value == 0 else [(self.fill(1, node.shape, node.dtype), value)]  # type: ignore[list-item]
        factor, base = self.factor(term)
        inner = self.nodes[base]
        if inner.op == "sum" and len(inner.operands) <= MOST_MEMBERS:
            return [(t, factor * c) for t, c in zip(inner.operands, inner.params, strict=True)]
        return [(each, factor * by) for each, by in self._distributed(base)]

    def _distributed(self, term: Term) -> "list[tuple[Term, Any]]":
        """The members of a sum times scalars, each with these; any other term as it is."""
        node = self.nodes[term]
        if node.op != "prod" or not node.shape or kind_of(node.dtype) not in "fc":
            return [(term, 1)]
        over, under = node.operands[: node.params], node.operands[node.params :]
        sums = [each for each in over if self.scalar(each) is None]
        if (
            len(sums) != 1
            or self.nodes[sums[0]].op != "sum"
            or any(self.scalar(each) is None for each in under)
        ):
            return [(term, 1)]
        inner = self.nodes[sums[0]]
        if len(inner.operands) > MOST_MEMBERS:
            return [(term, 1)]
        scalars = [each for each in over if each != sums[0]]
        rows = []
        for member, by in zip(inner.operands, inner.params, strict=True):
            factor, base = self.factor(self.multiply([member, *scalars], under, node.shape, node.dtype))
            rows.append((base, by * factor))
        return rows

    def _common(self, terms: Sequence[Term]) -> "tuple[list[Term], list[Term]]":
        """Scalars, spread, that all of some terms are multiplied with, and those that all are divided by."""
        common: list[collections.Counter[Term]] = []
        for term in terms:
            _, *sides = self.product(term)
            found = [collections.Counter(t for t in side if self.scalar(t) is not None) for side in sides]
            common = [one & other for one, other in zip(common, found, strict=True)] if common else found
            if not any(common):
                return [], []
        return list(common[0].elements()), list(common[1].elements())

    def add(self, terms: "Sequence[tuple[Term, Number]]", shape: "Shape | None", dtype: str) -> Term:
        """The sum of terms times factors, like terms joined."""
        joined: dict[Term, Any] = {}
        for term, factor in terms:
            for base, by in self.linear(term):
                joined[base] = joined.get(base, 0) + by * factor
        if not joined:
            return self.fill(0, shape or (), dtype)
        rows = sorted((term, self.number(factor, dtype)) for term, factor in joined.items())
        if not any(factor for _, factor in rows):
            # Zero times one of them is as much as zero times all.
            rows = [row for row in rows if self.nodes[row[0]].shape == shape][:1] or rows
        elif any(factor and self.nodes[term].shape == shape for term, factor in rows):
            rows = [row for row in rows if row[1]]
        if len(rows) == 1:
            return self.scale(rows[0][1], rows[0][0])
        if (together := self._spread_together(rows)) is not None:
            return self.add(together, shape, dtype)
        over, under = (
            self._common([term for term, _ in rows]) if shape and kind_of(dtype) in "fc" else ([], [])
        )
        if over or under:
            # So that a sum is the same whether each member or all of it is divided by a count.
            rest = [(self._without(term, over, under), factor) for term, factor in rows]
            return self.multiply([self.add(rest, shape, dtype), *over], under, shape, dtype)
        front: Any = rows[0][1] if kind_of(dtype) in "fc" and rows[0][1] != 0 else 1
        rows = [(term, self.number(factor / front, dtype) if front != 1 else factor) for term, factor in rows]
        made = self.make("sum", tuple(c for _, c in rows), [t for t, _ in rows], shape, dtype)
        return self.scale(front, made) if front != 1 else made

    def _spread_together(self, rows: "Sequence[tuple[Term, Number]]") -> "list[tuple[Term, Number]] | None":
        """Members of a sum with those added first that are then spread alike; None where no two are.

        A mean that is used twice has one cotangent for both uses, and two means have two.
        """
        alike: dict[Any, list[tuple[Term, Number]]] = {}
        for term, factor in rows:
            node = self.nodes[term]
            inner = self.nodes[node.operands[0]].shape if node.op in ("broadcast_in_dim", "reshape") else None
            alike.setdefault((node.op, node.params, inner, node.shape) if inner else term, []).append(
                (term, factor)
            )
        if len(alike) == len(rows):
            return None
        made: list[tuple[Term, Number]] = []
        for several in alike.values():
            if len(several) == 1:
                made += several
                continue
            node = self.nodes[several[0][0]]
            first = self.nodes[node.operands[0]]
            total = self.add([(self.nodes[t].operands[0], by) for t, by in several], first.shape, first.dtype)
            made += self.linear(self.apply(node.op, node.params, [total], node.shape, node.dtype))
        return made

    def _without(self, term: Term, over: Sequence[Term], under: Sequence[Term]) -> Term:
        """A product without some of what it is multiplied with and divided by."""
        node, (factor, above, below) = self.nodes[term], self.product(term)
        left = collections.Counter(above) - collections.Counter(over)
        divided = collections.Counter(below) - collections.Counter(under)
        made = self.multiply([*left.elements()], [*divided.elements()], node.shape, node.dtype)
        return self.scale(factor, made)

    def product(self, term: Term) -> "tuple[Number, tuple[Term, ...], tuple[Term, ...]]":
        """A term as a factor, the terms it is a product of, and those that it is divided by."""
        factor, base = self.factor(term)
        node = self.nodes[base]
        if node.op == "fill" and node.shape is not None:
            return factor * self.value(base), (), ()  # type: ignore[operator]
        if node.op == "prod" and len(node.operands) <= MOST_MEMBERS:
            return factor, node.operands[: node.params], node.operands[node.params :]
        return factor, (base,), ()

    def multiply(
        self, over: Sequence[Term], under: Sequence[Term], shape: "Shape | None", dtype: str
    ) -> Term:
        """The product of some terms divided by others."""
        factor: Any = 1
        up: list[Term] = []
        down: list[Term] = []
        for terms, plus, minus, inverse in ((over, up, down, False), (under, down, up, True)):
            for term in terms:
                by, above, below = self.product(term)
                if inverse and by == 0:
                    above, by = (term,), 1  # Division by zero stays as it is written.
                    below = ()
                factor = factor / by if inverse and by != 1 else factor * by
                plus += above
                minus += below
        if not up and not down:
            return self.fill(factor, shape or (), dtype)
        if len(up) == 1 and not down:
            return self.scale(factor, up[0])
        made = self.make("prod", len(up), (*sorted(up), *sorted(down)), shape, dtype)
        return self.scale(factor, made)

    # --- looking --------------------------------------------------------------------------

    def parting(self, one: Term, other: Term) -> "tuple[Term, Term]":
        """The innermost pair of terms, on the way down from two that differ, at which they part."""
        while True:
            a, b = self.nodes[one], self.nodes[other]
            if a.op != b.op or a.params != b.params or len(a.operands) != len(b.operands):
                return one, other
            apart = [(x, y) for x, y in zip(a.operands, b.operands, strict=True) if x != y]
            if len(apart) != 1 and a.op in ("sum", "prod"):
                left, right = set(a.operands) - set(b.operands), set(b.operands) - set(a.operands)
                apart = [(left.pop(), right.pop())] if len(left) == len(right) == 1 else []
            if not apart:
                return one, other
            one, other = apart[0]

    def text(self, term: Term, depth: int = 3) -> str:
        """A term for people, to some depth."""
        node = self.nodes[term]
        if node.op == "fill":
            return (
                f"{self.value(term):.6g}"
                if not isinstance(self.value(term), (bool, complex))
                else str(self.value(term))
            )
        if node.op == "input":
            return str(node.params[-1] if isinstance(node.params, tuple) else node.params)
        if node.op == "const":
            return "constant"
        if not depth:
            return "…"
        inner = [self.text(t, depth - 1) for t in node.operands[:4]]
        more = ", …" if len(node.operands) > 4 else ""
        if node.op == "scale":
            return f"{node.params:.6g} * {inner[0]}"
        if node.op == "sum":
            return (
                "("
                + " + ".join(
                    i if c == 1 else f"{c:.6g} * {i}" for i, c in zip(inner, node.params, strict=False)
                )
                + more
                + ")"
            )
        if node.op == "prod":
            up, down = inner[: node.params], inner[node.params :]
            return " * ".join(up or ["1"]) + "".join(f" / {each}" for each in down) + more
        return f"{node.op}({', '.join(inner)}{more})"


def _joined(bits: int, of: Sequence[int]) -> int:
    """All bits of those numbers whose places are bits of a number."""
    found = 0
    for index, each in enumerate(of):
        if bits >> index & 1:
            found |= each
    return found


def without_ones(shape: Shape) -> list[int]:
    """The sizes of axes but for those of size 1."""
    return [size for size in shape if size != 1]


#: How the term of an operation is written otherwise, of its parameters, operands, shape and dtype; None where
#: it is not.
Normal: TypeAlias = "Callable[[Terms, Any, tuple[Term, ...], Shape | None, str], Term | None]"
#: By operation; see `normal`, which fills it.
NORMAL: dict[str, Normal] = {}
