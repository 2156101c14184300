"""Observe one assignment of roles, with every value of the static arguments that the body asks about."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax_pmap.emit.callees import CallGraph
from jax_pmap.emit.places import Body, Branch, Expression, inside, place
from jax_pmap.inputs.load import Loaded
from jax_pmap.model import (
    FOLD,
    OWN_SHARE,
    Backend,
    Guard,
    Listing,
    Plan,
    Refusal,
    RefusalError,
    Request,
    Say,
    Sync,
)
from jax_pmap.planning.benefit import MOST_IN_SHARES, NEARLY_ALL, in_vain
from jax_pmap.planning.callables import (
    constant_paths,
    constant_source,
    decides,
    function_paths,
    only_given_whole,
    told_apart,
    undecided_constants,
    unknown,
)
from jax_pmap.planning.coupling import fails_in_any_map, shortened
from jax_pmap.planning.decide import Observation
from jax_pmap.planning.events import PARTIAL
from jax_pmap.planning.folds import find_folds
from jax_pmap.planning.gathering import Onward
from jax_pmap.planning.identities import identities
from jax_pmap.planning.listing import listings
from jax_pmap.planning.merge import merge_neighbours
from jax_pmap.planning.observe import Observer, Spent
from jax_pmap.planning.parts import on_whole
from jax_pmap.planning.plan import is_literal
from jax_pmap.planning.reference import batch_of
from jax_pmap.planning.roles import Described, Roles
from jax_pmap.planning.structure import check_structure
from jax_pmap.planning.written import own_sizes, with_positions
from jax_pmap.problems import error_span
from jax_pmap.reading.decorators import receiver_of
from jax_pmap.reading.target import Target
from jax_pmap.session import Session
from jax_pmap.worker import protocol
from jax_pmap.worker.protocol import NOT_TAKEN, Constants, FixedForm, ReturnsAlike, unless


@dataclass(frozen=True, slots=True)
class Case:
    """A target with its inputs, and what was asked about it."""

    session: Session
    target: Target
    #: The user's functions beside the target, those too that running has shown.
    call_graph: CallGraph
    body: Body
    loaded: Loaded
    request: Request
    say: Say
    #: The plan whose collectives to start from.
    saved: Plan | None
    #: Arguments that are changed in place.
    mutated: tuple[str, ...]
    #: Calls that set the mode of arguments ahead of anything else.
    switches: tuple[str, ...] = ()
    #: Of leaves of arguments, how large their integers of 64 bits may be.
    fitting: Mapping[str, int] = dataclasses.field(default_factory=dict)
    #: Libraries whose layers are synchronised, and whether in maps; see `Plan.layers`.
    layers: tuple[str, ...] = ()
    in_maps: bool = False
    spent: Spent = dataclasses.field(default_factory=Spent)

    def observer(self, axis_name: str, onward: Onward = Onward.ALL, settled: Sequence[str] = ()) -> Observer:
        """An observer of the target, whose collectives go along an axis."""
        return Observer(
            self.session,
            self.body,
            self.target.facts,
            axis_name,
            itemsize(self.loaded),
            self.say,
            self.call_graph,
            self.mutated,
            onward,
            settled,
            self.spent,
            self.check_in_map,
        )

    def check_in_map(self, statics: Sequence[str]) -> None:
        """Refuse a function that runs in no map over devices, whatever it is given; looked at once.

        Raises:
            RefusalError: JP068.
        """
        if self.request.backend is Backend.JIT or self.spent.in_map:
            return
        self.spent.in_map = True
        asked = protocol.RunsInMap(tuple(statics))
        raised = self.session.ask(asked, "tracing the function in a map")
        facts = self.target.facts
        span = error_span(raised, self.session.directory) or facts.span
        unmapped = fails_in_any_map(facts.name, raised, span) if raised else None
        if unmapped is not None:
            raise RefusalError(unmapped)


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What observing confirmed."""

    observation: Observation
    #: Static values of each variant: Python source by name.
    variants: tuple[dict[str, str], ...]
    #: The values that every static argument was tried with.
    values: dict[str, tuple[str, ...]]
    #: Branches that were reached.
    reached: frozenset[int]
    #: The functions that were traced, with their values.
    listings: tuple[Listing, ...]
    #: Of how many groups of rows each device has its part; see `Plan.minibatches`.
    minibatches: int = 1
    #: What the emitted code has to check of the parts of arguments.
    forms: tuple[FixedForm, ...] = ()


