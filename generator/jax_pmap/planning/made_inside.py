"""Batches that a function makes itself: indices or noise drawn from a key, a slice of a data set, a grid.

What is made so, of what every device has whole, is whole on every device too, and each goes on with its own
rows of it (`OWN_SHARE`). Where such values begin is told by sizes: the smallest expressions of which an array
has an axis that nothing in them has. That dividing them is right, observing confirms, as with arguments.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from jax_pmap.emit.places import Body, Statement, inside, place
from jax_pmap.model import OWN_SHARE, OWN_SIZE, Refusal, RefusalError, Request, Span, Sync, refused
from jax_pmap.options import split_shard
from jax_pmap.planning.benefit import HALF, MOST_OF_IT, depends_on_batch, is_gathered
from jax_pmap.planning.decide import Observation
from jax_pmap.planning.events import Event
from jax_pmap.planning.gathering import Onward
from jax_pmap.planning.roles import LARGEST_COUNT, Roles
from jax_pmap.planning.variants import Case, Confirmed, observe_variants
from jax_pmap.worker.protocol import Row

#: Rows from which on something made inside may be a batch, where nobody says that it is.
ROWS = 8
#: And those of a minibatch of one among the arguments.
ROWS_OF_PART = 4
#: Device counts that the proof may take.
COUNTS = (8, 4, 2, 3, 6, 5, 7)
#: Sizes that are tried.
TRIED = 4
#: The part of the most numbers that values of one size have, from which on another size is tried beside it.
LEAST_SHARE = 0.05
#: How many times as many numbers as a batch has are more than its rows in another order.
MANY_TIMES = 8
#: The part of one device's work that sending rows to each other counts for.
SENDING = 0.02


@dataclass(frozen=True, slots=True)
class Group:
    """What a function makes with one number of rows."""

    rows: int
    syncs: tuple[Sync, ...]
    #: Numbers in all values that have so many rows.
    numbers: int
    #: Rows that are made in all, and numbers, of the value with the most.
    total: int
    made: int
    #: Numbers of rows of which each has so many, as sequences have positions, where those began before.
    within: frozenset[int]

    def is_part_of(self, batch: Sequence[tuple[Sequence[int], int]]) -> bool:
        """Whether it has the rows of a minibatch of a batch: shapes of leaves, each with its axis.

        Of trajectories, (time, batch, …) or (batch, time, …), these are often rows of both, put one behind
        the other.
        """
        pairs = Counter(tuple(shape[:2]) for shape, axis in batch if axis == 0 and len(shape) > 1)

        def divides(shape: Sequence[int], axis: int) -> bool:
            is_trajectory = axis == 1 or pairs[tuple(shape[:2])] > 1
            both = math.prod(shape[:2]) if is_trajectory and self.rows != shape[axis] else 0
            return any(self.rows < size and size % self.rows == 0 for size in (shape[axis], both))

        return any(divides(shape, axis) for shape, axis in batch)


@dataclass(frozen=True, slots=True)
class Found:
    """What dividing values where they are made came to."""

    roles: Roles
    outcome: Confirmed | Refusal

    @property
    def share(self) -> float:
        """The part of one device's work that each does."""
        return math.inf if isinstance(self.outcome, Refusal) else self.outcome.observation.work

    @property
    def gathers(self) -> bool:
        """Whether rows are sent to each other."""
        return isinstance(self.outcome, Confirmed) and is_gathered(self.outcome.observation)

    @property
    def cost(self) -> float:
        """That part, and what sending rows to each other counts for."""
        return self.share + (SENDING if self.gathers else 0.0)

    def begins_with(self, syncs: Sequence[Sync]) -> bool:
        """Whether what others divide is divided here, along whatever axis."""
        return {sync.span for sync in self.roles.made} == {sync.span for sync in syncs}


def begins_inside(body: Body, observation: Observation) -> bool:
    """Whether a function makes something with rows that every device has whole."""
    return bool(_Made([body], observation.events).groups())


