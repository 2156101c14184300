"""Try role assignments, the likeliest first, until observing confirms one; make the plan of it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from jax_pmap.drift import outdated
from jax_pmap.emit.beside import Neighbourhood
from jax_pmap.emit.places import Body, Branch, inside, place
from jax_pmap.emit.weave import FOLD
from jax_pmap.inputs.load import Loaded, load
from jax_pmap.model import Argument, Backend, Guard, Plan, Refusal, RefusalError, Request, Role, Sync, refused
from jax_pmap.options import no_argument
from jax_pmap.planning.axis import with_axis
from jax_pmap.planning.callables import (
    constant_source,
    decides,
    only_given_whole,
    undecided_constants,
    unknown,
)
from jax_pmap.planning.coupling import not_looked_into, shortened, way_out
from jax_pmap.planning.folds import find_folds
from jax_pmap.planning.layers import named
from jax_pmap.planning.merge import merge_neighbours
from jax_pmap.planning.mutation import check_mutation
from jax_pmap.planning.no_batch import no_batch, with_enclosed
from jax_pmap.planning.observe import Observation, Observer
from jax_pmap.planning.plan import chain, is_literal, plan_arguments, plan_outputs
from jax_pmap.planning.roles import RoleFinder, Roles
from jax_pmap.planning.structure import check_structure
from jax_pmap.reading.facts import FunctionFacts
from jax_pmap.reading.target import Target
from jax_pmap.reading.text import function_text
from jax_pmap.session import Session, error_details, error_span, first_line

#: Refusals of explicit collectives that the compiler's global view does not share.
COMPILER_CAN = frozenset({"JP043", "JP051", "JP053", "JP054"})
#: Assignments of roles that are observed before giving up.
CANDIDATES = 4
#: Assignments that are looked at, with those along which the inputs are too small to be split.
LOOKED_AT = 12
#: What observing confirmed: the observation, the static values of each variant, the values that every
#: static argument was tried with, and the branches that were reached.
Confirmed: TypeAlias = (
    "tuple[Observation, tuple[dict[str, str], ...], dict[str, tuple[str, ...]], frozenset[int]]"
)
#: Devices of the largest proof, which the example batch must fill.
LARGEST = 8
#: The part of one device's work that each of several may do at most where arguments are gathered.
MOST_OF_IT = 0.9
#: The same where devices go on with their part of what was gathered.
MOST_IN_SHARES = 0.75
#: The same where arguments are gathered and no result is split: what is shared is then hardly seen.
HALF = 0.5


@dataclass(frozen=True, slots=True)
class Observed:
    """A confirmed plan and what the proof needs beside it."""

    plan: Plan
    roles: Roles
    #: Values for static arguments (Python source by name), one dict for each variant observed.
    variants: tuple[dict[str, str], ...]


def find_plan(
    session: Session,
    target: Target,
    loaded: Loaded,
    request: Request,
    say: Callable[[str], None],
    saved: Plan | None = None,
) -> Observed:
    """The plan for the first assignment of roles that observing confirms.

    With `saved`, the collectives of that plan are the ones to start from.

    Raises:
        RefusalError: what stood in the way of the likeliest assignment, or JP040 when there was none.
    """
    facts = target.facts
    body = Body(function_text(target.parsed))
    finder = RoleFinder(session, target.source, facts, request, loaded.described)
    whole = reference_runs(session, target, finder)
    if whole["unfused"] and not session.unfused:
        # How XLA compiles is settled when its process starts.
        session.unfused = True
        session.restart()
        loaded = load(session, target, request, say)
        finder = RoleFinder(session, target.source, facts, request, loaded.described)
        whole = reference_runs(session, target, finder)
    target, axis_notes = with_axis(target, whole["axes"], request, session.directory)
    loaded = dataclasses.replace(loaded, notes=(*loaded.notes, *axis_notes))
    if whole["opaque"]:
        bad = whole["opaque"][0]
        raise refused(
            "JP044",
            f"output `result{bad['path']}` is a {bad['type']}; a function on several devices returns arrays",
            "Return only arrays and numbers; keep strings and functions outside",
            facts.span,
        )
    check_mutation(target, loaded)
    for change in whole["mutated"]:
        if not change["graph"]:
            raise refused(
                "JP049",
                f"`{facts.name}` changes its argument `{change['name']}` in place; on several devices that "
                "changes a copy",
                f"Return what changed instead of assigning it to a part of `{change['name']}`",
                facts.span,
            )
        if not change["same_structure"]:
            raise refused(
                "JP049",
                f"`{facts.name}` changes what `{change['name']}` is made of (new variables, another mode); "
                "only values can be handed back",
                f"Make the change before the call, for example `{change['name']}.train()`",
                facts.span,
            )
    mutated = tuple(change["name"] for change in whole["mutated"])
    session.ask("precision", "tracing the function", statics=finder.statics)
    first: Refusal | None = None
    blamed: Roles | None = None
    small: Refusal | None = None
    gathering: tuple[Roles, Confirmed] | None = None
    gathered: Roles | None = None
    observed = 0
    for roles in itertools.islice(finder.candidates(), LOOKED_AT):
        if observed >= CANDIDATES:
            break
        if gathered is not None and not fewer_split(roles, gathered):
            continue
        too_small = _batch_refusal(target, loaded, roles, request)
        if too_small is not None:
            # Of a size that only came up because the likelier one does not trace, nothing is said.
            small = small or (None if finder.trace_error else too_small)
            continue
        observed += 1
        observe = functools.partial(
            _observe_variants, session, target, body, roles, loaded, request, say, saved, mutated
        )
        outcome = observe(own_shares=False)
        if observed == 1 and request.backend is not Backend.JIT and couples(outcome, target.facts):
            other = observe(own_shares=True)
            if not isinstance(other, Refusal) and (other[0].share or 0.0) <= MOST_IN_SHARES:
                outcome = other
        if isinstance(outcome, Refusal):
            if first is None:
                first, blamed = outcome, roles
            if request.backend is not Backend.JIT or outcome.code not in COMPILER_CAN:
                continue
            outcome = _global_view(session, target, roles, loaded, whole, body)
        elif not depends_on_batch(outcome[0], target):
            first = first or Refusal(
                "JP055",
                f"no output of `{target.facts.name}` depends on the batch, so there is nothing to run in "
                "parallel",
                "Name the argument that holds the batch: --shard NAME",
                target.facts.span,
            )
            continue
        elif request.backend is not Backend.JIT and (
            in_vain(outcome[0], target.facts) or gathers_argument(outcome[0], target.facts)
        ):
            # A table that happens to have as many rows as the batch is better left whole.
            gathered = roles
            if in_vain(outcome[0], target.facts):
                if first is None:
                    first, blamed = gathered_in_vain(body, outcome[0]), roles
            else:
                gathering = roles, outcome
            continue
        return _plan(target, loaded, request, body, roles, whole, *outcome)
    if gathering is not None:
        return _plan(target, loaded, request, body, gathering[0], whole, *gathering[1])
    if small is not None and (first is None or first.code == "JP055"):
        # What can be split and is refused says more than what cannot; what splitting does not change, less.
        first = small
    if first is not None:
        first = with_enclosed(session, target, named(session, target, first, finder.statics, blamed))
        raise RefusalError(first)
    raise no_batch(session, target, loaded, finder.trace_error, finder.only_state)


def couples(outcome: Refusal | Confirmed, facts: FunctionFacts) -> bool:
    """Whether examples depend on each other in a way that is not, or not usefully, worked out in parallel."""
    if isinstance(outcome, Refusal):
        return outcome.code == "JP043"
    return in_vain(outcome[0], facts)


def gathers_argument(observation: Observation, facts: FunctionFacts) -> bool:
    """Whether an argument was split only to be put together again."""
    return any(sync.op == "all_gather" and is_argument(sync.value, facts) for sync in observation.syncs)


def is_argument(value: str, facts: FunctionFacts) -> bool:
    """Whether an expression is an argument or a part of one."""
    names = {parameter.name for parameter in facts.parameters}
    return re.split(r"\W", value)[0] in names and not re.search(r"[(@*/+-]", value)


def fewer_split(roles: Roles, other: Roles) -> bool:
    """Whether `roles` split what `other` splits, along the same axes, but for some that stay whole."""
    mine = {(name, *leaf) for name, leaves in roles.axes.items() for leaf in leaves.items()}
    return mine < {(name, *leaf) for name, leaves in other.axes.items() for leaf in leaves.items()}


def depends_on_batch(observation: Observation, target: Target) -> bool:
    """Whether anything in the result was sharded, or had to be made whole."""
    sharded = any(leaf["kind"].startswith("sharded") for leaf in observation.leaves)
    reduced = any(sync.op != FOLD for sync in observation.syncs)
    return sharded or bool(reduced or target.facts.collectives or target.own_axis)


def _global_view(
    session: Session, target: Target, roles: Roles, loaded: Loaded, whole: Mapping[str, Any], body: Body
) -> Confirmed:
    """What the jit backend needs of a function whose examples depend on each other.

    The compiler keeps the meaning; which outputs grow with the batch is asked by tracing with
    half of it. Branches are all taken as reached: nothing is woven into them.
    """
    axes = grown_axes(session, roles, batch_of(roles, loaded), whole)
    leaves = [
        {**leaf, "kind": "replicated" if axis is None else f"sharded {axis}"}
        for leaf, axis in zip(whole["out"], axes, strict=True)
    ]
    every = frozenset(branch.index for branch in body.branches)
    points = frozenset(expression.point for expression in body.expressions)
    observation = Observation((), tuple(leaves), whole["tree"], 0, every, points)
    return observation, ({},), {}, every


def grown_axes(session: Session, roles: Roles, size: int, whole: Mapping[str, Any]) -> list[int | None]:
    """Of each output leaf the axis that grows with the batch of `size`, found by tracing with half of it."""
    fewer = session.ask("trace", "tracing the function with fewer rows", **roles.request(), size=size // 2)
    if not fewer["traced"]:
        return [None] * len(whole["out"])
    axes: list[int | None] = []
    for leaf, other in zip(whole["out"], fewer["out"], strict=True):
        grown = [i for i, (a, b) in enumerate(zip(leaf["shape"], other["shape"], strict=True)) if a != b]
        axes.append(grown[0] if grown and leaf["shape"][grown[0]] == size else None)
    return axes


def reference_runs(session: Session, target: Target, finder: Any) -> dict[str, Any]:
    """Trace the function as given; Python numbers it needs as numbers become static."""
    facts = target.facts
    numbers = [
        name
        for name, argument in finder.described.items()
        if name not in finder.statics
        and argument["leaves"]
        and all(leaf["category"] == "int" for leaf in argument["leaves"])
    ]
    while True:
        answer = session.ask("trace", "tracing the function", axes={}, statics=finder.statics, size=None)
        if answer["traced"]:
            return answer
        error = answer["error"]
        if not answer["concrete"]:
            break
        if not numbers:
            raise refused(
                "JP052",
                f"`{facts.name}` needs the value of a traced array: {first_line(error['message'])}",
                "Use jnp.where or lax.cond for branches on data; arguments that choose branches: "
                "--static NAME",
                error_span(error, session.directory, target.source) or facts.span,
                error_details(error),
            )
        name = numbers.pop(0)
        finder.statics = (*finder.statics, name)
        finder.why[name] = "its value is needed while tracing"
    raise refused(
        "JP015",
        f"`{facts.name}` fails on these inputs: {error['type']}: {first_line(error['message'])}",
        outdated(error, session.directory)
        or "Give inputs it runs on: --inputs FILE::callable, or --arg NAME=SPEC",
        error_span(error, session.directory, target.source) or facts.span,
        error_details(error),
    )


def _batch_refusal(target: Target, loaded: Loaded, roles: Roles, request: Request) -> Refusal | None:
    """The batch must be large enough for the proof, and divisible where a count was asked for."""
    by_name = {argument["name"]: argument for argument in loaded.described}
    for name, leaves in roles.axes.items():
        for index, axis in leaves.items():
            leaf = by_name[name]["leaves"][index]
            size = leaf["shape"][axis]
            wanted = request.devices.number
            if wanted is not None and size % wanted:
                return Refusal(
                    "JP041",
                    f"`{leaf['path']}` has shape {tuple(leaf['shape'])}: its batch of {size} does not divide "
                    f"over {wanted} devices",
                    f"Give inputs with a batch of {max(1, round(size / wanted)) * wanted}, or another "
                    "--devices",
                    target.facts.span,
                )
            if size < (wanted or LARGEST):
                return Refusal(
                    "JP041",
                    f"`{leaf['path']}` has shape {tuple(leaf['shape'])}: a batch of {size} is smaller than "
                    f"the {wanted or LARGEST} devices of the proof",
                    f"Give example inputs with a batch of at least {2 * (wanted or LARGEST)}",
                    target.facts.span,
                )
    return None


def _observe_variants(
    session: Session,
    target: Target,
    body: Body,
    roles: Roles,
    loaded: Loaded,
    request: Request,
    say: Callable[[str], None],
    saved: Plan | None,
    mutated: tuple[str, ...],
    *,
    own_shares: bool,
) -> Refusal | Confirmed:
    """Observe with the given static values, then with each other value the body asks about.

    With `own_shares`, devices go on with their part of what is gathered.
    """
    by_name = {argument["name"]: argument for argument in loaded.described}
    restricted = {
        name: constant_source(argument, target.facts)
        for name, argument in by_name.items()
        if argument["none"] or name in roles.statics
    }
    undecided = undecided_constants(loaded.described, roles, target.facts)
    if undecided is not None:
        return undecided
    observer = Observer(
        session,
        body,
        target.facts,
        target.axis_name,
        itemsize(loaded),
        say,
        Neighbourhood(target),
        mutated,
        own_shares,
        [name for name, given in restricted.items() if given is not None],
    )
    size = batch_of(roles, loaded)
    # As many shards as leave two rows to each: the more they differ, the more is seen.
    count = next(count for count in (8, 4, 2, 1) if size >= 2 * count)
    # Which keys to fold does not depend on the plan; where a share fails without its collectives, it is
    # found when they are there.
    start = tuple(sync for sync in saved.syncs if sync.op != FOLD) if saved is not None else ()
    folds = find_folds(observer, roles, {}, count, start, settled=False)
    if isinstance(folds, Refusal):
        return folds
    base = observer.observe(roles, {}, count, (*start, *folds))
    if isinstance(base, Refusal):
        return base
    if request.backend is not Backend.JIT:
        check_structure(target, roles)
    syncs, reached, seen = base.syncs, base.reached, base.seen
    variants: list[dict[str, str]] = [{}]
    values: dict[str, tuple[str, ...]] = {}
    for name, given in restricted.items():
        argument = by_name[name]
        if given is None:
            continue
        values[name] = (given,)
        if name not in roles.statics or not is_literal(given):
            continue
        proved = [given]
        others = [value for asked, value in target.facts.compared if asked == name and value not in proved]
        if argument["type"] == "bool":
            others = [value for value in ("True", "False") if value != given]
        for value in dict.fromkeys(others):
            outcome = observer.observe(roles, {name: value}, count, syncs)
            if isinstance(outcome, Refusal) or kinds(outcome) != kinds(base):
                continue
            syncs, reached, seen = outcome.syncs, reached | outcome.reached, seen | outcome.seen
            variants.append({name: value})
            proved.append(value)
        values[name] = tuple(proved)
    unseen = unseen_side(body, seen, reached, values) or observer.watch.unseen(reached)
    if unseen is not None:
        return unseen
    syncs = minimal(observer, roles, count, syncs, target)
    for variant in variants:
        found = find_folds(observer, roles, variant, count, syncs)
        if isinstance(found, Refusal):
            return found
        syncs += found
    folds = tuple(sync for sync in syncs if sync.op == FOLD)
    free = frozenset(
        name
        for name, source in restricted.items()
        if source is None and only_given_whole(name, body, roles, base, folds)
    )
    asked = [n for n in unknown(restricted, target.facts, request.static) if n not in free]
    if asked:
        return decides(asked, by_name, target.facts)
    collectives = tuple(sync for sync in syncs if sync.op != FOLD)
    beside = [branch for _, branch in observer.watch.unreached(reached)]
    final = dataclasses.replace(
        base,
        syncs=(*merge_neighbours(body, collectives), *folds),
        # The compiler keeps the meaning of what was not seen, too.
        guards=() if request.backend is Backend.JIT else outermost_guards(beside),
        free=free,
    )
    return final, tuple(variants), values, reached


def outermost_guards(branches: Sequence[Branch]) -> tuple[Guard, ...]:
    """Guards of branches, but for those that stand in other ones."""

    def around(branch: Branch) -> bool:
        return any(
            inside(place(branch.span), place(other.span)) and branch.span.file == other.span.file
            for other in branches
            if other is not branch
        )

    return tuple(Guard(branch.span, branch.condition) for branch in branches if not around(branch))


def in_vain(observation: Observation, facts: FunctionFacts) -> bool:
    """Whether so much is gathered that every device does what one would: no parallel version."""
    share = observation.share or 0.0
    gathers = [sync for sync in observation.syncs if sync.op == "all_gather"]
    if not all(is_argument(sync.value, facts) for sync in gathers):
        return share >= 1  # What is gathered was made share by share.
    split = any(leaf["kind"].startswith("sharded") for leaf in observation.leaves)
    return share > (MOST_OF_IT if split or len(gathers) < len(observation.syncs) else HALF)


def gathered_in_vain(body: Body, observation: Observation) -> Refusal:
    """Equal, but of no use."""
    gathered = next(sync for sync in observation.syncs if sync.op == "all_gather")
    where = place(gathered.span)
    around = [e for e in body.expressions if inside(where, place(e.span)) and place(e.span) != where]
    text, span = min(
        ((e.text, e.span) for e in around),
        key=lambda found: len(found[0]),
        default=(gathered.value, gathered.span),
    )
    unopened = not_looked_into(text, span, observation.closed)
    if unopened is not None:
        return unopened
    share = observation.share or 1.0
    work = "all the work" if share >= 1 else f"{share:.0%} of the work"
    return Refusal(
        "JP043",
        f"`{shortened(text)}` couples the examples of the batch: with all of them gathered, each of "
        f"{LARGEST} devices would do {work} of one",
        way_out(text),
        span,
    )


def unseen_side(
    body: Body, seen: frozenset[int], reached: frozenset[int], values: Mapping[str, Any]
) -> Refusal | None:
    """A side of a conditional expression that no input took and that other inputs might take.

    `values` are the arguments whose values the emitted code restricts to those that were tried.
    """
    # What stands in a branch that was not reached is not emitted, or does nothing but raise.
    unreached = [place(branch.span) for branch in body.branches if branch.index not in reached]
    for side in body.expressions:
        if any(inside(place(side.span), branch) for branch in unreached):
            continue
        if side.side_of is None or side.point in seen or side.point in reached:
            continue
        names = set(re.findall(r"[^\W\d]\w*", side.side_of)) & body.local_names
        if not names <= set(values):
            return Refusal(
                "JP058",
                f"`{side.text}` is taken only where `{side.side_of}` turns out otherwise than on these "
                "inputs, so nothing in it was compared",
                "Write it as an if statement (its unseen branch then raises), decide it outside the "
                "function, or pass a bool or a string that decides it",
                side.span,
            )
    return None


def minimal(
    observer: Any, roles: Roles, count: int, syncs: tuple[Sync, ...], target: Target
) -> tuple[Sync, ...]:
    """Without the collectives that the body's own ones make unnecessary."""
    if not (target.facts.collectives or target.own_axis):
        return syncs
    kept = list(syncs)
    for sync in (sync for sync in syncs if sync.op != FOLD):
        fewer = [other for other in kept if other is not sync]
        outcome = observer.observe(roles, {}, count, fewer)
        if not isinstance(outcome, Refusal) and len(outcome.syncs) == len(fewer):
            kept = fewer
    return tuple(kept)


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