def observe_variants(case: Case, roles: Roles, onward: Onward = Onward.ALL) -> Refusal | Confirmed:
    """Observe with the given static values, then with each other value the body asks about."""
    target, loaded, request = case.target, case.loaded, case.request
    by_name = {argument["name"]: argument for argument in loaded.described}
    restricted = {
        name: constant_source(argument, target.facts)
        for name, argument in by_name.items()
        if argument["none"] or name in roles.statics
    }
    told = {
        name: rows
        for name in unknown(restricted, target.facts, request.static)
        if not by_name[name]["callable"]
        and (rows := told_apart(case.session, name, case.call_graph)) is not None
    }
    # A clip by the norm of all gradients needs a sum where each device has its own part of these.
    in_parts = request.backend is Backend.SHARD_MAP and bool(request.mesh)
    functions = function_paths(loaded.described, roles) if in_parts else {}
    same = identities(case.session, [*constant_paths(loaded.described, roles), *functions])
    undecided = undecided_constants(loaded.described, roles, target.facts, same)
    if undecided is not None:
        return undecided
    if untold := {name for path, name in functions.items() if path not in same}:
        return decides(sorted(untold), by_name, target.facts)

    def observing() -> Observer:
        settled = [*told, *(name for name, given in restricted.items() if given is not None)]
        made = case.observer(target.axis_name, onward, settled)
        made.where_read = case.request.accumulate > 1
        return made

    observer = observing()
    observer.open_called(roles.made)
    size = batch_of(roles, loaded)
    # As many shards as leave two rows to each: the more they differ, the more is seen.
    even = [count for count in (8, 4, 2, 1) if size >= 2 * count]
    # What the function makes itself has as many rows on every call, and so has a batch whose rows it says.
    as_many = bool(roles.rows) or roles.fixed
    count = next((count for count in (*even, 3, 5, 7) if not as_many or size % count == 0), 1)
    # Which keys to fold does not depend on the plan; where a share fails without its collectives, it is
    # found when they are there.
    saved = on_whole(case.saved.syncs) if case.saved is not None else ()
    saved = tuple(sync for sync in saved if sync.op != FOLD)
    start = (*(sync for sync in roles.made if sync not in saved), *saved)
    starts = [start]
    if roles.fixed and case.saved is None:
        sizes = own_sizes(observing(), roles, count, start)
        observer.open_called(sizes)
        starts = [(*start, *each) for each in with_positions(observer, sizes)]
    outcomes = (_observed(observer, roles, count, each) for each in starts)
    base = next(outcomes)
    for other in outcomes if isinstance(base, Refusal) else ():
        base = other if not isinstance(other, Refusal) else base
    if isinstance(base, Refusal):
        return base
    if onward is Onward.OWN_SHARES and (base.share or 0.0) > NEARLY_ALL:
        # Devices have their part of nothing that takes work: it is not worth finding out what else it needs.
        return Confirmed(base, ({},), {}, base.reached, ())
    explicit = request.backend is not Backend.JIT
    forms: tuple[FixedForm, ...] = ()
    if explicit:
        forms = check_structure(
            target, roles, loaded.described, observer.watch.guards, _value_in(case.session)
        )
    found = _observe_others(observer, roles, base, size, count, restricted, by_name)
    syncs = at_work(observer, roles, count, found.syncs, found.observations)
    syncs = minimal(observer, roles, count, syncs, target)
    if (direct := without_detours(observer, roles, count, syncs)) is not None:
        syncs, base = direct.syncs, dataclasses.replace(base, share=direct.share, work=direct.work)
    for variant in found.variants:
        folded = find_folds(observer, roles, variant, count, syncs)
        if isinstance(folded, Refusal):
            return folded
        syncs += folded
    folds = tuple(sync for sync in syncs if sync.op == FOLD)
    free = frozenset(
        name
        for name, source in restricted.items()
        if source is None and not in_parts and only_given_whole(name, case.body, roles, base, folds)
    )
    asked = [n for n in unknown(restricted, target.facts, request.static) if n not in free and n not in told]
    same |= identities(case.session, asked)
    if not same.keys() >= {*asked}:
        unlike = [name for name in asked if name not in same]
        return decides(unlike, by_name, target.facts, receiver_of(target.parsed))
    collectives = tuple(sync for sync in syncs if sync.op != FOLD)
    unreached = [branch for _, branch in observer.watch.unreached(found.reached)]
    around = target.facts.closure_names
    sides = unseen_sides(case.body, found.seen, found.reached, found.values | told, around)
    unseen = (*outermost_guards(unreached), *side_guards((*sides, *observer.watch.unseen(found.reached))))
    final = dataclasses.replace(
        base,
        syncs=(*merge_neighbours(case.body, collectives), *folds),
        # The compiler keeps the meaning of what was not seen, too.
        guards=() if request.backend is Backend.JIT else unseen,
        free=free,
        told={name: rows for name, rows in told.items() if name not in free},
        same=same,
        callees=tuple(case.call_graph.callees.values()),
    )
    # The placements are those with the final collectives, where these are not the ones first found.
    settled = base if syncs == base.syncs else observer.observe(roles, {}, count, syncs)
    listed = listings(observer, (base if isinstance(settled, Refusal) else settled).events)
    return Confirmed(final, found.variants, found.values, found.reached, listed, roles.minibatches, forms)


