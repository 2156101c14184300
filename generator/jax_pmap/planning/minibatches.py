"""Batches that a function cuts into minibatches: each device gets its rows of every one of them.

With the rows of a device in one piece, a minibatch is the work of some of the devices, and all of the batch
has to be gathered. Handed out so, no example leaves its device.
"""

from __future__ import annotations

import dataclasses

from jax_pmap.model import ON_DEVICE, Backend, Refusal
from jax_pmap.planning.coupling import COUPLED
from jax_pmap.planning.decide import Observation
from jax_pmap.planning.roles import LARGEST_COUNT, Roles
from jax_pmap.planning.variants import Case, Confirmed, observe_variants
from jax_pmap.worker import protocol
from jax_pmap.worker.protocol import NOT_TAKEN, unless


def minibatches_of(case: Case, roles: Roles, outcome: Refusal | Confirmed) -> protocol.Minibatches | None:
    """The minibatches of a batch whose rows were gathered; None where that is no reason to look for them."""
    gathers = outcome.code in COUPLED if isinstance(outcome, Refusal) else cost(outcome.observation)[0] > 0
    if not gathers or not can_be_handed_out(case, roles):
        return None
    sizes = case.session.ask(protocol.TellSizes(roles.request()), "tracing the function")
    return case.session.ask(protocol.FindMinibatches(roles.request(), sizes), "looking for minibatches")


def in_minibatches(
    case: Case,
    roles: Roles,
    outcome: Refusal | Confirmed,
    found: protocol.Minibatches,
    size: int,
    devices: int | None,
) -> Confirmed | None:
    """What observing confirms where each device has its rows of every minibatch; None where that is no gain.

    The `outcome` without that is of a batch of `size`, for as many `devices` as there are, or for these.
    """
    compiled = case.request.backend is Backend.JIT
    # The compiler takes minibatches that the devices do not share evenly, too.
    sharing = devices or (LARGEST_COUNT if compiled else 1)
    # To take single ones from between the rows of a device, it would gather them all first.
    if found.number == 1 or (compiled and not found.reshaped) or size % (found.number * sharing):
        return None
    dealt = dataclasses.replace(roles, minibatches=found.number)
    other = unless(NOT_TAKEN, observe_variants, case, dealt)
    if other is None or isinstance(other, Refusal):
        # It takes the given batch, and none of as many rows as every device needs for its own of each.
        return None
    better = isinstance(outcome, Refusal) or cost(other.observation) < cost(outcome.observation)
    return other if better else None


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
