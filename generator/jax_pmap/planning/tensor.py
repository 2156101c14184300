"""Tensor parallelism: devices that have the same rows work with their own parts of parameters.

Along a mesh axis that is not the batch's, parameters are what is divided, each along a dimension of its own,
and the rest is whole on every device. Which collectives the function then needs is found as for a batch: a
product that contracts the dimension is a partial sum, which is made whole before what is not linear.

Of a gradient nothing has to be found. With `jax.lax.psum` inside of what is differentiated, devices take the
derivatives of the sum of all their losses, which are one loss: for their own parts as many times the gradient
as there are devices, and for what they have whole the parts of that, of which it is the mean.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from jax_pmap.emit.decomposed import TOGETHER
from jax_pmap.emit.places import Expression
from jax_pmap.leaf_paths import dotted
from jax_pmap.model import Argument, Leaf, MeshAxis, Plan, Refusal, Role, Sync
from jax_pmap.planning.decide import Observation
from jax_pmap.planning.events import Event
from jax_pmap.planning.merge import parts
from jax_pmap.planning.observe import Observer
from jax_pmap.planning.parts import REDUCTIONS, parts_below
from jax_pmap.planning.roles import Roles
from jax_pmap.planning.variants import Case


def along_axis(
    case: Case,
    roles: Roles,
    variants: Sequence[dict[str, str]],
    plan: Plan,
    axis: MeshAxis,
    gradients: Sequence[Sync],
) -> tuple[Sync, ...] | Refusal:
    """The collectives along `axis` with which devices work with their own parts of arrays.

    Args:
        case: the target and its inputs.
        roles: those of the batch.
        variants: values of static arguments to look at, as Python source.
        plan: where arrays lie.
        axis: not that of the batch.
        gradients: collectives of gradients, which go along it too.

    Returns:
        Those beside `gradients`; why there are none where the function cannot work so, or its results would
        not lie as planned.
    """
    parted = {argument.name: _divided(argument, axis) for argument in plan.arguments}
    own = dataclasses.replace(
        roles, axes={name: axes for name, axes in parted.items() if axes}, made=(), rows=0, minibatches=1
    )
    facts = case.target.facts
    observer = case.observer(axis.name)
    likes = {dotted(sync.like): parts_below(plan, sync.like, (axis.name,)) for sync in gradients}
    observer.parted = likes or {"": ()}
    found: tuple[Sync, ...] = tuple(gradients)
    for variant in variants:
        outcome = observer.observe(own, variant, axis.size, found)
        if not isinstance(outcome, Refusal):
            gathers = _to_gather(observer, plan, axis, outcome)
            if gathers:
                outcome = observer.observe(own, variant, axis.size, (*outcome.syncs, *gathers))
        if isinstance(outcome, Refusal):
            return outcome
        found = outcome.syncs
        elsewhere = next(_elsewhere(plan, axis, outcome), None)
        if elsewhere is not None:
            return Refusal(
                "JP046",
                f"`{elsewhere[0].path}` would be in other parts than those in which it is to lie",
                "Use --backend jit, where the compiler works it out",
                facts.span,
            )
    more = tuple(sync for sync in found if sync not in gradients)
    other = next((sync for sync in more if sync.op not in (*REDUCTIONS, *TOGETHER, "all_gather")), None)
    if other is not None:
        return Refusal(
            "JP046",
            f"`{other.value}` needs more than a sum or a gather along `{axis.name}`",
            "Use --backend jit, where the compiler works it out",
            other.span,
        )
    return more


def _elsewhere(plan: Plan, axis: MeshAxis, seen: Observation) -> Iterator[tuple[Leaf, str, str]]:
    """Leaves of the result that do not lie as planned: what they are, and what they are to be."""
    for leaf, row in zip(plan.outputs, seen.leaves, strict=True):
        planned = [f"sharded {at}" for at, names in enumerate(leaf.spec) if axis.name in names]
        wanted = planned[0] if planned else "replicated"
        if leaf.role is not Role.STATIC and row["kind"] != wanted:
            yield leaf, row["kind"], wanted


def _to_gather(observer: Observer, plan: Plan, axis: MeshAxis, seen: Observation) -> list[Sync]:
    """Gathers of what is returned in parts and is to be whole: the result, or elements of its tuple."""
    found: list[Sync] = []
    value = observer.by_point.get(seen.result)
    events = {event["point"]: Event(event) for event in seen.events}
    for leaf, kind, wanted in _elsewhere(plan, axis, seen):
        if value is None or wanted != "replicated" or not kind.startswith("sharded"):
            continue
        part: Expression | None = value
        if leaf.path != "result":
            members = observer.children.get(value.point, []) if value.is_display else []
            paths = [f"result[{index}]" for index in range(parts(value.text))] if members else []
            # Constants are no members.
            part = (
                dict(zip(paths, members, strict=False)).get(leaf.path) if len(paths) == len(members) else None
            )
        if part is not None and part.point in events:
            # Nothing is joined along the axis of a model.
            found.append(observer.gathered(part, events[part.point], int(kind.partition(" ")[2]), ()))
    return found


def _divided(argument: Argument, axis: MeshAxis) -> dict[int, int]:
    """The dimension along which devices of an axis divide each leaf of an argument, by its place."""
    return {
        index: at
        for index, leaf in enumerate(argument.leaves)
        for at, names in enumerate(leaf.spec)
        if axis.name in names
    }