def named_inside(body: Body, texts: Sequence[str], arguments: Sequence[str]) -> tuple[str, ...]:
    """Those of ``--shard`` that name what is no argument and gets its value inside the function."""
    local = {name for statement in body.statements.values() for name, _ in statement.names}
    return tuple(text for text in texts if split_shard(text)[0] in local - {*arguments})


class Inside:
    """Looks for what a function makes itself that devices can divide."""

    def __init__(self, case: Case, whole: Roles) -> None:
        """`whole` are the roles with no batch among the arguments."""
        self.case, self.whole = case, whole
        observer = case.observer(case.target.axis_name)
        self.made = _Made(observer.bodies, observer.traced(whole).events)
        if not self.made.groups():
            # A function that only calls what draws the batch: in the same file, or in another one.
            observer.open_called()
            if len(observer.bodies) > 1:
                self.made = _Made(observer.bodies, observer.traced(whole).events)

    def named(self, texts: Sequence[str], roles: Roles) -> Found:
        """The division of what the user names, beside the batch that `roles` have among the arguments.

        Raises:
            RefusalError: JP007 or JP041 where that cannot be divided.
        """
        return self._tried(roles, [self.made.named(self.case, text) for text in texts])

    def of_rows(self, rows: int) -> Found | None:
        """The division of what is made with so many rows; None where nothing is.

        Of minibatches of a given size that is: rows of the batch among the arguments, which every device
        has whole then, since how many minibatches there are is known from all of it.
        """
        groups = [each for each in self.made.groups(laid_out=True) if each.rows == rows]
        return self._tried(self.whole, groups) if groups else None

    def best(
        self, roles: Roles | None = None, batch: Roles | None = None, *, gathered: bool = False
    ) -> Found | None:
        """The division that leaves each device the least work; None where nothing begins inside.

        What has as many rows as the batch of the `roles` is divided with that, if it can be. The rows
        of a `batch` among the arguments, put in another order, are none that are made here, but minibatches
        of them are; nor are all of them one after the other, where a plan in which they are `gathered` is
        right. What was taken for a batch is none where the function makes so many more numbers: the mean of
        plans that it draws, say.
        """
        leaves = _batches(self.case, batch)
        most = max((math.prod(shape) for shape, _ in leaves), default=math.inf)
        all_rows = max((shape[axis] for shape, axis in leaves if gathered), default=math.inf)

        def is_made_here(group: Group) -> bool:
            part = group.is_part_of(leaves)
            other = part or group.made >= MANY_TIMES * most
            fits = group.rows >= (ROWS_OF_PART if part else ROWS) and group.total < all_rows
            return fits and (group.made < most or (other and not gathered))

        groups = [*filter(is_made_here, self.made.groups(ROWS_OF_PART))]
        tried: list[Found] = []
        sizes = {shape[axis] for shape, axis in _batches(self.case, roles)}
        equal = [group for group in groups if group.rows in sizes]
        if roles is not None and equal:
            tried.append(self._tried(roles, equal))
        rows, all_of_batch = {group.rows for group in groups}, {shape[axis] for shape, axis in leaves}

        def order(group: Group) -> tuple[bool, bool, bool, int]:
            # As many as the batch has may be the order of its rows, and minibatches are taken in that. As few
            # as minibatches may be are rather how many of these there are.
            few = group.rows < ROWS
            return few, bool(group.within & rows), group.rows in all_of_batch, -group.numbers

        groups = sorted(groups, key=order)[:TRIED]
        for i, group in enumerate(groups):
            # Rows and their positions begin in one place, and positions that are divided see each other.
            if all(each.gathers and each.begins_with(group.syncs) for each in tried if each.share <= HALF):
                tried.append(self._alone_or_with(group, groups[i + 1 :]))
        best = min(tried, key=lambda found: found.cost, default=None)
        if best is None or not best.gathers:
            return best
        along = [each.outcome for each in tried if each.begins_with(best.roles.made)]
        refused = next((each for each in along if isinstance(each, Refusal)), None)
        return dataclasses.replace(best, roles=dataclasses.replace(best.roles, passed_over=refused))

    def _alone_or_with(self, first: Group, others: Sequence[Group]) -> Found:
        """The division of one group, and with it of others where that leaves less work to each device.

        Points inside and on the border of a domain are drawn apart, and not as many of each.
        """
        chosen, best = [first], self._tried(self.whole, [first])
        if isinstance(best.outcome, Refusal) and (other := self.made.with_own_positions(first)) is not None:
            chosen, best = [other], self._tried(self.whole, [other])
        for other in others:
            if isinstance(best.outcome, Refusal):
                break
            apart = {x.span for x in other.syncs}.isdisjoint(x.span for each in chosen for x in each.syncs)
            evenly = len(shared_evenly(math.gcd(best.roles.rows, other.rows))) > 1
            if apart and evenly and other.numbers >= LEAST_SHARE * first.numbers:
                found = self._tried(self.whole, [*chosen, other])
                if found.cost < best.cost:
                    chosen, best = [*chosen, other], found
        return best

    def _tried(self, roles: Roles, groups: Sequence[Group]) -> Found:
        """What observing shows where the values of some groups are divided."""
        syncs = tuple(sync for group in groups for sync in group.syncs)
        rows = math.gcd(*(group.rows for group in groups))
        roles = dataclasses.replace(roles, made=syncs, rows=rows)
        found = Found(roles, observe_variants(self.case, roles))
        if _couples(found.outcome):
            # Of two that are paired, one is gathered, and the rows of the other are shared out.
            other = Found(roles, observe_variants(self.case, roles, Onward.OWN_SHARES))
            found = min(found, other, key=lambda each: each.cost)
        outcome = found.outcome
        if isinstance(outcome, Confirmed):
            refusal = _useless(self.case, outcome, syncs)
            outcome = outcome if refusal is None else refusal
        return Found(roles, outcome)


