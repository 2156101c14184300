"""Whether what was observed is worth having: devices share the work, and examples are split for a purpose."""

from __future__ import annotations

import re

from jax_pmap.emit.places import Body, inside, place
from jax_pmap.model import DIVIDE, FOLD, ON_DEVICE, OWN_SHARE, Refusal
from jax_pmap.planning.coupling import shortened, unreadable, way_out
from jax_pmap.planning.decide import Observation
from jax_pmap.planning.roles import LARGEST_COUNT, Roles
from jax_pmap.reading.facts import FunctionFacts
from jax_pmap.reading.target import Target

#: The part of one device's work that each of several may do at most where arguments are gathered.
MOST_OF_IT = 0.9
#: The same where what is gathered was made share by share, which in a small example is little of it.
NEARLY_ALL = 0.99
#: The same where devices go on with their part of what was gathered.
MOST_IN_SHARES = 0.75
#: The same where arguments are gathered and no result is split: what is shared is then hardly seen.
HALF = 0.5
#: From here on another way is looked for in which devices go on with their part of what was gathered.
QUARTER = 0.25


def depends_on_batch(observation: Observation, target: Target) -> bool:
    """Whether anything in the result was sharded, or had to be made whole."""
    sharded = any(leaf["kind"].startswith("sharded") for leaf in observation.leaves)
    reduced = any(sync.op not in ON_DEVICE for sync in observation.syncs)
    return sharded or bool(reduced or target.facts.collectives or target.own_axis)


def in_vain(observation: Observation, facts: FunctionFacts) -> bool:
    """Whether so much is gathered that every device does what one would: no parallel version."""
    share = observation.share or 0.0
    gathers = [sync for sync in observation.syncs if sync.op == "all_gather"]
    # Numbers that are drawn for all rows may as well be drawn by every device.
    keys = [place(sync.span) for sync in observation.syncs if sync.op == FOLD]
    made = [sync for sync in gathers if not any(inside(key, place(sync.span)) for key in keys)]
    if not all(is_argument(sync.value, facts) for sync in made):
        return share > NEARLY_ALL
    split = any(leaf["kind"].startswith("sharded") for leaf in observation.leaves)
    others = any(sync.op not in ("all_gather", FOLD) for sync in observation.syncs)
    return share > (MOST_OF_IT if split or others else HALF)


def gathered_in_vain(body: Body, observation: Observation) -> Refusal:
    """Equal, but of no use."""
    op, how = ("all_gather", "gathered") if is_gathered(observation) else (OWN_SHARE, "made on each device")
    gathered = next(sync for sync in observation.syncs if sync.op == op)
    where = place(gathered.span)
    around = [e for e in body.expressions if inside(where, place(e.span)) and place(e.span) != where]
    text, span, called = min(
        ((e.text, e.span, e.called) for e in around),
        key=lambda found: len(found[0]),
        default=(gathered.value, gathered.span, ""),
    )
    if (culprit := observation.coupling.get(where)) is not None:
        text, span, called = culprit.text, culprit.span, culprit.called
    unopened = unreadable(text, span, observation.closed)
    if unopened is not None:
        return unopened
    share = observation.share or 1.0
    work = "all the work" if share >= 1 else f"{share:.0%} of the work"
    return Refusal(
        "JP043",
        f"`{shortened(text)}` couples the examples of the batch: with all of them {how}, each of "
        f"{LARGEST_COUNT} devices would do {work} of one",
        way_out(text, called),
        span,
    )


def is_gathered(observation: Observation) -> bool:
    """Whether anything is gathered."""
    return any(sync.op == "all_gather" for sync in observation.syncs)


def is_divided(observation: Observation) -> bool:
    """Whether a value is divided by the number of devices: a derivative by what they share."""
    return any(sync.op == DIVIDE for sync in observation.syncs)


def gathers_argument(observation: Observation, facts: FunctionFacts) -> bool:
    """Whether an argument was split only to be put together again."""
    return any(sync.op == "all_gather" and is_argument(sync.value, facts) for sync in observation.syncs)


def gathers_all(observation: Observation, roles: Roles) -> bool:
    """Whether all that was split is put together again, as a data set is from which rows are drawn."""
    return 0 < sum(map(len, roles.axes.values())) == len(observation.together)


def is_argument(value: str, facts: FunctionFacts) -> bool:
    """Whether an expression is an argument or a part of one."""
    names = {parameter.name for parameter in facts.parameters}
    return re.split(r"\W", value)[0] in names and not re.search(r"[(@*/+-]", value)


def may_gather_less(roles: Roles, other: Roles, *, fewer: bool, elsewhere: bool) -> bool:
    """Whether `roles` are worth a look where with `other` much is gathered.

    A table that happens to have as many rows as the batch is better left whole (`fewer`), and what depends
    on each other along one axis need not along another (`elsewhere`).
    """
    return (fewer and fewer_split(roles, other)) or (elsewhere and other_axis(roles, other))


def fewer_split(roles: Roles, other: Roles) -> bool:
    """Whether `roles` split what `other` splits, along the same axes, but for some that stay whole."""
    mine = {(name, *leaf) for name, leaves in roles.axes.items() for leaf in leaves.items()}
    return mine < {(name, *leaf) for name, leaves in other.axes.items() for leaf in leaves.items()}


def other_axis(roles: Roles, other: Roles) -> bool:
    """Whether `roles` split the very leaves that `other` splits, each along another axis.

    Of trajectories, (time, batch, …), the steps depend on each other and the batch does not.
    """
    leaves = {name: rows.keys() for name, rows in roles.axes.items()}
    return leaves == {name: rows.keys() for name, rows in other.axes.items()} and all(
        axis != other.axes[name][index] for name, rows in roles.axes.items() for index, axis in rows.items()
    )
