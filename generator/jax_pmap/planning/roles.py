"""Candidate roles for the example arguments, the likeliest first.

Roles start from structure: what is static, what is a key, what a gradient is taken of, which
leaves share a size. Whether leaves belong together is asked of jax: with the batch leaves cut
to fewer rows the function must still trace. A leaf's shape alone never decides; the observe
stage confirms a candidate or rejects it.
"""

from __future__ import annotations

import collections
import dataclasses
import difflib
import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax_pmap.model import Refusal, Request, Sync, refused
from jax_pmap.options import no_argument, split_shard
from jax_pmap.planning.identities import identities
from jax_pmap.reading.facts import FunctionFacts
from jax_pmap.reading.names import PARTS_OF_STATE, names_data, names_state
from jax_pmap.session import Session
from jax_pmap.worker import protocol

Described = dict[str, Any]
#: The most devices of the proof, where the user asks for no number.
LARGEST_COUNT = 8
#: How likely a batch is at each axis, the last standing for all behind it.
AXIS_WEIGHTS = (1.0, 0.45, 0.2, 0.1)
#: Arguments that are mixed with and without a batch, and mixes that are tried.
MIXED, MIXES = 6, 24
#: Batches of a multiple of so many rows are the ones that code is derived for (`sizes_for` in the worker).
MULTIPLE = 24
#: How much an argument looks like data that is likely some.
LIKELY = 0.6
#: How likely the steps of a loop that go on from each other are the batch, beside any other size: 0.45 is
#: the second axis.
STEPS = 0.3
#: Ways to divide along one size that are looked at before those along another.
AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Roles:
    """One assignment of roles to all leaves."""

    #: Batch axis by argument name and leaf index; every other array leaf is replicated.
    axes: dict[str, dict[int, int]]
    statics: tuple[str, ...]
    #: Argument name and leaf index of PRNG keys.
    keys: frozenset[tuple[str, int]]
    #: Why, by argument.
    why: dict[str, str]
    #: Arguments beside whose arrays any constants are accepted (``--static NAME``).
    accepted: tuple[str, ...] = ()
    #: Static arguments of whose type the function asks.
    typed: tuple[str, ...] = ()
    #: Static arguments that cannot be hashed.
    wrapped: tuple[str, ...] = ()
    #: Values that are divided where the function makes them, and the largest number that divides their rows.
    made: tuple[Sync, ...] = ()
    rows: int = 0
    #: Why these are not divided along another axis, with which less would be sent.
    passed_over: Refusal | None = None
    #: Of how many groups of consecutive rows each device has its part; 1 where it has rows in one piece.
    minibatches: int = 1
    #: Whether the function fails with fewer rows: its code may say their number.
    fixed: bool = False

    def request(self) -> protocol.Roles:
        """What the worker is told of them."""
        axes = {name: dict(leaves) for name, leaves in self.axes.items() if leaves}
        return protocol.Roles(axes, tuple(self.statics), self.rows, self.minibatches)


@dataclass(frozen=True, slots=True)
class _Leaf:
    argument: str
    index: int
    shape: tuple[int, ...]
    #: How much the argument looks like data: 1 named so, 0 like parameters, between: unknown.
    data: float


def wanted_shares(request: Request) -> int | None:
    """The number of devices that the batch is to be divided over, where one was asked for."""
    if request.mesh:
        return next(axis.size for axis in request.mesh if axis.name == request.axis_name)
    return request.devices.number


