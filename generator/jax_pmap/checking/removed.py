"""Where a module uses what `removals` lists: names, parameters, options."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from jax_pmap.checking.findings import Edit
from jax_pmap.checking.module import Module
from jax_pmap.checking.removals import ATTRIBUTES, BY_KEYWORD, NAMES, OPTIONS, PARAMETERS, Removal

_NAMES = {each.name: each for each in NAMES}
_PARAMETERS = {each.name: each for each in PARAMETERS}
_OPTIONS = {each.name: each for each in OPTIONS}
_ATTRIBUTES = {each.name: each for each in ATTRIBUTES}


@dataclass(frozen=True, slots=True)
class Use:
    """One place that uses something of the table."""

    removal: Removal
    #: What is wrong, as a sentence.
    message: str
    node: ast.expr | ast.stmt
    edits: tuple[Edit, ...] = ()

    @property
    def hint(self) -> str:
        """The cure, as a sentence."""
        return f"{self.removal.cure[0].upper()}{self.removal.cure[1:]}"


def _when(removal: Removal) -> str:
    """``"is gone since jax 0.10"``."""
    return f"is gone since jax {removal.gone}" if removal.gone else f"is deprecated since jax {removal.since}"


def uses(module: Module) -> Iterator[Use]:
    """Every use that does not ask first whether it is there, in the order of the text."""
    for node in module.nodes:
        found: Iterator[Use] = iter(())
        if isinstance(node, ast.Import | ast.ImportFrom):
            found = _imports(module, node)
        elif isinstance(node, ast.Attribute):
            found = _attributes(module, node)
        elif isinstance(node, ast.Call):
            found = _calls(module, node)
        for use in found:
            if not module.is_guarded(use.node):
                yield use


def _removal(name: str) -> Removal | None:
    """The row of `name`, or that of the module it is in."""
    while name.startswith("jax."):
        if name in _NAMES:
            return _NAMES[name]
        name = name.rpartition(".")[0]
    return None


def _imports(module: Module, node: ast.Import | ast.ImportFrom) -> Iterator[Use]:
    for alias in node.names:
        name = alias.name if isinstance(node, ast.Import) else f"{node.module}.{alias.name}"
        removal = _removal(name)
        if removal is None or (isinstance(node, ast.ImportFrom) and _is_used(module, node, removal)):
            continue  # each use of what is in a module is reported, with its own cure
        edits: tuple[Edit, ...] = ()
        if (
            removal.same
            and removal.name == name
            and isinstance(node, ast.ImportFrom)
            and len(node.names) == 1
        ):
            package, _, last = removal.same.rpartition(".")
            bound = alias.asname or alias.name
            text = f"from {package} import {last}" + (f" as {bound}" if bound != last else "")
            edits = (module.replace(node, text),)
        yield Use(removal, f"`{removal.name}` {_when(removal)}", node, edits)


def _is_used(module: Module, node: ast.ImportFrom, removal: Removal) -> bool:
    """Whether `node` imports a module of which something is used."""
    names = {alias.asname or alias.name for alias in node.names}
    return any(
        isinstance(each, ast.Attribute)
        and isinstance(each.value, ast.Name)
        and each.value.id in names
        and any(name.startswith(f"{removal.name}.") for name in module.names(each))
        for each in module.nodes
    )


def _attributes(module: Module, node: ast.Attribute) -> Iterator[Use]:
    if isinstance(node.value, ast.Call):
        made = module.qualname(node.value.func)
        removal = _ATTRIBUTES.get(f"{made}().{node.attr}")
        if removal is not None:
            yield Use(removal, f"`{node.attr}` of `{made}(…)` {_when(removal)}", node)
        return
    names = module.names(node)
    if len(names) != 1:
        return
    (name,) = names
    if name.startswith("jax.config.") and node.attr in _OPTIONS:
        yield Use(_OPTIONS[node.attr], f"the option `{node.attr}` {_when(_OPTIONS[node.attr])}", node)
        return
    removal = _removal(name)
    base = module.names(node.value)
    if removal is None or any(_removal(each) is removal for each in base):
        return  # the name before the last dot is the one that is gone
    parent = module.parents.get(node)
    if isinstance(parent, ast.Attribute) and _NAMES.get(f"{name}.{parent.attr}") is not None:
        return  # what follows has a cure of its own
    imported = isinstance(node.value, ast.Name) or removal.name != name
    edits: tuple[Edit, ...] = ()
    if removal.same and removal.name == name and not _is_module_gone(name) and imported:
        text, imports = module.spelled(removal.same, node)
        edits = (module.replace(node, text), *imports)
    yield Use(removal, f"`{removal.name}` {_when(removal)}", node, edits)


def _is_module_gone(name: str) -> bool:
    """Whether the import of the module fails too, so that a new name alone mends nothing."""
    return name.rpartition(".")[0] in _NAMES


def _calls(module: Module, call: ast.Call) -> Iterator[Use]:
    if module.qualname(call.func) == "functools.partial" and call.args:
        function = call.args[0]
        given = call.args[1:]
    else:
        function, given = call.func, call.args
    names = module.names(function)
    if len(names) != 1:
        return
    (name,) = names
    if name == "jax.config.update" and given:
        option = module.constant(given[0])
        if isinstance(option, str) and option in _OPTIONS:
            yield Use(_OPTIONS[option], f"the option `{option}` {_when(_OPTIONS[option])}", given[0])
        return
    for keyword in call.keywords:
        removal = _PARAMETERS.get(f"{name}({keyword.arg})")
        if removal is not None:
            edits: tuple[Edit, ...] = ()
            if removal.same:
                start = module.offset(keyword.lineno, keyword.col_offset)
                edits = (Edit(start, start + len(keyword.arg or ""), removal.same),)
            message = f"`{name}` has no parameter `{keyword.arg}` since jax {removal.gone}"
            yield Use(removal, message, keyword.value, edits)
    if name == BY_KEYWORD.name and len(given) > 1:
        yield Use(BY_KEYWORD, f"`{name}` takes nothing but the function by position", given[1])
