"""From a plan to the emitted file: what has to be imported, copied, woven and rendered."""

from __future__ import annotations

import ast
import dataclasses
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

import jax_pmap
from jax_pmap.emit.places import Body
from jax_pmap.emit.render import EmitUnit, Header, render
from jax_pmap.emit.weave import inside_of, weave
from jax_pmap.model import Backend, Evidence, Plan, Request, Sync, refused
from jax_pmap.reading.facts import FunctionFacts
from jax_pmap.reading.read import parse, read
from jax_pmap.reading.slice import Slice
from jax_pmap.reading.target import Target
from jax_pmap.reading.text import function_text


def emit(
    target: Target,
    plan: Plan,
    request: Request,
    evidence: Evidence | None,
    carried: Slice | None = None,
) -> str:
    """Text of the file for `plan` in the form `request` asks for.

    `carried` is what the file must hold itself, because the user's module cannot be imported.

    Raises:
        RefusalError: JP046 where the backend cannot express the plan, JP017 where the plan does not
            fit the source, JP008 where the module has no name to import it by.
    """
    facts, source = target.facts, target.source
    backend = request.backend
    if backend is Backend.JIT and facts.collectives:
        own = facts.collectives[0]
        raise refused(
            "JP046",
            f"the body calls `{own.op}` itself, and jit in the global view has no axis for it",
            "Use --backend pmap or --backend shard_map",
            own.span,
        )
    syncs = () if backend is Backend.JIT else plan.syncs
    adapted = _adapted(target, syncs)
    text = function_text(target.parsed)
    own_names = {other.facts.name for other in adapted}
    defined = carried.names if carried else frozenset()
    definitions = tuple(
        each for each in (carried.definitions if carried else ()) if defined_name(each) not in own_names
    )
    every = [facts, *(other.facts for other in adapted)]
    names = tuple(
        sorted({name for each in every for name in each.module_names} - defined - own_names - {facts.name})
    )
    imports = [row.statement for each in every for row in each.imported if not row.typing_only]
    if carried:
        imports += _imports_of(target, defined)
    if facts.future_annotations:
        imports.append("from __future__ import annotations")
    unit = EmitUnit(
        name=facts.name,
        parameters=facts.parameters,
        returns=target.parsed.segment(target.parsed.definition.returns)
        if target.parsed.definition.returns
        else None,
        docstring=_docstring(target),
        body="",
        imports=tuple(sorted(set(imports))),
        user_imports=((source.module, names),) if names else (),
        definitions=(*definitions, *("def " + name + "(): ..." for name in own_names)),
        taken_names=facts.taken_names,
        # Collectives are the only thing of ours inside a body.
        shadowed=frozenset({"jax"}) & _bound([text.text, *(other.body.text.text for other in adapted)]),
        helpers=request.helpers,
    )
    if names and not all(part.isidentifier() for part in source.module.split(".")):
        raise refused(
            "JP008",
            f"`{source.shown_path}` cannot be imported under a name, and the emitted file needs "
            f"{', '.join(f'`{name}`' for name in names)} from it",
            "Rename the file so that `import NAME` works (letters, digits and underscores)",
            facts.span,
        )
    body = Body(text)
    result = "result"
    while result in facts.taken_names:
        result += "_"
    axis, jax = unit.names.axis, unit.names.jax
    try:
        elsewhere = {sync for other in adapted for sync in other.syncs}
        here = [sync for sync in syncs if sync not in elsewhere]
        woven = weave(body, here, plan.guards, axis=axis, result=result, jax=jax)
        copies = [
            other.body.definition(weave(other.body, other.syncs, axis=axis, jax=jax)) for other in adapted
        ]
    except LookupError as error:
        raise refused(
            "JP017", f"the plan does not fit the source: {error}", "Make the plan again", facts.span
        ) from None
    unit = dataclasses.replace(unit, body=body.body_source(woven), definitions=(*definitions, *copies))
    command = request.command or f"jax-pmap gen {shlex.quote(request.target)}"
    header = Header(
        jax_pmap.__version__, command, f"{source.shown_path}::{source.qualname}", text.digest, evidence
    )
    if evidence is None and request.proof:
        header = dataclasses.replace(header, unproved="the proof is still to come")
    return render(unit, plan, backend, header)


@dataclass(frozen=True, slots=True)
class Adapted:
    """A function of the user's module that the emitted file carries with collectives in it."""

    facts: FunctionFacts
    body: Body
    syncs: tuple[Sync, ...]


def _adapted(target: Target, syncs: tuple[Sync, ...]) -> list[Adapted]:
    """The functions beside the target that syncs stand in, in the order of the file."""
    out = []
    for node in target.parsed.tree.body:
        if isinstance(node, ast.FunctionDef) and node is not target.parsed.definition:
            if not any(node.lineno <= sync.span.line <= (node.end_lineno or 0) for sync in syncs):
                continue
            source = dataclasses.replace(target.source, qualname=node.name)
            parsed = parse(source)
            body = Body(function_text(parsed))
            out.append(Adapted(read(source, parsed), body, tuple(inside_of(body, syncs))))
    return out


def defined_name(text: str) -> str:
    """The name a copied definition binds, or ``""``."""
    return str(getattr(ast.parse(text).body[0], "name", ""))


def _bound(definitions: Iterable[str]) -> set[str]:
    """Every name that functions bind, also inside the functions nested in them."""
    found: set[str] = set()
    for node in (node for text in definitions for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(item.asname or item.name).partition(".")[0] for item in node.names}
    return found


def _docstring(target: Target) -> str | None:
    first = target.parsed.definition.body[0]
    if target.facts.docstring is None or not isinstance(first, ast.Expr):
        return None
    return target.parsed.segment(first.value)


def _imports_of(target: Target, names: frozenset[str]) -> list[str]:
    """Import statements of the file that bind any of `names`."""
    found = []
    for statement in target.parsed.tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            bound = {(item.asname or item.name).partition(".")[0] for item in statement.names}
            if bound & names:
                found.append(target.parsed.segment(statement))
    return found