def _batches(case: Case, roles: Roles | None) -> list[tuple[list[int], int]]:
    """Shapes of the leaves that hold a batch, each with its axis."""
    by_name = {argument["name"]: argument for argument in case.loaded.described}
    return [
        (by_name[name]["leaves"][index]["shape"], axis)
        for name, leaves in (roles.axes.items() if roles is not None else ())
        for index, axis in leaves.items()
    ]


def _couples(outcome: Confirmed | Refusal) -> bool:
    """Whether rows depend on each other, so that they are gathered or nothing helps."""
    if isinstance(outcome, Refusal):
        return outcome.code == "JP043"
    return is_gathered(outcome.observation)


def _useless(case: Case, outcome: Confirmed, syncs: Sequence[Sync]) -> Refusal | None:
    """The refusal of a division that the results do not depend on, or that leaves most of the work to all."""
    observation, value = outcome.observation, syncs[0].value
    if not depends_on_batch(observation, case.target):
        return Refusal(
            "JP055",
            f"no result of `{case.target.facts.name}` depends on the rows of `{value}`",
            "Name what holds the batch: --shard NAME, an argument or a variable of the function",
            syncs[0].span,
        )
    share = observation.work
    if share > MOST_OF_IT:
        return Refusal(
            "JP055",
            f"with `{value}` divided where it is made, each of {LARGEST_COUNT} devices would do {share:.0%} "
            "of the work of one",
            "Draw with one key for each example, `jax.vmap` over `jax.random.split(key, n)`, so that the "
            "draws are divided too; or pass the batch as an argument",
            syncs[0].span,
        )
    return None


