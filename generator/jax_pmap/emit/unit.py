"""From a plan to the emitted file: what has to be imported, copied, woven and rendered."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from jax_pmap.emit.adapted import (
    Adapted,
    Substitute,
    adapted_callees,
    intercepted,
    is_substituted,
    woven_target,
)
from jax_pmap.emit.axes import collapse, in_module, type_imports, used_axes
from jax_pmap.emit.bound import bound_by, emitted_name, emitted_source, enclosed_in, is_at_hand
from jax_pmap.emit.function import EmitUnit
from jax_pmap.emit.header import Header
from jax_pmap.emit.microbatches import Divided, Indivisible
from jax_pmap.emit.named import with_names
from jax_pmap.emit.names import Names, bindings
from jax_pmap.emit.remainder import remainder_of
from jax_pmap.emit.render import WIDTH, render
from jax_pmap.emit.weave import written
from jax_pmap.locating.paths import folders_with
from jax_pmap.model import Backend, Evidence, Plan, Request, Role, Source, Span, refused
from jax_pmap.reading.target import Target, made_by_a_program, running_values
from jax_pmap.syntax.slice import changes_path
from jax_pmap.syntax.uses import MadeOf, made_of
from jax_pmap.version import VERSION
from jax_pmap.worker.scopes import names_of_its_own

if TYPE_CHECKING:
    from jax_pmap.syntax.slice import Slice


#: What reads the command line, beside absl's flags and what is called as argparse is.
_OF_COMMAND_LINE = frozenset(
    {"tyro.cli", "fire.Fire", "simple_parsing.parse", "pyrallis.parse", "draccus.parse", "OmegaConf.from_cli"}
)


def emit(
    target: Target,
    plan: Plan,
    request: Request,
    carried: Slice | None = None,
) -> str:
    """Text of the file for `plan` in the form `request` asks for, its proof still to come.

    `carried` is what the file must hold itself, because the user's module cannot be imported.

    Raises:
        RefusalError: JP046 where the backend cannot express the plan, JP017 where the plan does not
            fit the source, JP008 where the module has no name to import it by.
    """
    check_reachable(target)
    backend = request.backend
    check_backend(target, backend)
    check_classes(target, plan)
    plan = _imported(plan, target.source)
    if "place" in request.helpers and not any(used_axes(each.axes) for each in plan.arguments):
        raise refused(
            "JP007",
            f"--helper place is for a batch among the arguments, and `{target.facts.name}` makes its own",
            "Leave it out",
            target.facts.span,
        )
    syncs = written(plan, backend)
    guards = () if backend is Backend.JIT else plan.guards
    adapted, renames = adapted_callees(target, syncs, guards, plan.callees)
    if carried:
        _check_copies(target, plan, carried, adapted)
    own_names = {other.name for other in adapted}
    given_up = _given_up(renames, adapted)
    copied = _apart(carried.definitions if carried else (), own_names | given_up)
    definitions = tuple(each for each in copied if defined_name(each) not in own_names)
    unit = _unit(target, plan, request, adapted, definitions, carried)
    names = unit.names
    result = "result"
    while result in target.facts.taken_names:
        result += "_"
    with fitting(target):
        body, woven = woven_target(target, plan, syncs, adapted, names, renames, result)
        copies = [other.definition(names) for other in adapted]
    text = body.body_source(woven)
    if plan.microbatches > 1:
        divided = _divided(target, plan, text, copies, adapted, names)
        text, copies = divided.body, list(divided.copies.values())
        unit = dataclasses.replace(unit, keeps=divided.kept)
    unit, copies = readable(dataclasses.replace(unit, body=text), copies, backend, WIDTH)
    own = {other.name: each for other, each in zip(adapted, copies, strict=True)}
    # What the module makes of a function as it is imported stands behind that function.
    ordered = [own.pop(defined_name(each), each) for each in copied]
    unit = dataclasses.replace(
        unit,
        definitions=(*ordered, *own.values()),
        is_substituted=is_substituted(renames, adapted),
        intercepted=intercepted(adapted),
    )
    unit = _without(unit, given_up)
    if not carried and _needs_path(unit, target):
        unit = dataclasses.replace(unit, first=target.source.module)
    elif not dict(unit.user_imports).get(target.source.module):
        unit = dataclasses.replace(unit, settings=plan.settings)
    command = request.command or f"jax-pmap gen {shlex.quote(request.target)}"
    header = header_of(unit, request, command, emitted_source(target), made_of(target.parsed), None)
    return render(unit, plan, backend, header)


def readable(
    unit: EmitUnit, copies: Sequence[str], backend: Backend, width: int
) -> tuple[EmitUnit, list[str]]:
    """A unit and the functions that its body calls, with assignments in front of long statements.

    Args:
        unit: its names are those that the body was woven with.
        copies: definitions of functions, dedented.
        backend: the form in which the body is written.
        width: columns from where the mapped function begins.
    """
    names = unit.names
    taken = unit.taken_names | {*dataclasses.asdict(names).values()}
    indent = 8 if backend is Backend.SHARD_MAP else 4

    def named(text: str, room: int) -> str:
        return with_names(text, names.axis, names.gather_joined, taken, room)

    body = named(unit.body, width - indent)
    return dataclasses.replace(unit, body=body), [named(each, WIDTH) for each in copies]


def _needs_path(unit: EmitUnit, target: Target) -> bool:
    """Whether what is imported is found only where the target's file has put its folder on ``sys.path``."""
    if not changes_path(target.parsed.tree):
        return False
    source = target.source
    imported = [statement.split()[1] for statement in unit.imports]
    packages = {name.partition(".")[0] for name in (*imported, *(name for name, _ in unit.user_imports))}
    folders = [folders_with(package, source) for package in packages]
    return any(each and source.root not in each for each in folders)


