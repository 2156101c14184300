"""Plan for a device that works on its share in microbatches: which collectives may stand in what it calls."""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Callable

from jax_pmap.emit.adapted import adapted_callees, woven_target
from jax_pmap.emit.axes import collapse, used_axes
from jax_pmap.emit.microbatches import SUMS, Divided, Inner, plain
from jax_pmap.emit.names import names_for
from jax_pmap.emit.places import Body
from jax_pmap.emit.weave import inside_of
from jax_pmap.model import FOLD, OWN_SIZE, Plan, Refusal, RefusalError, Sync, refused
from jax_pmap.planning.search import Observed
from jax_pmap.reading.target import Target
from jax_pmap.syntax.text import function_text
from jax_pmap.worker.protocol import AXIS_ARGUMENTS

CODE = "JP074"
#: Calls that are made of means over the devices.
DECOMPOSED = ("var", "std", "norm")
#: Why an operation other than a sum has no place in microbatches, and the way out.
OTHERS = {
    FOLD: (
        "numbers are drawn for examples, with one key for all of them: each microbatch would draw the same "
        "ones, or others than the whole share does",
        "Draw the numbers before the step and pass them with the batch",
    ),
    OWN_SIZE: (
        "it says how many rows a device has, and a microbatch has fewer",
        "Take the number from a shape (`x.shape[0]`), or leave --accumulate out",
    ),
    **dict.fromkeys(
        AXIS_ARGUMENTS,
        (
            "what it calls synchronises over the axis by itself, and would for each microbatch",
            "Leave --accumulate out",
        ),
    ),
}
#: The same of collectives that are no sums.
NO_SUM = (
    "it is made whole by {op}, and microbatches are added up",
    "Make a sum or a mean of it, or leave --accumulate out",
)


def in_microbatches(
    target: Target, observed: Observed, number: int, again: Callable[[Plan], Observed]
) -> Observed:
    """What is `observed`, for a device that works on its share in a `number` of microbatches.

    What a step divides by, or puts through anything else that is not linear, is summed ahead of them; all
    other sums over the batch are taken behind them. So a sum in a function that is differentiated is left out
    where it can be, and `again` plans from the collectives that are left.

    Raises:
        RefusalError: JP074, where the microbatches would give another result than the whole share.
    """
    _check(target, observed.plan)
    inner = _inner(target, observed.plan)
    parted: tuple[str, ...] = ()
    if inner:
        found = {(each.op, each.operand): each for each in _divided(target, observed.plan).inner()}
        moving = [s for s in inner if (known := found.get((s.op, plain(s.value)))) and known.outside]
        # Where each part of a sum is joined with what no part has, such as weight decay, parts are as large
        # as the whole on average: then the mean of what they are divided by is.
        means = [dataclasses.replace(sync, op="pmean") for sync in moving]
        refusal: Refusal | None = None
        for kept in (moving, means) if means != moving else (moving,):
            planned = again(dataclasses.replace(observed.plan, syncs=tuple(kept)))
            _check(target, planned.plan)
            moved = {plain(sync.value) for sync in kept}
            stuck = next((s for s in _inner(target, planned.plan) if plain(s.value) not in moved), None)
            if stuck is None:
                parted = tuple(plain(s.value) for s in moving if s.op == "psum") if kept is means else ()
                observed = planned
                break
            refusal = refusal or _stuck(stuck, found.get((stuck.op, plain(stuck.value))))
        else:
            assert refusal is not None
            raise RefusalError(refusal)
    multiple = math.lcm(observed.plan.multiple_of, number)
    plan = dataclasses.replace(observed.plan, microbatches=number, multiple_of=multiple, parted=parted)
    return dataclasses.replace(observed, plan=plan)


def _stuck(sync: Sync, known: Inner | None) -> Refusal:
    """What to say of a sum that is needed inside of what the microbatches compute."""
    why = f"; it cannot be computed ahead of them: {known.reason}" if known and known.reason else ""
    return Refusal(
        CODE,
        f"`{sync.value}` is needed of the whole batch where it stands, and no microbatch has it{why}",
        "Compute it in the step from the batch alone and pass it as an argument, or leave --accumulate out",
        sync.span,
    )


def _check(target: Target, plan: Plan) -> None:
    """Refuse what is no sum over examples.

    Raises:
        RefusalError: JP074.
    """
    span = target.facts.span
    for sync in plan.syncs:
        other = next((name for name in sync.along if name), None)
        if other is not None:
            raise refused(
                CODE,
                f"`{sync.value}`: it is made whole along `{other}`, too, and microbatches are of code with "
                "one axis of devices",
                "Leave --accumulate out",
                sync.span,
            )
        if sync.op not in (*SUMS, *DECOMPOSED):
            why, hint = OTHERS.get(sync.op, NO_SUM)
            raise refused(CODE, f"`{sync.value}`: {why.format(op=sync.op)}", hint, sync.span)
    if plan.layers or any(callee.library for callee in plan.callees):
        raise refused(
            CODE,
            "its layers take statistics over the batch, and over a microbatch these are others",
            "Use a norm that is of each example (LayerNorm, GroupNorm), or leave --accumulate out",
            span,
        )
    if plan.mutated:
        raise refused(
            CODE,
            f"`{plan.mutated[0]}` is changed in place, which would happen once for each microbatch",
            "Return the new state in place of changing the argument, or leave --accumulate out",
            span,
        )
    for argument in plan.arguments:
        apart = collapse(argument.axes)
        if used_axes(argument.axes) and (apart != 0 or argument.partition):
            raise refused(
                CODE,
                f"`{argument.name}` is not an array, or a tree of arrays, that all have the batch in front",
                "Pass what is no batch as an argument of its own, with the batch as axis 0 of the rest",
                span,
            )


def _inner(target: Target, plan: Plan) -> list[Sync]:
    """The collectives that do not stand in the body itself, but in functions it calls or defines."""
    body = Body(function_text(target.parsed))
    here = {id(sync) for sync in inside_of(body, plan.syncs)}
    nested = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in target.parsed.definition.body
        if isinstance(node, ast.FunctionDef)
    ]
    return [
        sync
        for sync in plan.syncs
        if id(sync) not in here or any(first <= sync.span.line <= last for first, last in nested)
    ]


def _divided(target: Target, plan: Plan) -> Divided:
    """The woven body and copies of a plan, to ask what stands where in them."""
    adapted, renames = adapted_callees(target, plan.syncs, plan.guards, plan.callees)
    names = names_for(target.facts.name, target.facts.taken_names)
    body, woven = woven_target(target, plan, plan.syncs, adapted, names, renames, "result")
    copies = {other.name: other.definition(names) for other in adapted}
    return Divided(body.body_source(woven), copies, (), names)