class _Made:
    """The values of functions, and where sizes begin."""

    def __init__(self, bodies: Sequence[Body], events: Sequence[Row]) -> None:
        """`events` are what a trace showed of what stands in the `bodies`."""
        self.bodies = bodies
        self.expressions = {each.point: each for body in bodies for each in body.expressions}
        #: What each point showed the first time.
        self.first: dict[int, Event] = {}
        for data in events:
            self.first.setdefault(data["point"], Event(data))
        self.times = Counter(data["point"] for data in events)
        #: Names that an assignment takes apart what it is given to, by point: ``x, key = draw(key)``.
        self.unpacked = {
            point: (name, statement)
            for body in bodies
            for statement in body.statements.values()
            for name, point in statement.names
            if len(statement.names) > 1 and statement.kind == "assign" and statement.value in self.expressions
        }
        #: Names that a function inside reads.
        self.reads: dict[str, set[str]] = {}
        for body in bodies:
            for statement in body.statements.values():
                scope = body.scopes[statement.scope].name if statement.scope != body.scope.index else ""
                self.reads.setdefault(scope, set()).update(statement.reads)

    def groups(self, fewest: int = ROWS, *, laid_out: bool = False) -> list[Group]:
        """What may be divided where it is made, by the number of rows; with arguments that are `laid_out`."""
        found: dict[int, list[tuple[int, int]]] = {}
        for expression in self.expressions.values():
            # An array that is there already is no batch of this call.
            if expression.text.replace(".", "").isidentifier() or expression.is_display:
                continue
            if not laid_out and self._lays_out(expression.point):
                continue
            for axis, rows in self._begins(expression.point, fewest):
                found.setdefault(rows, []).append((expression.point, axis))
        begun, made = {point for places in found.values() for point, _ in places}, {*found}
        for point, (_, statement) in self.unpacked.items():
            assert statement.value is not None
            # What a parameter is given has rows where it is made.
            known = made if self._is_parameter(statement) else set()
            if begun.isdisjoint((statement.value, *self._parts(statement.value))):
                for axis, rows in self._begins(point, fewest):
                    if rows not in known:
                        found.setdefault(rows, []).append((point, axis))
        return [self._group(rows, each) for rows, each in found.items()]

    def with_own_positions(self, group: Group) -> Group | None:
        """`group` with positions in the share where it has those in the whole: ``x[jnp.arange(n), labels]``.

        That is, of ``jnp.arange(n)`` it is the number ``n`` that is divided. None where there is no such.
        """
        every = [each for body in self.bodies for each in (*body.expressions, *body.free)]
        syncs = []
        for sync in group.syncs:
            size = re.fullmatch(r"[\w.]*\barange\(\s*([^\W\d][\w.]*)\s*\)", sync.value)
            at = place(sync.span)
            found = [e for e in every if size and e.text == size[1] and inside(place(e.span), at)]
            syncs.append(Sync(OWN_SIZE, found[0].text, "wrap", found[0].span) if found else sync)
        return dataclasses.replace(group, syncs=tuple(syncs)) if (*syncs,) != group.syncs else None

    def named(self, case: Case, text: str) -> Group:
        """What the variable of ``NAME:AXIS`` is made of."""
        name, axis = split_shard(text)
        span = case.target.facts.span
        for statement in (each for body in self.bodies for each in body.statements.values()):
            points = dict(statement.names)
            point = points[name] if points.get(name) in self.unpacked else statement.value
            value = self.first.get(point) if point is not None else None
            if name not in points or value is None or point is None:
                continue
            shapes = [leaf["shape"] for leaf in value.leaves if leaf["category"] in ("array", "key")]
            sizes = {shape[axis] for shape in shapes if -len(shape) <= axis < len(shape)}
            span = statement.span
            is_apart = len(points) == 1 or point in self.unpacked
            if is_apart and len(sizes) == 1 and len(shapes) == len(value.leaves):
                (rows,) = sizes
                if len(shared_evenly(rows)) < 2:
                    raise _uneven(name, rows, span)
                return self._group(rows, [(point, axis % min(map(len, shapes)))])
        raise refused(
            "JP007",
            f"--shard {text}: `{name}` is no array, or tuple of arrays, with rows along axis {axis} where it "
            "gets its value",
            "Name a variable that is assigned once, or an argument",
            span,
        )

    def _begins(self, point: int, fewest: int = ROWS) -> list[tuple[int, int]]:
        """(axis, size) along which the value at a point has rows, as nothing in the expression has them."""
        event = self.first.get(point)
        if event is None or not event.whole or not event.arrays or len(event.arrays) != len(event.leaves):
            return []
        every = zip(*(leaf["shape"] for leaf in event.leaves), strict=False)
        alike = [(axis, sizes[0]) for axis, sizes in enumerate(every) if len({*sizes}) == 1]
        fit = [each for each in alike if each[1] >= fewest and len(shared_evenly(each[1])) > 1]
        if not fit:
            return []
        given = self.unpacked[point][1].value if point in self.unpacked else point
        parts = [self.first[each] for each in self._parts(given or point) if each in self.first]
        below = [leaf["shape"] for each in parts for leaf in each.leaves]
        known = {size for shape in below for size in shape}
        shape = event.leaves[0]["shape"]
        new = [each for each in fit if each[1] not in known or _cut_off(shape, each[0], below)]
        return [(axis, size) for size, axis in {size: axis for axis, size in reversed(new)}.items()]

    def _is_parameter(self, statement: Statement) -> bool:
        """Whether a statement takes a parameter of its function apart: ``x, y = batch``."""
        assert statement.value is not None
        parameters = self._body_of(statement.index).scopes[statement.scope].parameters
        return self.expressions[statement.value].text in parameters

    def _body_of(self, statement: int) -> Body:
        return next(body for body in self.bodies if statement in body.statements)

    def _lays_out(self, point: int) -> bool:
        """Whether an expression begins with ``x.reshape(12, 2)`` of an argument: no rows are made anew."""
        match = re.match(r"(?:(\w+)\.|[\w.]+\.)reshape\((\w*)", self.expressions[point].text)
        return match is not None and not self.bodies[0].parameters.isdisjoint(match.groups())

    def _parts(self, point: int) -> Iterator[int]:
        """Points of what an expression is made of: of its parts, and of the names that it reads anywhere."""
        whole = self.expressions[point]
        yield from (each for each in self._inside(whole.span) if each != point)
        names: set[str] = set()
        new = {*re.findall(r"[^\W\d]\w*", whole.text)}
        while new:
            names |= new
            new = {read for name in new for read in self.reads.get(name, ())} - names
        # Another function means other values by these names.
        own = self._body_of(whole.statement)
        here = own.statements[whole.statement]
        scopes = [
            scope.index
            for scope in own.scopes.values()
            if scope.name in names or inside(place(here.span), place(scope.span))
        ]
        for scope in own.scopes.values():
            if scope.name in names:
                yield from self._inside(scope.span)
        for name in names:
            binding = [(s, p) for s in own.statements.values() for each, p in s.names if each == name]
            seen = [(s, p) for s, p in binding if s.scope in scopes and s.index != here.index]
            for statement, point in seen:
                if not _is_bound_anew(here, statement, seen, own):
                    yield point
                    value = self.first.get(-1 if statement.value is None else statement.value)
                    if value is None or not value.arrays:
                        # Of ``n = x.shape[0]`` the rows are those of `x`, and of a lambda what it makes.
                        yield from self._inside(statement.span)

    def _inside(self, span: Span) -> Iterator[int]:
        """Points of the expressions in some lines."""
        for each in self.expressions.values():
            if inside(place(each.span), place(span)) and each.span.file == span.file:
                yield each.point

    def _sync(self, point: int, axis: int) -> Sync:
        paths = tuple(leaf["path"] for leaf in self.first[point].leaves)
        if point in self.unpacked:
            name, statement = self.unpacked[point]
            return Sync(OWN_SHARE, name, "after", statement.span, paths, axis=axis)
        expression = self.expressions[point]
        return Sync(OWN_SHARE, expression.text, "wrap", expression.span, paths, axis=axis)

    def _group(self, rows: int, places: Sequence[tuple[int, int]]) -> Group:
        """What is made at some points, with `rows` along an axis."""
        shapes = [leaf["shape"] for event in self.first.values() if event.whole for leaf in event.arrays]
        # Of a list of slices of one array, all of them.
        made = [
            (self.times[point] * times, shape, axis)
            for point, axis in places
            for shape, times in Counter(tuple(leaf["shape"]) for leaf in self.first[point].leaves).items()
        ]
        return Group(
            rows,
            tuple(self._sync(point, axis) for point, axis in places),
            sum(math.prod(shape) for shape in shapes if rows in shape),
            max(times * math.prod(shape[: axis + 1]) for times, shape, axis in made),
            max(times * math.prod(shape) for times, shape, _ in made),
            frozenset(shape[0] for _, shape, axis in made if axis) - {rows, *self._begun(places)},
        )

    def _begun(self, places: Sequence[tuple[int, int]]) -> set[int]:
        """All sizes that begin where one does."""
        return {size for point, _ in places for _, size in self._begins(point)}


