"""Inputs of other forms than the given ones: of other widths, ranks, dtypes, numbers of layers and constants.

``x.T.reshape(x.shape)`` is ``x`` where that has one column, and ``x.T.reshape(4, -1).T`` where it has four;
both exchange numbers of different examples elsewhere. ``jnp.mean(x @ w, -1)`` is a mean over the batch where
`w` is a vector, and none where it is a matrix.
"""

import collections
import contextlib
import copy
import dis
import functools
import itertools
import re
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import telling
from ..arguments import MODES, LeafAxes, Packed, Values, attributes, graph_variables, parts
from ..asked_names import Name
from ..following import traced_or_none
from ..functions import codes, of_member
from ..jaxpr import symbolic
from ..jaxpr.trace import Traced, abstract_leaves
from ..leaves import category
from ..origins import file_of, is_users
from ..protocol import ASKS_FOR_TYPES, FixedForm, Problem
from ..telling import TABLES, names_in, values_in
from .claims import Claim, Inputs

#: Up to how many leaves that are whole on every device have other ranks and kinds by themselves.
MOST_LEAVES = 4
#: Arrays of one width that have another one by themselves.
MOST_APART = 4
#: How many widths of whole arrays have another one, how many numbers are tried for each, and the largest.
MOST_WIDTHS, MOST_NAMED, WIDEST = 4, 8, 1 << 16
#: Constants in the user's own containers that have other values, those in programs of many operations, and
#: names that some of them may be.
MOST_CONSTANTS, MOST_OF_LARGE, REDUCING = 48, 8, ("mean", "sum", "max", "none")
#: Attributes of libraries' layers by which they draw nothing, where they are zero.
RATES = ("rate", "p")
#: How many words a constant is tried as, and one that nothing has for a key.
MOST_WORDS, OTHER_WORD = 16, "another word"
#: Methods and functions that look for a name or parts of it, what compares it, and the longest of such parts.
COMPARING = frozenset({"CONTAINS_OP", "COMPARE_OP"})
ASKING = frozenset(
    {"get", "startswith", "endswith", "find", "index", "count", "split", "rsplit", "partition", "rpartition"}
    | {"match", "search", "fullmatch", "removeprefix", "removesuffix"}
)
LONGEST_WORD = 32
#: How many layers more than given are many: code may have a table of as many, and with no number up to ten is
#: the remainder of so many more the same.
MORE_LAYERS = 11
#: Names by which code asks how many bits numbers have, and floats of few bits.
PRECISE = frozenset({"dtype", "finfo", "itemsize", "nbytes", "result_type", "promote_types"})
NARROW = ("bfloat16", "float16")
#: Dicts of which keys have other names, and how many of their keys.
MOST_DICTS, MOST_KEYS = 2, 4
#: Where the first other width is looked for, at least.
LEAST_WIDTH = 3


@dataclass(frozen=True, slots=True)
class Other:
    """Inputs of another form."""

    packed: Packed
    leaves: tuple[Any, ...]
    #: What is another, in words.
    said: str
    #: What code is to hold to the given form where it is right for that alone.
    given: tuple[FixedForm, ...]
    #: Whether the given form has one column there, which hides what is done with several.
    hides: bool = False
    #: Whether the given form decides something if the function does not take this one.
    decides: bool = False
    #: Whether it has an element for each row, all of them on every device.
    of_rows: bool = False
    #: Whether the given form decides something in any case: no other one is tried.
    settles: bool = False
    #: Leaves of the batch that are integers of other bits, where nothing else is another.
    bits: frozenset[int] = frozenset()
    #: Its batch axes, where they are not the given ones.
    axes: "LeafAxes | None" = None
    #: Whether devices have parts of what is of another size.
    in_parts: bool = False
    #: Whether the ways behind it are for where it is not shown equal by the same operations.
    covers: bool = False
    #: Of another number of columns: the given one, this one, and inputs with a third one.
    columns: tuple[int, int] = (0, 0)
    third: "tuple[int, tuple[Any, ...]]" = (0, ())


def others(claim: Claim, given: Inputs, sources: Sequence[Any] = ()) -> Iterator[tuple[Other, ...]]:
    """Inputs of other forms, each followed by another way to make it so, for where the function takes it not.

    Args:
        claim: the function, its inputs and their batch axes.
        given: their shapes, with a batch that tells.
        sources: code that may look up keys, sizes and dtypes; without it, no other widths of whole arrays.
    """
    forms = _Forms(claim, given, sources)
    yield from forms.widths()
    yield from forms.ranks()
    yield from forms.of_rows()
    yield from forms.kinds()
    yield from forms.bits()
    yield from forms.precisions() if names_in(sources) & PRECISE else ()
    yield from forms.lengths()
    if sources:
        yield from forms.fewer()
        yield from forms.nothing()
        yield from forms.shortened()
        yield from forms.retyped() if names_in(sources) & ASKS_FOR_TYPES else ()
    yield from forms.numbered_keys()
    read = forms.read_names() if sources else []
    yield from ((each,) for each in read)
    words = [*_keys_of_tables(sources), *(REDUCING if "getattr" in names_in(sources) else ())]
    settled = {form for each in read for form in each.given}
    yield from forms.keys(words, _words_asked_for(sources), settled)
    yield from forms.constants(MOST_CONSTANTS if sources else MOST_OF_LARGE)