def batch_of(roles: Roles, loaded: Loaded) -> int:
    """Size of the batch."""
    by_name = {argument["name"]: argument for argument in loaded.described}
    for name, leaves in roles.axes.items():
        for index, axis in leaves.items():
            return int(by_name[name]["leaves"][index]["shape"][axis])
    return 0


def _plan(
    target: Target,
    loaded: Loaded,
    request: Request,
    body: Body,
    roles: Roles,
    whole: Mapping[str, Any],
    observation: Observation,
    variants: tuple[dict[str, str], ...],
    values: dict[str, tuple[str, ...]],
    reached: frozenset[int],
) -> Observed:
    facts = target.facts
    donated = [name for name in facts.donated_parameters if name not in roles.statics] + [*request.donate]
    for name in request.donate:
        if name not in (known := [p.name for p in facts.parameters]):
            raise no_argument("donate", name, known, f"`{facts.name}`", facts.span)
    arguments = plan_arguments(facts, loaded.described, roles, values, donated)
    output_axes, outputs = plan_outputs(observation, facts, whole["out"])
    notes = [*loaded.notes, *_notes(arguments, observation), *_mode_notes(loaded.described)]
    if observation.share is not None and request.backend is not Backend.JIT:
        notes.append(
            f"what is gathered is worked on by every device: each of {LARGEST} does {observation.share:.0%} "
            "of the work of one"
        )
    for name, callee in facts.donated_elsewhere:
        if name not in donated:
            notes.append(f"`{callee}` donates `{name}`, `{facts.name}` does not; --donate {name} would")
    for name in request.donate:
        if name not in facts.donated_parameters:
            notes.append(f"`{name}` is donated: the arrays passed for it cannot be used again after the call")
    if not depends_on_batch(observation, target):
        notes.append(
            "the results are equal, but whether the devices share the work is up to the compiler: no result "
            "is split over them, and the function cannot be written with explicit collectives"
        )
    unreached = [
        branch
        for branch in body.branches
        if branch.index not in reached
        and not branch.harmless
        # Values that decide it are held to those that were tried.
        and (branch.tested is None or not branch.tested & body.local_names <= set(values))
    ]
    guards = (*outermost_guards(unreached), *observation.guards)
    return Observed(
        Plan(
            target=f"{target.source.shown_path}::{target.source.qualname}",
            axis_name=target.axis_name,
            arguments=arguments,
            syncs=observation.syncs,
            output_axes=output_axes,
            outputs=outputs,
            devices=request.devices,
            guards=guards,
            notes=tuple(notes),
            assumed_inputs=loaded.assumed,
            mutated=tuple(change["name"] for change in whole["mutated"]),
            kept=tuple((path, name) for path, name in whole["kept"]),
            chain=chain(
                loaded.described,
                roles,
                observation.tree,
                outputs,
                facts.returned_names,
                [change["name"] for change in whole["mutated"]],
            ),
            source_hash=function_text(target.parsed).digest,
        ),
        roles,
        variants,
    )


