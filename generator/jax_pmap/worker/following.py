"""Traces of the target on its example inputs: each made once, with what it shows beside its operations."""

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.export import is_symbolic_dim

from . import arguments, protocol
from . import layers as library_layers
from .arguments import Packed, Values
from .budget import size as operations
from .exceptions import attempted
from .jaxpr import symbolic
from .jaxpr.trace import Traced, abstract_leaves, of_its_own
from .leaves import NUMBERS, category, in_order, is_key, leaf_paths, shape_of, skeleton
from .protocol import Layer, Row
from .target import Target, become, current, leaf_axes
from .type_tests import Watch, identified, may_part, parted

#: Operations in all traces that are kept for another time.
KEPT = 50_000
#: Bytes of the arrays that NumPy made for their rows, in all of them and in one.
MOST_CONSTANT_BYTES = 1 << 28
#: Which leaves are traced: of an index and a leaf.
Choice = Callable[[int, Any], bool]


#: Shape, dtype and weakness of an array.
Form = tuple[tuple[int, ...], str, bool]


def every(_: int, __: Any) -> bool:
    """Whether a leaf is traced where all are."""
    return True


@dataclass(frozen=True)
class Returned:
    """What the target returned in a trace, leaf by leaf, but for shapes.

    Attributes:
        rows: path, category, type and whether it is a constant of an argument, of each leaf.
        tree: its containers.
        kept: parts that hold the constants of an argument: path, name of the argument.
        opaque: leaves that are no arrays: path and type.
        mutated: arguments that were changed in place, and whether their structure is what it was.
    """

    rows: tuple[Row, ...]
    tree: Any
    kept: tuple[tuple[str, str], ...]
    opaque: tuple[tuple[str, str], ...]
    mutated: Mapping[str, bool]


@dataclass(frozen=True)
class Followed:
    """One trace of the target.

    Attributes:
        jaxpr: from the leaves that are traced to those of the result that are computed.
        packed: what was taken apart for it.
        given: the leaves that are traced.
        at: which those are.
        whole: puts results of `jaxpr` back among those that are known without computing.
        paths: of the leaves of the result.
        kinds: their categories.
        tree: the containers of the result.
        rest: its leaves that are no arrays.
        returned: what the target itself returned.
        watch: what the user's code did; nothing where that was not watched.
        layers: calls of layers that take statistics of the batch they see.
        x64: whether jax had 64 bits.
    """

    jaxpr: Any
    packed: Packed
    given: list[Any]
    at: list[int]
    whole: Callable[[Sequence[Any]], list[Any]]
    paths: list[str]
    kinds: tuple[str, ...]
    tree: Any
    rest: tuple[Any, ...]
    returned: Returned
    watch: Watch
    layers: tuple[Layer, ...]
    x64: bool

    @functools.cached_property
    def asked(self) -> "Asked":
        """All that it hangs on."""
        return Asked(self.packed, _forms(self.given), self.x64)

    @property
    def program(self) -> Traced | None:
        """It as a program, where all numbers of its result are computed."""
        computed = len(self.jaxpr.jaxpr.outvars)
        if computed < sum(kind != "opaque" for kind in self.kinds):
            return None
        return Traced(self.jaxpr, self.tree, self.rest, self.kinds)

    def with_rows(self, rows: int) -> Returned:
        """What it would return of so many, where it has a symbol for them."""
        numbers = symbolic.Numbers(rows)
        out = tuple({**row, "shape": numbers.of(row["shape"])} for row in self.returned.rows)
        return dataclasses.replace(self.returned, rows=out)