def _divided(
    target: Target, plan: Plan, body: str, copies: Sequence[str], adapted: Sequence[Adapted], names: Names
) -> Divided:
    """A woven body and the copies beside it, for work in microbatches.

    Raises:
        RefusalError: JP074.
    """
    batch = [argument.name for argument in plan.arguments if used_axes(argument.axes)]
    named = dict(zip((other.name for other in adapted), copies, strict=True))
    # What is no sum, and lies whole on every device, is the same for each microbatch too.
    whole = all(leaf.role is not Role.BATCH for leaf in plan.outputs)
    made = Divided(body, named, batch, names, plan.parted, keeps=whole)
    try:
        made.divide()
    except Indivisible as why:
        raise refused("JP074", why.reason, why.hint, _line_of(target, why)) from None
    return made


def _line_of(target: Target, why: Indivisible) -> Span:
    """Where what stands in the way does so: its first line, or the last one with the name that is blamed."""
    span = target.facts.span
    lines = list(enumerate(target.parsed.lines[: target.parsed.definition.end_lineno], start=1))
    first = next((line.strip() for line in why.source.splitlines() if line.strip()), "")
    name = why.reason.split("`")[1] if "`" in why.reason else ""
    for wanted in filter(None, (first, name)):
        for number, line in reversed(lines[span.line :]):
            found = re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", line)
            if found:
                return Span(span.file, number, found.start(), number, found.end())
    return span


def check_reachable(target: Target) -> None:
    """Refuse a file of its own for what only the running program holds.

    Raises:
        RefusalError: JP050.
    """
    facts = target.facts
    if facts.receiver or (facts.closure_names and not is_at_hand(target)):
        binding, source = target.source.binding, target.source
        by_object = binding is not None and binding.of_object
        raise refused(
            "JP050",
            f"`{source.qualname}` {running_values(facts)}, and no other file can import it",
            "Have it changed where it stands: --in-place (or --in-place --diff for the patch)"
            + (f". For a file of its own, name {source.shown_path}::{source.qualname}" if by_object else ""),
            facts.span,
        )
    if (error := made_by_a_program(target)) is not None:
        raise error


