"""JP112: jit around pmap."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Edit, Finding
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Functions compiled with `jit` that are, or call, a pmapped one."""
    for mapping in mappings.pmaps:
        node = mapping.node
        parent = module.parents.get(node)
        edits: tuple[Edit, ...] = ()
        if (
            isinstance(parent, ast.Call)
            and parent.args[:1] == [node]
            and module.qualname(parent.func) == "jax.jit"
        ):
            if len(parent.args) == 1 and not parent.keywords:
                edits = (module.replace(parent, module.segment(node)),)
            yield _finding(module, parent, edits)
        elif isinstance(parent, ast.FunctionDef) and node in parent.decorator_list:
            for decorator in parent.decorator_list[: parent.decorator_list.index(node)]:
                made = module.decoration(parent, decorator)
                if made is not None and made.qualname == "jax.jit":
                    yield _finding(module, decorator, ())
    for function in module.nodes:
        if not isinstance(function, ast.FunctionDef):
            continue
        decorations = [module.decoration(function, each) for each in function.decorator_list]
        if not any(made is not None and made.qualname == "jax.jit" for made in decorations):
            continue
        if any(made is not None and made.qualname == "jax.pmap" for made in decorations):
            continue
        for call in module.calls(function):
            if mappings.pmap_at(call.func) is not None:
                yield _finding(module, call, ())


def _finding(module: Module, node: ast.expr, edits: tuple[Edit, ...]) -> Finding:
    return module.finding(
        "JP112",
        node,
        "`jit` around `pmap`: the data is first moved to one place, then spread over the devices again",
        "Leave out `jit`; what `pmap` makes is compiled already",
        edits,
    )
