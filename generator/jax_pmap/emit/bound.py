"""The name that a target asked for by an assignment has in an emitted file, and what is bound to it there."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from jax_pmap.emit.callees import enclosed
from jax_pmap.model import refused
from jax_pmap.reading.facts import FunctionFacts
from jax_pmap.reading.target import Target, binds_its_class, made_by_import
from jax_pmap.syntax.definitions import statements
from jax_pmap.worker.scopes import ALWAYS_THERE, free_names


@dataclass(frozen=True, slots=True)
class Bound:
    """What `partial` binds to the function in the user's file."""

    #: The name of what it makes, and the source of the arguments.
    call: tuple[str, str]
    #: Names of the user's module in them.
    names: tuple[str, ...]
    #: Import statements for the others.
    imports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Enclosed:
    """What a function holds of the one that made it, taken from the user's own object."""

    #: The statements that bind it, with a comment.
    definition: str
    #: The import statements that this needs.
    imports: tuple[str, ...]


def is_at_hand(target: Target) -> bool:
    """Whether importing the user's module makes the object that holds what the function closes over."""
    binding = target.source.binding
    return binding is not None and made_by_import(target.source) and "." not in binding.qualname


def enclosed_in(
    target: Target,
    copies: Mapping[str, FunctionFacts],
    aliases: Mapping[str, str],
    compared: Collection[str],
    taken: Collection[str],
) -> Enclosed | None:
    """What the emitted file has to take from the object that importing the user's module makes.

    For ``update = make_update(model, optimizer)`` these are `model` and `optimizer`, also where the copy of a
    function beside it needs them. None where the function holds nothing, or no import makes the object.

    Args:
        target: the function.
        copies: what the file has copies of, by name.
        aliases: second names of those, as running has shown.
        compared: names that the emitted code looks at, to see that they are as in the proof.
        taken: names that are not free there.
    """
    source, binding = target.source, target.source.binding
    own = target.facts.closure_names
    if binding is None or not own or not is_at_hand(target):
        return None
    met, every, variables = _closures(target, copies, aliases, compared)

    def free(name: str) -> str:
        return free(name + "_") if name in {*taken, *target.facts.taken_names, *every} else name

    made, closure, inspect = free(f"{binding.qualname}_"), free("closure"), free("inspect")
    maker = source.qualname.rpartition(".")[0]
    function = f"{inspect}.unwrap({made})"
    if _partial(target):
        function = f"{inspect}.unwrap({function}.func)"
    lines = [
        f"# What `{maker}` made `{binding.qualname}` with.",
        f"{closure} = {inspect}.getclosurevars({function}).nonlocals",
        *(
            f"{closure} |= {inspect}.getclosurevars({inspect}.unwrap({closure}[{each!r}])).nonlocals"
            for each in met
        ),
        *(f"{name} = {closure}[{name!r}]" for name in variables),
    ]
    module = f"import inspect as {inspect}" if inspect != "inspect" else "import inspect"
    there = (binding.file or source).module
    return Enclosed("\n".join(lines), (module, f"from {there} import {binding.qualname} as {made}"))


def _closures(
    target: Target, copies: Mapping[str, FunctionFacts], aliases: Mapping[str, str], compared: Collection[str]
) -> tuple[list[str], list[str], list[str]]:
    """The functions that a target finds by closures, all names in their closures and its own, those to take.

    Not to be taken is what has a copy. The arguments are those of `enclosed_in`.
    """
    functions = {
        node.name: node
        for scope in target.parsed.enclosing
        for node, _ in statements(scope.body)
        if isinstance(node, ast.FunctionDef) and not isinstance(scope, ast.ClassDef)
    }
    around = {name for scope in target.parsed.enclosing for name in target.parsed.scope_in(scope).bindings}

    def meant(name: str) -> str:
        """The function that a name is bound to."""
        return aliases.get(name) or enclosed(target.parsed, name).rpartition(".")[2]

    def closure_of(name: str) -> Collection[str]:
        if name in copies:
            return copies[name].closure_names
        return sorted(target.parsed.scope_in(functions[name]).free() & around)

    # Of those that it holds, what they hold in turn; of functions without a copy, where that is compared.
    met, every = list[str](), list(target.facts.closure_names)
    for wanted in (copies, functions):
        for name in every:  # grows while it is walked
            is_looked_into = meant(name) in copies or not {*compared} <= {*every}
            if meant(name) in wanted and name not in met and is_looked_into:
                met.append(name)
                every += [each for each in closure_of(meant(name)) if each not in every]
    needless = {name for name in every if meant(name) in copies and (name in copies or name not in compared)}
    return met, every, [name for name in every if name not in needless]


def _partial(target: Target) -> bool:
    binding = target.source.binding
    return binding is not None and bool(binding.positional or binding.keywords)


def emitted_name(target: Target) -> str:
    """What the drop-in is called: as the program calls it, where nothing is bound to that.

    ``update`` after ``update = jax.jit(_update)``; ``step_`` ahead of ``step = partial(step_, rate=0.1)``.
    """
    binding, name = target.source.binding, target.facts.name
    if binding is None or ("." in binding.qualname and not binds_its_class(target.source)):
        return name
    if _partial(target):
        return f"{name}_" if name == binding.qualname.rpartition(".")[2] else name
    return binding.qualname


def emitted_source(target: Target) -> str:
    """``train.py::update``: what the header says the file was made from."""
    source, binding = target.source, target.source.binding
    if binding is not None and binding.live:
        return f"{binding.span.file}::{binding.qualname}"
    return f"{source.shown_path}::{source.qualname}"


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
    return Bound((binding.qualname.rpartition(".")[2], text), tuple(sorted(settled)), tuple(imports))