class RoleFinder:
    """Yields role candidates for one set of example arguments."""

    def __init__(
        self,
        session: Session,
        facts: FunctionFacts,
        request: Request,
        described: Sequence[Described],
        *,
        most: bool = False,
    ) -> None:
        self.session, self.facts, self.request = session, facts, request
        #: Whether to begin with all arrays of the batch's length: what is given with a device axis is given
        #: in shares, whatever it is called.
        self.most = most
        self.described = {argument["name"]: argument for argument in described}
        self.why: dict[str, str] = {}
        self.forced: dict[tuple[str, int], int | None] = {}
        self.keys: set[tuple[str, int]] = set()
        #: The least batch that the proof can be run on.
        self.enough = wanted_shares(request) or LARGEST_COUNT
        #: Arguments that a gradient is taken of.
        self.differentiated = {name for call in facts.gradient_calls for name in call.of}
        self.statics = self._statics()
        self._flags()
        self._keys()
        self.leaves = self._leaves()
        self.trace_error: protocol.Raised | None = None
        #: Numbers of steps that depend on each other, of (time, batch, …), by leaf.
        self.steps: dict[tuple[str, int], set[int]] = {}
        #: Static arguments of whose type the function asks.
        self.typed: tuple[str, ...] = ()
        #: Whether an assignment traced with more rows alone.
        self.grows = False
        #: Whether any assignment traced, and one of what looks like data alone.
        self.found = self.found_data = False

    # -- what is settled before any search ---------------------------------------------------

    def _statics(self) -> tuple[str, ...]:
        named = [self._argument("static", re.split(r"[\[.]", text)[0]) for text in self.request.static]
        #: Arguments whose constants may be anything: the user takes the proof for the ones given.
        self.accepted = [name for name in named if self.described[name]["partition"]]
        names = [name for name in named if name not in self.accepted]
        for name in names:
            self.why[name] = "by --static"
        for name in self.facts.static_parameters:
            if name in self.described and name not in names:
                names.append(name)
                self.why[name] = "static under jit"
        asked = {
            re.split(r"[\[.:]", text)[0]
            for text in (*self.request.shard, *self.request.replicate, *self.request.key)
        }
        for name, argument in self.described.items():
            kinds = {leaf["category"] for leaf in argument["leaves"]}
            if name in names or name in asked or not kinds:
                continue
            no_array = "opaque" in kinds and not kinds & {"array", "key"}
            if no_array or (kinds == {"bool"} and len(argument["leaves"]) == 1):
                names.append(name)
                self.why[name] = f"a {argument['type']}, not an array"
        if self.facts.receiver in names and self.facts.receiver not in self.request.static:
            self.why[self.facts.receiver] = "the object the method is called on"
        no_hash = [name for name in names if not self.described[name]["hashable"]]
        known = identities(self.session, no_hash)
        for name in no_hash:
            argument = self.described[name]
            arrays = any(leaf["category"] in ("array", "key") for leaf in argument["leaves"])
            if arrays or name not in known:
                more = "" if arrays else ", and holds what cannot be told from another one"
                raise refused(
                    "JP047",
                    f"`{name}` has to be static, but a {argument['type']} cannot be hashed{more}",
                    "Pass arrays as arrays, and let the proof say which of them are whole: --replicate NAME"
                    if arrays
                    else f"Make `{name}` hashable (a frozen dataclass, a tuple), or bind it with "
                    "functools.partial",
                    self.facts.span,
                )
        return tuple(name for name in self.described if name in names)

    def _argument(self, option: str, name: str) -> str:
        if name in self.described:
            return name
        raise no_argument(option, name, self.described, f"`{self.facts.name}`", self.facts.span)

    def _matching(self, option: str, text: str) -> list[tuple[str, int, dict[str, Any]]]:
        """Leaves at or below a path such as ``batch['x']`` or ``batch``."""
        wanted = text.replace('"', "'")
        name = re.split(r"[\[.]", wanted)[0]
        argument = self.described[self._argument(option, name)]
        found = [
            (name, index, leaf)
            for index, leaf in enumerate(argument["leaves"])
            if leaf["path"] == wanted
            or (leaf["path"].startswith(wanted) and leaf["path"][len(wanted)] in "[.")
        ]
        if not found:
            near = difflib.get_close_matches(wanted, [leaf["path"] for leaf in argument["leaves"]], 3)
            raise refused(
                "JP007",
                f"--{option} names `{text}`, but `{name}` has no such leaf",
                f"Its leaves: {', '.join(near or [leaf['path'] for leaf in argument['leaves'][:6]])}",
                self.facts.span,
            )
        return found

    def _flags(self) -> None:
        for text in self.request.replicate:
            for name, index, _ in self._matching("replicate", text):
                self.forced[name, index] = None
                self.why[name] = "by --replicate"
        for text in self.request.shard:
            path, axis = split_shard(text)
            for name, index, leaf in self._matching("shard", path):
                rank = len(leaf["shape"])
                if not -rank <= axis < rank:
                    raise refused(
                        "JP007",
                        f"--shard {text}: `{leaf['path']}` has shape {tuple(leaf['shape'])}, "
                        f"so no axis {axis}",
                        f"Give an axis from 0 to {rank - 1}"
                        if rank
                        else "A scalar cannot be sharded: --replicate it",
                        self.facts.span,
                    )
                self.forced[name, index] = axis % rank
                self.why[name] = "by --shard"
        for text in self.request.key:
            for name, index, _ in self._matching("key", text):
                self.keys.add((name, index))
                self.forced[name, index] = None
                self.why[name] = "by --key"

    def _keys(self) -> None:
        for name, argument in self.described.items():
            for index, leaf in enumerate(argument["leaves"]):
                raw = leaf["dtype"] == "uint32" and leaf["shape"] == [2]
                named = name in self.facts.key_parameters or re.search(r"key|rng", leaf["path"])
                if (leaf["category"] == "key" and not leaf["shape"]) or (raw and named):
                    self.keys.add((name, index))
            arrays = [i for i, leaf in enumerate(argument["leaves"]) if leaf["category"] in ("array", "key")]
            if arrays and all((name, index) in self.keys for index in arrays):
                self.why.setdefault(name, "a PRNG key")

    @property
    def only_state(self) -> bool:
        """Whether every array is a part of the parameters or the state, by its name and use."""
        return bool(self.leaves) and not any(leaf.data for leaf in self.leaves)

    def divides_state(self, roles: Roles) -> bool:
        """Whether all that is divided looks like parameters or state."""
        return all(leaf.data <= 0.2 for leaf, _ in self._divided(roles))

    def divides_parameters(self, roles: Roles) -> bool:
        """Whether what a gradient is taken of and is no data is divided, although there is data."""
        split = {name for name, leaves in roles.axes.items() if leaves}
        data = {leaf.argument: leaf.data for leaf in self.leaves}
        return max(data.values(), default=0.0) > 0.2 and any(
            data.get(name, 0.0) <= 0.2 for name in split & self.differentiated
        )

    def is_unlikely(self, roles: Roles, *, gathered: bool, refused: bool) -> bool:
        """Whether another way to divide the arguments may be the one that is meant, though this one is equal.

        It divides parameters, nothing that looks like data along its first axis, or what is then `gathered`
        while as likely an argument has another number of rows. Of (time, batch, …) the likelier way, by
        time, was `refused`.
        """
        if any(axis is not None for axis in self.forced.values()) or dict(self.facts.pmap_in_axes):
            return False
        if self.divides_parameters(roles):
            return True
        split, most = self._divided(roles), self._most(roles)
        if any(leaf.data >= LIKELY for leaf in self.leaves):
            data = [(leaf, axis) for leaf, axis in split if leaf.data > 0.2]
            ahead = any(
                axis == 0
                or (axis == 1 and len(leaf.shape) > 2 and (refused or leaf.shape[0] in self._steps(leaf)))
                for leaf, axis in data
            )
            if most < LIKELY or not ahead:
                return True
        rows = {leaf.shape[axis] for leaf, axis in split}
        return gathered and any(
            leaf.data >= max(most, LIKELY) and leaf.shape and leaf.shape[0] not in {*rows, 1}
            for leaf in self.leaves
        )

    def divides_other_data(self, roles: Roles, others: Roles) -> bool:
        """Whether it divides other arguments than `others` do, and all of them are likely data."""
        split = {name for name, leaves in roles.axes.items() if leaves}
        data = {leaf.argument: leaf.data for leaf in self.leaves}
        return split.isdisjoint(others.axes) and all(data.get(name, 0.0) >= LIKELY for name in split)

    def likelier(self, one: Roles, other: Roles) -> bool:
        """Whether what is divided of `one` looks more like data than what is divided of `other`."""
        parameters = self.divides_parameters(one) and not self.divides_parameters(other)
        return not parameters and self._most(one) > self._most(other)

    def _most(self, roles: Roles) -> float:
        """How much that looks like data which does so most of what is divided."""
        return max((leaf.data for leaf, _ in self._divided(roles)), default=0.0)

    def _divided(self, roles: Roles) -> list[tuple[_Leaf, int]]:
        """The leaves that are divided, each with the axis along which it is."""
        return [
            (leaf, roles.axes[leaf.argument][leaf.index])
            for leaf in self.leaves
            if leaf.index in roles.axes.get(leaf.argument, {})
        ]

    def leaves_data_whole(self, roles: Roles, others: Roles) -> bool:
        """Whether nothing is divided of what is in `others`, which divides only what is named as data is."""

        def places(roles: Roles) -> set[tuple[str, int]]:
            return {(name, index) for name, axes in roles.axes.items() for index in axes}

        named = {(leaf.argument, leaf.index) for leaf in self.leaves if leaf.data == 1.0}
        return places(others) <= named and not places(others) & places(roles)

    def likely_data(self) -> tuple[str, ...]:
        """Arguments that a batch is rather in than parameters or state."""
        return tuple(dict.fromkeys(leaf.argument for leaf in self.leaves if leaf.data >= 0.3))

    def _leaves(self) -> list[_Leaf]:
        parts = {re.split(r"[.\[]", path)[0] for path in self.differentiated}
        rows = self._differentiated_rows()
        out = []
        unknown = 0
        for name, argument in self.described.items():
            if name in self.statics:
                continue
            if name in rows:
                data = 0.5
            elif name in self.differentiated:
                data = 0.0
                self.why.setdefault(name, "a gradient is taken of it")
            elif self._is_copy(name, rows):
                # A `target` may be labels, and a network that is followed slowly.
                data = 0.1
            elif (
                names_state(name)
                and not are_integers(argument)
                and not (
                    # A bias has one dimension.
                    name.lower().rstrip("0123456789") == "b"
                    and any(len(leaf["shape"]) > 1 for leaf in argument["leaves"])
                )
            ):
                # Beside what a gradient is taken of, a `b` that is not returned is rather a batch.
                returned = name in self.facts.returned_names
                is_state = returned or name in parts or holds_state(argument) or not has_rows(argument)
                data = 0.3 if self.differentiated - rows and not is_state else 0.0
            elif name in self.facts.looked_up_parameters:
                # Of a table, or a whole data set, the batch is what says which rows.
                data = 0.1
            elif names_data(name) or name in dict(self.facts.pmap_in_axes):
                data = 0.1 if holds_state(argument) else 1.0
            elif name in parts or holds_state(argument):
                # `actor` of `jax.grad(loss)(actor.params)`, or of a helper that does the like.
                data = 0.0
            elif not has_rows(argument) or name in self.facts.returned_names:
                data = 0.1
            else:
                # Of arguments nothing is known about, the first is the likeliest data: not two layers.
                likely = has_rows(argument, at_one_axis=True)
                unknown += likely
                data = 0.6 if likely and unknown == 1 else 0.3
            for index, leaf in enumerate(argument["leaves"]):
                if leaf["category"] in ("array", "key") and (name, index) not in self.keys:
                    out.append(_Leaf(name, index, tuple(leaf["shape"]), data))
        return out

    def _is_copy(self, name: str, rows: set[str]) -> bool:
        """Whether it has the several arrays of an argument that a gradient is taken of, and no `rows`."""

        def arrays(of: str) -> list[tuple[str, list[int]]]:
            leaves = self.described[of]["leaves"] if of in self.described else ()
            return [(leaf["path"].removeprefix(of), leaf["shape"]) for leaf in leaves]

        own = arrays(name)
        return len(own) > 1 and any(arrays(other) == own for other in self.differentiated - rows - {name})

    def _differentiated_rows(self) -> set[str]:
        """Arguments called like data that a gradient is taken of, beside parameters: rows that are moved."""
        parameters = [
            name
            for name, argument in self.described.items()
            if names_state(name) and any(leaf["shape"] for leaf in argument["leaves"])
        ]
        return {name for name in self.differentiated if parameters and names_data(name)}

    # -- the search --------------------------------------------------------------------------

    def candidates(self) -> Iterator[Roles]:
        """Assignments that trace with fewer rows, the likeliest first, none twice.

        The likeliest that is large enough comes where it does not, too (`Roles.fixed`), before any that
        leaves out what it divides.
        """
        # The steps of a few short sequences may look most like the batch.
        likeliest = int(next(iter(self._sizes()), self.enough) < self.enough)
        seen: set[frozenset[tuple[tuple[str, int], int]]] = set()

        def is_new(chosen: dict[tuple[str, int], int]) -> bool:
            mark = frozenset(chosen.items())
            if not chosen or mark in seen:
                return False
            seen.add(mark)
            return True

        def traced(
            assignments: Iterator[dict[tuple[str, int], int]], fixed: dict[tuple[str, int], int] | None
        ) -> Iterator[Roles]:
            taken: list[tuple[dict[tuple[str, int], int], int]] = []
            for chosen in map(self._as_pmapped, assignments):
                sizes = {self._shape(place)[axis] for place, axis in chosen.items()}
                if not is_new(chosen) or len(sizes) > 1:
                    continue
                # Rows that more leaves may have tell of fewer: no other number of them need be tried.
                rows = next((rows for more, rows in taken if chosen.items() < more.items()), 0)
                if not rows:
                    rows = self._traces(chosen)
                elif self._error(chosen, rows) is not None:
                    rows = 0
                if not rows:
                    fixed = chosen if fixed == {} and min(sizes) >= self.enough else fixed
                    continue
                taken.append((chosen, rows))
                self.found = True
                self.found_data |= all(leaf.data > 0 for leaf in self.leaves if self._at(leaf) in chosen)
                if fixed and not fixed.keys() <= chosen.keys():
                    yield dataclasses.replace(self._roles(fixed), fixed=True)
                fixed = None
                yield self._roles(chosen)
                loose = self._loose(chosen, rows)
                for left_out in [loose, *({place} for place in sorted(loose))]:
                    fewer = {place: axis for place, axis in chosen.items() if place not in left_out}
                    if is_new(fewer):
                        yield self._roles(fewer)
            if fixed:
                yield dataclasses.replace(self._roles(fixed), fixed=True)

        # In turns: where a size is not the batch's, none of the ways to divide along it is right.
        waiting = collections.deque(
            traced(assignments, {} if number <= likeliest else None)
            for number, assignments in enumerate(self._assignments())
        )
        while waiting:
            size = waiting.popleft()
            for _ in range(AT_ONCE):
                roles = next(size, None)
                if roles is None:
                    break
                yield roles
            else:
                waiting.append(size)

    def elsewhere(self, roles: Roles) -> Iterator[Roles]:
        """`roles` with another axis, of one size, in place of that of every leaf that they divide.

        Of trajectories, (time, batch, …), the steps depend on each other and the batch does not.
        """
        places = {(name, i): axis for name, leaves in roles.axes.items() for i, axis in leaves.items()}
        given = dict(self.facts.pmap_in_axes)
        if any(place in self.forced or place[0] in given for place in places):
            return
        shapes = {place: self._shape(place) for place in places}
        first = next(iter(places), None)
        for size in dict.fromkeys(shapes[first]) if first is not None else ():
            others = {
                place: axis
                for place, shape in shapes.items()
                for axis, length in reversed([*enumerate(shape)])
                if length == size and axis != places[place]
            }
            if len(others) == len(places) and size >= self.enough and self._traces(others):
                yield self._roles(others)

    def _as_pmapped(self, chosen: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """An assignment with the axes of the original's `pmap`, for leaves of which the user gives none."""
        made = dict(chosen)
        axes = dict(self.facts.pmap_in_axes)
        for leaf in self.leaves:
            place = leaf.argument, leaf.index
            if leaf.argument in axes and place not in self.forced:
                axis = axes[leaf.argument]
                if axis is None:
                    made.pop(place, None)
                elif len(leaf.shape) > axis:
                    made.setdefault(place, axis)
        return made

    def _shape(self, place: tuple[str, int]) -> tuple[int, ...]:
        return tuple(self.described[place[0]]["leaves"][place[1]]["shape"])

    def _assignments(self) -> list[Iterator[dict[tuple[str, int], int]]]:
        """For each size that may be the batch's, what is divided along it, the likeliest first."""
        fixed: dict[tuple[str, int], int] = {p: axis for p, axis in self.forced.items() if axis is not None}
        free = self._free
        if fixed:
            # The user named the batch: its size decides what else may go along.
            size = {self._shape(place)[axis] for place, axis in fixed.items()}
            if len(size) > 1:
                named = ", ".join(
                    f"`{self.described[p[0]]['leaves'][p[1]]['path']}` {self._shape(p)}" for p in fixed
                )
                hint = "Batch axes must agree in size; name the axis with --shard NAME:AXIS"
                if grouped := self._grouped(fixed):
                    hint += f". Of several rows for each example, make an axis: {grouped}"
                raise refused("JP041", f"the sharded axes differ in size: {named}", hint, self.facts.span)
            sizes = list(size)
        else:
            sizes = self._sizes()
            rows = {self._at(leaf): 0 for leaf in free if leaf.data > 0.2 and leaf.shape}
            if sizes[:1] == [1] and self._error(rows, 2) is None:
                sizes = [1]  # With more examples there is nothing else to divide.
        found, last = [], []
        for size_ in sizes:
            like = [leaf for leaf in free if size_ in leaf.shape]
            if size_ != sizes[0] and sizes[0] < self.enough:
                # What looks like the batch is only too small to be shown; splitting parameters along
                # a dimension they share with the data would be something else.
                last.append(self._where_none(self._along(size_, like, fixed)))
                like = [leaf for leaf in like if leaf.data > 0]
            found.append(self._along(size_, like, fixed))
        return [*found, *last]

    def _where_none(
        self, assignments: Iterator[dict[tuple[str, int], int]]
    ) -> Iterator[dict[tuple[str, int], int]]:
        """Assignments to be tried where the function fails on fewer rows of what looks like data alone.

        The chains of a sampler are rows that a gradient is taken of, and a scale of few numbers is no batch.
        """
        if not self.found_data:
            yield from assignments

    def several_rows(self) -> str:
        """How to hand in data of which one has several rows for each of another's; "" where none has."""
        data = [leaf for leaf in self._free if leaf.data > 0.2 and leaf.argument not in self.differentiated]
        rows = {self._at(leaf): 0 for leaf in data if leaf.shape and leaf.shape[0] >= self.enough}
        return self._grouped(rows) if rows else ""

    def _grouped(self, fixed: Mapping[tuple[str, int], int]) -> str:
        """How to hand in what has several rows for each of the others', in a function of one's own."""
        rows = min(self._shape(place)[axis] for place, axis in fixed.items())
        for place, axis in fixed.items():
            shape, path = self._shape(place), self.described[place[0]]["leaves"][place[1]]["path"]
            if rows > 1 and shape[axis] > rows and shape[axis] % rows == 0 and axis == 0:
                one, other = (rows, shape[0] // rows), (shape[0] // rows, rows)
                inside = f"{path}.reshape(-1, *{path}.shape[2:])"
                return (
                    f"let a function of yours take `{path}` as {(*one, *shape[1:])}, or as "
                    f"{(*other, *shape[1:])} where those of one example are not neighbours, and hand on "
                    f"`{inside}`"
                )
        return ""

    def _along(
        self, size: int, like: Sequence[_Leaf], fixed: Mapping[tuple[str, int], int]
    ) -> Iterator[dict[tuple[str, int], int]]:
        """What of the leaves that are `like` the batch, of a `size`, may be divided with what is `fixed`."""
        if fixed:
            # First exactly what was asked for, then with what has to come along.
            yield dict(fixed)
        data = [leaf for leaf in like if leaf.data > 0.2]
        anchor_axes = sorted({leaf.shape.index(size) for leaf in data or like}) or [0]
        for axis in anchor_axes:
            same = {
                self._at(leaf): axis for leaf in data if len(leaf.shape) > axis and leaf.shape[axis] == size
            }
            if self.most and same:
                yield {
                    self._at(leaf): axis
                    for leaf in like
                    if leaf.shape[axis : axis + 1] == (size,) and leaf.argument not in self.differentiated
                } | {**same, **fixed}
            yield {**same, **fixed}
            some = {self._at(leaf): leaf.shape.index(size) for leaf in data}
            yield {**some, **same, **fixed}
            every = {self._at(leaf): leaf.shape.index(size) for leaf in like}
            yield {**every, **same, **fixed}
        for leaf in data:
            for axis, length in enumerate(leaf.shape):
                if length == size:
                    yield {self._at(leaf): axis, **fixed}
        # What looks like parameters is split only where nothing else can be.
        for mix in self._mixes(data if self.found else like, size):
            yield {**mix, **fixed}

    def _mixes(self, like: Sequence[_Leaf], size: int) -> list[dict[tuple[str, int], int]]:
        """Arguments with or without a batch axis, each of their axes of this size, the likeliest first."""
        groups: dict[str, list[_Leaf]] = {}
        for leaf in like:
            groups.setdefault(leaf.argument, []).append(leaf)
        names = sorted(groups, key=lambda name: -groups[name][0].data)[:MIXED]
        ways: list[list[tuple[float, dict[tuple[str, int], int]]]] = []
        for name in names:
            leaves = groups[name]
            data = min(max(leaves[0].data, 0.05), 0.95)
            ways.append([(1 - data, {})])
            for nth in range(max(leaf.shape.count(size) for leaf in leaves)):
                axes = {}
                for leaf in leaves:
                    those = [axis for axis, length in enumerate(leaf.shape) if length == size]
                    axes[self._at(leaf)] = those[min(nth, len(those) - 1)]
                ways[-1].append((data * AXIS_WEIGHTS[min(next(iter(axes.values())), 3)], axes))
        mixes = [
            (math.prod(weight for weight, _ in mix), {k: v for _, axes in mix for k, v in axes.items()})
            for mix in itertools.product(*ways)
        ]
        mixes.sort(key=lambda mix: -mix[0])
        return [axes for _, axes in mixes[:MIXES]]

    @staticmethod
    def _at(leaf: _Leaf) -> tuple[str, int]:
        return leaf.argument, leaf.index

    @functools.cached_property
    def _free(self) -> list[_Leaf]:
        """The leaves of which the user has not said how they lie."""
        return [leaf for leaf in self.leaves if self._at(leaf) not in self.forced]

    @functools.cached_property
    def _scores(self) -> dict[int, float]:
        """How much each size looks like the batch's, by how many data-like arguments have it.

        Axis 0 counts most. Of an argument its leaves count on average: a model has many, and many of one
        size. So do tables that others say the rows of.
        """
        leaves = self._free
        leading = {leaf.shape[0]: leaf.argument for leaf in leaves if leaf.shape}
        tables = {leaf.argument for leaf in leaves} & {*self.facts.looked_up_parameters}
        number = collections.Counter(leaf.argument for leaf in leaves)
        number.update({name: number[name] * (len(tables) - 1) for name in tables})
        common = self._common(leaves)
        data = [leaf.shape for leaf in leaves if leaf.data > 0.2 and leaf.shape]
        # Whoever tries a function on one example has it in all arrays of the batch.
        least = 1 if len(data) > 1 and all(shape[0] == 1 for shape in data) else 2
        score: dict[int, float] = {}
        for leaf in leaves:
            likely: dict[int, float] = {}
            for axis, size in enumerate(leaf.shape):
                if size >= least:
                    weight = (leaf.data + 0.01) * AXIS_WEIGHTS[min(axis, 3)] / number[leaf.argument]
                    elsewhere = leading.get(size, leaf.argument)
                    if (leaf.argument, size) in common or (
                        axis and elsewhere not in (leaf.argument, *self.differentiated)
                    ):
                        # [T, B, D] beside a carried state of [B, H]: the batch leads there.
                        weight *= 2
                    likely[size] = max(weight, likely.get(size, 0.0))
            for size, weight in likely.items():
                score[size] = score.get(size, 0.0) + weight
        return score

    @property
    def likeliest(self) -> int:
        """The size that looks most like the batch's, however small; 0 for none, or if the user named it."""
        named = any(axis is not None for axis in self.forced.values())
        return 0 if named else max(self._scores, key=lambda size: self._scores[size], default=0)

    def _sizes(self) -> list[int]:
        """Sizes that may be the batch's, the likeliest first.

        One too small for the proof stays only as the likeliest of all, to be given more rows or refused as
        such; it comes last where it is that but for being small.
        """
        steps = {size for leaf in self._free if leaf.data > 0.2 for size in self._steps(leaf)}
        score = {}
        for size, likely in self._scores.items():
            # A batch is large enough, and mostly one that devices share evenly.
            suits = 0.5 if size < self.enough else 0.8 if size % self.enough else 1
            score[size] = likely * suits * (STEPS if size in steps else 1)
        first, *others = sorted(score, key=lambda size: (size != 1, -score[size])) or [0]
        if not first:
            return []
        found = [first, *(size for size in others if size >= self.enough)][:4]
        return found if self.likeliest in found else [*found, self.likeliest]

    def few(self) -> Roles | None:
        """What divides all that looks like data along its first axis, which is too short for the proof.

        None where that axis is gone through step by step, or where a batch of features may lie along the
        next: (microbatches, batch, features).
        """
        data, size = [leaf for leaf in self.leaves if leaf.data > 0.2 and leaf.shape], self.likeliest
        if not data or dict(self.facts.pmap_in_axes) or not 1 < size < self.enough:
            return None
        first, *others = {leaf.shape[1:2] for leaf in data}
        is_batch = not others and first >= (self.enough,) and any(len(leaf.shape) > 2 for leaf in data)
        if is_batch or any(leaf.shape[0] != size or size in self._steps(leaf) for leaf in data):
            return None
        return self._roles({self._at(leaf): 0 for leaf in data})

    def _steps(self, leaf: _Leaf) -> set[int]:
        """The numbers of steps that depend on each other along axes of a leaf."""
        return self.steps.get(self._at(leaf), set())

    @staticmethod
    def _common(leaves: Sequence[_Leaf]) -> set[tuple[str, int]]:
        """By argument, sizes that all its arrays have, first in some of several axes and second in others."""
        shapes: dict[str, list[tuple[int, ...]]] = collections.defaultdict(list)
        for leaf in leaves:
            if leaf.shape:
                shapes[leaf.argument].append(leaf.shape)
        return {
            (argument, size)
            for argument, rows in shapes.items()
            for size in set(rows[0])
            if all(size in row for row in rows)
            and any(len(row) > 1 and row[0] == size for row in rows)
            and any(row[0] != size == row[1] for row in rows if len(row) > 1)
        }

    def _traces(self, chosen: dict[tuple[str, int], int]) -> int:
        """A number of rows in place of the given one that the function takes; 0 where none is found."""
        place, axis = next(iter(chosen.items()))
        size = self._shape(place)[axis]
        errors = []
        # A function may insist on a multiple of some number of rows; that of a few may be all of them.
        several = [max(2, size // 2) if size > 2 else 1, size * 2 // 3, size // 3]
        if size > MULTIPLE and size % MULTIPLE:
            # What is traced so is the derivation's reference.
            several.insert(0, size - size % MULTIPLE)
        for rows in dict.fromkeys((*several, 2 * size)):
            error = self._error(chosen, rows)
            if error is None:
                self.grows |= size < rows and size < self.enough
                return rows
            errors.append(error)
        self.trace_error = self.trace_error or errors[0]
        return 0

    def _error(self, chosen: dict[tuple[str, int], int], rows: int) -> protocol.Raised | None:
        """What the function raises with so many rows of what is divided; None where it takes them."""
        asked = protocol.Trace(self._roles(chosen).request(), rows)
        return self.session.ask(asked, "tracing the function with other rows").error

    def _loose(self, chosen: dict[tuple[str, int], int], rows: int) -> set[tuple[str, int]]:
        """Leaves that may keep all their rows while the others lose some: nothing ties them to the batch.

        All of `chosen` may have so many `rows`: where one is left out, that tells, and no other number need.
        """
        if len(chosen) < 2 or len(chosen) > 24:
            return set()
        loose = {
            place
            for place in chosen
            if self.forced.get(place) is None
            and self._error({p: a for p, a in chosen.items() if p != place}, rows) is None
        }
        return loose if len(loose) < len(chosen) else set(sorted(loose)[1:])

    def without_batch(self) -> Roles:
        """Every argument whole on every device."""
        return self._roles({})

    def _roles(self, chosen: dict[tuple[str, int], int]) -> Roles:
        axes: dict[str, dict[int, int]] = {}
        why = dict(self.why)
        for (name, index), axis in sorted(chosen.items()):
            axes.setdefault(name, {})[index] = axis
            size = self._shape((name, index))[axis]
            why.setdefault(name, f"axis {axis} is the batch of {size}")
        for name in self.described:
            why.setdefault(name, "no batch axis")
        wrapped = tuple(name for name in self.statics if not self.described[name]["hashable"])
        return Roles(axes, self.statics, frozenset(self.keys), why, tuple(self.accepted), self.typed, wrapped)


def holds_state(argument: Described) -> bool:
    """Whether an argument is made like a state or a model: it has parts called ``params`` or ``kernel``."""
    parts = {part for leaf in argument["leaves"] for part in re.findall(r"\w+", leaf["path"])[1:]}
    return not parts.isdisjoint(PARTS_OF_STATE)


def are_integers(argument: Described) -> bool:
    """Whether an argument has integers or truth values alone: spins and boards do, parameters do not."""
    arrays = [leaf for leaf in argument["leaves"] if leaf["category"] == "array" and leaf["shape"]]
    return bool(arrays) and all(leaf["dtype"].startswith(("int", "uint", "bool")) for leaf in arrays)


def has_rows(argument: Described, *, at_one_axis: bool = False) -> bool:
    """Whether the arrays of an argument have a size in common as one of their first two, as layers have not.

    Beside what is (time, batch, …), a carried state is (batch, …); and beside a layer (8, 16) one that is
    (16, 4): such have none `at_one_axis`.
    """
    shapes = [
        leaf["shape"][:2] for leaf in argument["leaves"] if leaf["category"] == "array" and leaf["shape"]
    ]
    common = {size for size in shapes[0] if all(size in shape for shape in shapes)} if shapes else set()
    # Layers from and to one width, (8, 16) and (16, 8), have both sizes, and each at either axis.
    apart = {size for size in common if len({shape.index(size) for shape in shapes}) > 1}
    return not shapes or bool(common - apart) or (len(apart) == 1 and not at_one_axis)