def _unit(
    target: Target,
    plan: Plan,
    request: Request,
    adapted: Sequence[Adapted],
    definitions: tuple[str, ...],
    carried: Slice | None,
) -> EmitUnit:
    """The function with all that it needs around it, before its body is woven.

    Raises:
        RefusalError: JP008 where the module has no name to import it by.
    """
    facts, source = target.facts, target.source
    own_names = {other.name for other in adapted}
    name = emitted_name(target)
    not_imported = {*(carried.names if carried else ()), *own_names, name, facts.name}
    bound = bound_by(target)
    # What the closure has to hold is told by the names of the target's file.
    compared = {
        each.value.partition(".")[0] for each in plan.captured if each.dtype == "function" and each.value
    }
    known = target.parsed.top.imported
    wanted = names_in_module(source, target, adapted) | set(bound.names if bound else ())
    names = tuple(sorted((wanted | compared - known.keys()) - not_imported))
    elsewhere = [other for other in adapted if other.source.path != source.path]
    # Those of the target first: of several statements that bind a name to the same, its own stays.
    imports = [
        row.statement
        for each in (facts, *(other.facts for other in adapted if other not in elsewhere))
        for row in each.imported
        if not row.typing_only and row.name not in own_names
    ]
    imports += [row.statement for name in sorted(compared & known.keys()) for row in known[name]]
    imports += [statement for other in elsewhere for statement in other.imports]
    if carried:
        imports += [each for each in carried.imports if not bindings(each).keys() <= own_names]
    if bound:
        imports += bound.imports
    siblings = {other.name: other.facts for other in adapted if other.source.path == source.path}
    looked_at = {each.path.partition(".")[0] for each in plan.captured}
    aliases = {each.called: each.function.rpartition(".")[2] for each in plan.callees}
    enclosed = enclosed_in(target, siblings, aliases, looked_at, {name, *own_names})
    if enclosed:
        imports += enclosed.imports
    if facts.future_annotations:
        imports.append("from __future__ import annotations")
    texts = [target.parsed, *(other.function.parsed for other in adapted)]
    unit = EmitUnit(
        name=name,
        parameters=facts.parameters,
        returns=returns_of(target),
        docstring=docstring_of(target),
        body="",
        imports=tuple(dict.fromkeys(imports)),
        # Theirs stand among the imports.
        user_imports=(
            *(((source.module, names),) if names else ()),
            *((other.source.module, ()) for other in elsewhere),
        ),
        definitions=(*definitions, *("def " + name + "(): ..." for name in own_names)),
        enclosed=enclosed.definition if enclosed else "",
        taken_names=facts.taken_names | compared,
        # Collectives are the only thing of ours inside a body.
        shadowed=frozenset({"jax"}) & names_of_its_own(*(each.definition for each in texts)),
        helpers=request.helpers,
        bound=bound.call if bound else None,
        remainder=remainder_of(plan, request.remainder, request.backend, facts.span),
        processes=request.processes > 1,
        explicit=request.explicit,
        copied_from=_module_names(source) if carried else frozenset(),
        set_by=source.shown_path,
    )
    if names and not all(part.isidentifier() for part in source.module.split(".")):
        raise refused(
            "JP008",
            f"`{source.shown_path}` cannot be imported under a name, and the emitted file needs "
            f"{', '.join(f'`{name}`' for name in names)} from it",
            "Rename the file so that `import NAME` works (letters, digits and underscores)",
            facts.span,
        )
    return unit


def _given_up(renames: Mapping[str, Substitute], adapted: Iterable[Adapted]) -> set[str]:
    """Names of objects in place of which what makes them is written out."""
    every = [renames, *(other.renames for other in adapted)]
    return {
        called.partition(".")[0] for each in every for called, substitute in each.items() if substitute.made
    }


