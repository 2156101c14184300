"""JP113: the devices of all hosts counted for the leading axis."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Edit, Finding
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module
from jax_pmap.syntax.resolve import returned_by

#: Functions whose second argument is a shape, or a number of keys.
_SIZED = ("jax.random.split", "jax.numpy.reshape", "numpy.reshape", "jax.numpy.broadcast_to")


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Shapes and splits for `pmap` in which the devices of all hosts are counted."""
    if not any(mapping.is_jax_pmap for mapping in mappings.pmaps):
        return
    if "process_count" in module.text or "process_index" in module.text or "host_count" in module.text:
        return
    for call in module.calls(module.tree):
        size = _leading_size(module, call)
        made = module.assigned(size)
        if size is None or not isinstance(made, ast.Call) or not _reaches_pmap(module, mappings, call):
            continue
        written = module.segment(made)
        edits: tuple[Edit, ...] = ()
        if module.qualname(made.func) == "jax.device_count" and made is size:
            text, imports = module.spelled("jax.local_device_count", made.func)
            edits = (module.replace(made.func, text), *imports)
        elif not _counts_all(module, made):
            continue
        yield module.finding(
            "JP113",
            size if isinstance(size, ast.expr) else call,
            f"`{written}` counts the devices of all hosts; the leading axis of what `pmap` takes has the "
            "size of "
            "this host's devices",
            "Use `jax.local_device_count()`; on one host it is the same",
            edits if _counts_all(module, made) else (),
        )


def _counts_all(module: Module, call: ast.Call) -> bool:
    if call.args and module.qualname(call.func) == "builtins.len" and isinstance(call.args[0], ast.Call):
        inner = call.args[0]
        return module.qualname(inner.func) == "jax.devices" and not inner.args
    return module.qualname(call.func) == "jax.device_count" and not call.args


def _leading_size(module: Module, call: ast.Call) -> ast.AST | None:
    """The first number of a shape, of keys of a split or of copies, where it counts all devices."""
    name = module.qualname(call.func) or ""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    first: ast.AST | None = None
    if name in _SIZED and len(call.args) == 2:
        first = call.args[1]
    elif name in ("jax.numpy.stack", "jax.numpy.array", "numpy.stack") and len(call.args) == 1:
        rows = call.args[0]
        if isinstance(rows, ast.BinOp) and isinstance(rows.op, ast.Mult) and isinstance(rows.left, ast.List):
            return _counted(module, rows.right)
    elif method == "reshape" and call.args:
        first = call.args[0]
    while isinstance(first, ast.BinOp) and isinstance(first.op, ast.Add):
        first = first.left
    if isinstance(first, ast.Tuple | ast.List) and first.elts:
        first = first.elts[0]
    return _counted(module, first)


def _counted(module: Module, size: ast.AST | None) -> ast.AST | None:
    """`size`, where it is the number of all devices."""
    made = module.assigned(size)
    return size if isinstance(made, ast.Call) and _counts_all(module, made) else None


def _reaches_pmap(module: Module, mappings: Mappings, call: ast.Call, depth: int = 4) -> bool:
    """Whether the value is handed to a pmapped function: there and then, by name, or by a caller."""
    statement = module.statement(call)
    for parent in module.ancestors(call):
        if isinstance(parent, ast.Call) and mappings.pmap_at(parent.func) is not None:
            return True
        if parent is statement:
            break
    around = module.enclosing_function(call) or module.tree
    names: set[str] = set()
    if isinstance(statement, ast.Assign):
        names = {target.id for target in statement.targets if isinstance(target, ast.Name)}
    given = [
        argument
        for each in module.calls(around)
        if names and mappings.pmap_at(each.func) is not None
        for argument in (*each.args, *(keyword.value for keyword in each.keywords))
    ]
    if any(isinstance(argument, ast.Name) and argument.id in names for argument in given):
        return True
    if not isinstance(around, ast.FunctionDef) or module.assigned(returned_by(around)) is not call:
        return False
    asked = module.calls_of.get(around, ()) if depth else ()
    return any(_reaches_pmap(module, mappings, each, depth - 1) for each in asked)