class _Forms:
    """What `others` gives, by what it changes."""

    def __init__(self, claim: Claim, given: Inputs, sources: Sequence[Any]) -> None:
        self.function, self.sources = given.function, sources
        # Dimensions of leaves, by their names, that are longer in the function than on a device.
        self.in_parts = frozenset(claim.mesh.parts if claim.mesh is not None else ())
        self.values, self.statics = claim.question.data[0], claim.question.statics
        self.leaves, self.packed, self.names = given.leaves, given.packed, given.names
        self.all_axes, self.axes = claim.axes, given.packed.axes(claim.axes)
        self.shapes = [tuple(getattr(leaf, "shape", ())) for leaf in self.leaves]
        self.sizes = {size for shape in self.shapes for size in shape}
        #: The size of the batch, where there is one.
        self.rows = next((s[a] for s, a in zip(self.shapes, self.axes, strict=True) if a is not None), None)
        # Objects that are made of constants too, or hold variables, are what their makers made them.
        apart = {name for name, _ in self.packed.fixed}
        whole = [name for name in self.packed.trees if not self.all_axes.get(name) and name not in apart]
        self.whole = [name for name in whole if not graph_variables(self.values[name])]

    def _asked(self, leaves: Sequence[Any]) -> Sequence[int] | None:
        """Numbers that the function may hold a size against, a symbol in some `leaves`: the likeliest first.

        None where it does not take such leaves, which have to be as long as others perhaps; empty where it
        holds them against nothing, and 0 alone where it does and no number is known.
        """
        answer = symbolic.traced_unasked(lambda: Traced.of(self.function, self.packed, leaves))
        jax.clear_caches()
        if answer.is_asked:
            return telling.named(self.sources, answer.rows) or (0,)
        return None if answer.made is None else ()

    def _failure(self, other: Other) -> BaseException | None:
        """What tracing the function anew ends with, also where names of parts alone are others."""
        jax.clear_caches()
        try:
            Traced.of(self.function, other.packed, other.leaves)
        except (MemoryError, Problem):
            raise
        except BaseException as error:
            return error
        return None

    def widths(self) -> Iterator[tuple[Other, ...]]:
        """Another number of columns in all arrays of the batch that have as many, and in each by itself.

        Of arrays that are whole on every device too, those of a width that the batch has not, where there is
        code that may ask for it: in a table or a comparison. Numbers that it asks for are tried as well.
        """
        whole = bool(self.sources)
        places = [(i, at) for i, shape in enumerate(self.shapes) for at in range(len(shape))]
        of_batch = [(i, at) for i, at in places if self.axes[i] not in (None, at)]
        of_whole = [(i, at) for i, at in places if self._owner(i) in self.whole] if whole else []
        sizes = sorted({self.shapes[i][at] for i, at in of_batch} - {0})
        divided = {self.shapes[i][at] for i, at in of_whole if (self.names[i], at) in self.in_parts}
        widths = {self.shapes[i][at] for i, at in of_whole} - {0, *sizes}
        others = sorted(widths, key=lambda size: (size not in divided, size))
        for size in (*sizes, *others[: max(MOST_WIDTHS, len(divided))]):
            of = of_batch if size in sizes else of_whole
            own = [(i, at) for i, at in of if self.shapes[i][at] == size]
            # Weights may have to be as wide.
            rest = [(i, at) for i, at in places if self.axes[i] is None and self.shapes[i][at] == size]
            ways = [own, [*own, *rest]] if rest and of is of_batch else [own]
            # Heads and halves take no odd number.
            wide = [(way, columns) for columns in (self._unused(size), 2 * size) for way in ways]
            apart = own if of is of_batch and 1 < len(own) <= MOST_APART else []
            answers = (self._asked(self._wide(way, symbolic.rows())) for way in ways)
            found = next((each for each in answers if each is not None), None) if whole else ()
            # Of code that asks for a size, two of that size may be another function than each of them.
            first = [self._apart(apart)] if apart and found is not None and not found else []
            yield (*first, *(self._wider(way, columns, own) for way, columns in wide))
            for each in apart:
                yield (*first, self._wider([each], self._unused(size), [each]))
            for columns in self._named(ways, found, size) if whole else ():
                if columns != size:
                    yield tuple(self._wider(way, columns, own) for way in ways)

    def _named(
        self,
        ways: Sequence[Sequence[tuple[int, int]]],
        found: Collection[int] | None,
        size: int,
    ) -> list[int]:
        """Numbers of columns that the function was `found` to hold theirs against, and one beyond all these.

        Where devices have parts of them, also doubles and halves of their `size`, unless the function asks
        for no number: a part is on one side of any limit there, and the whole on the other.
        """
        numbers = [number for number in found or () if 0 < number <= WIDEST][:MOST_NAMED]
        doubles = [size << times for times in range(1, WIDEST.bit_length()) if size << times <= WIDEST]
        halves = [size >> times for times in range(1, size.bit_length()) if size % (1 << times) == 0]
        divided = any((self.names[i], at) in self.in_parts for way in ways for i, at in way)
        unlike = [*doubles, *halves] if divided and (found is None or found) else []
        return list(dict.fromkeys([*numbers, *([2 * max(numbers)] if numbers else []), *unlike]))

    def _wider(self, at: Sequence[tuple[int, int]], columns: int, given: Sequence[tuple[int, int]]) -> Other:
        made = self._wide(at, columns)
        what = tuple(FixedForm(self._owner(index), self.names[index], axis) for index, axis in given)
        size = self.shapes[given[0][0]][given[0][1]]
        third = 4 * size if columns == 2 * size else 2 * size
        return replace(
            self._other(made, given[0][0], what),
            hides=size == 1,
            in_parts=any((self.names[i], axis) in self.in_parts for i, axis in at),
            columns=(size, columns),
            third=(third, tuple(self._wide(at, third))),
        )

    def _apart(self, at: Sequence[tuple[int, int]]) -> Other:
        """Several dimensions of one size, each of another: nothing is hidden by two of them that agree."""
        made, columns = list(self.leaves), self.shapes[at[0][0]][at[0][1]]
        for index, axis in at:
            columns = self._unused(columns)
            shape = (*made[index].shape[:axis], columns, *made[index].shape[axis + 1 :])
            made[index] = made[index].update(shape=shape)
        return replace(self._other(made, at[0][0], ()), covers=True)

    def _wide(self, at: Sequence[tuple[int, int]], columns: Any) -> list[Any]:
        made = list(self.leaves)
        for index, axis in at:
            shape = (*made[index].shape[:axis], columns, *made[index].shape[axis + 1 :])
            made[index] = made[index].update(shape=shape)
        return made

    def _unused(self, size: int) -> int:
        """A prime number of columns that nothing has, beyond `size`."""
        found = max(size + 1, LEAST_WIDTH)
        while found in self.sizes or any(found % part == 0 for part in range(2, int(found**0.5) + 1)):
            found += 1
        return found

    def _few(self) -> list[int]:
        """The leaves that are whole on every device, where they are few."""
        own = [i for i in range(len(self.leaves)) if self._owner(i) in self.whole]
        return own if len(own) <= MOST_LEAVES else []

    def ranks(self) -> Iterator[tuple[Other, ...]]:
        """Arrays that are whole on every device with an axis more, and with one less."""
        widths = sorted({shape[-1] for shape, axis in zip(self.shapes, self.axes, strict=True) if axis == 0})
        for index in self._few():
            leaf = _as_array(self.leaves[index])
            if _kind(leaf) == "":
                continue
            more = [(*leaf.shape, columns) for columns in (self._unused(1), *widths)]
            for shapes in (more, [leaf.shape[:-1]] if leaf.shape else []):
                if shapes:
                    yield tuple(self._with(index, leaf.update(shape=shape)) for shape in shapes)

    def of_rows(self) -> Iterator[tuple[Other, ...]]:
        """A number for each row where the argument is one number: a weight, a discount.

        Devices with several rows do not take all of these, and each is that of one row where they have one.
        """
        for index, leaf in enumerate(map(_as_array, self.leaves)):
            name = self.names[index]
            if (
                self.rows is not None
                and leaf.shape == ()
                and _kind(leaf)
                and name == self._owner(index) in self.whole
            ):
                given = (FixedForm(name, f"{name}.ndim", value="0"),)
                made = [*self.leaves[:index], leaf.update(shape=(self.rows,)), *self.leaves[index + 1 :]]
                yield (replace(self._other(made, index, given), of_rows=True),)

    def kinds(self) -> Iterator[tuple[Other, ...]]:
        """Integers in place of floats that are whole on every device, and floats in place of integers."""
        for index in self._few():
            leaf = _as_array(self.leaves[index])
            other = {"float": np.int32, "int": np.float32}.get(_kind(leaf))
            if other is not None:
                yield (self._with(index, leaf.update(dtype=np.dtype(other))),)

    def bits(self) -> Iterator[tuple[Other, ...]]:
        """Integers of the batch in few bits and without a sign, or in more; each by itself where not all.

        Those of int32 are taken not to wrap around: the least of `-x` is the largest of `x` with a sign.
        """
        other = {
            index: np.dtype(np.uint8 if np.can_cast(np.int32, leaf.dtype) else np.int32)
            for index, leaf in enumerate(self.leaves)
            if self.axes[index] is not None and jax.dtypes.issubdtype(leaf.dtype, np.integer)
        }
        ways = [tuple(other), *((index,) for index in other if 1 < len(other) <= MOST_APART)]
        if other:
            yield tuple(
                replace(self._with_dtypes({index: other[index] for index in way}), bits=frozenset(way))
                for way in ways
            )

    def precisions(self) -> Iterator[tuple[Other, ...]]:
        """Floats of few bits in the batch, and in what is whole, as in ``AXES[x.dtype.name]``."""
        floats = [i for i, leaf in enumerate(self.leaves) if _kind(_as_array(leaf)) == "float"]
        of_batch = [i for i in floats if self.axes[i] is not None]
        of_whole = [i for i in floats if self._owner(i) in self.whole and hasattr(self.leaves[i], "shape")]
        for own in filter(None, (of_batch, of_whole)):
            for name in NARROW:
                dtype = jax.numpy.dtype(name)
                changed = {i: dtype for i in own if self.leaves[i].dtype != dtype}
                given = tuple(
                    FixedForm(self._owner(i), f"{self.names[i]}.dtype.name", value=repr(leaf.dtype.name))
                    for i in changed
                    for leaf in (self.leaves[i],)
                )
                if changed:
                    yield (replace(self._with_dtypes(changed), given=given),)

    def lengths(self) -> Iterator[tuple[Other, ...]]:
        """One layer more in all lists and tuples of so many layers, many more, one alone and none.

        Of a large program one that is longer is tried, which takes as long as the given one.
        """
        found = [length for name in self.whole for length in _lengths(self.values[name])]
        for length in sorted(set(found)):
            longer = [self._of_length(length, length + more) for more in (MORE_LAYERS, 1)]
            yield from ((each,) for each in longer) if self.sources else (tuple(longer),)
            yield from ((self._of_length(length, other),) for other in {0, 1} - {length})

    def nothing(self) -> Iterator[tuple[Other, ...]]:
        """None in the place of a part that is whole on every device, and an array in the place of None."""
        widths = sorted({shape[-1] for shape in self.shapes if shape})
        arrays = [jnp.ones(shape, np.float32) for shape in ((), *((each,) for each in widths[:MOST_WIDTHS]))]
        for name in self.whole:
            leaves, tree = jax.tree.flatten(self.values[name], is_leaf=lambda each: each is None)
            if len(leaves) < 2 or len(leaves) > MOST_LEAVES:
                continue  # An argument that is None alone is held to that.
            for at, leaf in enumerate(leaves):
                ways = arrays if leaf is None else [None]
                made = ([*leaves[:at], way, *leaves[at + 1 :]] for way in ways)
                packed = [Packed({**self.values, name: tree.unflatten(each)}, self.statics) for each in made]
                said = f"`{name}` with {'a part for None' if leaf is None else 'None for a part'}"
                yield tuple(self._made(each, said, (FixedForm(name, name),)) for each in packed)

    def shortened(self) -> Iterator[tuple[Other, ...]]:
        """A layer that has a part less than those beside it, as in ``APPLY[len(layer)](*layer)``."""
        for name in self.whole:
            ways = [_each_container(self.values[name], _shortened(first)) for first in (False, True)]
            if jax.tree.structure(ways[0]) == jax.tree.structure(self.values[name]):
                continue
            said = f"`{name}` with a part that is shorter than others"
            packed = [Packed({**self.values, name: way}, self.statics) for way in ways]
            yield tuple(self._made(each, said, (FixedForm(name, name),)) for each in packed)

    def retyped(self) -> Iterator[tuple[Other, ...]]:
        """Lists for tuples and tuples for lists, as in ``{tuple: jnp.max, list: jnp.mean}[type(terms)]``."""
        for name in self.whole:
            given = tuple(
                FixedForm(name, f"type({path})", value=kind.__name__)
                for path, kind in _lists_and_tuples(self.values[name], name)
            )
            if given:
                packed = Packed({**self.values, name: _retyped(self.values[name])}, self.statics)
                yield (self._made(packed, f"`{name}` of tuples for lists", given),)

    def numbered_keys(self) -> Iterator[tuple[Other, ...]]:
        """Dicts whose keys are numbers: which they are may decide anything, and other ones are not tried."""
        for name in self.whole:
            for path, table in _all_parts(self.values[name], name):
                if type(table) is dict and table and all(type(key) is int for key in table):
                    said = f"`{path}` with other numbers in it"
                    made = self._made(self.packed, said, _keys_as_given(name, path, table))
                    yield (replace(made, settles=True),)

    def fewer(self) -> Iterator[tuple[Other, ...]]:
        """A batch without one of its parts."""
        for name, axes in self.all_axes.items():
            value: Any = self.values.get(name)
            if not axes or type(value) not in (dict, list, tuple) or len(value) < 2:
                continue
            keys: list[Any] = sorted(value) if type(value) is dict else [*range(len(value))]
            given = FixedForm(name, f"len({name})", value=repr(len(keys)))
            if type(value) is dict:
                given = FixedForm(name, f"sorted({name})", value=repr(keys))
            ends = [0, *itertools.accumulate(len(jax.tree.leaves(value[key])) for key in keys)]
            yield tuple(
                self._without(name, key, range(*ends[at : at + 2]), given)
                for at, key in enumerate(keys[:MOST_KEYS])
            )

    def _without(self, name: str, key: Any, gone: range, given: FixedForm) -> Other:
        """The inputs without the part of an argument at `key`, whose leaves are `gone`."""
        value = self.values[name]
        rest: Any
        if type(value) is dict:
            rest = {each: part for each, part in value.items() if each != key}
        else:
            rest = type(value)((*value[:key], *value[key + 1 :]))
        left = {
            i - len(gone) * (i >= gone.stop): axis for i, axis in self.all_axes[name].items() if i not in gone
        }
        axes = {**self.all_axes, name: left}
        packed = Packed({**self.values, name: rest}, self.statics)
        leaves = tuple(abstract_leaves(packed, axes, self.rows))
        return Other(packed, leaves, f"`{name}` without a part", (given,), axes=axes)

    def _of_length(self, length: int, other: int) -> Other:
        exchanged = {name: _of_length(self.values[name], length, other) for name in self.whole}
        changed = [name for name in self.whole if exchanged[name] is not self.values[name]]
        packed = Packed({**self.values, **exchanged}, self.statics)
        given = tuple(FixedForm(name, name) for name in changed)
        return self._made(packed, f"`{changed[0]}` of {other} parts", given)

    def _made(self, packed: Packed, said: str, given: tuple[FixedForm, ...]) -> Other:
        return Other(packed, tuple(abstract_leaves(packed, self.all_axes, self.rows)), said, given)

    def read_names(self) -> list[Other]:
        """The inputs as they are where the function takes names of parts of a dict apart, which decides then.

        Of a dict of which it asks for each part by name, others are taken by nobody.
        """
        found = self._named_dicts()
        read = dict[str, None]()
        values = self.values
        for _, path, table in found:
            note = functools.partial(read.setdefault, path)
            values = self._with_names(values, table, {key: Name.of(key, note) for key in table})
        if not found or self._failure(self._made(Packed(values, self.statics), "", ())) is not None:
            return []
        said = "`{}` with other names in it"
        return [
            replace(
                self._made(self.packed, said.format(path), _keys_as_given(name, path, table)), settles=True
            )
            for name, path, table in found
            if path in read and not self._asks_for_each(name, path, table)
        ]

    def _asks_for_each(self, name: str, path: str, table: dict[str, Any]) -> bool:
        """Whether the function asks a dict for its parts by the names they have."""
        endings = map(self._failure, self._renamed(name, path, table, OTHER_WORD))
        return all(isinstance(each, KeyError) and each.args[:1] and each.args[0] in table for each in endings)

    def _named_dicts(self) -> list[tuple[str, str, dict[str, Any]]]:
        """The first dicts that are whole on every device, each with names that no other one before it has."""
        found = [each for name in self.whole for each in _dicts(self.values[name], name)]
        by_names = {tuple(sorted(each[-1])): each for each in reversed(found)}
        return [each for each in found if any(each is first for first in by_names.values())][:MOST_DICTS]

    def _with_names(self, values: Values, table: Mapping[str, Any], names: Mapping[str, str]) -> Values:
        return {
            name: _exchanged(value, table, names) if name in self.whole else value
            for name, value in values.items()
        }

    def keys(
        self,
        words: Sequence[str],
        asked: Sequence[str],
        settled: Set[FixedForm],
    ) -> Iterator[tuple[Other, ...]]:
        """Words that may decide something in the place of one key of each dict that is whole on every device.

        A function that asks a dict for its keys by name does not take it; one that goes through them may. Of
        words that are `asked` for in names, and of other numbers of parts, none is tried where the function
        takes no name but its own. Dicts whose names are `settled` are left out.
        """
        for name, path, table in self._named_dicts():
            if not settled.isdisjoint(_keys_as_given(name, path, table)):
                continue
            every = [*words]
            renamed = self._renamed(name, path, table, OTHER_WORD)
            if any(traced_or_none(self.function, each.packed, each.leaves) is not None for each in renamed):
                every += asked
                yield from ((other,) for other in self._numbered(name, path, table))
            for word in (word for word in dict.fromkeys(every) if word not in table):
                yield from ((other,) for other in self._renamed(name, path, table, word))

    def _numbered(self, name: str, path: str, table: dict[str, Any]) -> Iterator[Other]:
        """A dict with a part more, with one less, with one alone and with none."""
        parts = [*table.items()]
        for number in dict.fromkeys((len(parts) + 1, len(parts) - 1, 1, 0)):
            if number == len(parts):
                continue
            way = dict([*parts, (OTHER_WORD, parts[-1][1])][:number])
            replaced = jax.tree.map(
                lambda each, way=way: way if each is table else each,
                self.values[name],
                is_leaf=lambda each: each is table,
            )
            packed = Packed({**self.values, name: replaced}, self.statics)
            yield self._made(packed, f"`{path}` of {number} parts", _keys_as_given(name, path, table))

    def _renamed(self, name: str, path: str, table: dict[str, Any], word: str) -> Iterator[Other]:
        """A dict with `word` for one of its keys: for one of each form of what stands there."""
        given = _keys_as_given(name, path, table)
        of_forms = {repr(_form(part, np.ndim)): key for key, part in reversed(table.items())}
        for key in list(of_forms.values())[-MOST_KEYS:]:
            packed = Packed(self._with_names(self.values, table, {key: word}), self.statics)
            yield self._made(packed, f"`{path}` with {word!r} for {key!r}", given)

    def constants(self, most: int) -> Iterator[tuple[Other, ...]]:
        """Other values of constants that containers of the user's own classes hold beside their leaves.

        Of `most` of them, floats last: no axis and no name is one.
        """
        given = {name: value for name, value in self.values.items() if name not in self.packed.constants}
        found = [each for name, value in given.items() for each in constants_of(value, name)]
        # A dropout with a rate of zero draws nothing, and its key is nobody's.
        rates = [each for each in found if _is_no_rate(*each[:2])]
        found = [each for each in found if each not in rates]
        found.sort(key=lambda each: isinstance(getattr(each[0], each[1]), float))
        for places in ([[each] for each in found[:most]]) + [rates] * bool(rates):
            owner, field, _ = places[0]
            value = getattr(owner, field)
            others = _Constant(self, places)
            if isinstance(value, str):
                # It may be a key: each that the class names is one of its own, and any other is none.
                for word in dict.fromkeys([*REDUCING, *_words(type(owner))][:MOST_WORDS]):
                    yield tuple(others.made([word]))
                yield tuple(replace(other, decides=True) for other in others.made([OTHER_WORD]))
            elif ways := others.made(different(value)):
                yield tuple(ways)

    def _owner(self, index: int) -> str:
        return self.packed.owners[index][0]

    def _with(self, index: int, leaf: Any) -> Other:
        made = [*self.leaves[:index], leaf, *self.leaves[index + 1 :]]
        return self._other(made, index, (FixedForm(self._owner(index), self.names[index]),))

    def _with_dtypes(self, dtypes: Mapping[int, Any]) -> Other:
        made = list(self.leaves)
        for index, dtype in dtypes.items():
            made[index] = made[index].update(dtype=dtype)
        given = tuple(FixedForm(self._owner(index), self.names[index]) for index in dtypes)
        return self._other(made, next(iter(dtypes)), given)

    def _other(self, made: Sequence[Any], index: int, given: tuple[FixedForm, ...]) -> Other:
        leaf = made[index]
        before = _as_array(self.leaves[index])
        kind = f" and dtype {leaf.dtype}" if leaf.dtype != before.dtype else ""
        return Other(
            self.packed, tuple(made), f"`{self.names[index]}` of shape {list(leaf.shape)}{kind}", given
        )


