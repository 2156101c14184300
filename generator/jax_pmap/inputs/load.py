"""Load the target into the worker, with its example inputs."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax_pmap.inputs.collect import collect
from jax_pmap.model import Refusal, RefusalError, Request, refused
from jax_pmap.planning.roles import Described
from jax_pmap.reading.slice import Slice, defined, needs, slice_for
from jax_pmap.reading.target import Target
from jax_pmap.reading.text import function_text
from jax_pmap.session import Session, WorkerProblem, error_details, error_span


@dataclass(frozen=True, slots=True)
class Loaded:
    """The target in the worker, with its example inputs."""

    described: tuple[Described, ...]
    #: ``--arg`` lines that reproduce what the tool assumed.
    assumed: tuple[str, ...]
    #: What the emitted file must hold itself, because the module cannot be imported.
    carried: Slice | None
    notes: tuple[str, ...]


def load(session: Session, target: Target, request: Request, say: Callable[[str], None]) -> Loaded:
    """Import the target's module in the worker, or the part of it the target needs, and make its inputs."""
    source, facts = target.source, target.facts
    text = function_text(target.parsed)
    say(f"loading {source.shown_path}")

    def import_module(replacement: str | None) -> None:
        session.ask(
            "load",
            f"importing `{source.shown_path}`",
            path=str(source.path),
            module=source.module,
            root=str(source.root),
            source=replacement,
            function=text.text,
            line=text.line,
            name=facts.name,
            devices=session.devices,
            axis_names=sorted({target.axis_name} if facts.collectives else set()),
        )

    carried: Slice | None = None
    notes: tuple[str, ...] = ()
    try:
        import_module(None)
    except WorkerProblem as problem:
        error = problem.error
        line = error_span(error, session.directory, source)
        refusal = Refusal(
            "JP008",
            f"`{source.shown_path}` cannot be imported: {problem.message}",
            "Put what runs the program under `if __name__ == '__main__':`"
            if error.get("type") == "SystemExit"
            else "Make the file importable: `" + f"python -c 'import {source.module}'` must work",
            line,
            error_details(error),
        )
        if not dispensable(target, error):
            raise RefusalError(refusal) from None
        needed = frozenset(facts.module_names) | {row.name for row in facts.imported}
        carried = slice_for(target.parsed, needed)
        try:
            import_module(slice_for(target.parsed, needed | _inputs_name(target, request)).text)
        except WorkerProblem:
            raise RefusalError(refusal) from None
        where = f" (line {line.line})" if line else ""
        carries = ", and the emitted file carries a copy of it" if carried.definitions else ""
        notes = (
            f"`{source.shown_path}` cannot be imported{where}: {problem.message}; only what `{facts.name}` "
            f"needs was loaded{carries}",
        )
    described, assumed = _inputs(session, target, request, say)
    return Loaded(tuple(described), tuple(assumed), carried, notes)


def dispensable(target: Target, error: Mapping[str, Any]) -> bool:
    """Whether what failed at import is use of jax at the top of the target's file, such as a demo.

    ``@jax.pmap(axis_name=...)`` on another function, or a call of a pmapped one with the wrong number of
    devices, is what people come here with: the target may not need it. An import that fails, an
    error that is raised on purpose or anything else is the user's to mend.
    """
    lines = [line for file, line, _ in error.get("frames", ()) if file == str(target.source.path)]
    related = {"jax", "jnp", "lax"}
    for statement in target.parsed.tree.body if lines else ():
        names = defined(statement) | {
            node.id
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        if isinstance(statement, ast.Import | ast.ImportFrom):
            uses = statement.names[0].name.startswith("jax") or (
                isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("jax")
            )
        else:
            uses = bool(needs(statement) & related)
        first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))])
        if first <= lines[0] <= (statement.end_lineno or first):
            raising = {n.lineno for n in ast.walk(statement) if isinstance(n, ast.Raise | ast.Assert)}
            return (
                uses
                and error["type"] != "SystemExit"
                and not isinstance(statement, ast.Import | ast.ImportFrom)
                and not raising & set(lines)
            )
        related |= names if uses else set()
    return False


def _inputs_name(target: Target, request: Request) -> frozenset[str]:
    """The input function's name, when it stands in the target's own file."""
    file, double, name = (request.inputs or "").partition("::")
    if double and (request.directory / file).resolve() == target.source.path.resolve():
        return frozenset({name.partition(".")[0]})
    return frozenset()


def _inputs(
    session: Session, target: Target, request: Request, say: Callable[[str], None]
) -> tuple[list[Described], list[str]]:
    facts = target.facts
    try:
        if request.inputs is not None:
            say(f"calling {request.inputs}")
            answer = session.ask(
                "inputs_from_callable",
                f"calling `{request.inputs}`",
                reference=request.inputs,
                directory=str(request.directory),
                file=_inputs_file(request),
            )
            return answer["arguments"], []
        specs, assumed = collect(session, target.parsed, facts, request, say)
        answer = session.ask("inputs_from_specs", "making example inputs", specs=specs)
        return answer["arguments"], assumed
    except WorkerProblem as problem:
        if problem.kind == "import":
            raise refused(
                "JP013",
                f"the file of `{request.inputs}` cannot be imported: {problem.message}",
                "Correct that file first",
                error_span(problem.error, session.directory),
                error_details(problem.error),
            ) from None
        if problem.kind not in ("inputs", "count"):
            raise
        given = f"`{request.inputs}`" if request.inputs else "the --arg options"
        known = problem.data.get("known") or []
        takes = ", ".join(p.name for p in facts.parameters)
        if problem.error:
            hint = "Correct it; it is called with a seed where it takes one, else without arguments"
        elif known:
            hint = f"Functions in it: {', '.join(f'`{name}`' for name in known[:8])}"
        elif problem.message.startswith(("there is no file", "it is neither")):
            hint = "Write --inputs FILE::callable or --inputs package.module:callable"
        else:
            hint = f"Return the arguments of `{facts.name}` as a tuple, ({takes}), or as (args, kwargs)"
        raise refused(
            "JP013",
            problem.message if problem.message.startswith(given) else f"{given}: {problem.message}",
            hint,
            error_span(problem.error, session.directory) or facts.span,
            error_details(problem.error),
        ) from None


def _inputs_file(request: Request) -> dict[str, str] | None:
    """Where ``FILE::callable`` is, and the name its module has for the user's own imports."""
    from jax_pmap.locate import import_name

    file, double, _ = (request.inputs or "").partition("::")
    if not double:
        return None
    path = Path(os.path.normpath(request.directory.absolute() / Path(file).expanduser()))
    module, root = import_name(path)
    return {"path": str(path), "module": module, "root": str(root)}