def _without(unit: EmitUnit, names: Collection[str]) -> EmitUnit:
    """The unit without the imports and definitions of those `names` that nothing in it uses any more."""
    nodes = (n for text in (unit.body, *unit.definitions) for n in ast.walk(ast.parse(text)))
    gone = set(names) - {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    rows = ((module, tuple(n for n in found if n not in gone)) for module, found in unit.user_imports)
    imports = tuple(each for each in unit.imports if not bindings(each).keys() <= gone)
    return dataclasses.replace(
        unit,
        imports=imports,
        user_imports=tuple(rows),
        definitions=tuple(each for each in unit.definitions if defined_name(each) not in gone),
    )


@contextlib.contextmanager
def fitting(target: Target) -> Iterator[None]:
    """Refuse a plan whose places are not in the target's source: JP017."""
    try:
        yield
    except LookupError as error:
        raise refused(
            "JP017", f"the plan does not fit the source: {error}", "Make the plan again", target.facts.span
        ) from None


def header_of(
    unit: EmitUnit, request: Request, command: str, source: str, made: MadeOf, evidence: Evidence | None
) -> Header:
    """What is recorded of how code was made: by `command`, from `source` and what that is `made` of."""
    header = Header(VERSION, command, source, made, evidence)
    if unit.remainder is not None:
        header = dataclasses.replace(header, remainder=unit.remainder.said())
    return header


def check_backend(target: Target, backend: Backend) -> None:
    """Refuse a body with collectives of its own for jit.

    Raises:
        RefusalError: JP046.
    """
    if backend is Backend.JIT and target.facts.collectives:
        own = target.facts.collectives[0]
        raise refused(
            "JP046",
            f"the body calls `{own.op}` itself, and jit in the global view has no axis for it",
            "Use --backend pmap or --backend shard_map",
            own.span,
        )


def names_in_module(source: Source, target: Target, adapted: Iterable[Adapted]) -> set[str]:
    """Names of the module at `source` that the target or a carried function of that module uses."""
    every = [(target.source, target.facts), *((other.source, other.facts) for other in adapted)]
    return {name for where, facts in every if where.path == source.path for name in facts.found_in_module}


def _apart(definitions: Iterable[str], names: Collection[str]) -> list[str]:
    """Definitions, of which some are several assignments, with those that bind `names` by themselves."""
    found: list[str] = []
    for text in definitions:
        body = ast.parse(text).body
        several = [ast.get_source_segment(text, node) or "" for node in body] if len(body) > 1 else [text]
        found += [text] if {defined_name(each) for each in several}.isdisjoint(names) else several
    return found


def defined_name(text: str) -> str:
    """The one name that a copied definition or assignment binds, or ``""``."""
    statement = ast.parse(text).body[0]
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        return str(getattr(statement.targets[0], "id", ""))
    return str(getattr(statement, "name", ""))


def docstring_of(target: Target) -> str | None:
    """Source of the target's docstring, quotes and all, or None."""
    first = target.parsed.definition.body[0]
    if target.facts.docstring is None or not isinstance(first, ast.Expr):
        return None
    return target.parsed.segment(first.value)


def returns_of(target: Target) -> str | None:
    """Source of the target's return annotation, or None."""
    annotation = target.parsed.definition.returns
    return target.parsed.segment(annotation) if annotation else None


def _module_names(source: Source) -> frozenset[str]:
    """Names the target's module has in the worker: its own, or another where that means another module."""
    return frozenset({source.module, f"{source.module}_"})


def _own_classes(plan: Plan, modules: Collection[str]) -> list[str]:
    """Classes of these modules that the axes trees of a plan name."""
    trees = [plan.output_axes, *(argument.axes for argument in plan.arguments)]
    return [name for tree in trees for module, name in type_imports(collapse(tree)) if module in modules]


def _owners(target: Target, adapted: Iterable[Adapted]) -> list[str]:
    """Classes and functions of the target's file by which objects, or functions, are told from others."""
    own = [each.function for each in adapted if each.source.path == target.source.path]
    return [each.owner or each.facts.name for each in own if each.owner or each.by_value]


def check_classes(target: Target, plan: Plan) -> None:
    """Refuse to name classes of a program that is another file than the target's.

    Raises:
        RefusalError: JP008.
    """
    elsewhere = [
        name
        for name in _own_classes(plan, {"__main__"})
        if name not in target.parsed.scope_in(target.parsed.tree).bindings
    ]
    if elsewhere:
        raise refused(
            "JP008",
            f"the program that was run defines `{elsewhere[0]}`, which the code around "
            f"`{target.facts.name}` must name. No file can import it from a script: that would be another "
            "class than that of the caller's values",
            f"Move `{elsewhere[0]}` to a module of its own",
            target.facts.span,
        )


def _imported(plan: Plan, source: Source) -> Plan:
    """The plan with classes of the program that ran as the emitted file imports them: from its file."""
    return dataclasses.replace(
        plan,
        output_axes=in_module(plan.output_axes, source.module),
        arguments=tuple(
            dataclasses.replace(each, axes=in_module(each.axes, source.module)) for each in plan.arguments
        ),
    )


def _check_copies(target: Target, plan: Plan, carried: Slice, adapted: Iterable[Adapted]) -> None:
    """Refuse what a copy in the emitted file would not do as the original does.

    Raises:
        RefusalError: JP008, for classes of the caller's values and for what reads the command line.
    """
    source = target.source
    own = [*_own_classes(plan, _module_names(source)), *_owners(target, adapted)]
    if own:
        raise refused(
            "JP008",
            f"`{source.shown_path}` defines `{own[0]}`, which the emitted file must name. A copy of it would "
            "be another one than that of the caller's values, and the file is not there to import it from",
            f"Move `{own[0]}` to a module of its own, or edit the file itself with --in-place",
            target.facts.span,
        )
    for text in carried.definitions:
        for node in ast.walk(ast.parse(text)):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and (
                called.attr.startswith(("DEFINE", "parse_")) or ast.unparse(called) in _OF_COMMAND_LINE
            ):
                raise refused(
                    "JP008",
                    f"`{target.facts.name}` needs what `{ast.unparse(called)}(…)` reads from the command "
                    f"line. A second file cannot do that again, and `{source.shown_path}` cannot be imported",
                    "Edit the file itself, with --in-place; or pass the values as arguments of "
                    f"`{target.facts.name}`; or have it imported, as --stub does where data alone is loaded",
                    target.facts.span,
                    tuple(note.partition(";")[0] for note in plan.notes if "cannot be imported" in note),
                )