def _mode_notes(described: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What the plan does not hold for: a model in training has random numbers and statistics of its own."""
    for argument in described:
        if argument["modes"]:
            yield (
                f"`{argument['name']}` had {', '.join(argument['modes'])}: the proof holds for this mode; in "
                "another, draws and statistics may need other collectives"
            )


def _notes(arguments: tuple[Argument, ...], observation: Observation) -> list[str]:
    notes = []
    for argument in arguments:
        if len(argument.proved_values) > 1 or (
            argument.proved_values and argument.proved_values != ("None",)
        ):
            allowed = " and ".join(argument.proved_values)
            notes.append(
                f"`{argument.name}` was tried with {allowed}; the emitted function takes no other value"
            )
        elif argument.partition:
            constants = [x.path for x in argument.leaves if x.role is Role.STATIC and not x.value]
            if not constants:
                continue
            some = ", ".join(f"`{path}`" for path in constants[:3]) + (", …" if len(constants) > 3 else "")
            notes.append(
                f"{some} {'is' if len(constants) == 1 else 'are'} no array and static: the proof holds for "
                "the value given; one that reduces differently may need other collectives"
            )
        elif argument.name in observation.free:
            notes.append(
                f"`{argument.name}` is static, and given nothing but what is the same on every device: "
                "another one needs no other collectives"
            )
        elif argument.static:
            notes.append(
                f"`{argument.name}` is static: the proof holds for the value it had; one that reduces "
                "differently may need other collectives"
            )
    extremes = dict.fromkeys(sync.op for sync in observation.syncs if sync.op in ("pmax", "pmin"))
    if extremes:
        ops = " and ".join(f"jax.lax.{op}" for op in extremes)
        notes.append(f"{ops} may drop a NaN that jnp.max and jnp.min would return; the proof has none in it")
    return notes
