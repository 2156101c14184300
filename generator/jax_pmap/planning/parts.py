"""Arrays that shard_map code has in parts: gathered before they are used, their gradients scattered.

The plan is that of data parallelism, where every device has them whole. Here a device has a part of each, as
of a row of the batch: up to the gradients the parts are put together, and from the mean of the gradients on,
of which it gets its part alone, it goes on with its own. Whether that gives the same, the proof shows.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jax_pmap.emit.places import Body, Expression, inside, place
from jax_pmap.leaf_paths import keys_of
from jax_pmap.model import (
    GATHERED,
    SCATTERED,
    Axes,
    AxesNode,
    Backend,
    Leaf,
    Plan,
    RefusalError,
    Request,
    Role,
    Span,
    Sync,
    refused,
)

#: Source of a name with attributes and constant keys behind it.
CHAIN = re.compile(r"[^\W\d]\w*(?:\.\w+|\[(?:\d+|'[^']*'|\"[^\"]*\")\])*")


def in_parts(plan: Plan, body: Body, tree: Any, request: Request, span: Span) -> Plan:
    """`plan` with what its arrays in parts need in shard_map code; any other as it is.

    Args:
        plan: where arrays lie, and the collectives of data parallelism.
        body: of the target.
        tree: the containers of the result, as the worker describes them.
        request: the question.
        span: where to point.

    Raises:
        RefusalError: JP046 for what jit code alone does.
    """
    if request.backend is not Backend.SHARD_MAP or not plan.mesh:
        return plan
    _check(plan, span)
    loads = list(_loads(plan, body))
    gradients: dict[Sync, Expression] = {}
    for sync in plan.syncs:
        if sync.op in SCATTERED and sync.paths == ("",) and inside(place(sync.span), place(body.scope.span)):
            found = _gradient_of(sync, loads, plan)
            if found is not None:
                gradients[sync] = found
    regions = [place(sync.span) for sync in gradients]
    first = min((_line_of(region, body) for region in regions), default=None)
    gathers = [
        Sync(GATHERED, load.text, "wrap", load.span, bytes=_bytes(plan, load, whole=False), like=load.text)
        for load in loads
        if first is None
        or place(load.span)[2:] <= first
        or any(inside(place(load.span), region) for region in regions)
    ]
    syncs = [
        dataclasses.replace(sync, op=SCATTERED[sync.op], like=gradients[sync].text)
        if sync in gradients
        else sync
        for sync in plan.syncs
    ]
    if len({sync.op for sync in syncs if sync.like}) > 1:
        raise _for_jit("some of its gradients are sums over the devices, and some means", span)
    fed = {"result" + path for name, path in plan.chain}
    outputs = tuple(
        leaf if leaf.axis is not None or _below(leaf, fed) else dataclasses.replace(leaf, spec=())
        for leaf in plan.outputs
    )
    return dataclasses.replace(
        plan, syncs=(*gathers, *syncs), outputs=outputs, output_axes=_opened(plan.output_axes, tree)
    )


def on_whole(syncs: Sequence[Sync]) -> tuple[Sync, ...]:
    """The collectives of data parallelism, of some for arrays in parts."""
    plain = {scattered: op for op, scattered in SCATTERED.items()}
    return tuple(
        dataclasses.replace(sync, op=plain[sync.op], like="") if sync.like else sync
        for sync in syncs
        if sync.op != GATHERED
    )


def _line_of(region: tuple[int, int, int, int], body: Body) -> tuple[int, int]:
    """Where the statement begins that a place is in."""
    around = (place(each.span) for each in body.statements.values() if each.scope == body.scope.index)
    return max((each[:2] for each in around if inside(region, each)), default=region[:2])


def _for_jit(why: str, span: Span) -> RefusalError:
    return refused(
        "JP046",
        f"shard_map code gathers arrays in parts before the gradients and scatters these, and here {why}",
        "Use --backend jit, where the compiler works it out",
        span,
    )


def _check(plan: Plan, span: Span) -> None:
    """Refuse what is not written in shard_map code.

    Raises:
        RefusalError: JP046.
    """
    along = {name for leaf in _parted(plan) for names in leaf.spec for name in names}
    others = sorted(along - {plan.axis_name})
    if others:
        raise _for_jit(f"along `{others[0]}` the batch is not divided", span)
    for argument in plan.arguments:
        in_parts = any(leaf.spec and leaf.axis is None for leaf in argument.leaves)
        if in_parts and argument.name in plan.mutated:
            raise _for_jit(f"`{argument.name}` is changed in place", span)


def _parted(plan: Plan) -> Iterator[Leaf]:
    """Arrays of the arguments that devices have in parts, those of the batch apart."""
    for argument in plan.arguments:
        yield from (leaf for leaf in argument.leaves if leaf.spec and leaf.axis is None)


def _loads(plan: Plan, body: Body) -> Iterator[Expression]:
    """Where the function reads an argument, or a part of one, in which there are arrays in parts."""
    leaves = [leaf for argument in plan.arguments for leaf in argument.leaves if leaf.role is not Role.STATIC]
    parted = [keys_of(leaf.path) for leaf in _parted(plan)]
    known = {keys_of(leaf.path)[:end] for leaf in leaves for end in range(1, len(keys_of(leaf.path)) + 1)}
    by_point = {each.point: each for each in body.expressions}
    for each in body.expressions:
        keys = _keys(each, body)
        outer = by_point.get(each.parent) if each.parent is not None else None
        if keys is None or (outer is not None and _keys(outer, body) in known):
            continue
        # A method's object is left as it is: the code of one has no arrays.
        if any(path[: len(keys)] == keys for path in parted) and not _is_called_on(each, body):
            yield each


def _is_called_on(expression: Expression, body: Body) -> bool:
    """Whether a method of it is called: ``state.apply_fn(…)``."""
    line = body.text.text.splitlines()[expression.span.end_line - body.text.line]
    return line[expression.span.end_column - body.text.indent :].lstrip().startswith(".")


def _keys(expression: Expression, body: Body) -> tuple[str, ...] | None:
    """The keys of a path that an expression spells; None of any other, and of a nested function's own."""
    if not CHAIN.fullmatch(expression.text):
        return None
    keys = keys_of(expression.text)
    scope = body.scopes[body.statements[expression.statement].scope]
    return None if scope is not body.scope and keys[0] in scope.parameters else keys


