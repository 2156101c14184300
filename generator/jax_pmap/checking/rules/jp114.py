"""JP114: `[0]` on the result of a pmap."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """`[0]` on names that hold what a function mapped with a collective returned, stacked."""
    for node in module.nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            if (
                isinstance(node.slice, ast.Constant)
                and node.slice.value == 0
                and type(node.slice.value) is int
            ):
                name = node.value
                if isinstance(name, ast.Name) and _is_stacked(module, mappings, name):
                    yield _finding(module, node, module.segment(name))
        elif (
            isinstance(node, ast.Call)
            and module.qualname(node.func) == "jax.tree.map"
            and len(node.args) == 2
        ):
            function, tree = node.args
            if (
                isinstance(tree, ast.Name)
                and isinstance(function, ast.Lambda)
                and isinstance(function.body, ast.Subscript)
                and isinstance(function.body.value, ast.Name)
                and isinstance(function.body.slice, ast.Constant)
                and function.body.slice.value == 0
                and _is_stacked(module, mappings, tree)
            ):
                yield _finding(module, node, tree.id)


def _finding(module: Module, node: ast.expr, name: str) -> Finding:
    return module.finding(
        "JP114",
        node,
        f"`[0]` takes one device's copy out of `{name}`: with current jax it is a computation over all "
        "devices, "
        "and it fails where there are several hosts",
        "Return one copy with `out_axes=None`, or read this host's: `x.addressable_shards[0].data[0]`",
    )


def _is_stacked(module: Module, mappings: Mappings, name: ast.Name) -> bool:
    """Whether everything `name` is assigned in its function comes from one pmap with stacked outputs."""
    around = module.enclosing_function(name) or module.tree
    made = False
    for node in ast.walk(around):
        if not isinstance(node, ast.Assign) or module.enclosing_function(
            node
        ) is not module.enclosing_function(name):
            continue
        for target in node.targets:
            direct = isinstance(target, ast.Name) and target.id == name.id
            part = isinstance(target, ast.Tuple) and any(
                isinstance(each, ast.Name) and each.id == name.id for each in target.elts
            )
            if not direct and not part:
                continue
            if not _from_pmap(mappings, node.value):
                return False
            made = True
    return made


def _from_pmap(mappings: Mappings, value: ast.expr) -> bool:
    if not isinstance(value, ast.Call):
        return False
    mapping = mappings.pmap_at(value.func)
    if mapping is None or not mapping.is_jax_pmap or mapping.application.open:
        return False
    if mapping.application.argument(99, "out_axes") is not None or mapping.axis is None:
        return False
    if mapping.function is None:
        return True
    return _returns_arrays(mapping.function.node)


def _returns_arrays(function: ast.AST) -> bool:
    """Whether a result is not plainly a tuple, whose `[0]` is its first part."""
    if isinstance(function, ast.Lambda):
        return not isinstance(function.body, ast.Tuple)
    return True
