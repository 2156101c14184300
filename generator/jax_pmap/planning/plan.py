"""From an observation to the plan: arguments, outputs and their axes trees, the chain, the guards."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from jax_pmap.model import Argument, Axes, AxesNode, Leaf, Role, Span, refused
from jax_pmap.planning.decide import Observation
from jax_pmap.planning.roles import Described, Roles
from jax_pmap.reading.facts import FunctionFacts
from jax_pmap.worker import protocol

#: Of what is told from others by nothing.
UNTOLD = protocol.Identity("", "", False)


def axes_tree(
    tree: Any, axes: Mapping[int, int], what: str, span: Span, constants: frozenset[int] = frozenset()
) -> Axes:
    """Batch axes as a pytree prefix, collapsed wherever a whole container agrees.

    Args:
        tree: containers of a value as the worker describes them, leaves being their index.
        axes: batch axis of each leaf that has one.
        what: the value's name, for the refusal.
        span: where to point.
        constants: leaves that are no arrays and taken out before the call.

    Raises:
        RefusalError: JP054, for a container that cannot be written down as a prefix.
    """
    if isinstance(tree, int):
        return axes.get(tree)
    children = [
        axes_tree(child, axes, what, span, constants)
        for child in tree.get("children", ())
        if set(leaves_of(child)) - constants
    ]
    if not children or all(child == children[0] and not isinstance(child, AxesNode) for child in children):
        return children[0] if children else None
    if tree["kind"] == "node":
        name = tree["type"].rpartition(":")[2]
        raise refused(
            "JP054",
            f"`{what}` is a `{name}` with leaves of different roles, which cannot be written as a "
            "prefix tree",
            f"Pass the parts of `{what}` that hold the batch as arguments of their own",
            span,
        )
    return AxesNode(
        kind=tree["kind"],
        keys=tuple(tree["keys"]),
        children=tuple(axes_tree(child, axes, what, span, constants) for child in tree["children"]),
        type_name=tree.get("type", ""),
    )


def is_literal(source: str) -> bool:
    """Whether `source` is a constant that equals itself wherever it is written."""
    try:
        value = ast.literal_eval(source)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    return bool(value == value)


def plain_constants(argument: Described) -> set[int]:
    """Constants that stand in dicts, lists and tuples alone: settings, not part of a class's code."""

    def walk(tree: Any) -> set[int]:
        if isinstance(tree, int):
            return {tree}
        if tree["kind"] not in ("dict", "list", "tuple", "namedtuple"):
            return set()
        return {leaf for child in tree["children"] for leaf in walk(child)}

    return walk(argument["tree"]) & constant_leaves(argument["leaves"])


