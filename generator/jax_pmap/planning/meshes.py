"""How arrays lie on a mesh of several axes: the batch, what rules say, and what follows of it.

Where an array lies changes no number, so nothing here can make code wrong: the compiler keeps the meaning of
the whole. It decides what every device holds and says to the others.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from jax_pmap.leaf_paths import dotted, keys_of
from jax_pmap.model import Argument, Leaf, MeshAxis, Plan, Request, Role, Span, Spec, SpecRule, refused

#: Numbers from which on `--fsdp` divides an array: of smaller ones the copies cost less than the gathering.
LARGE = 4096


def on_mesh(plan: Plan, request: Request, span: Span) -> Plan:
    """`plan` with the place of every array on the mesh that was asked for.

    The batch is divided along the mesh axis ``plan.axis_name``. Another array lies as the first rule says
    that fits its path; one that no rule fits, as the one of the same shape does whose path ends most like its
    own, which is how optimiser state follows its parameters. Then `--fsdp` divides what is large along the
    axis of the batch, too.

    Raises:
        RefusalError: JP063, for a rule that fits no array or asks for a dimension that does not divide.
    """
    mesh = request.mesh
    if not mesh:
        return plan
    ruled = _ruled(plan.arguments, request.spec, mesh, plan.axis_name, span)

    def placed(leaf: Leaf) -> Leaf:
        if leaf.axis is not None:
            return _split(leaf, plan.axis_name)
        if leaf.role is not Role.REPLICATED:
            return leaf
        spec = ruled.get(leaf.path)
        whole = spec == ()
        if spec is None:
            spec = _like(leaf, ruled, plan.arguments)
        if request.fsdp and not whole:
            spec = _divided(leaf, spec, plan.axis_name, mesh)
        return dataclasses.replace(leaf, spec=spec)

    arguments = tuple(
        each if each.static else dataclasses.replace(each, leaves=tuple(map(placed, each.leaves)))
        for each in plan.arguments
    )
    if request.fsdp:
        _check_fsdp(arguments, plan.axis_name, mesh, span)
    outputs = _outputs(plan, arguments)
    return dataclasses.replace(plan, mesh=mesh, arguments=arguments, outputs=outputs)


def _split(leaf: Leaf, along: str) -> Leaf:
    """A leaf of the batch, divided along a mesh axis."""
    assert leaf.axis is not None
    return dataclasses.replace(leaf, spec=(*[()] * leaf.axis, (along,)))


def _outputs(plan: Plan, arguments: Sequence[Argument]) -> tuple[Leaf, ...]:
    """The results: what feeds the next call lies as there, and what is like an argument's array as that."""
    lies = {leaf.path: leaf.spec for leaf in _placeable(arguments)}
    fed: dict[str, Spec] = {}
    for name, path in plan.chain:
        # Behind the result stand arguments that are changed in place.
        if plan.mutated and not path.startswith("[0]"):
            continue
        root = "result" + (path.removeprefix("[0]") if plan.mutated else path)
        leaves = next(each.leaves for each in arguments if each.name == name)
        fed |= {root + leaf.path.removeprefix(name): leaf.spec for leaf in leaves}

    def placed(leaf: Leaf) -> Leaf:
        if leaf.axis is not None:
            return _split(leaf, plan.axis_name)
        if leaf.role is not Role.REPLICATED:
            return leaf
        spec = fed.get(leaf.path)
        return dataclasses.replace(leaf, spec=_like(leaf, lies, arguments) if spec is None else spec)

    return tuple(map(placed, plan.outputs))


def _placeable(arguments: Sequence[Argument]) -> Iterator[Leaf]:
    """Arrays that rules are for: those that no batch divides."""
    for argument in arguments:
        if not argument.static:
            yield from (leaf for leaf in argument.leaves if leaf.role is Role.REPLICATED)


def _ruled(
    arguments: Sequence[Argument],
    rules: Sequence[SpecRule],
    mesh: tuple[MeshAxis, ...],
    along: str,
    span: Span,
) -> dict[str, Spec]:
    """The place of each leaf that a rule fits, by its path; the batch is divided `along` an axis.

    Raises:
        RefusalError: JP063.
    """
    found: dict[str, Spec] = {}
    leaves = list(_placeable(arguments))
    batch = [leaf for each in arguments for leaf in each.leaves if leaf.axis is not None]
    rows = [((along,), leaf.shape[leaf.axis]) for leaf in batch if leaf.axis is not None]
    for rule in rules:
        fits = [leaf for leaf in leaves if re.fullmatch(rule.pattern, dotted(leaf.path))]
        if not fits:
            raise _fits_nothing(rule, batch, leaves, span)
        for leaf in fits:
            if leaf.path not in found:
                _check_rule(rule, leaf, mesh, rows, span)
                found[leaf.path] = rule.spec
    return found


def _fits_nothing(rule: SpecRule, batch: Sequence[Leaf], leaves: Sequence[Leaf], span: Span) -> Exception:
    """The refusal of a rule whose pattern fits none of the `leaves` that it could be for."""
    own = next((leaf for leaf in batch if re.fullmatch(rule.pattern, dotted(leaf.path))), None)
    if own is not None:
        return refused(
            "JP063",
            f"`--spec {rule.text}` fits `{dotted(own.path)}` alone, which is the batch: that is divided "
            f"along axis {own.axis}",
            "Leave the rule out, or --replicate what is no batch",
            span,
        )
    paths = [dotted(leaf.path) for leaf in leaves]
    inside = [path for path in paths if _found(rule.pattern, path)]
    near = inside or difflib.get_close_matches(re.sub(r"[^\w.]", "", rule.pattern), paths, 1, cutoff=0.0)
    hint = f"The nearest path is `{near[0]}`" if near else "No array is left whole that it could divide"
    if inside:
        hint += "; a pattern has to fit all of it: begin it with `.*`, or end it with `.*`"
    return refused("JP063", f"`--spec {rule.text}`: `{rule.pattern}` fits the path of no array", hint, span)