@dataclass(frozen=True, slots=True)
class _Constant:
    """A constant that objects among the inputs hold: these, their attributes and the paths."""

    forms: _Forms
    places: Sequence[tuple[Any, str, str]]

    def made(self, values: Iterable[Any]) -> list[Other]:
        """The inputs with other values of it; of those that cannot be set, or are no part of them, none."""
        forms, found = self.forms, []
        given = getattr(*self.places[0][:2])
        form = tuple(
            FixedForm(re.split(r"\W", path)[0], path, value=repr(given)) for _, _, path in self.places
        )
        for value in values:
            if value == given:
                continue
            try:
                for owner, field, _ in self.places:
                    object.__setattr__(owner, field, value)
                packed = self._packed({each.argument for each in form})
            except Exception:
                continue  # It is computed, or cannot be changed.
            finally:
                for owner, field, _ in self.places:
                    with contextlib.suppress(Exception):
                        object.__setattr__(owner, field, given)
            changed = (packed.trees, packed.fixed) != (forms.packed.trees, forms.packed.fixed)
            if changed and len(packed.leaves) == len(forms.leaves):
                said = f"`{self.places[0][-1]}` = {value!r}"
                found.append(Other(packed, tuple(forms.leaves), said, form))
        return found

    def _packed(self, names: Collection[str]) -> Packed:
        """The inputs with the objects as they are now, which are in the arguments of these names."""
        forms = self.forms
        packed = Packed(forms.values, forms.statics)
        if packed.trees != forms.packed.trees:
            return packed
        # What is static as a whole is in both by itself, and a copy of it stays as it is now.
        values = {name: forms.values[name] for name in names}
        copied = copy.deepcopy(values, {id(leaf): leaf for leaf in jax.tree.leaves(values)})
        return Packed({**forms.values, **copied}, forms.statics)