def follow(
    values: Values,
    statics: Sequence[str],
    is_traced: Choice = every,
    *,
    watched: bool = True,
    leaves: Sequence[Any] | None = None,
) -> Followed:
    """Trace the target with those leaves as tracers that are chosen, and the others as they are.

    Compiled, a function gets its dicts with sorted keys; called as it is, as they were made.

    Args:
        values: its arguments.
        statics: names of those that are constants.
        is_traced: chooses the leaves.
        watched: whether what the user's code does is watched, for which all of it is traced anew.
        leaves: what is traced in place of the leaves of `values`.
    """
    target = current()
    packed, watch = Packed(values, statics), Watch()
    own = list(packed.leaves if leaves is None else leaves)
    traced = [is_traced(index, leaf) for index, leaf in enumerate(own)]
    made: list[tuple[Any, ...]] = []
    calls: list[Layer] = []

    def run(given: Sequence[Any], other: Any) -> list[Any]:
        calls.clear()
        tracers = iter(given)
        parts = [next(tracers) if is_one else leaf for leaf, is_one in zip(own, traced, strict=True)]
        taken = packed.unpack(parts)
        if is_traced is not every:
            taken = {name: in_order(value, values[name]) for name, value in taken.items()}
        watching: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if watched:
            watch.begin(other)
            watch.stands_for(parts, own)
            watching = watch([target.fn.__globals__, vars(target.module)])
        with watching, library_layers.noted(values, calls):
            out, changed, structures = _called(target, taken, anything=leaves is None and is_traced is every)
        result = (out, tuple(changed.values())) if changed else out
        flat, tree = jax.tree.flatten(result)
        kinds = tuple(map(category, flat))
        computed = [isinstance(leaf, (jax.core.Tracer, jax.Array)) for leaf in flat]

        def whole(arrays: Sequence[Any]) -> list[Any]:
            rest = iter(arrays)
            return [next(rest) if is_one else leaf for leaf, is_one in zip(known, computed, strict=True)]

        # A tracer would keep its whole trace.
        known = [None if is_one else leaf for leaf, is_one in zip(flat, computed, strict=True)]
        rest = tuple(leaf for leaf, kind in zip(known, kinds, strict=True) if kind == "opaque")
        returned = _returned(out, taken, packed, structures)
        made[:] = [(whole, leaf_paths(result), kinds, tree, rest, returned)]
        return [leaf for leaf, is_one in zip(flat, computed, strict=True) if is_one]

    given = [leaf for leaf, is_one in zip(own, traced, strict=True) if is_one]

    def trace() -> Any:
        if not watched:
            return of_its_own(jax.make_jaxpr(lambda given: run(given, None))(given))
        # What jax has traced of the user's functions before it would not trace again, and nothing would be
        # seen.
        jax.clear_caches()
        # A tracer, by which those of this trace are known.
        jaxpr = of_its_own(
            jax.make_jaxpr(lambda given: run(given, given[0] if given else jax.numpy.zeros(())))(given)
        )
        watch.end()
        return jaxpr

    try:
        jaxpr = trace()
    except jax.errors.JAXTypeError:
        if all(traced):
            raise
        # NumPy's arrays take no tracer as an index, and they take what jax has computed, as `jnp.arange(8)`.
        watch = Watch()
        with jax.ensure_compile_time_eval():
            jaxpr = trace()
    at = [index for index, is_one in enumerate(traced) if is_one]
    whole, paths, kinds, tree, rest, returned = made[0]
    return Followed(
        jaxpr,
        packed,
        given,
        at,
        whole,
        paths,
        kinds,
        tree,
        rest,
        returned,
        watch,
        tuple(dict.fromkeys(calls)),
        bool(jax.config.jax_enable_x64),
    )


def _called(target: Target, given: Values, *, anything: bool) -> tuple[Any, dict[str, Any], dict[str, bool]]:
    """What the target returns, and the arguments it changes in place, with whether their structure stays.

    These are found where it may change `anything`; else they are the known ones.
    """
    structures = dict.fromkeys(() if anything else target.mutated, True)

    def body() -> tuple[Any, dict[str, Any]]:
        own = target.own(given)
        looked_at = own if anything and target.in_place else {}
        before = {name: jax.tree.flatten(value) for name, value in looked_at.items()}
        out = arguments.invoke(target.fn, target.signature, own)
        for name, (leaves, tree) in before.items():
            if arguments.changed((leaves, tree), own[name]):
                structures[name] = jax.tree.structure(own[name]) == tree
        return out, {name: own[name] for name in structures}

    out, changed = target.one_device.run(body)
    if any(needed.type for needed in target.one_device.axes.values()):
        # It runs only in a map, which hands it copies; what is changed of NNX goes back.
        kept = (name for name in structures if arguments.graph_variables(given[name]))
        structures = {name: structures[name] for name in kept}
    return out, {name: changed[name] for name in structures}, structures


