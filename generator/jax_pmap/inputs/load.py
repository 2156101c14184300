"""Load the target into the worker, with its example inputs."""

from __future__ import annotations

import dataclasses
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from jax_pmap.drift import outdated
from jax_pmap.inputs.called import said
from jax_pmap.inputs.callers import command_of
from jax_pmap.inputs.capture import capture
from jax_pmap.inputs.collect import collect
from jax_pmap.inputs.module import Imported, as_imported, import_target, needed_names
from jax_pmap.locating.words import any_of, near_names
from jax_pmap.model import RefusalError, Request, Say, refused
from jax_pmap.notebook import is_notebook
from jax_pmap.planning.roles import Described
from jax_pmap.problems import error_details, error_span, install
from jax_pmap.reading.target import Target, binds_its_class
from jax_pmap.session import Session
from jax_pmap.syntax.parse import ParsedSource
from jax_pmap.syntax.slice import Module, Slice
from jax_pmap.worker import protocol
from jax_pmap.worker.protocol import Problem


@dataclass(frozen=True, slots=True)
class Loaded:
    """The target in the worker, with its example inputs."""

    described: tuple[Described, ...]
    #: ``--arg`` lines that reproduce what the tool assumed.
    assumed: tuple[str, ...]
    #: What the emitted file must hold itself, because the module cannot be imported.
    carried: Slice | None
    notes: tuple[str, ...]
    #: Settings of jax that importing the module makes, with their values as Python source.
    settings: tuple[tuple[str, str], ...] = ()


def load(
    session: Session,
    target: Target,
    request: Request,
    say: Say,
    edited: str | None = None,
    original: Target | None = None,
) -> Loaded:
    """Import the target's module in the worker, or the part of it the target needs, and make its inputs.

    With the text of an `edited` file, which `target` was read from, that file is as the edit leaves it; what
    the `original` needs is loaded, too.
    """
    if request.run is not None:
        sources = None if edited is None else {target.source.path: edited}
        captured = capture(session, target, request, say, sources=sources)
        at = f" ({captured.called_at})" if captured.called_at else ""
        notes = alias_note(target)
        note = f"the arguments are those of the first call in `{said(request)}`{at}"
        # The emitted file is another one: what it takes from this file has to be there for it.
        module, needed = Module(target.parsed), needed_names(target)
        carried = None
        if is_notebook(target.source.path) or module.work() is not None or module.under_guard(needed):
            carried = module.slice_for(needed)
        return Loaded(captured.described, (), carried, (*notes, note))
    say(target.source.shown_path)
    imported = import_target(session, target, request, edited, original)
    notes = (*alias_note(target), *imported.notes)
    try:
        described, assumed = _inputs(session, target, request, say, imported)
    except RefusalError as error:
        if error.refusal.code != "JP011" or request.inputs is None:
            raise
        session.restart()
        imported = import_target(session, target, request, edited, original)
        described, assumed = _inputs(session, target, request, say, imported, abstract=True)
        notes += (
            f"the arrays of `{request.inputs}` do not fit the memory limit: their shapes alone are used",
        )
    if assumed and (command := command_of(target.source, request.directory, own=True)):
        notes += (
            f"`{command}` calls `{target.facts.name}`: with --run {shlex.quote(command)} the arguments are "
            "those that it passes, and nothing is assumed",
        )
    return Loaded(tuple(described), tuple(assumed), imported.carried, notes, imported.settings)


def target_as_imported(target: Target, session: Session) -> Target:
    """The target in its file as the worker that has loaded it imported that; see `as_imported`.

    The folders of other modules may be anywhere: on ``PYTHONPATH``, or installed as editable.
    """
    source, parsed = as_imported(target.source, session), target.parsed
    parsed = ParsedSource(source, parsed.tree, parsed.definition, parsed.enclosing)
    return dataclasses.replace(target, source=source, parsed=parsed)