def _keys_of_tables(sources: Sequence[Any]) -> list[str]:
    """Strings in the tables that code names, which it may look up."""
    tables = [each for source in sources for each in values_in(source) if isinstance(each, TABLES)]
    # What has values for its keys is likelier than a list of names.
    tables.sort(key=lambda table: not isinstance(table, dict))
    words = (each for table in tables if not isinstance(table, range) for each in table)
    return list(dict.fromkeys(each for each in words if isinstance(each, str)))[:MOST_WORDS]


def _words_asked_for(sources: Sequence[Any]) -> list[str]:
    """Strings in code that looks for names, as in ``name.startswith("batch")`` and ``{"w": 0}.get(name)``.

    And in what stands around it: a nested function may ask a table of the outer one.
    """
    found = dict[str, None]()
    for code in (each for source in sources for each in values_in(source)):
        if isinstance(code, types.CodeType) and any(map(_asks, codes(code))):
            found |= dict.fromkeys(each for each in _flat(code.co_consts) if isinstance(each, str))
    return [word for word in found if len(word) <= LONGEST_WORD and not word.isspace()][:MOST_WORDS]


def _asks(code: types.CodeType) -> bool:
    """Whether code looks for a name, or compares anything."""
    compares = any(instruction.opname in COMPARING for instruction in dis.get_instructions(code))
    return compares or not ASKING.isdisjoint(code.co_names)