def _returned(out: Any, given: Values, packed: Packed, mutated: Mapping[str, bool]) -> Returned:
    kept = arguments.kept_parts(out, {name: given[name] for name, _ in packed.fixed})
    constant = arguments.constant_leaves(out, [path for path, _ in kept])
    rows: tuple[Row, ...] = tuple(
        {
            "path": path,
            "category": category(leaf),
            "constant": index in constant,
            "dtype": type(leaf).__name__,
            "shape": [],
        }
        for index, (path, leaf) in enumerate(zip(leaf_paths(out), jax.tree.leaves(out), strict=True))
    )
    for row, leaf in zip(rows, jax.tree.leaves(out), strict=True):
        if row["category"] in NUMBERS and not row["constant"]:
            row["dtype"] = str(jax.numpy.result_type(leaf))
        elif row["category"] in ("array", "key"):
            dtype = leaf.dtype if row["category"] == "key" else jax.dtypes.canonicalize_dtype(leaf.dtype)
            row.update(dtype=str(dtype), shape=list(shape_of(leaf)))
    opaque = tuple(
        (row["path"], row["dtype"]) for row in rows if row["category"] == "opaque" and not row["constant"]
    )
    return Returned(rows, skeleton(out), tuple(kept), opaque, mutated)


# --- made once ------------------------------------------------------------------------------

#: Where targets keep their traces: on the example inputs, these with other static arguments, on inputs of
#: other shapes, for any number of rows.
OF_INPUTS, OF_OTHERS = "followed", "followed for others"
OF_SHAPES, FOR_ALL_SIZES = "followed for shapes", "for all sizes"


def of_inputs(statics: Sequence[str], *, watched: bool) -> Followed:
    """The trace of the target on its example inputs: on those as they were given, where it is `watched`.

    What it changes in place is known of the target from then on.
    """
    target = current()
    values = target.called if watched and target.called is not None else target.values({})
    key = tuple(statics), watched, bool(jax.config.jax_enable_x64)

    def made() -> Followed:
        if not watched:
            jax.clear_caches()  # Layers in what was compiled before would not be called again.
        return follow(values, statics, watched=watched)

    found = target.once(OF_INPUTS, key, made, most=1)
    mutated = tuple(found.returned.mutated)
    if mutated != target.mutated:
        become(dataclasses.replace(target, mutated=mutated)).once(OF_INPUTS, key, lambda: found, most=1)
    return found


def of_shapes(statics: Sequence[str], leaves: Sequence[Any]) -> Followed:
    """The trace of the target with these abstract leaves; kept until another one is asked for."""
    target = current()
    key = tuple(statics), _forms(leaves), bool(jax.config.jax_enable_x64)

    def made() -> Followed:
        values = target.values({})
        asked = Asked.of(Packed(values, statics), leaves)
        known = (each for each in target.known(OF_INPUTS) if each.asked.is_of(target, asked))
        return next(known, None) or follow(values, statics, watched=False, leaves=leaves)

    return target.once(OF_SHAPES, key, made, most=1)


def of_others(roles: protocol.Roles, overrides: Mapping[str, str]) -> Followed | None:
    """The trace of the target on its example inputs with other static arguments; None where there is none.

    It is the one that `for_all_sizes` asks for, should these values be looked at.
    """
    target, axes = current(), leaf_axes(roles)

    def made() -> Followed | None:
        values = target.values(overrides)
        rows = arguments.batch_size(values, axes)
        leaves = abstract_leaves(Packed(values, roles.statics), axes, rows or None)
        jax.clear_caches()
        return attempted(follow, values, roles.statics, watched=may_part(), leaves=leaves)

    key = protocol.encode((roles, overrides)), bool(jax.config.jax_enable_x64)
    found: Followed | None = target.once(OF_OTHERS, key, made, most=1)
    return found