def _value_in(session: Session) -> Callable[[str, str], str | None]:
    """Finds the source of what an expression reads of an argument, where it is a plain constant."""

    def value(name: str, expression: str) -> str | None:
        asked = Constants(name, (expression,))
        return session.ask(asked, "reading what an argument has")[expression]

    return value


def _observed(observer: Observer, roles: Roles, count: int, start: Sequence[Sync]) -> Observation | Refusal:
    """What is observed from the collectives in `start` on, with the keys folded that these need."""
    folds = find_folds(observer, roles, {}, count, start, settled=False)
    if not isinstance(folds, Refusal):
        return observer.observe(roles, {}, count, (*start, *folds))
    # A permutation of all rows is drawn whole once the number of rows is, and its key is then no example's.
    found = observer.observe(roles, {}, count, start)
    refused = isinstance(found, Refusal) or in_vain(found, observer.facts)
    return folds if refused else found


@dataclass(frozen=True, slots=True)
class _Tried:
    """What the values of static arguments showed together."""

    syncs: tuple[Sync, ...]
    reached: frozenset[int]
    seen: frozenset[int]
    variants: tuple[dict[str, str], ...]
    values: dict[str, tuple[str, ...]]
    observations: tuple[Observation, ...]


def _observe_others(
    observer: Observer,
    roles: Roles,
    base: Observation,
    size: int,
    count: int,
    restricted: Mapping[str, str | None],
    by_name: Mapping[str, Described],
) -> _Tried:
    """Observe with every value that the body compares a static argument with, and both of a bool.

    And with the whole batch of `size`, where `count` shards leave some of it out. One with which the results
    are other kinds of values, with which the function fails, or with which a place needs another collective
    (the gradient of a sum, where the others' is of a mean) or needs none, is left out: the emitted file does
    not take it.
    """
    syncs, reached, seen = base.syncs, base.reached, base.seen
    observations = [base]
    # The batch as it is may go another way than what is left of it when it is cut to fit the shards.
    whole = next((fewer for fewer in range(count, 1, -1) if size % fewer == 0), count)
    if whole != count:
        outcome = observer.observe(roles, {}, whole, syncs)
        if not isinstance(outcome, Refusal) and kinds(outcome) == kinds(base):
            syncs, reached, seen = outcome.syncs, reached | outcome.reached, seen | outcome.seen
            observations.append(outcome)
    # Of what the other sizes show, a branch that one of them takes is no part: the run takes none of them.
    for rows in observer.session.ask(protocol.TellSizes(roles.request()), "tracing the function"):
        # A device with a single row of the batch, or of each minibatch, may be traced to another program.
        dealt = count * roles.minibatches
        observer.rows = max(rows // dealt, 2) * dealt
        # It may take the size that was told, and not the multiple of the devices next to it.
        found = unless(NOT_TAKEN, observer.observe, roles, {}, count, syncs)
        if isinstance(found, Observation) and kinds(found) == kinds(base):
            syncs = found.syncs
    observer.rows = None
    variants: list[dict[str, str]] = [{}]
    values: dict[str, tuple[str, ...]] = {}
    for name, given in restricted.items():
        if given is None:
            continue
        values[name] = (given,)
        if name not in roles.statics or not is_literal(given):
            continue
        proved = [given]
        others = [value for asked, value in observer.facts.compared if asked == name and value not in proved]
        if by_name[name]["type"] == "bool":
            others = [value for value in ("True", "False") if value != given]
        for value in dict.fromkeys(others):
            # A flag that adds metrics to the results is told by one trace, where all that follows takes many.
            asked = ReturnsAlike(roles.request(), {name: value})
            if unless(NOT_TAKEN, observer.session.ask, asked, "tracing the function") is False:
                continue
            found = unless(NOT_TAKEN, observer.observe, roles, {name: value}, count, syncs)
            if not isinstance(found, Observation) or kinds(found) != kinds(base) or clash(syncs, found.syncs):
                continue
            if not _fit(observer, roles, count, syncs, found.syncs, variants):
                continue
            syncs, reached, seen = found.syncs, reached | found.reached, seen | found.seen
            observations.append(found)
            variants.append({name: value})
            proved.append(value)
        values[name] = tuple(proved)
    return _Tried(syncs, reached, seen, tuple(variants), values, tuple(observations))


def _fit(
    observer: Observer,
    roles: Roles,
    count: int,
    known: Sequence[Sync],
    syncs: Sequence[Sync],
    variants: Iterable[dict[str, str]],
) -> bool:
    """Whether the collectives that one more value leads to are right with the values before it.

    Where one value makes a sum whole and the next has it as it is, a collective behind both is right for one.
    """
    if set(syncs) == set(known):
        return True
    for variant in variants:
        again = observer.observe(roles, variant, count, syncs)
        if isinstance(again, Refusal) or set(again.syncs) != set(syncs):
            return False
    return True


def clash(known: Collection[Sync], found: Iterable[Sync]) -> bool:
    """Whether a value that one collective makes whole gets another one too."""
    return any(
        (new.value, new.span, new.where) == (old.value, old.span, old.where)
        and new.op != old.op
        and not set(new.paths).isdisjoint(old.paths)
        for new in found
        if new not in known
        for old in known
    )


def unseen_sides(
    body: Body,
    seen: frozenset[int],
    reached: frozenset[int],
    values: Mapping[str, Any],
    around: Collection[str] = (),
) -> Iterator[Expression]:
    """Sides of conditional expressions that no input took and that other inputs might take.

    `values` are the arguments whose values the emitted code restricts to those that were tried. The variables
    of functions `around` are others wherever these are called anew.
    """
    # What stands in a branch that was not reached is not emitted, or does nothing but raise.
    unreached = [place(branch.span) for branch in body.branches if branch.index not in reached]
    for side in body.expressions:
        if any(inside(place(side.span), branch) for branch in unreached):
            continue
        if side.side_of is None or side.point in seen or side.point in reached:
            continue
        names = set(re.findall(r"[^\W\d]\w*", side.side_of)) & {*body.local_names, *around}
        if not names <= set(values):
            yield side


def side_guards(sides: Iterable[Expression]) -> tuple[Guard, ...]:
    """Guards of sides of expressions, but for those that stand in other ones."""
    every = list(sides)
    return tuple(
        Guard(side.span, f"`{shortened(side.text)}`, decided by `{shortened(side.side_of or '')}`", True)
        for side in every
        if not any(
            inside(place(side.span), place(other.span)) and side.span.file == other.span.file
            for other in every
            if other is not side
        )
    )


def minimal(
    observer: Observer, roles: Roles, count: int, syncs: tuple[Sync, ...], target: Target
) -> tuple[Sync, ...]:
    """Without the collectives that the body's own ones, which stand further on, make unnecessary."""
    if not target.facts.collectives and not target.own_axis:
        return syncs
    kept = list(syncs)
    for sync in (sync for sync in syncs if sync.op != FOLD):
        fewer = [other for other in kept if other is not sync]
        outcome = observer.observe(roles, {}, count, fewer)
        if not isinstance(outcome, Refusal) and len(outcome.syncs) == len(fewer):
            kept = fewer
    return tuple(kept)


def without_detours(
    observer: Observer, roles: Roles, count: int, syncs: tuple[Sync, ...]
) -> Observation | None:
    """What is seen without parts of what is whole that are gathered again in a later statement; None of none.

    Of a permutation, devices would go on with their part, take these rows of the batch, and gather the rows
    to make minibatches of them: left whole, it takes one gather less.
    """
    found: Observation | None = None
    for part in (sync for sync in syncs if sync.op == OWN_SHARE and sync not in roles.made):
        kept = syncs if found is None else found.syncs
        later = [sync for sync in kept if sync.op == "all_gather" and sync.span.line > part.span.line]
        for gathers in _of_one_line(later):
            fewer = tuple(sync for sync in kept if sync not in (part, *gathers))
            outcome = observer.observe(roles, {}, count, fewer)
            if isinstance(outcome, Refusal) or len(outcome.syncs) > len(fewer):
                continue
            if outcome.work <= MOST_IN_SHARES:
                found = outcome
                break
    return found


def _of_one_line(gathers: Sequence[Sync]) -> Iterator[list[Sync]]:
    """All gathers of a line, then all but one: what a statement gathers first it may need."""
    for line in sorted({sync.span.line for sync in gathers}):
        found = [sync for sync in gathers if sync.span.line == line]
        yield found
        if len(found) > 1:
            yield from ([other for other in found if other is not each] for each in found)


def at_work(
    observer: Observer,
    roles: Roles,
    count: int,
    syncs: tuple[Sync, ...],
    observations: Sequence[Observation],
) -> tuple[Sync, ...]:
    """Without the collectives that were never seen to be taken of anything but what is whole already.

    A maximum or a mean may have been put around what turned out to need one further inside. Those that are
    there for what is differentiated are found again without them: where several are, each is done without
    beside the others, as the mean of a gradient beside that of what it is taken by.
    """

    def idle(sync: Sync, observations: Sequence[Observation]) -> bool:
        point = observer.point_of(sync)
        seen = [each.idle[point] for each in observations if point is not None and point in each.idle]
        return sync.op in PARTIAL and bool(seen) and all(seen)

    fewer = tuple(sync for sync in syncs if not idle(sync, observations))
    outcome = observer.observe(roles, {}, count, fewer) if fewer != syncs else None
    if outcome is None or isinstance(outcome, Refusal) or len(outcome.syncs) > len(syncs):
        return syncs
    back = [sync for sync in outcome.syncs if idle(sync, [outcome])]
    for sync in back if len(back) > 1 else []:
        others = tuple(other for other in outcome.syncs if other is not sync)
        found = observer.observe(roles, {}, count, others)
        if not isinstance(found, Refusal) and len(found.syncs) < len(outcome.syncs):
            outcome = found
    return outcome.syncs


def outermost_guards(branches: Sequence[Branch]) -> tuple[Guard, ...]:
    """Guards of branches, but for those that stand in other ones."""

    def around(branch: Branch) -> bool:
        return any(
            inside(place(branch.span), place(other.span)) and branch.span.file == other.span.file
            for other in branches
            if other is not branch
        )

    return tuple(Guard(branch.span, branch.condition) for branch in branches if not around(branch))


def kinds(observation: Observation) -> list[tuple[str, str]]:
    """Paths and kinds of the result's leaves."""
    return [(leaf["path"], leaf["kind"]) for leaf in observation.leaves]


def itemsize(loaded: Loaded) -> Callable[[str], int]:
    """Bytes of one element in the user's own precision, of dtypes observed in 64-bit mode."""
    wide = any(leaf["dtype"] in ("float64", "complex128") for a in loaded.described for leaf in a["leaves"])

    def size(dtype: str) -> int:
        if dtype == "bool":
            return 1
        bits = int(re.sub(r"\D", "", dtype.partition("_")[0].removeprefix("key")) or 32)
        return bits // 8 if wide or dtype not in ("float64", "complex128", "int64") else bits // 16

    return size
