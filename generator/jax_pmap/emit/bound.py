"""The name that a target asked for by an assignment has in an emitted file, and what is bound to it there."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from jax_pmap.model import refused
from jax_pmap.reading.target import Target
from jax_pmap.syntax.scopes import ALWAYS_THERE, free_names


@dataclass(frozen=True, slots=True)
class Bound:
    """What `partial` binds to the function in the user's file."""

    #: The name of what it makes, and the source of the arguments.
    call: tuple[str, str]
    #: Names of the user's module in them.
    names: tuple[str, ...]
    #: Import statements for the others.
    imports: tuple[str, ...]


def _partial(target: Target) -> bool:
    binding = target.source.binding
    return binding is not None and bool(binding.positional or binding.keywords)


def emitted_name(target: Target) -> str:
    """What the drop-in is called: as the program calls it, where nothing is bound to that.

    ``update`` after ``update = jax.jit(_update)``.
    """
    binding = target.source.binding
    if binding is None or "." in binding.qualname or _partial(target):
        return target.facts.name
    return binding.qualname


def emitted_source(target: Target) -> str:
    """``train.py::update``: what the header says the file was made from."""
    source, binding = target.source, target.source.binding
    live = binding is not None and binding.live
    return f"{source.shown_path}::{binding.qualname if binding and live else source.qualname}"


def bound_by(target: Target) -> Bound | None:
    """What the emitted file has to bind to the drop-in so that it is called as the original is.

    Raises:
        RefusalError: JP050, where it is not surely the same there.
    """
    source, binding = target.source, target.source.binding
    if binding is None or not _partial(target):
        return None
    parts = [*binding.positional, *(f"{name}={value}" for name, value in binding.keywords)]
    text = ", ".join(parts)
    names = target.parsed.top
    used = free_names(ast.parse(f"lambda: f({text})", mode="eval").body) - {"f"}
    definitions = [
        node.name
        for node in target.parsed.tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    # A name that gets another value later would be bound with that one.
    settled = {name for name in used & names.defined if name in names.values or definitions.count(name) == 1}
    known = settled | names.imported.keys() | ALWAYS_THERE
    if not binding.live or not used <= known:
        raise refused(
            "JP050",
            f"`{binding.qualname}` binds `{text}`, and another file cannot tell what that is at line "
            f"{binding.span.line}",
            f"Have `{source.qualname}` changed where it stands: --in-place (or --in-place --diff for the "
            f"patch); or name it as the target: {source.shown_path}::{source.qualname}",
            binding.span,
        )
    imports = [row.statement for name in sorted(used & names.imported.keys()) for row in names.imported[name]]
    return Bound((binding.qualname, text), tuple(sorted(settled)), tuple(imports))