def for_all_sizes(roles: protocol.Roles, overrides: Mapping[str, str]) -> Followed | None:
    """The trace of the target with a symbol for the rows of its batch; None where no one program is for all.

    It is for all where the target is traced to it for the given rows, and Python goes the same way. Code may
    ask what a size is and raise nothing: by `isinstance`, or in a `try`. `overrides` are values (Python
    source) of static arguments.
    """
    return _asked(roles, overrides)[0]


def asks_sizes() -> bool:
    """Whether no one program was found for all sizes, for some roles: it is not looked for again in vain."""
    return any(found is None for found, _ in current().known(FOR_ALL_SIZES))


def asked_sizes(roles: protocol.Roles, overrides: Mapping[str, str]) -> frozenset[int]:
    """Numbers that the target compares its rows with, as far as one trace tells."""
    return _asked(roles, overrides)[1]


def _asked(roles: protocol.Roles, overrides: Mapping[str, str]) -> tuple[Followed | None, frozenset[int]]:
    target, axes, statics = current(), leaf_axes(roles), roles.statics

    def made() -> tuple[Followed | None, frozenset[int]]:
        values = target.values(overrides)
        packed, watched = Packed(values, statics), may_part()
        leaves = abstract_leaves(packed, axes, symbolic.rows())
        answer = symbolic.traced_unasked(lambda: follow(values, statics, watched=watched, leaves=leaves))
        jax.clear_caches()
        one, numbers = answer.made, answer.rows
        if one is None or answer.is_asked or identified(one.watch) or any(map(is_symbolic_dim, one.rest)):
            return None, numbers
        if not symbolic.has_polynomials(one.jaxpr):
            return None, numbers
        rows = arguments.batch_size(values, axes)
        leaves = abstract_leaves(packed, axes, rows or None)
        asked = Asked.of(packed, leaves)
        traced = filter(None, (*target.known(OF_INPUTS), *target.known(OF_OTHERS)))
        known = (each for each in traced if each.asked.is_of(target, asked))
        given = next((each for each in known if each.watch.taken or not watched), None)
        if given is None:
            given = follow(values, statics, watched=watched, leaves=leaves)
        same = symbolic.is_at(one.jaxpr, rows, given.jaxpr) and parted(one.watch, given.watch) is None
        return one if same else None, numbers

    key = protocol.encode((roles, overrides)), bool(jax.config.jax_enable_x64)
    found: tuple[Followed | None, frozenset[int]] = target.once(FOR_ALL_SIZES, key, made)
    return found


@dataclass(frozen=True)
class Asked:
    """All that a trace of the target hangs on: what was taken apart for it, its leaves, and 64 bits."""

    packed: Packed
    forms: "tuple[Form, ...]"
    x64: bool

    @classmethod
    def of(cls, packed: Packed, leaves: Sequence[Any]) -> "Asked":
        """What a trace with these leaves hangs on now."""
        return Asked(packed, _forms(leaves), bool(jax.config.jax_enable_x64))

    @functools.cached_property
    def elements(self) -> int:
        """Numbers in the leaves, those with a symbol left out."""
        sizes = [math.prod(shape) for shape, _, _ in self.forms]
        return 0 if any(map(is_symbolic_dim, sizes)) else sum(sizes)

    def is_of(self, target: Target, asked: "Asked") -> bool:
        """Whether a trace of the target is the one that is asked for."""
        own, other = self.packed, asked.packed
        given = [values for values in (target.called, *target.data[:1]) if values is not None]

        def same(name: str, value: Any, constant: Any) -> bool:
            # The values of an argument may have been copied from the caller's.
            known = [values[name] for values in given if name in values]
            return value is constant or all(any(each is one for one in known) for each in (value, constant))

        try:
            return (
                self.x64 == asked.x64
                and self.forms == asked.forms
                and own.key == other.key
                and own.constants.keys() == other.constants.keys()
                and all(same(name, value, other.constants[name]) for name, value in own.constants.items())
            )
        except Exception:  # Constants of the user's classes may not be compared.
            return False