def _cut_off(shape: list[int], axis: int, below: Sequence[list[int]]) -> bool:
    """Whether a reshape of one of some shapes makes an axis that is as long as another one is.

    As of minibatches of 8 sequences of 8 steps, out of 16 sequences: ``x.reshape(8, 2, 8)``.
    """
    ends = {math.prod(shape[:axis]), math.prod(shape[: axis + 1])}
    if any(each.count(shape[axis]) >= shape.count(shape[axis]) for each in below):
        return False  # A part of the expression makes it.
    reshaped = [each for each in below if math.prod(each) == math.prod(shape)]
    return any(not ends <= {*accumulate(each, operator.mul, initial=1)} for each in reshaped)


def _is_bound_anew(
    here: Statement, other: Statement, binding: Sequence[tuple[Statement, int]], body: Body
) -> bool:
    """Whether a name that `here` reads means something else there than what an `other` statement binds.

    So it is where that is done later, or one of those `binding` it has bound it in between. What a round of a
    loop binds is read in the next.
    """
    at = place(here.span)
    loops = [each for each in body.branches if each.condition.startswith(("for ", "while "))]
    if other.scope != here.scope or any(inside(at, place(loop.span)) for loop in loops):
        return False
    between = (s for s, _ in binding if s.scope == here.scope and s.block in here.blocks)
    return place(other.span) > at or any(place(other.span) < place(s.span) < at for s in between)


def shared_evenly(rows: int) -> list[int]:
    """Counts of devices that share so many rows evenly."""
    return [count for count in COUNTS if rows and rows % count == 0]


def multiples_around(rows: int, count: int) -> str:
    """The numbers of rows next to `rows` that `count` devices share: ``"24 or 32"`` of 30 and 8."""
    less = rows // count * count
    return f"{less} or {less + count}" if less else str(count)


def _uneven(name: str, rows: int, span: Span) -> RefusalError:
    return refused(
        "JP041",
        f"`{name}` has {rows} rows, which no two numbers of devices share evenly",
        "Make a multiple of 8 of them, or of 12",
        span,
    )


def check_devices(roles: Roles, request: Request, span: Span) -> None:
    """Refuse a number of devices that does not share what is made inside.

    Raises:
        RefusalError: JP041.
    """
    count, option = request.devices.number, "--devices"
    if request.mesh:
        count = next(axis.size for axis in request.mesh if axis.name == request.axis_name)
        option = "--mesh"
    if count and roles.rows % count:
        raise refused(
            "JP041",
            f"`{roles.made[0].value}` has {roles.rows} rows, which do not divide over {count} devices",
            f"Make {multiples_around(roles.rows, count)} of them, or give another {option}",
            span,
        )
