"""JP122: `out_axes=None` for a result that differs between devices."""

import ast
import re
from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.mapped import Mapping, Mappings
from jax_pmap.checking.module import Module
from jax_pmap.syntax.resolve import returned_by
from jax_pmap.syntax.scopes import Function, positional

#: Modules whose functions hold no collectives.
_PLAIN = ("jax.numpy.", "numpy.", "jax.nn.", "builtins.", "jax.scipy.", "math.")
_METHODS = frozenset(
    {"sum", "mean", "max", "min", "reshape", "astype", "dot", "std", "var", "prod", "squeeze"}
)
#: Names of what is mapped as equal copies, one for each device.
_COPIES = re.compile(r"param|state|model|copies|replica|variables")
#: What is the same on all devices of an array that is not.
_SAME = frozenset({"shape", "dtype", "ndim", "size"})


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Functions of plain array operations that return what they made of their share, with `out_axes=None`."""
    for mapping in mappings.pmaps:
        node = mapping.application.argument(99, "out_axes")
        if not mapping.is_jax_pmap or mapping.function is None or not isinstance(node, ast.expr):
            continue
        function = mapping.function.node
        is_none = isinstance(node, ast.Constant) and node.value is None
        split = _split(module, mapping) if is_none else set()
        if not split or not _is_plain(module, function):
            continue
        returned = returned_by(function)
        if returned is None or (
            isinstance(returned, ast.Name | ast.Subscript)
            and not isinstance(module.assigned(returned), ast.BinOp | ast.Call)
        ):
            continue  # the arguments themselves, which may be equal copies
        if not _varies(returned, _made_of(function, split)):
            continue
        yield module.finding(
            "JP122",
            node,
            f"`out_axes=None` says that the result is the same on every device, but it is made of "
            f"`{sorted(split)[0]}` without a collective: the caller gets that of device 0",
            "Apply `jax.lax.pmean` or `psum` to the result, or leave `out_axes` out to get one of each",
        )


def _split(module: Module, mapping: Mapping) -> set[str]:
    """Parameters that are split: mapped, where others are not."""
    reference = mapping.function
    application = mapping.application
    if reference is None or reference.keywords or application.open or reference.node.args.vararg:
        return set()
    if application.argument(99, "static_broadcasted_argnums") is not None:
        return set()
    names = positional(reference.node)[reference.bound :]
    node = application.argument(99, "in_axes")
    axes = None if node is None else module.constant(node)
    if not isinstance(axes, tuple) or None not in axes:
        return set()  # it may be copies that are mapped, which are the same on every device
    return {
        name
        for name, axis in zip(names, axes, strict=False)
        if isinstance(axis, int) and not _COPIES.search(name)
    }


def _is_plain(module: Module, function: Function) -> bool:
    """Whether nothing is called but array functions that are known, and nothing is defined inside."""
    body = function.body if isinstance(function.body, list) else [function.body]
    for node in (each for part in body for each in ast.walk(part)):
        if isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.If | ast.For | ast.While
        ):
            return False
        if isinstance(node, ast.Call):
            name = module.qualname(node.func)
            method = name is None and isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS
            if not method and not (name or "").startswith(_PLAIN):
                return False
    return True


def _made_of(function: Function, split: set[str]) -> set[str]:
    """`split`, and every name that is assigned from one of them and nothing else than once."""
    divided = set(split)
    if isinstance(function, ast.Lambda):
        return divided
    for statement in function.body:
        if isinstance(statement, ast.Assign):
            varies = _varies(statement.value, divided)
            for target in statement.targets:
                names = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
                divided = divided | names if varies else divided - names
    return divided


def _varies(node: ast.expr, divided: set[str]) -> bool:
    """Whether a name of `held` is in `node` other than for its shape or dtype."""
    if isinstance(node, ast.Attribute) and node.attr in _SAME:
        return False
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
        return False
    if isinstance(node, ast.Name):
        return node.id in divided
    if isinstance(node, ast.Call) and _makes_constant(node):
        return False
    return any(_varies(child, divided) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))


def _makes_constant(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return name in ("zeros_like", "ones_like", "full_like", "shape", "ndim", "size", "result_type")
