"""Take the target and its arguments from a run of the user's own program."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jax_pmap.drift import outdated
from jax_pmap.inputs.called import MISFIT, said
from jax_pmap.inputs.program import read_program
from jax_pmap.model import RefusalError, Request, Say, Source, Span, refused
from jax_pmap.notebook import is_notebook, place
from jax_pmap.planning.roles import Described
from jax_pmap.problems import error_details, error_span, install
from jax_pmap.reading.target import Target, binds_its_class, owner_of
from jax_pmap.session import Session
from jax_pmap.sources import read_bytes
from jax_pmap.syntax.text import function_text
from jax_pmap.worker import protocol
from jax_pmap.worker.protocol import Problem

#: What only traces when the function around it is compiled, and what traces always, by tracer.
TRACERS = {
    "BatchTracer": "jax.vmap, which hands it one example at a time",
    "DynamicJaxprTracer": "jax.checkpoint, a custom derivative, shard_map, eval_shape or the like",
}


@dataclass(frozen=True, slots=True)
class Captured:
    """The first call of the target in a run of the program."""

    described: tuple[Described, ...]
    #: ``FILE:LINE`` of the call, as reports name files; empty where no code of the user's called it.
    called_at: str


def capture(
    session: Session,
    target: Target,
    request: Request,
    say: Say,
    *,
    sources: Mapping[Path, str] | None = None,
) -> Captured:
    """Run the program of `request` in the worker until it calls the target; that call is the example.

    A call that is only reached while jax traces is looked for again without jit, in a fresh process.

    Args:
        session: a worker that has run nothing of the user's yet.
        target: read from the text that the program is to run.
        request: names the program.
        say: told in a line what is going on.
        sources: texts by absolute path that stand in for files, such as an edited one.

    Raises:
        RefusalError: JP019 where the program fails or ends before the call, JP020 where it calls the target
            only with tracers, JP018 for what is no command line of a Python program.
    """
    assert request.run is not None
    program = read_program(request.run, request.directory).program
    text, definition = function_text(target.parsed), target.parsed.definition
    source = target.source
    if source.written is not None or is_notebook(source.path):
        sources = {source.path: source.text, **(sources or {})}
    for eager in (False, True):
        say(f"running {said(request)}" + (" without jit" if eager else ""))
        try:
            asked = protocol.Capture(
                program,
                protocol.Def(str(source.path), definition.lineno, definition.col_offset, owner_of(target)),
                protocol.Definition(text.text, str(source.path), text.line, target.facts.name),
                str(source.root),
                {str(path): stand_in for path, stand_in in (sources or {}).items()},
                eager=eager,
                collectives=bool(target.facts.collectives),
                in_place=target.facts.changes_seen,
                axis=target.axis_name,
                axis_given=target.axis_given,
                on_its_class=binds_its_class(source),
            )
            answer = session.ask(asked, f"running `{said(request)}`")
        except Problem as problem:
            if problem.kind == "traced" and not eager:
                session.restart()
                continue
            raise _refusal(problem, session, target, request) from None
        return Captured(answer.arguments, _shown(answer.called_at, request.directory))
    raise AssertionError  # The second run ends in an answer or a refusal.


def _refusal(problem: Problem, session: Session, target: Target, request: Request) -> Exception:
    name = f"`{target.source.qualname}`"
    if problem.kind == "traced":
        under = next((TRACERS[each] for each in problem.tracers if each in TRACERS), "a transformation")
        return refused(
            "JP020",
            f"`{said(request)}` calls {name} only inside {under}, so its arguments have no values",
            "Name the function that the transformation is called in, or give the arguments yourself: "
            "--inputs FILE::callable",
            target.facts.span,
        )
    if problem.kind not in ("program", "inputs", "count"):
        return problem
    if request.inputs is not None and MISFIT in problem.message:
        takes = ", ".join(parameter.name for parameter in target.facts.parameters)
        return refused(
            "JP013",
            f"`{request.inputs}`: {problem.message.partition(': ')[2]}",
            f"Return the arguments of {name} as a tuple, ({takes}), of a class method without the class; or "
            "as (args, kwargs)",
            target.facts.span,
        )
    if not problem.state:
        return refused(
            "JP013",
            f"`{said(request)}` calls {name} with other arguments than it takes: {problem.message}",
            "Mend the call, or give the arguments: --inputs FILE::callable",
            target.facts.span,
        )
    return program_ended(problem, session, said(request), target.source, target.facts.span)


def program_ended(
    problem: Problem,
    session: Session,
    program: str,
    source: Source,
    span: Span | None,
    *,
    makes: bool = False,
) -> RefusalError:
    """JP019: a program failed, or ended, before it called the function that `source` names, or made it.

    Args:
        problem: what the worker told of it.
        session: has what it printed.
        program: the command, as typed.
        source: the function.
        span: where that is.
        makes: whether it was to make the function, and not to call it.
    """
    name = f"`{source.qualname}`"
    if problem.error is not None:
        hint = "Mend the program, or give it the options under which it runs; it starts in this folder"
        if problem.error.type == "EOFError":
            hint = "It reads its standard input, which is closed here: give what it asks for by options"
        elif missing := install(problem.error, str(session.python)):
            hint = missing
        hint = outdated(problem.error, session.directory) or hint
        return refused(
            "JP019",
            f"`{program}` fails before it {'makes' if makes else 'calls'} {name}: {problem.message}",
            hint,
            error_span(problem.error, session.directory),
            error_details(problem.error) + session.printed(),
        )
    code = problem.code
    how = (
        "ends"
        if code in (0, None)
        else f"ends with exit code {code}"
        if isinstance(code, int)
        else f"ends: {code}"
    )
    reason, hint = {
        "never called": (
            f"`{program}` {how} without calling {name}",
            "Give it options under which it gets there, name a function it calls, or give the arguments: "
            "--inputs FILE::callable",
        ),
        "never defined": (
            f"`{program}` {how} before {'the statement' if makes else 'the definition'} of {name} in "
            f"`{source.shown_path}` is reached",
            "Give it options under which it gets there",
        ),
        "never loaded": (
            f"`{program}` {how} and never loads `{source.shown_path}`, where {name} is defined",
            "Name a program that imports that file, or the file that the program imports",
        ),
    }[problem.state]
    return refused("JP019", reason, hint, span, session.printed())


def _shown(called_at: str, directory: Path) -> str:
    """``FILE:LINE`` with the file as seen from `directory`, where it is below it."""
    file, _, line = called_at.rpartition(":")
    if not file:
        return ""
    below = os.path.relpath(file, directory.absolute())
    shown = file if below.startswith("..") else Path(below).as_posix()
    text = read_bytes(Path(file)) if is_notebook(file) else None
    at = place(text.decode(), int(line)) if text is not None else None
    return f"{shown} cell {at[0]}:{at[1]}" if at is not None else f"{shown}:{line}"
