"""JP101: `jax.pmap` called without a function."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Edit, Finding
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Calls of `jax.pmap` that give it no function."""
    for mapping in mappings.pmaps:
        made = mapping.application
        if not mapping.is_jax_pmap or made.open or "fun" in made.keywords:
            continue
        if not ((made.factory and len(made.args) == 1) or not made.args):
            continue
        call = made.node
        yield module.finding(
            "JP101",
            call,
            "`jax.pmap` is called without a function: it takes the function first, so this is a TypeError",
            f"Write `functools.partial(jax.pmap, {_options(module, call)})`".replace(", )", ")"),
            _edits(module, call),
        )


def _options(module: Module, call: ast.expr) -> str:
    if not isinstance(call, ast.Call):
        return ""
    return ", ".join(f"{keyword.arg}={module.segment(keyword.value)}" for keyword in call.keywords)


def _edits(module: Module, call: ast.expr) -> tuple[Edit, ...]:
    """``jax.pmap(…`` becomes ``functools.partial(jax.pmap, …``; without options, plain `jax.pmap`."""
    if not isinstance(call, ast.Call) or call.args:
        return ()
    name = module.segment(call.func)
    if not call.keywords:
        return (module.replace(call, name),)
    start = module.bounds(call.func)[0]
    opening = module.text.index("(", module.bounds(call.func)[1]) + 1
    gap = "" if module.text[opening] in "\r\n" else " "
    partial, imports = module.spelled("functools.partial", call)
    return (Edit(start, opening, f"{partial}({name},{gap}"), *imports)