def _found(pattern: str, path: str) -> bool:
    return re.search(pattern, path) is not None


#: (mesh axes, a size that the devices along them have to divide).
Divided: TypeAlias = tuple[Sequence[str], int]


def _check_rule(
    rule: SpecRule, leaf: Leaf, mesh: tuple[MeshAxis, ...], rows: Sequence[Divided], span: Span
) -> None:
    """Refuse a rule that asks for a dimension that a leaf does not have, or that does not divide.

    `rows` are sizes of the batch, which a mesh that is proposed divides too.
    """
    name, shape = dotted(leaf.path), tuple(leaf.shape)
    if len(rule.spec) > len(shape):
        raise refused(
            "JP063",
            f"`--spec {rule.text}` divides dimension {len(rule.spec) - 1} of `{name}`, of shape {shape}",
            "Make the pattern fit arrays with as many dimensions, or write one axis for each that there is",
            span,
        )
    for dimension, names in enumerate(rule.spec):
        parts = math.prod(axis.size for axis in mesh if axis.name in names)
        if shape[dimension] % parts == 0:
            continue
        near = _workable(mesh, [(names, shape[dimension]), *rows])
        raise refused(
            "JP063",
            f"`--spec {rule.text}` divides dimension {dimension} of `{name}`, of size {shape[dimension]} "
            f"(shape {shape}), among {parts} devices",
            f"The nearest mesh that it divides over is --mesh {near}; or leave that dimension whole, `None`",
            span,
        )


def _workable(mesh: tuple[MeshAxis, ...], divided: Sequence[Divided]) -> str:
    """The mesh nearest to `mesh` that divides some sizes: of as many devices, or of fewer."""

    def meshes(number: int, axes: int) -> Iterator[tuple[int, ...]]:
        if axes == 1:
            yield (number,)
            return
        for first in (n for n in range(1, number + 1) if number % n == 0):
            yield from ((first, *rest) for rest in meshes(number // first, axes - 1))

    def divides(sizes: tuple[int, ...]) -> bool:
        given = {axis.name: each for axis, each in zip(mesh, sizes, strict=True)}
        return all(size % math.prod(given[name] for name in names) == 0 for names, size in divided)

    def apart(sizes: tuple[int, ...]) -> int:
        return sum(abs(each - axis.size) for each, axis in zip(sizes, mesh, strict=True))

    for number in range(math.prod(axis.size for axis in mesh), 0, -1):
        found = min(filter(divides, meshes(number, len(mesh))), key=apart, default=None)
        if found is not None:
            break
    assert found is not None, "one device divides everything"
    return ",".join(f"{axis.name}={each}" for axis, each in zip(mesh, found, strict=True))


def _like(leaf: Leaf, ruled: dict[str, Spec], arguments: Sequence[Argument]) -> Spec:
    """The place of the array with a rule that `leaf` belongs to: of its shape, with the end of its path."""
    own = keys_of(leaf.path)
    best: tuple[int, Spec] = (0, ())
    for other in _placeable(arguments):
        spec, keys = ruled.get(other.path), keys_of(other.path)
        if spec is None or other.shape != leaf.shape:
            continue
        # An argument that is one array has no keys to be told by.
        common = _common(own, keys) if len(keys) > 1 else 1
        if common > best[0]:
            best = common, spec
    return best[1]


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many keys two paths have in common at their ends."""
    count = 0
    for a, b in zip(reversed(one), reversed(other), strict=False):
        if a != b:
            break
        count += 1
    return count


def _divided(leaf: Leaf, spec: Spec, axis: str, mesh: tuple[MeshAxis, ...]) -> Spec:
    """`spec` with the largest dimension that is still whole divided along `axis`, where one can be."""
    if math.prod(leaf.shape) < LARGE or any(axis in names for names in spec):
        return spec
    parts = next(each.size for each in mesh if each.name == axis)
    rows = [list(names) for names in spec] + [[] for _ in leaf.shape[len(spec) :]]
    free = [i for i, size in enumerate(leaf.shape) if not rows[i] and size % parts == 0]
    if not free:
        return spec
    rows[max(free, key=lambda i: leaf.shape[i])] = [axis]
    while rows and not rows[-1]:
        rows.pop()
    return tuple(map(tuple, rows))


def _check_fsdp(arguments: Sequence[Argument], along: str, mesh: tuple[MeshAxis, ...], span: Span) -> None:
    """Refuse `--fsdp` where it divides nothing.

    Raises:
        RefusalError: JP063, with the largest array.
    """
    leaves = list(_placeable(arguments))
    if any(along in names for leaf in leaves for names in leaf.spec):
        return
    largest = max(leaves, key=lambda leaf: math.prod(leaf.shape), default=None)
    if largest is None:
        raise refused(
            "JP063", "`--fsdp` divides what is whole on every device, and nothing is", "Leave it out", span
        )
    parts = next(axis.size for axis in mesh if axis.name == along)
    shape = tuple(largest.shape)
    small = math.prod(shape) < LARGE
    raise refused(
        "JP063",
        f"`--fsdp` divides no array: the largest, `{dotted(largest.path)}` of shape {shape}, has "
        + (f"fewer than {LARGE} numbers" if small else f"no whole dimension that {parts} devices divide"),
        "Name it in a rule (`--spec`), or leave `--fsdp` out"
        if small
        else f"Give `{along}` another size in --mesh, or leave `--fsdp` out",
        span,
    )