def constant_leaves(leaves: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """Indices of the leaves that are compile-time constants."""
    return frozenset(index for index, leaf in enumerate(leaves) if leaf["constant"])


def leaves_of(tree: Any) -> list[int]:
    """Leaf indices in a described tree."""
    if isinstance(tree, int):
        return [tree]
    return [leaf for child in tree.get("children", ()) for leaf in leaves_of(child)]


def plan_arguments(
    facts: FunctionFacts,
    described: Sequence[Described],
    roles: Roles,
    proved_values: Mapping[str, tuple[str, ...]],
    told: Mapping[str, tuple[tuple[str, str], ...]],
    same: Mapping[str, protocol.Identity],
    donated: Sequence[str],
    fits: Mapping[str, int],
) -> tuple[Argument, ...]:
    """The plan's arguments, one for each parameter in order; of static objects, what is `told` of them.

    `same` says of other constants, by path, what they are told from others by; `fits` says of leaves how
    large their integers of 64 bits may be.
    """
    out = []
    for parameter, argument in zip(facts.parameters, described, strict=True):
        name = parameter.name
        axes = roles.axes.get(name, {})
        static = name in roles.statics
        compared = set() if static or name in roles.accepted else plain_constants(argument)
        leaves = []
        for index, leaf in enumerate(argument["leaves"]):
            axis = axes.get(index)
            role = Role.BATCH if axis is not None else Role.REPLICATED
            if static or leaf["constant"]:
                role = Role.STATIC
            elif (name, index) in roles.keys:
                role = Role.KEY
            value = leaf["repr"] if index in compared and is_literal(leaf["repr"]) else ""
            known = same.get(leaf["path"], UNTOLD) if index in compared else UNTOLD
            shape = tuple(leaf["shape"])
            told_by = known.digest, known.imported
            leaves.append(Leaf(leaf["path"], role, axis, shape, leaf["dtype"], value, *told_by))
        if name in told:
            kinds = [type(ast.literal_eval(value)).__name__ for _, value in told[name]]
            leaves = [
                Leaf(path, Role.STATIC, None, (), kind, value)
                for (path, value), kind in zip(told[name], kinds, strict=True)
            ]
        if static and name in same:
            known = same[name]
            leaves = [Leaf(name, Role.STATIC, None, (), argument["type"], "", known.digest, known.imported)]
        out.append(
            Argument(
                name=name,
                kind=parameter.kind,
                axes=None
                if static
                else axes_tree(argument["tree"], axes, name, facts.span, constant_leaves(argument["leaves"])),
                leaves=tuple(leaves),
                static=static,
                # With another array in it, an object is the same static argument to compiled code.
                wrapped=static
                and (name in roles.wrapped or (name != facts.receiver and same.get(name, UNTOLD).arrays)),
                partition="" if static else argument["partition"],
                donated=name in donated,
                proved_values=proved_values.get(name, ()),
                typed=name in roles.typed,
                modes=() if static else tuple(argument["modes"]),
                functions=() if static else _functions(argument, same),
                fits=() if static else tuple((x.path, fits[x.path]) for x in leaves if x.path in fits),
                why=roles.why.get(name, ""),
            )
        )
    return tuple(out)


def _functions(
    argument: Described, same: Mapping[str, protocol.Identity]
) -> tuple[tuple[str, str, str], ...]:
    """Path, type and digest of the functions that an argument holds beside its leaves, of those in `same`."""
    return tuple((path, kind, same[path].digest) for path, kind in argument["functions"] if path in same)


def plan_outputs(
    observation: Observation, facts: FunctionFacts, given: Sequence[Mapping[str, Any]]
) -> tuple[Axes, tuple[Leaf, ...]]:
    """Axes tree and leaves of the result; `given` are its shapes and dtypes in the user's own precision."""
    axes: dict[int, int] = {}
    leaves = []
    for index, (leaf, shape) in enumerate(zip(observation.leaves, given, strict=True)):
        kind = leaf["kind"]
        axis = int(kind.partition(" ")[2]) if kind.startswith("sharded") else None
        if axis is not None:
            axes[index] = axis
        role = Role.REPLICATED if axis is None else Role.BATCH
        if shape["constant"]:
            role = Role.STATIC
        leaves.append(Leaf("result" + leaf["path"], role, axis, tuple(shape["shape"]), shape["dtype"]))
    constants = constant_leaves(given)
    return axes_tree(observation.tree, axes, "the result", facts.span, constants), tuple(leaves)


def chain(
    described: Sequence[Described],
    roles: Roles,
    tree: Any,
    outputs: Sequence[Leaf],
    returned: Sequence[str],
    mutated: Sequence[str] = (),
) -> tuple[tuple[str, str], ...]:
    """Outputs that feed the next call: the same containers, shapes and roles as an argument.

    A name that is both argument and returned element settles it; without one, only values of
    more than one leaf or of rank at least 1 count, so that a loss does not become a learning rate.

    Arguments that are changed in place come behind the result, as ``(result, (model, optimizer))``.
    """
    parts: list[tuple[str, Any, str]] = [("", tree, returned[0] if len(returned) == 1 else "")]
    if isinstance(tree, dict) and tree["kind"] in ("tuple", "list"):
        names = list(returned) if len(returned) == len(tree["children"]) else [""] * len(tree["children"])
        parts = [
            (f"[{i}]", child, name)
            for i, (child, name) in enumerate(zip(tree["children"], names, strict=True))
        ]
    elif isinstance(tree, dict) and tree["kind"] == "dict":
        parts += [
            (f"[{key}]", child, key.strip("'\""))
            for key, child in zip(tree["keys"], tree["children"], strict=True)
        ]
    pairs: list[tuple[str, str]] = []
    used: set[str] = set(mutated)
    for by_name in (True, False):
        for path, child, name in parts:
            if any(path == other for _, other in pairs):
                continue
            for argument in described:
                match = argument["name"] == name
                if argument["name"] in used or match is not by_name or argument["name"] in roles.statics:
                    continue
                if not by_name and (name in {a["name"] for a in described} or not substantial(argument)):
                    continue
                if same_value(argument, roles, child, outputs):
                    pairs.append((argument["name"], path))
                    used.add(argument["name"])
                    break
    if mutated:
        pairs = [(name, f"[0]{path}") for name, path in pairs]
        pairs += [(name, f"[1][{index}]") for index, name in enumerate(mutated)]
    return tuple(pairs)


def substantial(argument: Described) -> bool:
    """Whether an argument is more than one number."""
    return len(argument["leaves"]) > 1 or any(leaf["shape"] for leaf in argument["leaves"])


def same_value(argument: Described, roles: Roles, child: Any, outputs: Sequence[Leaf]) -> bool:
    """Whether an output can stand in for an argument on the next call."""
    indices = leaves_of(child)
    axes = roles.axes.get(argument["name"], {})
    if (
        not argument["leaves"]
        or len(indices) != len(argument["leaves"])
        or form(child) != form(argument["tree"])
    ):
        return False
    return all(
        outputs[index].shape == tuple(leaf["shape"])
        and same_dtype(leaf, outputs[index].dtype)
        and outputs[index].axis == axes.get(position)
        for position, (index, leaf) in enumerate(zip(indices, argument["leaves"], strict=True))
    )


def same_dtype(leaf: Mapping[str, Any], dtype: str) -> bool:
    """Whether an output's dtype is an argument leaf's; a Python number comes back as an array."""
    if leaf["category"] in ("int", "float", "complex") and not leaf["constant"]:
        return dtype.startswith(leaf["category"])
    return bool(dtype == leaf["dtype"])


def form(tree: Any) -> Any:
    """A described tree without its leaf indices."""
    if isinstance(tree, int):
        return "leaf"
    return (
        tree["kind"],
        tree.get("type", ""),
        tuple(tree.get("keys", ())),
        tuple(map(form, tree.get("children", ()))),
    )