def alias_note(target: Target) -> tuple[str, ...]:
    """What is said of a target that was asked for by the name of an assignment."""
    source, binding = target.source, target.source.binding
    if binding is None or binds_its_class(source):
        return ()
    text = binding.text if len(binding.text) <= 60 else binding.text[:57] + "..."
    line = f"line {binding.span.line}" if binding.file is None else f"{binding.span.file}:{binding.span.line}"
    at = f"`{binding.qualname}` is `{text}` ({line})"
    if binding.called_by:
        return (f"{at}, which is called as it is: no collective stands inside it",)
    if binding.is_lambda:
        return (f"{at}, written as a def",)
    place = f"`{source.shown_path}::{source.qualname}`"
    bound_arguments = [*binding.positional, *(f"{name}={value}" for name, value in binding.keywords)]
    bound = f", called with {', '.join(f'`{each}`' for each in bound_arguments)}" if bound_arguments else ""
    return (f"{at}: the function is {place}{bound}",)


def _inputs(
    session: Session,
    target: Target,
    request: Request,
    say: Say,
    imported: Imported,
    *,
    abstract: bool = False,
) -> tuple[list[Described], list[str]]:
    facts, bound = target.facts, imported.given
    try:
        if request.inputs is not None:
            say(f"calling {request.inputs}")
            asked = protocol.InputsFromCallable(
                request.inputs, str(request.directory), file_of(request.inputs, request.directory), abstract
            )
            return list(session.ask(asked, f"calling `{request.inputs}`").arguments), []
        specs, assumed = collect(session, target.parsed, facts, request, say, bound)
        answer = session.ask(protocol.InputsFromSpecs(specs), "making example inputs")
        return list(answer.arguments), assumed
    except Problem as problem:
        if problem.kind == "import":
            reason = f"the file of `{request.inputs}` cannot be imported: {problem.message}"
            first = "that file"
            if imported.failed:  # What is imported from there is not there, then.
                reason += f". Before that, {imported.failed}; only what `{facts.name}` needs was loaded"
                first = f"`{target.source.shown_path}`"
            raise refused(
                "JP013",
                reason,
                outdated(problem.error, session.directory)
                or install(problem.error, str(session.python))
                or f"Correct {first} first",
                error_span(problem.error, session.directory),
                error_details(problem.error),
            ) from None
        if problem.kind not in ("inputs", "count"):
            raise
        given = f"`{request.inputs}`" if request.inputs else "the --arg options"
        takes = ", ".join(p.name for p in facts.parameters if p.name not in bound)
        if problem.error:
            hint = (
                outdated(problem.error, session.directory)
                or "Correct it; it is called with a seed where it takes one, else without arguments"
            )
        elif problem.known:
            near = near_names(str(request.inputs).rpartition(":")[2], problem.known)
            hint = f"Write one that returns ({takes}), or name one of {any_of(problem.known[:8])}"
            if near:
                hint = f"Did you mean {any_of(near)}? It is to return ({takes})"
        elif problem.message.startswith(("there is no file", "it is neither")):
            hint = (
                "Write --inputs FILE::callable or --inputs package.module:callable, for instance "
                f"{target.source.shown_path}::make_inputs, which returns ({takes})"
            )
        else:
            hint = f"Return the arguments of `{facts.name}` as a tuple, ({takes}), or as a dict by name"
        raise refused(
            "JP013",
            problem.message if problem.message.startswith(given) else f"{given}: {problem.message}",
            hint,
            error_span(problem.error, session.directory) or facts.span,
            error_details(problem.error),
        ) from None


def file_of(reference: str, directory: Path) -> protocol.Module | None:
    """Where ``FILE::callable`` is, and the name its module has for the user's own imports."""
    from jax_pmap.locating.paths import import_name

    file, double, _ = reference.partition("::")
    if not double:
        return None
    path = Path(os.path.normpath(directory.absolute() / Path(file).expanduser()))
    module, root = import_name(path)
    return protocol.Module(str(path), module, str(root))
