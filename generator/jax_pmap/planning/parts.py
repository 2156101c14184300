"""Arrays that shard_map code has in parts: what is said between the devices that have them.

The plan is that of data parallelism, where every device has them whole. Here a device has a part of each.
Along the axis of the batch, as of a row of it: up to the gradients the parts are put together, and from the
mean of the gradients on, of which it gets its part alone, it goes on with its own. Along another axis, where
all devices have the same rows, they work with their parts as they are if collectives are found with which
that gives the same (tensor parallelism); else parts are put together there, too, and all do the same work.
Whether the code gives the same, the proof shows.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from jax_pmap.emit.places import Body, Expression, inside, place
from jax_pmap.leaf_paths import keys_of
from jax_pmap.model import (
    GATHERED,
    SCATTERED,
    Axes,
    AxesNode,
    Backend,
    Leaf,
    MeshAxis,
    Plan,
    Refusal,
    RefusalError,
    Request,
    Role,
    Span,
    Sync,
    refused,
)

#: Source of a name with attributes and constant keys behind it.
CHAIN = re.compile(r"[^\W\d]\w*(?:\.\w+|\[(?:\d+|'[^']*'|\"[^\"]*\")\])*")
#: Collectives that go along several axes as along one.
REDUCTIONS = frozenset({"psum", "pmean", "pmax", "pmin"})
#: What refusals say of rows of a batch, and what it is of parts of an array.
OF_PARTS = {
    "couples the examples of the batch": "needs whole what devices have in parts",
    "on one device's share of the batch": "on a device's own parts",
}
#: Finds the collectives with which devices along an axis work with their own parts, for a plan, beside those
#: of gradients that are given.
Find: TypeAlias = Callable[[Plan, MeshAxis, Sequence[Sync]], "tuple[Sync, ...] | Refusal"]


def in_parts(plan: Plan, body: Body, tree: Any, request: Request, span: Span, find: Find) -> Plan:
    """`plan` with what its arrays in parts need in shard_map code; any other as it is.

    Args:
        plan: where arrays lie, and the collectives of data parallelism.
        body: of the target.
        tree: the containers of the result, as the worker describes them.
        request: the question.
        span: where to point.
        find: asked for each axis but that of the batch.

    Raises:
        RefusalError: JP046 for what jit code alone does.
    """
    if request.backend is not Backend.SHARD_MAP or not plan.mesh:
        return plan
    _check(plan, span)
    loads = list(_loads(plan, body))
    #: Of a sum or a mean of gradients, where they are taken, and of what.
    gradients: dict[Sync, tuple[Span, Expression]] = {}
    for sync in plan.syncs:
        if sync.op in SCATTERED and sync.paths == ("",) and inside(place(sync.span), place(body.scope.span)):
            made = _made(sync, body)
            found = _gradient_of(sync, made, loads, plan)
            if found is not None:
                gradients[sync] = made, found
    scattered = {
        sync: dataclasses.replace(sync, op=SCATTERED[sync.op], like=load.text, span=made)
        for sync, (made, load) in gradients.items()
    }
    if len({sync.op for sync in scattered.values()}) > 1:
        raise _for_jit("some of its gradients are sums over the devices, and some means", span)
    used = {name for leaf in _parted(plan) for names in leaf.spec for name in names}
    fed = {"result" + path for name, path in plan.chain}
    outputs = tuple(
        leaf if leaf.axis is not None or _below(leaf, fed) else dataclasses.replace(leaf, spec=())
        for leaf in plan.outputs
    )
    plan = dataclasses.replace(plan, outputs=outputs, output_axes=_opened(plan.output_axes, tree))
    kept: list[str] = []
    more: list[Sync] = []
    notes: list[str] = []
    for axis in plan.mesh:
        if axis.name == plan.axis_name:
            continue
        if axis.name not in used:
            notes.append(f"nothing is divided along `{axis.name}`: devices along it repeat each other's work")
            continue
        answer = find(plan, axis, tuple(scattered.values()))
        if isinstance(answer, Refusal):
            notes.append(_repeated(axis, answer))
        else:
            kept.append(axis.name)
            more += [dataclasses.replace(sync, along=(axis.name,)) for sync in answer]
    gathered = [axis.name for axis in plan.mesh if axis.name in used and axis.name not in kept]
    if not gradients and any(_below(leaf, fed) and is_part(leaf, gathered) for leaf in plan.outputs):
        raise _unscattered(plan, body, loads, span)
    regions = [place(made) for made, _ in gradients.values()]
    first = min((_line_of(region, body) for region in regions), default=None)
    gathers = [
        Sync(
            GATHERED,
            load.text,
            "wrap",
            load.span,
            bytes=_bytes(plan, load, gathered),
            like=load.text,
            along=tuple(_along(gathered, plan)),
        )
        for load in _loads(plan, body, gathered)
        if first is None
        or place(load.span)[2:] <= first
        or any(inside(place(load.span), region) for region in regions)
    ]
    divided = plan.axis_name in gathered
    syncs = [
        dataclasses.replace(scattered[sync], op=scattered[sync].op if divided else sync.op, along=("", *kept))
        if sync in scattered
        else sync
        for sync in plan.syncs
    ]
    return dataclasses.replace(
        plan, syncs=(*gathers, *_together([*more, *syncs], plan)), notes=(*plan.notes, *notes)
    )


def on_whole(syncs: Sequence[Sync]) -> tuple[Sync, ...]:
    """The collectives of data parallelism, of some for arrays in parts."""
    plain = {scattered: op for op, scattered in SCATTERED.items()}
    return tuple(
        dataclasses.replace(sync, op=plain.get(sync.op, sync.op), like="", along=("",))
        for sync in syncs
        if sync.op != GATHERED and "" in sync.along
    )


def _repeated(axis: MeshAxis, why: Refusal) -> str:
    """The note of an axis along which all devices do the same."""
    where = f" ({why.span.file}:{why.span.line})" if why.span is not None else ""
    reason = why.reason
    for of_rows, of_parts in OF_PARTS.items():
        reason = reason.replace(of_rows, of_parts)
    return (
        f"along `{axis.name}` memory is divided and work is repeated: devices gather their parts and compute "
        f"the same, since with parts alone it is not derived: {reason}{where}. `--backend jit` divides the "
        "work, too"
    )


def _along(names: Sequence[str], plan: Plan) -> Iterator[str]:
    """Axes as a `Sync` has them."""
    yield from ("" if name == plan.axis_name else name for name in names)


def _together(syncs: Sequence[Sync], plan: Plan) -> tuple[Sync, ...]:
    """One collective of several axes where there is one of the same kind, of the same value, along each."""
    order = ["" if axis.name == plan.axis_name else axis.name for axis in plan.mesh]
    found: dict[Any, Sync] = {}
    for sync in syncs:
        key = dataclasses.replace(sync, bytes=0, along=() if sync.op in REDUCTIONS else sync.along)
        along = {*sync.along, *(found[key].along if key in found else ())}
        found[key] = dataclasses.replace(sync, along=tuple(sorted(along, key=order.index)))
    return tuple(found.values())


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


def _unscattered(plan: Plan, body: Body, loads: Sequence[Expression], span: Span) -> RefusalError:
    """What to say where arrays in parts are put together, and there are no gradients to divide them again.

    Those of a function that is called come whole, as does all that is made of them.
    """
    sizes = {_bytes(plan, load): load.text for load in loads}
    scattered = [sync for sync in plan.syncs if sync.op in SCATTERED]
    own = [sync for sync in scattered if inside(place(sync.span), place(body.scope.span))]
    called = [sync for sync in scattered if sync.bytes in sizes and sync not in own]
    if not called:
        some = [f"`{sync.value}{path}`" for sync in own for path in sync.paths if path]
        why = "no gradients of what is in parts are taken in the function itself"
        if some:
            why = f"not all gradients of what is in parts depend on the batch: {', '.join(some)} alone"
        return _for_jit(why, span)
    return refused(
        "JP046",
        f"shard_map code divides the gradients of `{sizes[called[0].bytes]}` among the devices that have it "
        "in parts where the function itself takes them, and here a function that it calls does",
        "Take them in the function itself (`grads = jax.grad(...)(...)`), or use --backend jit, where the "
        "compiler works it out",
        called[0].span,
    )


def _check(plan: Plan, span: Span) -> None:
    """Refuse what is not written in shard_map code.

    Raises:
        RefusalError: JP046.
    """
    for leaf in _parted(plan):
        several = next((names for names in leaf.spec if len(names) > 1), None)
        if several is not None:
            axes = " and ".join(f"`{name}`" for name in several)
            raise _for_jit(f"one dimension of `{leaf.path}` is divided along {axes}", span)
    for argument in plan.arguments:
        in_parts = any(leaf.spec and leaf.axis is None for leaf in argument.leaves)
        if in_parts and argument.name in plan.mutated:
            raise _for_jit(f"`{argument.name}` is changed in place", span)


def _parted(plan: Plan, axes: Collection[str] | None = None) -> Iterator[Leaf]:
    """Arrays of the arguments, but for the batch, that devices have in parts, along any axis or some."""
    for argument in plan.arguments:
        for leaf in argument.leaves:
            if leaf.axis is None and is_part(leaf, axes):
                yield leaf


def is_part(leaf: Leaf, axes: Collection[str] | None = None) -> bool:
    """Whether devices have parts of an array, along any axis or some."""
    return any(axes is None or name in axes for names in leaf.spec for name in names)


def parts_below(plan: Plan, source: str, axes: Collection[str]) -> tuple[bool, ...]:
    """Of each array below an argument or a part of one, whether devices along some axes have parts of it."""
    keys = keys_of(source)
    leaves = (leaf for argument in plan.arguments for leaf in argument.leaves)
    return tuple(
        is_part(leaf, axes)
        for leaf in leaves
        if leaf.role is not Role.STATIC and keys_of(leaf.path)[: len(keys)] == keys
    )


def _loads(plan: Plan, body: Body, axes: Collection[str] | None = None) -> Iterator[Expression]:
    """Where the function reads an argument, or a part of one, in which there are arrays in parts."""
    leaves = [leaf for argument in plan.arguments for leaf in argument.leaves if leaf.role is not Role.STATIC]
    parted = [keys_of(leaf.path) for leaf in _parted(plan, axes)]
    known = {keys_of(leaf.path)[:end] for leaf in leaves for end in range(1, len(keys_of(leaf.path)) + 1)}
    by_point = {each.point: each for each in body.expressions}
    for each in body.expressions:
        keys = _keys(each, body)
        outer = by_point.get(each.parent) if each.parent is not None else None
        if keys is None or (outer is not None and _keys(outer, body) in known):
            continue
        # A method's object is left as it is, unless it is an array: the code of one has no arrays.
        is_divided = any(path[: len(keys)] == keys for path in parted)
        if is_divided and (keys in parted or not _is_called_on(each, body)):
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


def _made(sync: Sync, body: Body) -> Span:
    """Where the value of a collective is made, which may stand behind a later statement."""
    ahead = [
        each.span
        for each in body.statements.values()
        if each.scope == body.scope.index
        and sync.value in dict(each.names)
        and place(each.span) <= place(sync.span)
    ]
    return max(ahead, key=place) if sync.where == "after" and ahead else sync.span


def _gradient_of(sync: Sync, made: Span, loads: Sequence[Expression], plan: Plan) -> Expression | None:
    """What the value of a sum or a mean over the devices is the gradient of, if it is of arrays in parts."""
    within = [load for load in loads if inside(place(load.span), place(made))]
    alike = [load for load in within if _bytes(plan, load) == sync.bytes]
    return alike[0] if len(alike) == 1 else None


def _bytes(plan: Plan, load: Expression, axes: Collection[str] | None = None) -> int:
    """Bytes of the arrays below an argument or a part of one: of all, or of those in parts along `axes`."""
    keys = keys_of(load.text)
    leaves = (leaf for each in plan.arguments for leaf in each.leaves if axes is None or is_part(leaf, axes))
    return sum(leaf.bytes() for leaf in leaves if keys_of(leaf.path)[: len(keys)] == keys)


def _below(leaf: Leaf, paths: set[str]) -> bool:
    return any(leaf.path.startswith(path) for path in paths)


def _opened(axes: Axes, tree: Mapping[str, Any] | int) -> Axes:
    """The axes of a result with its outer container written out, of which elements may lie in parts."""
    if isinstance(axes, AxesNode) or isinstance(tree, int) or tree["kind"] not in ("tuple", "list", "dict"):
        return axes
    keys = tuple(tree["keys"]) if tree["kind"] == "dict" else ()
    return AxesNode(tree["kind"], keys, (axes,) * len(tree["children"]))