def _keys_as_given(name: str, path: str, table: Mapping[Any, Any]) -> tuple[FixedForm, ...]:
    return (FixedForm(name, f"sorted({path})", value=repr(sorted(table))),)


def _dicts(value: Any, path: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The dicts with names for keys in a value, whatever holds them: the argument, the path, and the dict."""
    found_at, _ = jax.tree_util.tree_flatten_with_path(value, is_leaf=_is_named)
    for steps, found in found_at:
        where = f"{path}{jax.tree_util.keystr(steps)}"
        # What holds a part of another kind may not say by which name it is read.
        if _is_named(found) and "<" not in where:
            yield re.split(r"\W", path)[0], where, found
            for key, part in found.items():
                yield from _dicts(part, f"{where}[{key!r}]")


def _is_named(value: Any) -> bool:
    return (
        type(value) in (dict, collections.OrderedDict)
        and bool(value)
        and all(isinstance(key, str) for key in value)
    )


def _exchanged(value: Any, part: Mapping[str, Any], names: Mapping[str, str]) -> Any:
    """A value in which each dict that has the names of `part` has others, its optimiser's state too."""

    def one(inner: Any) -> Any:
        if not _is_named(inner):
            return inner
        same = inner.keys() == part.keys()
        return type(inner)(
            (names.get(key, key) if same else key, _exchanged(each, part, names))
            for key, each in inner.items()
        )

    return jax.tree.map(one, value, is_leaf=_is_named)


def _words(kind: type) -> list[str]:
    """Strings in the code of the methods of a class of the user's own, and of those it is made of."""
    found: list[str] = []
    for base in kind.__mro__:
        for value in vars(base).values():
            raw = of_member(value)
            if raw is None or not is_users(raw.__code__.co_filename):
                continue
            for code in codes(raw.__code__):
                words = (each for each in _flat(code.co_consts) if isinstance(each, str))
                found += [each for each in words if each.isidentifier()]
    return found


def _flat(constants: Iterable[Any]) -> Iterator[Any]:
    for each in constants:
        yield from _flat(each) if isinstance(each, (tuple, frozenset)) else (each,)


def constants_of(value: Any, path: str) -> Iterator[tuple[Any, str, str]]:
    """Objects of the user's own classes in a value, attributes that are constants, and their paths."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(value, nnx.GraphDef):
        yield from _constants_of_graph(value, path)
        return
    inside = parts(value, path)
    if inside and not isinstance(value, (dict, list, tuple)):
        own = _is_own(type(value))
        yield from (
            (value, name, f"{path}.{name}")
            for name, part in attributes(value).items()
            if (own or (name in RATES and part == 0)) and different(part)
        )
    for where, part in inside:
        yield from constants_of(part, where)


def _constants_of_graph(graph: Any, path: str) -> Iterator[tuple[Any, str, str]]:
    """The same of a GraphDef of Flax NNX, whose modules are made when it is merged; and their modes."""
    nodes, listed = iter(graph.nodes), enumerate(graph.attributes)

    def of_next_node() -> Iterator[tuple[Any, str, str]]:
        node = next(nodes)
        for _ in range(getattr(node, "num_attributes", 0)):
            index, (name, attribute) = next(listed)
            if not hasattr(attribute, "value"):  # It is a node by itself, whose attributes follow.
                yield from of_next_node()
            elif different(attribute.value) and (
                _is_own(node.type) or name in MODES or (name in RATES and attribute.value == 0)
            ):
                yield attribute, "value", f"{path}.attributes[{index}][1].value"

    return of_next_node()


def _is_no_rate(owner: Any, field: str) -> bool:
    """Whether a constant is a zero of a library's layer, as the rate of a dropout."""
    value = getattr(owner, field)
    return isinstance(value, float) and value == 0 and not _is_own(type(owner))


def _is_own(kind: type) -> bool:
    """Whether a class is not one of an installed package."""
    return is_users(file_of(sys.modules.get(kind.__module__)))


def different(value: Any) -> list[Any]:
    """Other values than a constant, the likeliest to be taken first; none of what is no plain constant."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [other for other in (0, 1, -1, 2 * value, value + 1) if other != value]
    if isinstance(value, float):
        return [2 * value + 0.5]  # A rate that is zero has to be one still.
    if isinstance(value, str):
        return [other for other in REDUCING if other != value]
    if type(value) is tuple and value:
        return [
            (*value[:at], other, *value[at + 1 :])
            for at in range(len(value))
            for other in different(value[at])
        ]
    return []


def _as_array(leaf: Any) -> Any:
    """The shape and dtype of a leaf, which may be a number of Python."""
    if hasattr(leaf, "shape"):
        return leaf
    return jax.ShapeDtypeStruct((), jax.dtypes.canonicalize_dtype(np.result_type(leaf)), weak_type=True)


def _kind(leaf: Any) -> str:
    """``"float"`` or ``"int"``; ``""`` of others: keys, and words that may be of one."""
    for kind, of in (("float", np.floating), ("int", np.signedinteger)):
        if jax.dtypes.issubdtype(leaf.dtype, of):
            return kind
    return ""


def _lengths(value: Any) -> Iterator[int]:
    """Of how many parts lists and tuples are in a value, where these are alike: layers, say."""

    def found(parts: Sequence[Any]) -> Sequence[Any]:
        lengths.append(len(parts))
        return parts

    lengths: list[int] = []
    _each_container(value, found)
    yield from lengths


def _of_length(value: Any, length: int, other: int) -> Any:
    """A value with `other` parts, the last one repeated, where a container has `length` that are alike."""
    exchanged = False

    def cut(parts: Sequence[Any]) -> Sequence[Any]:
        nonlocal exchanged
        exchanged = exchanged or len(parts) == length
        return [*parts, *[parts[-1]] * other][:other] if len(parts) == length else parts

    made = _each_container(value, cut)
    return made if exchanged else value


def _shortened(first: bool) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Gives layers the last of which is without its first part, or its last one, if it has several."""
    kept = slice(1, None) if first else slice(-1)

    def shortened(layers: Sequence[Any]) -> Sequence[Any]:
        last = layers[-1]
        if type(last) not in (list, tuple, dict) or len(last) < 2:
            return layers
        return [*layers[:-1], dict([*last.items()][kept]) if type(last) is dict else last[kept]]

    return shortened


def _all_parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """A value and what the containers in it hold, with paths."""
    yield path, value
    for inner, part in parts(value, path) if isinstance(value, (dict, list, tuple)) else ():
        yield from _all_parts(part, inner)


def _lists_and_tuples(value: Any, path: str) -> Iterator[tuple[str, type]]:
    """The plain lists and tuples in a value."""
    return ((where, type(part)) for where, part in _all_parts(value, path) if type(part) in (list, tuple))


def _retyped(value: Any) -> Any:
    """A value with lists for its tuples, and tuples for its lists."""
    if type(value) in (list, tuple):
        return (tuple if type(value) is list else list)(map(_retyped, value))
    return {key: _retyped(part) for key, part in value.items()} if type(value) is dict else value


def _each_container(value: Any, change: Callable[[Sequence[Any]], Sequence[Any]]) -> Any:
    """A value with `change` of the parts of each list and tuple whose parts are alike."""
    kind = type(value)
    if kind in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        parts = [_each_container(part, change) for part in value]
        if kind not in (list, tuple):
            return kind(*parts)
        return kind(change(parts) if _are_alike(value) else parts)
    if kind is dict:  # What stands under another name is read by nobody.
        return {key: _each_container(part, change) for key, part in value.items()}
    return value


def _are_alike(parts: Sequence[Any]) -> bool:
    """Whether there are any, with arrays in them, and all have the same containers, shapes and dtypes."""
    if not parts or not all(category(leaf) in ("array", "float") for leaf in jax.tree.leaves(list(parts))):
        return False
    first = _form(parts[0])
    return bool(first[1]) and all(_form(part) == first for part in parts)


def _form(part: Any, of: Callable[[Any], Any] = np.shape) -> Any:
    """The containers of a value, and the shape and dtype of each leaf, or what else is `of` it."""
    leaves, tree = jax.tree.flatten(part)
    return tree, [(of(leaf), str(getattr(leaf, "dtype", type(leaf)))) for leaf in leaves]
