"""Try role assignments, the likeliest first, until observing confirms one; make the plan of it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jax_pmap.emit.axes import used_axes
from jax_pmap.emit.callees import CallGraph
from jax_pmap.emit.context import sites_in
from jax_pmap.emit.places import Body
from jax_pmap.inputs.load import Loaded
from jax_pmap.model import OWN_SHARE, OWN_SIZE, Backend, Listing, Plan, Refusal, RefusalError, Request, Say
from jax_pmap.options import no_argument
from jax_pmap.planning.as_called import as_called
from jax_pmap.planning.axis import with_axis
from jax_pmap.planning.benefit import (
    HALF,
    MOST_IN_SHARES,
    MOST_OF_IT,
    QUARTER,
    depends_on_batch,
    gathered_in_vain,
    gathers_all,
    gathers_argument,
    in_vain,
    is_divided,
    is_gathered,
    may_gather_less,
)
from jax_pmap.planning.coupling import COUPLED
from jax_pmap.planning.decide import Observation
from jax_pmap.planning.effects import callback_notes
from jax_pmap.planning.gathering import Onward
from jax_pmap.planning.identities import captured_constants
from jax_pmap.planning.layers import (
    axes_of_maps,
    coupling,
    is_of_one,
    named,
    sites_of,
    to_synchronise,
    with_free_axis,
)
from jax_pmap.planning.listing import listing
from jax_pmap.planning.made_inside import (
    Found,
    Inside,
    begins_inside,
    check_devices,
    multiples_around,
    named_inside,
)
from jax_pmap.planning.meshes import on_mesh
from jax_pmap.planning.minibatches import (
    can_be_handed_out,
    cost,
    in_minibatches,
    minibatches_of,
    without_gathers,
)
from jax_pmap.planning.mutation import check_mutation, switches_ahead
from jax_pmap.planning.no_batch import enclosed_arrays, no_batch, other_axis, with_enclosed
from jax_pmap.planning.notes import plan_notes
from jax_pmap.planning.parts import in_parts
from jax_pmap.planning.plan import chain, plan_arguments, plan_outputs
from jax_pmap.planning.reference import batch_of, check_opaque, grown_axes, reference_runs
from jax_pmap.planning.repeats import check_repeats, or_changing
from jax_pmap.planning.roles import LARGEST_COUNT, RoleFinder, Roles, wanted_shares
from jax_pmap.planning.tensor import along_axis
from jax_pmap.planning.variants import Case, Confirmed, observe_variants, outermost_guards
from jax_pmap.reading.target import Target
from jax_pmap.session import Session
from jax_pmap.syntax.text import function_text
from jax_pmap.worker import protocol

#: Rows of shares with which a function is tried that does not take every number of them.
SMALL_SHARES = (1, 2, 3, 4, 6, 8, 12, 16)
#: Refusals of explicit collectives that the compiler's global view does not share.
COMPILER_CAN = COUPLED | {"JP051", "JP053", "JP054"}
#: Assignments of roles that are observed before giving up.
CANDIDATES = 4
#: Assignments that are looked at, with those along which the inputs are too small to be split.
LOOKED_AT = 12
#: Operations in the traces for ways that were refused, from which on no less likely one is looked at. That is
#: a minute for the longest functions; those of most never are as many.
MOST_TRACED = 300_000


@dataclass(frozen=True, slots=True)
class Observed:
    """A confirmed plan and what the proof needs beside it."""

    plan: Plan
    roles: Roles
    #: Values for static arguments (Python source by name), one dict for each variant observed.
    variants: tuple[dict[str, str], ...]
    #: The target and the functions it calls, with their values.
    listings: tuple[Listing, ...]


def find_plan(
    session: Session,
    target: Target,
    loaded: Loaded,
    request: Request,
    say: Say,
    saved: Plan | None = None,
    repeated: bool = False,
) -> Observed:
    """The plan for the first assignment of roles that observing confirms.

    With `saved`, the collectives of that plan are the ones to start from; `repeated` says that the example
    has been given more rows already.

    Raises:
        RefusalError: what stood in the way of the likeliest assignment, or JP040 when there was none; JP010
            where the search for one takes longer than the time limit.
    """
    with session.within_limit("looking for a plan", "Say what is divided (--shard NAME)"):
        case, finder, whole, inside = _prepared(session, target, loaded, request, say, saved)
        case = _with_layers(case, finder, whole)
        if inside or (saved is not None and saved.made):
            return _inside(case, finder, whole, inside)
        if not repeated and case.saved is None and not case.request.in_place:
            larger = _of_the_few(case, finder, target, loaded)
            if larger is not None:
                return larger
        tried = _Tried()
        if finder.only_state:
            tried.inside = Inside(case, finder.without_batch()).best()
            if tried.inside is not None and isinstance(tried.inside.outcome, Refusal):
                case.check_in_map(finder.statics)
        found = (
            _plan_inside(case, whole, tried)
            or _of_arguments(case, finder, whole, tried)
            or _made_inside(case, finder, whole, tried)
        )
        if found is None and not repeated and not case.request.in_place:
            found = _of_more_rows(case, finder, tried, target, loaded)
        if found is not None:
            # Of an example whose rows are repeated, that is told by what was given.
            return found if repeated else _with_several_rows(found, finder)
        return _synchronised_or_refused(case, finder, whole, tried)


def _prepared(
    session: Session, target: Target, loaded: Loaded, request: Request, say: Say, saved: Plan | None
) -> tuple[Case, RoleFinder, protocol.Traced, Sequence[str]]:
    """What is observed, who assigns its roles, its trace, and the local variables that are to be divided.

    Raises:
        RefusalError: whatever roles its arguments have, it has no parallel version.
    """
    body = Body(function_text(target.parsed))
    inside = named_inside(body, request.shard, [argument["name"] for argument in loaded.described])
    request = dataclasses.replace(request, shard=tuple(x for x in request.shard if x not in inside))
    finder = RoleFinder(session, target.facts, request, loaded.described)
    whole = reference_runs(session, target, finder)
    switches = () if request.in_place else switches_ahead(target, loaded)
    if switches:
        described = session.ask(protocol.Switch(switches), "switching modes").arguments
        loaded = dataclasses.replace(loaded, described=described)
        finder = RoleFinder(session, target.facts, request, loaded.described)
        whole = reference_runs(session, target, finder)
    called = as_called(session, target, finder, request, whole)
    if called.changed:
        whole = reference_runs(session, target, finder)
    for name, index, steps in whole.steps:
        finder.steps.setdefault((name, index), set()).add(steps)
    target, axis_notes = with_axis(target, whole.axes, request, session.directory)
    notes = [*called.notes, *axis_notes]
    loaded = dataclasses.replace(loaded, notes=(*loaded.notes, *notes))
    check_opaque(target, whole)
    check_mutation(target, loaded, whole.mutated)
    check_repeats(session, target, finder.statics)
    if request.backend is not Backend.JIT:
        callbacks = callback_notes(target, session.directory, whole.callbacks)
        loaded = dataclasses.replace(loaded, notes=(*loaded.notes, *callbacks))
    mutated = tuple(change.name for change in whole.mutated)
    call_graph = CallGraph(target, saved.callees if saved is not None else ())
    session.ask(protocol.Precision(finder.statics), "tracing the function")
    case = Case(
        session, target, call_graph, body, loaded, request, say, saved, mutated, switches, called.fitting
    )
    return case, finder, whole, inside


def _with_layers(case: Case, finder: RoleFinder, whole: protocol.Traced) -> Case:
    """The case with layers that take statistics of the batch they see told to take them over all devices.

    Where they are given what all devices have whole, that changes nothing. Of layers in a map, which may be
    over the examples, it is looked first whether it takes that.
    """
    saved = case.saved.layers if case.saved is not None else ()
    if sites := sites_in(saved):
        layers = to_synchronise(case.session, case.target, (), finder.statics, sites)
        return _told(case, case.target, layers, ())
    wanted = bool(saved) if case.saved is not None else not all(map(is_of_one, whole.layers))
    if not whole.layers or not wanted or case.request.backend is Backend.JIT:
        return case
    target = with_free_axis(case.target, case.request, whole.layers)
    layers = to_synchronise(case.session, target, whole.layers, finder.statics)
    return _told(case, target, layers, whole.layers) if layers else case


def _told(case: Case, target: Target, layers: tuple[str, ...], rows: Sequence[protocol.Layer]) -> Case:
    """The case with layers of some libraries, those of `rows`, that are told the axis of the target."""
    return dataclasses.replace(case, target=target, layers=layers, in_maps=bool(axes_of_maps(rows)))


def _plan_inside(case: Case, whole: protocol.Traced, tried: _Tried) -> Observed | None:
    """The plan that divides values where the function makes them, where that was confirmed."""
    if tried.inside is None or isinstance(tried.inside.outcome, Refusal):
        return None
    return _plan(case, tried.inside.roles, tried.inside.outcome, whole)


def _of_arguments(case: Case, finder: RoleFinder, whole: protocol.Traced, tried: _Tried) -> Observed | None:
    """The plan for the first roles of the arguments that are confirmed; what became of others is in `tried`.

    Raises:
        RefusalError: a refusal that no other roles would change.
    """
    for roles in itertools.islice(finder.candidates(), LOOKED_AT):
        if tried.observed >= CANDIDATES or (tried.refusal is not None and _took_long(case)):
            break
        # Of two sets of examples that are compared, the one or the other may be whole.
        of_others = tried.fallback is not None and finder.divides_other_data(roles, tried.fallback[0])
        if tried.better is not None and not tried.better(roles) and not of_others:
            continue
        too_small = _batch_refusal(case.target, case.loaded, roles, case.request)
        if too_small is not None:
            # Of a size that only came up because the likelier one does not trace, nothing is said.
            size = batch_of(roles, case.loaded)
            if tried.small is None and (not finder.trace_error or size == finder.likeliest):
                enough = wanted_shares(case.request) or LARGEST_COUNT
                if size >= enough and not tried.observed:
                    # The batch is known, and another axis that happens to divide is none.
                    raise RefusalError(too_small)
                tried.small, tried.few = too_small, roles
            continue
        if tried.layers is None and finder.divides_state(roles):
            # What looks like data is rather split with layers that take their statistics over all devices.
            told = _synchronised(case, tried, whole, finder)
            if told is not None:
                return told
        found = _try(case, roles, whole, tried)
        undivided = tried.refusal is not None and finder.divides_parameters(roles)
        undivided |= finder.only_state and tried.inside is not None
        if found is not None and undivided and is_divided(found.observation):
            # Derivatives by hidden units, that is, and the batch whole on every device.
            found = None
        in_vain = found is not None and found.observation.work > MOST_OF_IT
        if in_vain and tried.refusal is not None and finder.divides_state(roles):
            # Hidden units, say, while every device goes on with all examples, which depend on each other.
            found = None
        if found is not None and _leaves_more(found, tried.fallback):
            found = None
        if found is not None and case.saved is None:
            gathered, refused = is_gathered(found.observation), tried.refusal is not None
            if finder.is_unlikely(roles, gathered=gathered, refused=refused):
                # What is less to send may be meant, or looks more like it.
                tried.equal.append((roles, found))
                found = None
        if found is not None:
            return _chosen(case, finder, roles, found, whole)
        if tried.refusal is not None and tried.refusal.final:
            raise RefusalError(tried.refusal)
        if (lacking := _lacks_identity(case, tried)) is not None and not finder.divides_state(roles):
            raise RefusalError(_without_axis(_said(case, lacking, tried, finder), whole))
        if tried.refusal is not None and tried.observed == 1:
            case.check_in_map(finder.statics)
        parts = _parts_of_minibatches(case, finder, tried)
        if parts is not None:
            return _plan(case, *parts, whole)
        drawn = _drawn_from_it(case, finder, whole, tried)
        if drawn is not None:
            return drawn
    if tried.equal:
        roles, found = min(
            tried.equal, key=lambda each: (finder.divides_parameters(each[0]), *cost(each[1].observation))
        )
        if tried.fallback is None or not finder.divides_state(roles):
            return _chosen(case, finder, roles, found, whole)
    if tried.fallback is not None:
        roles, found = _or_along(case, finder, *tried.fallback)
        if roles is not tried.fallback[0]:
            return _plan(case, roles, found, whole)
    if tried.fixed is not None:
        if tried.blamed is not None and finder.divides_parameters(tried.blamed):
            # Where the code says a size of the batch, that tells more than what becomes of hidden units.
            tried.refusal = tried.blamed = None
        tried.refuse(*tried.fixed)
    return None


def _took_long(case: Case) -> bool:
    """Whether so much was traced already that none but the likeliest ways to divide a function are tried."""
    return case.spent.operations > MOST_TRACED


def _lacks_identity(case: Case, tried: _Tried) -> Refusal | None:
    """The refusal of the likeliest roles that have all collectives, and an argument not told from others.

    Which it is does not depend on what is split: less likely roles are not looked at.
    """
    refusal = tried.refusal
    if refusal is None or refusal.code != "JP053" or tried.observed != 1:
        return None
    return refusal if refusal.span == case.target.facts.span else None


def _chosen(
    case: Case, finder: RoleFinder, roles: Roles, found: Confirmed, whole: protocol.Traced
) -> Observed:
    """The plan of what was found, or of what divides the same in a better way."""
    roles, found = _or_along(case, finder, roles, found)
    return _plan(case, *_or_inside(case, finder, roles, found), whole)


def _leaves_more(found: Confirmed, fallback: tuple[Roles, Confirmed] | None) -> bool:
    """Whether every device does most of one's work where what gathers more has left it less to do.

    Of images and noise, both split, a few images are gathered to be shown; with the noise alone split, every
    device works on all images.
    """
    work = found.observation.work
    return work > HALF and fallback is not None and fallback[1].observation.work < work


def _parts_of_minibatches(case: Case, finder: RoleFinder, tried: _Tried) -> tuple[Roles, Confirmed] | None:
    """What divides minibatches of a size that is given, which does not fit the rows of a device.

    Asked for once, before axes of parameters are tried that happen to be long enough.
    """
    if not tried.minibatch or tried.observed > 1 or case.request.backend is Backend.JIT:
        return None
    found = Inside(case, finder.without_batch()).of_rows(tried.minibatch)
    if found is None or not isinstance(found.outcome, Confirmed):
        return None
    gathered = math.inf if tried.fallback is None else tried.fallback[1].observation.work
    return (found.roles, found.outcome) if found.share < gathered else None


def _drawn_from_it(case: Case, finder: RoleFinder, whole: protocol.Traced, tried: _Tried) -> Observed | None:
    """The plan that divides rows where they are drawn, of arguments that were split in vain.

    Asked for once, before fewer of these arguments are split.
    """
    if tried.gathering is None or tried.inside is not None or tried.observed > 1:
        return None
    roles, observation = tried.gathering
    if case.saved is None and begins_inside(case.body, observation):
        tried.inside = Inside(case, finder.without_batch()).best(roles, roles, gathered=True)
    return _plan_inside(case, whole, tried)


def _or_along(case: Case, finder: RoleFinder, roles: Roles, found: Confirmed) -> tuple[Roles, Confirmed]:
    """What was found, or what divides the same along another axis, gathers nothing and leaves less to do."""
    if case.saved is not None or not is_gathered(found.observation):
        return roles, found
    for other in finder.elsewhere(roles):
        too_small = _batch_refusal(case.target, case.loaded, other, case.request)
        outcome = observe_variants(case, other) if too_small is None else too_small
        if isinstance(outcome, Refusal) or not depends_on_batch(outcome.observation, case.target):
            continue
        if not is_gathered(outcome.observation) and outcome.observation.work < found.observation.work:
            return other, outcome
    return roles, found


def _or_inside(case: Case, finder: RoleFinder, roles: Roles, found: Confirmed) -> tuple[Roles, Confirmed]:
    """What was found, or what divides values where they are made, if a device then has less to do."""
    in_vain_split = gathers_all(found.observation, roles)
    whole_there = in_vain_split or found.observation.work > HALF or finder.divides_state(roles)
    if whole_there and case.saved is None and begins_inside(case.body, found.observation):
        batch = roles if in_vain_split else None
        other = Inside(case, finder.without_batch()).best(roles, batch, gathered=in_vain_split)
        if other is not None and isinstance(other.outcome, Confirmed):
            # What every device has whole need not be sent.
            unsent = in_vain_split and other.share <= HALF and not is_gathered(other.outcome.observation)
            if unsent or other.share < found.observation.work:
                return other.roles, other.outcome
    return roles, found


def _made_inside(case: Case, finder: RoleFinder, whole: protocol.Traced, tried: _Tried) -> Observed | None:
    """The plan that divides values where they are made, or that of the roles that have to do."""
    if tried.inside is None:
        gathered = tried.fallback is not None
        batch = tried.fallback[0] if tried.fallback is not None else tried.blamed
        if batch is not None and finder.divides_state(batch):
            batch = None
        made = Inside(case, finder.without_batch())
        tried.inside = made.best(tried.blamed, batch, gathered=gathered)
        found = _plan_inside(case, whole, tried)
        if found is not None:
            return found
    return None if tried.fallback is None else _plan(case, *tried.fallback, whole)


def _of_the_few(case: Case, finder: RoleFinder, target: Target, loaded: Loaded) -> Observed | None:
    """The plan for the example with its rows repeated, where all that looks like data has as few of them.

    Another axis that is long enough, of positions or pixels, takes long to be refused, and more rows are what
    is meant then. None where they do not lead to a plan that divides these rows and sends none.
    """
    roles = finder.few()
    if roles is None:
        return None
    more = _with_more_rows(target, loaded, case.session, case.request, _Tried(few=roles))
    if more is None:
        return None
    try:
        larger = find_plan(case.session, target, more, case.request, case.say, None, repeated=True)
        found = larger.roles.axes
        divided = all(found.get(name, {}).items() >= axes.items() for name, axes in roles.axes.items())
        if divided and all(sync.op != "all_gather" for sync in larger.plan.syncs):
            return _in_multiples(case, larger, more, settled=not finder.grows)
    except RefusalError:
        pass
    case.session.ask(protocol.TakeRowsBack(), "taking the rows as they were")
    return None


def _in_multiples(case: Case, larger: Observed, more: Loaded, *, settled: bool) -> Observed:
    """A plan for more rows than there are, for the multiples of rows that the function takes."""
    rows = 1 if settled else _multiple(case.session, larger.roles, batch_of(larger.roles, more))
    rows = math.lcm(rows, larger.plan.minibatches)
    return dataclasses.replace(larger, plan=dataclasses.replace(larger.plan, multiple_of=rows))


def _of_more_rows(
    case: Case, finder: RoleFinder, tried: _Tried, target: Target, loaded: Loaded
) -> Observed | None:
    """The plan for the example with its rows repeated: of the `target`, as it was `loaded`.

    Raises:
        RefusalError: what stood in the way, where the example as it is has too few rows.
    """
    session, request = case.session, case.request
    more = _with_more_rows(target, loaded, session, request, tried)
    if more is None:
        return None
    try:
        larger = find_plan(session, target, more, request, case.say, case.saved, repeated=True)
    except RefusalError:
        if tried.few is not None and tried.refusal is None:
            raise
        return None
    return _in_multiples(case, larger, more, settled=tried.refusal is None and not finder.grows)


def _synchronised_or_refused(
    case: Case, finder: RoleFinder, whole: protocol.Traced, tried: _Tried
) -> Observed:
    """The plan with layers that take their statistics over all devices, the last there is to try.

    Raises:
        RefusalError: what says most of why there is no plan.
    """
    session, target = case.session, case.target
    refusal = tried.refusal
    inside = None if tried.inside is None else tried.inside.outcome
    assert not isinstance(inside, Confirmed)
    if tried.small is not None and (refusal is None or refusal.code == "JP055"):
        # What can be split and is refused says more than what cannot; what splitting does not change, less.
        # A parameter with few rows is no batch that is too small, where rows are made inside.
        refusal = inside if finder.only_state and inside is not None else tried.small
    elif finder.only_state and inside is not None:
        # That it fails on a part of its parameters says less than why what it makes is not divided.
        of_parameters = refusal is not None and refusal.code == "JP068" and inside.code != "JP055"
        refusal = inside if inside.code == "JP051" or of_parameters else refusal
    if refusal is not None:
        told = None
        if refusal is tried.refusal:
            told = _synchronised(case, tried, whole, finder) or _with_neighbours(case, tried, whole)
        if told is None:
            raise RefusalError(_without_axis(_said(case, refusal, tried, finder), whole))
        return told
    if inside is not None and inside.code in COUPLED and not enclosed_arrays(session, target):
        if option := other_axis(case.loaded):
            hint = f"Name the batch where it is not along the first axis: {option}. {inside.hint}"
            inside = dataclasses.replace(inside, hint=hint)
        raise RefusalError(inside)
    kept = case.request.replicate
    refused_here = no_batch(session, target, case.loaded, finder.trace_error, kept, finder.only_state)
    if inside is not None:
        details = (*refused_here.refusal.details, inside.reason)
        raise RefusalError(dataclasses.replace(refused_here.refusal, details=details))
    raise refused_here


def _inside(case: Case, finder: RoleFinder, whole: protocol.Traced, named: Sequence[str]) -> Observed:
    """The plan that divides the values that the user `named`, or those of a saved plan, where they are made.

    Raises:
        RefusalError: what stood in the way.
    """
    saved, roles = case.saved, finder.without_batch()
    if case.request.shard or (saved is not None and any(used_axes(each.axes) for each in saved.arguments)):
        roles = next(finder.candidates(), roles)
    if named:
        found = Inside(case, roles).named(named, roles)
        roles, outcome = found.roles, found.outcome
    else:
        assert saved is not None
        made = tuple(sync for sync in saved.syncs if sync.op in (OWN_SHARE, OWN_SIZE))
        roles = dataclasses.replace(roles, made=made, rows=saved.made)
        outcome = observe_variants(case, roles)
    if isinstance(outcome, Refusal):
        raise RefusalError(outcome)
    return _plan(case, roles, outcome, whole)


def _with_more_rows(
    target: Target, loaded: Loaded, session: Session, request: Request, tried: _Tried
) -> Loaded | None:
    """The example with its rows repeated, where it is too small to be shared, or its shares do not suit."""
    refusal, roles = tried.refusal, tried.few
    wanted = request.devices.number or LARGEST_COUNT
    code = refusal.code if refusal is not None else ""
    if code == "JP068" or (code == "JP043" and _cuts_unevenly(session, tried.blamed, wanted)):
        # A share is then as many rows as the function was seen to take.
        roles, times = tried.blamed, wanted
    elif roles is not None and batch_of(roles, loaded) < wanted:
        # 2, 3, 4 and 8 devices have multiples of the rows that the example has.
        times = 3 * wanted
    else:
        return None
    assert roles is not None
    answer = session.ask(protocol.RepeatRows(roles.request(), times), "repeating rows")
    if answer is None:
        return None
    size = batch_of(roles, loaded)
    note = (
        f"the batch of {size} in the inputs has too few rows for the devices of the proof, or for what "
        f"`{target.facts.name}` does with a share: its rows are repeated, to {size * times}"
    )
    return dataclasses.replace(loaded, described=answer, notes=(*loaded.notes, note))


def _cuts_unevenly(session: Session, roles: Roles | None, devices: int) -> bool:
    """Whether the function cuts rows into groups that so many devices do not share, as minibatches of 6."""
    if roles is None:
        return False
    cut = session.ask(protocol.FindMinibatches(roles.request(), ()), "looking for minibatches")
    return any(rows % devices for rows in cut.groups)


def _multiple(session: Session, roles: Roles, size: int) -> int:
    """Of how many rows a share has to be a multiple: all numbers of rows that the function takes are."""
    taken = [size // LARGEST_COUNT]
    for rows in SMALL_SHARES:
        asked = protocol.Trace(roles.request(), rows)
        if session.ask(asked, "tracing the function with fewer rows").error is None:
            taken.append(rows)
    return math.gcd(*taken)


def _synchronised(case: Case, tried: _Tried, whole: protocol.Traced, finder: RoleFinder) -> Observed | None:
    """The plan in which layers that couple the examples take their statistics over all devices.

    None where the refusal so far has another cause, or they cannot be told to.

    Raises:
        RefusalError: that refusal, where they can, and it was not enough.
    """
    refusal, roles = tried.refusal, tried.blamed
    if refusal is None or roles is None or case.request.backend is Backend.JIT:
        return None
    if tried.layers is None:
        untold = () if case.layers else whole.layers
        tried.layers = coupling(case.session, case.target, refusal, untold)
    sites = None if tried.layers or case.layers else sites_of(case.session, refusal, roles)
    if not tried.layers and sites is None:
        return None
    said = _said(case, refusal, tried, finder)
    target = with_free_axis(case.target, case.request, tried.layers)
    layers = to_synchronise(case.session, target, tried.layers, roles.statics, sites)
    if not layers:
        return None
    told = _told(case, target, layers, tried.layers)
    again = _Tried()
    found = _try(told, roles, whole, again)
    if found is None and again.fallback is not None:
        found = again.fallback[1]
    if found is None:
        raise RefusalError(said)
    return _plan(told, roles, found, whole)


def _with_neighbours(case: Case, tried: _Tried, whole: protocol.Traced) -> Observed | None:
    """The plan that gathers what does not fit beside gathered values; None where that is no help."""
    refusal, roles = tried.refusal, tried.blamed
    if refusal is None or roles is None or refusal.code not in COUPLED or case.request.backend is Backend.JIT:
        return None
    if _took_long(case):
        return None
    outcome = observe_variants(case, roles, Onward.ALL_AND_NEIGHBOURS)
    if isinstance(outcome, Refusal) or in_vain(outcome.observation, case.target.facts):
        return None
    return _plan(case, roles, outcome, whole)


def _said(case: Case, refusal: Refusal, tried: _Tried, finder: RoleFinder) -> Refusal:
    """A refusal with all that is known of its cause: the layers that couple the examples, arrays around."""
    session, target, rows = case.session, case.target, tried.layers or ()
    said = with_enclosed(session, target, named(session, target, refusal, rows, tried.blamed))
    if refusal.code in {"JP041", *COUPLED} and (grouped := finder.several_rows()):
        hint = f"Of several rows for each example, make an axis: {grouped}. If there are none: "
        said = dataclasses.replace(said, hint=hint + said.hint[0].lower() + said.hint[1:])
    if _took_long(case) and not case.request.shard:
        long = (
            f"`{target.facts.name}` is long, and less likely ways to divide its arguments were not tried: "
            "name what is divided (--shard NAME), if it is something else"
        )
        said = dataclasses.replace(said, details=(*said.details, long))
    return or_changing(session, target, said, finder.statics)


def _with_several_rows(found: Observed, finder: RoleFinder) -> Observed:
    """A plan that gathers, with how to hand in data that has several rows for each example, if any has."""
    gathers = any(sync.op == "all_gather" for sync in found.plan.syncs)
    if not gathers or not (grouped := finder.several_rows()):
        return found
    note = f"several rows of one example need not be gathered where they have an axis of their own: {grouped}"
    return dataclasses.replace(found, plan=dataclasses.replace(found.plan, notes=(*found.plan.notes, note)))


def _without_axis(refusal: Refusal, whole: protocol.Traced) -> Refusal:
    """A refusal that names jit, of a function that jit takes only without its collectives."""
    name = next((axis.name for axis in whole.axes if axis.error.type), "")
    if not name or "--backend jit" not in refusal.hint:
        return refusal
    hint = f'{refusal.hint}: for that, without its collectives over "{name}", as jit has no axis'
    return dataclasses.replace(refusal, hint=hint)


@dataclass(slots=True)
class _Tried:
    """What became of the assignments tried so far."""

    observed: int = 0
    #: The refusal of the likeliest, and the roles it was for.
    refusal: Refusal | None = None
    blamed: Roles | None = None
    #: The refusal of roles with which the function fails on fewer rows: said where there is no other.
    fixed: tuple[Refusal, Roles] | None = None
    #: The layers that it comes of, once they were looked for.
    layers: Sequence[protocol.Layer] | None = None
    #: What is too small to be split, and the roles it was found with.
    small: Refusal | None = None
    few: Roles | None = None
    #: What is equal, while another way to divide the arguments is as likely to be meant.
    equal: list[tuple[Roles, Confirmed]] = dataclasses.field(default_factory=list)
    #: Once much had to be gathered: which others may do with less. `fallback` is taken where none does.
    better: Callable[[Roles], bool] | None = None
    fallback: tuple[Roles, Confirmed] | None = None
    #: Rows of the minibatches that it cuts the batch into, where these are of one size whatever the batch.
    minibatch: int = 0
    #: What gathers all that was split, with the roles that it was found with.
    gathering: tuple[Roles, Observation] | None = None
    #: What became of dividing values where the function makes them, once that was looked at.
    inside: Found | None = None

    def refuse(self, refusal: Refusal, roles: Roles | None = None) -> None:
        """Keep the first refusal."""
        if self.refusal is None:
            self.refusal, self.blamed = refusal, roles


def _try(case: Case, roles: Roles, whole: protocol.Traced, tried: _Tried) -> Confirmed | None:
    """Observe one assignment: what it confirmed, or None, with the reason in `tried`."""
    compiled = case.request.backend is Backend.JIT
    tried.observed += not roles.fixed
    if case.saved is not None and can_be_handed_out(case, roles):
        roles = dataclasses.replace(roles, minibatches=case.saved.minibatches)
    outcome = without_gathers(case, roles) or observe_variants(case, roles)
    is_first = roles.fixed or tried.observed == 1
    # The key of an order of all rows is no example's, once the order is drawn whole and shared out.
    entangled = isinstance(outcome, Refusal) and outcome.code == "JP051"
    if is_first and not compiled and (entangled or _couples(outcome, case.target)):
        other = observe_variants(case, roles, Onward.OWN_SHARES)
        if isinstance(other, Confirmed):
            most = MOST_IN_SHARES if is_gathered(other.observation) else MOST_OF_IT
            if isinstance(outcome, Confirmed) and not in_vain(outcome.observation, case.target.facts):
                # Numbers for all pairs are no less to send than what they are made of.
                fewer = cost(other.observation)[2] <= cost(outcome.observation)[2]
                most = min(HALF, 0.9 * (outcome.observation.share or 0.0)) if fewer else 0.0
            if (other.observation.share or 0.0) <= most:
                outcome = other
            elif isinstance(outcome, Refusal) and not entangled:
                # There is a way, which is of no use: that is why, and not what the first attempt ended at.
                outcome = gathered_in_vain(case.body, other.observation)
    if case.saved is None:
        cut = minibatches_of(case, roles, outcome)
        if cut is not None:
            dealt = in_minibatches(case, roles, outcome, cut)
            outcome = outcome if dealt is None else dealt
            tried.minibatch = tried.minibatch or cut.rows
    if isinstance(outcome, Refusal):
        if roles.fixed:
            tried.fixed = outcome, roles
        else:
            tried.refuse(outcome, roles)
        return _global_view(case, roles, whole) if compiled and outcome.code in COMPILER_CAN else None
    observation, facts = outcome.observation, case.target.facts
    if not depends_on_batch(observation, case.target):
        tried.refuse(
            Refusal(
                "JP055",
                f"no output of `{facts.name}` depends on the batch, so there is nothing to run in parallel",
                "Name the argument that holds the batch: --shard NAME",
                facts.span,
            )
        )
        return None
    if compiled:
        return outcome
    if tried.gathering is None and gathers_all(observation, roles):
        tried.gathering = roles, observation
    vain, share = in_vain(observation, facts), observation.share or 0.0
    argument = gathers_argument(observation, facts)
    # An axis that does not divide over the devices was not made to be split, and gathers tell the same.
    unlikely = share > HALF or (
        observation.share is not None and batch_of(roles, case.loaded) % LARGEST_COUNT
    )
    if not vain and not argument and not unlikely:
        return outcome
    tried.better = tried.better or functools.partial(
        may_gather_less, other=roles, fewer=vain or argument, elsewhere=vain or bool(unlikely)
    )
    if vain:
        tried.refuse(gathered_in_vain(case.body, observation), roles)
    elif tried.fallback is None or share < (tried.fallback[1].observation.share or 0.0):
        tried.fallback = roles, outcome
    return None


def _couples(outcome: Refusal | Confirmed, target: Target) -> bool:
    """Whether examples depend on each other in a way that is not, or hardly, worked out in parallel."""
    if isinstance(outcome, Refusal):
        return outcome.code in COUPLED and not outcome.final
    much = is_gathered(outcome.observation) and (outcome.observation.share or 0.0) > QUARTER
    return much or in_vain(outcome.observation, target.facts)


def _global_view(case: Case, roles: Roles, whole: protocol.Traced) -> Confirmed:
    """What the jit backend needs of a function whose examples depend on each other.

    The compiler keeps the meaning; which outputs grow with the batch is asked by tracing with
    half of it. Branches are all taken as reached: nothing is woven into them.
    """
    axes = grown_axes(case.session, roles, batch_of(roles, case.loaded), whole)
    leaves = [
        {**leaf, "kind": "replicated" if axis is None else f"sharded {axis}"}
        for leaf, axis in zip(whole.out, axes, strict=True)
    ]
    every = frozenset(branch.index for branch in case.body.branches)
    points = frozenset(expression.point for expression in case.body.expressions)
    observation = Observation((), tuple(leaves), whole.tree, 0, every, points)
    return Confirmed(observation, ({},), {}, every, (listing(case.body, case.target.facts.name),))


def _batch_refusal(target: Target, loaded: Loaded, roles: Roles, request: Request) -> Refusal | None:
    """The batch must be large enough for the proof, and divisible where a count was asked for."""
    by_name = {argument["name"]: argument for argument in loaded.described}
    for name, leaves in roles.axes.items():
        for index, axis in leaves.items():
            leaf = by_name[name]["leaves"][index]
            size = leaf["shape"][axis]
            wanted, option, along = wanted_shares(request), "--devices", ""
            if request.mesh:
                option, along = "--mesh", f" along `{request.axis_name}`"
            if wanted is not None and size % wanted:
                return Refusal(
                    "JP041",
                    f"`{leaf['path']}` has shape {tuple(leaf['shape'])}: its batch of {size} does not divide "
                    f"over {wanted} devices{along}",
                    f"Give inputs with a batch of {multiples_around(size, wanted)}, or another {option}",
                    target.facts.span,
                )
            if size < (wanted or LARGEST_COUNT):
                option = other_axis(loaded)
                return Refusal(
                    "JP041",
                    f"`{leaf['path']}` has shape {tuple(leaf['shape'])}: a batch of {size} is smaller than "
                    f"the {wanted or LARGEST_COUNT} devices of the proof",
                    f"Give example inputs with a batch of at least {2 * (wanted or LARGEST_COUNT)}"
                    + (f", or, where it is another axis, name that: {option}" if option else ""),
                    target.facts.span,
                )
    return None


def _plan(case: Case, roles: Roles, found: Confirmed, whole: protocol.Traced) -> Observed:
    target, loaded, request, observation = case.target, case.loaded, case.request, found.observation
    facts = target.facts
    check_devices(roles, request, facts.span)
    donated = [name for name in facts.donated_parameters if name not in roles.statics] + [*request.donate]
    for name in request.donate:
        if name not in (known := [p.name for p in facts.parameters]):
            raise no_argument("donate", name, known, f"`{facts.name}`", facts.span)
    arguments = plan_arguments(
        facts,
        loaded.described,
        roles,
        found.values,
        observation.told,
        observation.same,
        donated,
        case.fitting,
    )
    output_axes, outputs = plan_outputs(observation, facts, whole.out)
    unreached = [
        branch
        for branch in case.body.branches
        if branch.index not in found.reached
        # A callback's own branches are taken while the program runs.
        and (
            branch.scope in found.reached
            or case.body.scopes[branch.scope].name not in target.facts.host_functions
        )
        and not branch.harmless
        # Values that decide it are held to those that were tried.
        and (
            branch.tested is None
            or not branch.tested & {*case.body.local_names, *facts.closure_names}
            <= {*found.values, *observation.told}
        )
    ]
    guards = (*outermost_guards(unreached), *observation.guards)
    by_hand = request.backend is not Backend.JIT
    captured = captured_constants(case.session, target, arguments, guards) if by_hand else ()
    plan = Plan(
        target=f"{target.source.shown_path}::{target.source.qualname}",
        axis_name=target.axis_name,
        arguments=arguments,
        syncs=observation.syncs,
        output_axes=output_axes,
        outputs=outputs,
        devices=request.devices,
        guards=guards,
        captured=captured,
        callees=observation.callees,
        notes=tuple(
            plan_notes(
                target,
                loaded,
                request,
                arguments,
                observation,
                captured,
                donated,
                case.layers,
                case.switches,
                roles,
                found.minibatches,
            )
        ),
        assumed_inputs=loaded.assumed,
        mutated=case.mutated,
        switches=case.switches,
        layers=case.layers,
        in_maps=case.in_maps,
        shared=whole.shared,
        kept=whole.kept,
        chain=chain(
            loaded.described,
            roles,
            observation.tree,
            outputs,
            facts.returned_names,
            list(case.mutated),
        ),
        made=roles.rows,
        multiple_of=found.minibatches,
        forms=found.forms,
        minibatches=found.minibatches,
        settings=loaded.settings,
        source_hash=function_text(target.parsed).digest,
    )
    find = functools.partial(along_axis, case, roles, found.variants)
    plan = on_mesh(plan, request, facts.span)
    plan = in_parts(plan, case.body, observation.tree, request, facts.span, find)
    roles = dataclasses.replace(roles, minibatches=found.minibatches)
    return Observed(plan, roles, found.variants, found.listings)
