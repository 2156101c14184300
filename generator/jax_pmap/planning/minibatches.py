"""Batches that a function cuts into minibatches: each device gets its rows of every one of them.

With the rows of a device in one piece, a minibatch is the work of some of the devices, and all of the batch
has to be gathered. Handed out so, no example leaves its device.
"""

from __future__ import annotations

import dataclasses

from jax_pmap.model import ON_DEVICE, Backend, Refusal
from jax_pmap.planning.coupling import COUPLED
from jax_pmap.planning.decide import Observation
from jax_pmap.planning.gathering import GathersError, Onward
from jax_pmap.planning.reference import batch_of
from jax_pmap.planning.roles import LARGEST_COUNT, Roles, wanted_shares
from jax_pmap.planning.variants import Case, Confirmed, observe_variants
from jax_pmap.worker import protocol
from jax_pmap.worker.protocol import NOT_TAKEN, unless


def without_gathers(case: Case, roles: Roles) -> Refusal | Confirmed | None:
    """What observing shows where nothing is gathered; None where something has to be.

    That is of the batch as it is or, where that is not enough, of the minibatches that it is cut into: what
    becomes of it in one piece, all of which then would be gathered, takes long to be found, and is no better.
    """
    if case.saved is not None or not can_be_handed_out(case, roles):
        return None
    try:
        return observe_variants(case, roles, Onward.NOTHING)
    except GathersError:
        pass
    if case.session.ask(protocol.FindMinibatches(roles.request(), ()), "looking for minibatches").number == 1:
        return None
    dealt = _handed_out(case, roles, _found(case, roles))
    try:
        outcome = None if dealt is None else unless(NOT_TAKEN, observe_variants, case, dealt, Onward.NOTHING)
    except GathersError:
        return None
    return None if isinstance(outcome, Refusal) else outcome


def minibatches_of(case: Case, roles: Roles, outcome: Refusal | Confirmed) -> protocol.Minibatches | None:
    """The minibatches of a batch whose rows were gathered; None where that is no reason to look for them."""
    gathers = outcome.code in COUPLED if isinstance(outcome, Refusal) else cost(outcome.observation)[0] > 0
    return _found(case, roles) if gathers and can_be_handed_out(case, roles) else None


def _found(case: Case, roles: Roles) -> protocol.Minibatches:
    sizes = case.session.ask(protocol.TellSizes(roles.request()), "tracing the function")
    return case.session.ask(protocol.FindMinibatches(roles.request(), sizes), "looking for minibatches")


def in_minibatches(
    case: Case, roles: Roles, outcome: Refusal | Confirmed, found: protocol.Minibatches
) -> Confirmed | None:
    """What observing confirms where each device has its rows of every minibatch; None where that is no gain.

    The `outcome` is that without.
    """
    dealt = _handed_out(case, roles, found)
    other = None if dealt is None else unless(NOT_TAKEN, observe_variants, case, dealt)
    if other is None or isinstance(other, Refusal):
        # It takes the given batch, and none of as many rows as every device needs for its own of each.
        return None
    better = isinstance(outcome, Refusal) or cost(other.observation) < cost(outcome.observation)
    return other if better else None


def _handed_out(case: Case, roles: Roles, found: protocol.Minibatches) -> Roles | None:
    """The roles with which each device has its rows of every minibatch; None where these cannot be shared."""
    compiled = case.request.backend is Backend.JIT
    # The compiler takes minibatches that the devices do not share evenly, too.
    sharing = wanted_shares(case.request) or (LARGEST_COUNT if compiled else 1)
    # To take single ones from between the rows of a device, it would gather them all first.
    if found.number == 1 or (compiled and not found.reshaped):
        return None
    uneven = batch_of(roles, case.loaded) % (found.number * sharing)
    return None if uneven else dataclasses.replace(roles, minibatches=found.number)


def can_be_handed_out(case: Case, roles: Roles) -> bool:
    """Whether the emitted file may hand out the batch in groups of rows.

    Each of several processes has rows in one piece, and so have batches with rows added or left out. In
    explicit mode the minibatches would be gathered where they are made one batch.
    """
    request, facts = case.request, case.target.facts
    if request.processes > 1 or request.accumulate > 1 or request.remainder != "error" or request.explicit:
        return False
    if roles.made or facts.collectives or case.target.own_axis:
        return False
    described = {argument["name"]: argument for argument in case.loaded.described}
    return all(
        set(axes.values()) == {0}
        and len(axes) == len(described[name]["leaves"])
        and not described[name]["partition"]
        for name, axes in roles.axes.items()
        if axes
    )


def cost(observation: Observation) -> tuple[int, int, int]:
    """How many values are gathered, how many collectives there are, and how many bytes go into them.

    Gathers come first: with all of the batch on every device, fewer collectives mean that all do the same.
    """
    syncs = [sync for sync in observation.syncs if sync.op not in ON_DEVICE]
    gathers = sum(sync.op == "all_gather" for sync in syncs)
    return gathers, len(syncs), sum(sync.bytes for sync in syncs)