def _gradient_of(sync: Sync, loads: Sequence[Expression], plan: Plan) -> Expression | None:
    """What the value of a sum or a mean over the devices is the gradient of, if it is of arrays in parts."""
    within = [load for load in loads if inside(place(load.span), place(sync.span))]
    alike = [load for load in within if _bytes(plan, load, whole=True) == sync.bytes]
    return alike[0] if len(alike) == 1 else None


def _bytes(plan: Plan, load: Expression, *, whole: bool) -> int:
    """Bytes of the arrays below an argument or a part of one: of all, or of those that are gathered."""
    keys = keys_of(load.text)
    leaves = (leaf for argument in plan.arguments for leaf in argument.leaves if whole or leaf.spec)
    return sum(leaf.bytes() for leaf in leaves if keys_of(leaf.path)[: len(keys)] == keys)


def _below(leaf: Leaf, paths: set[str]) -> bool:
    return any(leaf.path.startswith(path) for path in paths)


def _opened(axes: Axes, tree: Mapping[str, Any] | int) -> Axes:
    """The axes of a result with its outer container written out, of which elements may lie in parts."""
    if isinstance(axes, AxesNode) or isinstance(tree, int) or tree["kind"] not in ("tuple", "list", "dict"):
        return axes
    keys = tuple(tree["keys"]) if tree["kind"] == "dict" else ()
    return AxesNode(tree["kind"], keys, (axes,) * len(tree["children"]))
