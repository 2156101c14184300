"""Which arguments of a mapped function are split over the devices, and which every device has whole."""

from __future__ import annotations

import ast
import re

from jax_pmap.checking.mapped import Mapping, Mappings
from jax_pmap.checking.module import Module
from jax_pmap.checking.values import UNKNOWN, Array
from jax_pmap.syntax.resolve import Unknown, given_for
from jax_pmap.worker.scopes import names_in, positional

#: Names of what is mapped as equal copies, one for each device.
_COPIES = re.compile(r"param|state|model|config|cfg|self|variables|replica|^w$")
#: Functions whose result is equal copies of one value.
_STACKS = ("jax.numpy.stack", "jax.numpy.array", "jax.numpy.asarray", "jax.numpy.concatenate", "numpy.stack")
_REPEATS = (
    "jax.numpy.tile",
    "jax.numpy.broadcast_to",
    "jax.numpy.repeat",
    "flax.jax_utils.replicate",
    "jax.device_put_replicated",
)


def arguments(mappings: Mappings, mapping: Mapping) -> dict[str, Array] | None:
    """What is known of each argument by name, None where the mapping does not tell.

    A value that every device has whole is named in `Array.whole` and may be a key; of a share,
    `Array.shares` has the name of the argument.
    """
    function = mapping.function
    if function is None or mapping.kind not in ("pmap", "shard_map"):
        return None
    names = positional(function.node)[function.bound :]
    found: dict[str, Array] = {}
    if mapping.kind == "shard_map":
        entries = _entries(mappings.module, mapping.application.keywords.get("in_specs"), names)
        for name, spec in entries.items():
            found[name] = _by_spec(mappings.module, name, spec)
    else:
        split = _split(mappings.module, mapping, names)
        if split is None:
            return None
        whole = _given_copies(mappings, mapping, names)
        for name in names:
            if split.get(name) is False or name in whole:
                found[name] = Array(whole=frozenset({name}), key=name)
            elif split.get(name):
                copies = _COPIES.search(name)
                found[name] = Array(whole=frozenset({name})) if copies else Array(shares=frozenset({name}))
    return {name: value for name, value in found.items() if name not in function.keywords}


def split_axes(module: Module, mapping: Mapping) -> dict[str, set[str]]:
    """Of a `shard_map`, the axes over which each argument is split, by its name."""
    assert mapping.function is not None
    names = positional(mapping.function.node)[mapping.function.bound :]
    entries = _entries(module, mapping.application.keywords.get("in_specs"), names)
    return {name: _axes(module, spec) or set() for name, spec in entries.items()}


def _entries(module: Module, node: ast.AST | None, names: list[str]) -> dict[str, ast.AST]:
    """The parts of ``in_axes`` or ``in_specs`` by argument; one that is no tuple is for all."""
    made = module.assigned(node)
    if made is None:
        return {}
    if isinstance(made, ast.Tuple):
        return dict(zip(names, made.elts, strict=False))
    if isinstance(made, ast.Dict) or (
        isinstance(made, ast.Call) and module.qualname(made.func) == "builtins.dict" and not made.args
    ):
        return {}
    return dict.fromkeys(names, made)


def _by_spec(module: Module, name: str, spec: ast.AST) -> Array:
    axes = _axes(module, spec)
    if axes is None:
        return UNKNOWN
    if axes:
        return Array(shares=frozenset({name}))
    return Array(whole=frozenset({name}), key=name)


def _axes(module: Module, spec: ast.AST) -> set[str] | None:
    """The axes in a `PartitionSpec`, None where it is none or they cannot be told."""
    made = module.assigned(spec)
    if not isinstance(made, ast.Call) or made.keywords:
        return None
    if (module.qualname(made.func) or "").rpartition(".")[2] not in ("PartitionSpec", "P"):
        return None
    found: set[str] = set()
    for argument in made.args:
        value = module.constant(argument)
        values = value if isinstance(value, tuple) else (value,)
        if any(isinstance(each, Unknown) for each in values):
            return None
        found |= {each for each in values if isinstance(each, str)}
    return found


def _split(module: Module, mapping: Mapping, names: list[str]) -> dict[str, bool | None] | None:
    """Whether each argument of a `pmap` is mapped; None where ``in_axes`` cannot be told at all."""
    application = mapping.application
    if application.open or not {"args", "kwargs", "default"}.isdisjoint(application.keywords):
        return None  # the latter are how equinox was told before it had `in_axes`
    node = application.keywords.get("in_axes")
    made = module.assigned(node)
    if made is None:
        found: dict[str, bool | None] = dict.fromkeys(names, True)
    elif isinstance(made, ast.Dict) or (isinstance(made, ast.Call) and _is_dict(module, made)):
        found = dict.fromkeys(names, True)  # equinox: what is not named is mapped, if it is an array
        found |= {name: _is_mapped(module, axis) for name, axis in _named_axes(module, made)}
    elif isinstance(made, ast.Tuple | ast.Constant | ast.UnaryOp | ast.Call):
        entries = _entries(module, made, names)
        found = {name: _is_mapped(module, entries[name]) if name in entries else None for name in names}
    else:
        return None
    static = application.keywords.get("static_broadcasted_argnums")
    if static is not None:
        numbers = module.constant(static)
        for number in numbers if isinstance(numbers, tuple) else (numbers,):
            if isinstance(number, int) and number < len(names):
                found[names[number]] = None
    return found


def _is_dict(module: Module, call: ast.Call) -> bool:
    return module.qualname(call.func) == "builtins.dict" and not call.args


def _named_axes(module: Module, made: ast.Dict | ast.Call) -> list[tuple[str, ast.AST]]:
    if isinstance(made, ast.Call):
        return [(each.arg, each.value) for each in made.keywords if each.arg]
    pairs = [(module.constant(key), value) for key, value in zip(made.keys, made.values, strict=True) if key]
    return [(name, value) for name, value in pairs if isinstance(name, str)]


def _is_mapped(module: Module, axis: ast.AST) -> bool | None:
    """Whether an entry of ``in_axes`` splits its argument; None where it may."""
    value = module.constant(axis)
    if value is None:
        return False
    if isinstance(value, int):
        return True
    made = module.assigned(axis)
    if isinstance(made, ast.Call) and module.qualname(made.func) == "equinox.if_array":
        return True
    return None


def _given_copies(mappings: Mappings, mapping: Mapping, names: list[str]) -> set[str]:
    """Arguments for which every call in this module gives one value, copied for each device."""
    module = mappings.module
    calls = [call for call in module.all_calls if mappings.pmap_at(call.func) is mapping]
    found: set[str] = set()
    for position, name in enumerate(names):
        given = [given_for(call, position, name) for call in calls]
        if given and all(each is not None and _is_copies(module, each) for each in given):
            found.add(name)
    return found


def _is_copies(module: Module, node: ast.AST) -> bool:
    """``jnp.stack([key] * n)`` and its like, here or in a function that returns it."""
    made = module.result(node)
    if not isinstance(made, ast.Call) or not made.args:
        return False
    name = module.qualname(made.func) or ""
    if name in _REPEATS:
        return True
    rows = module.assigned(made.args[0])
    if name not in _STACKS:
        return False
    if isinstance(rows, ast.ListComp):
        targets = names_in(rows.generators[0].target)
        used = names_in(rows.elt)
        return not targets & used and not any(isinstance(each, ast.Call) for each in ast.walk(rows.elt))
    return (
        isinstance(rows, ast.BinOp)
        and isinstance(rows.op, ast.Mult)
        and isinstance(rows.left, ast.List)
        and len(rows.left.elts) == 1
    )