@dataclass(frozen=True)
class Kept:
    """A trace of the target that was made for its operations alone, and all that it hangs on.

    Attributes:
        asked: what it hangs on.
        program: the trace.
        operations: how many it has.
        bytes: those of the arrays in it.
    """

    asked: Asked
    program: Traced
    operations: int
    bytes: int


def traced_as(function: Callable[[Values], Any], packed: Packed, leaves: Sequence[Any]) -> Traced:
    """A function of packed values, traced with these leaves: that trace of the target, where there is one.

    Several stages ask for the same sizes. The latest traces are kept, up to `KEPT` operations in all.

    Raises:
        OverflowError: NumPy would make arrays of more than `MOST_CONSTANT_BYTES` in it, as smaller ones tell:
            a mask for each example, ``np.tril(np.ones((len(x), t, t)))``, for millions of them.
    """
    target = current()
    if function != target.reference:
        return Traced.of(function, packed, leaves)
    asked = Asked.of(packed, leaves)
    for found in (*target.known(OF_INPUTS), *target.known(OF_SHAPES)):
        program: Traced | None = found.program
        if program is not None and found.asked.is_of(target, asked):
            return program
    kept: list[Kept] = target.once("traced", (), list)
    at = next((i for i, each in enumerate(kept) if each.asked.is_of(target, asked)), None)
    if at is not None:
        latest = kept.pop(at)
    else:
        if _constant_bytes_for(kept, asked.elements) > MOST_CONSTANT_BYTES:
            raise OverflowError("the arrays of NumPy in it are too large")
        made = Traced.of(function, packed, leaves)
        constants = sum(getattr(each, "nbytes", 0) for each in made.jaxpr.consts)
        latest = Kept(asked, made, operations(made.jaxpr), constants)
    kept.insert(0, latest)
    lengths = itertools.accumulate(each.operations for each in kept)
    sizes = itertools.accumulate(each.bytes for each in kept)
    del kept[sum(n <= KEPT and size <= MOST_CONSTANT_BYTES for n, size in zip(lengths, sizes, strict=True)) :]
    return latest.program


def traced_or_none(function: Callable[[Values], Any], packed: Packed, leaves: Sequence[Any]) -> Traced | None:
    """`traced_as`, or None of leaves that a function does not take, for which the target is traced once.

    Code that is held to the forms it is proved for is derived anew, and most forms are no inputs at all: a
    layer with other weights alone.
    """
    target, asked = current(), Asked.of(packed, leaves)
    untaken: dict[Any, list[Asked]] = target.once("untaken", (), dict)
    known = untaken.get(asked.forms, ()) if function == target.reference else ()
    if any(each.is_of(target, asked) for each in known):
        return None
    if (made := attempted(traced_as, function, packed, leaves)) is None:
        untaken.setdefault(asked.forms, []).append(asked)
    return made


def _constant_bytes_for(kept: Sequence[Kept], asked: int) -> float:
    """Bytes of the arrays in a trace with so many numbers in its leaves, by those that are there.

    Parameters in it are as large for any.
    """
    known = sorted((each.asked.elements, each.bytes) for each in kept)
    if not known or known[0][0] == known[-1][0] or asked <= known[-1][0]:
        return 0
    (few, least), (more, most) = known[0], known[-1]
    return least + (most - least) / (more - few) * (asked - few)


def is_given_alike(statics: Sequence[str]) -> bool:
    """Whether the example inputs as they were given are to jax what they are on the host.

    Of numbers that are weakly typed, that is not kept there.
    """
    target = current()
    if target.called is None:
        return False
    one, other = (Packed(values, statics).leaves for values in (target.called, target.values({})))
    return _forms(one) == _forms(other)


def _forms(leaves: Iterable[Any]) -> "tuple[Form, ...]":
    return tuple(map(_form, leaves))


def _form(leaf: Any) -> Form:
    """Shape, dtype and weakness of the array that jax makes of a leaf."""
    if category(leaf) in NUMBERS:
        return (), str(jax.numpy.result_type(leaf)), True
    dtype = leaf.dtype if is_key(leaf) else jax.dtypes.canonicalize_dtype(leaf.dtype)
    return shape_of(leaf), str(dtype), bool(getattr(leaf, "weak_type", False))
