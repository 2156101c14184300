"""Specs for every argument: what `--arg` gives, and for the rest what can be found out."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Sequence
from typing import Any

from jax_pmap.drift import outdated
from jax_pmap.inputs.arguments import input_search
from jax_pmap.inputs.callers import command_of
from jax_pmap.inputs.spec import Spec, format_argument, parse_argument
from jax_pmap.model import ParameterKind, Request, Say, refused
from jax_pmap.options import no_argument
from jax_pmap.reading.facts import FunctionFacts
from jax_pmap.session import Session
from jax_pmap.syntax.parse import ParsedSource
from jax_pmap.worker import protocol


def collect(
    session: Session,
    parsed: ParsedSource,
    facts: FunctionFacts,
    request: Request,
    say: Say,
    bound: Sequence[str] = (),
) -> tuple[dict[str, Spec], list[str]]:
    """Specs by argument name, and ``NAME=SPEC`` texts of those the tool assumed.

    Arguments that are `bound` already need none.

    Raises:
        RefusalError: JP006 or JP007 for an option that does not fit, JP014 when no shapes were found
            under which the function traces.
    """
    facts = dataclasses.replace(facts, parameters=tuple(p for p in facts.parameters if p.name not in bound))
    given = _given(request.args, facts)
    replicated = [re.split(r"[\[.:]", text)[0] for text in (*request.replicate, *request.key)]
    search = input_search(parsed, facts, given, replicated)
    if search.specs is not None:
        return search.specs, [format_argument(name, search.specs[name]) for name in search.annotated]
    say("finding shapes the function runs on")
    asked = request_for(search.request, facts, bound)
    answer = session.ask(asked, "finding example inputs")
    failed = answer.failed
    if failed is None:
        specs = dict(answer.specs)
        return specs, [format_argument(name, specs[name]) for name in answer.assumed]
    name = failed.argument or next((p.name for p in facts.parameters if p.name not in given), "x")
    why = f": {failed.reason}" if failed.reason else ""
    command = command_of(parsed.source, request.directory)
    run = f"Take what your program passes: --run {shlex.quote(command)}\nOr describe" if command else ""
    form: Spec = next((forms[name] for forms in search.request.readings if name in forms), {})
    example = shlex.quote(format_argument(name, _with_arrays(form)))
    what = "arrays of its shapes" if form.get("items") else "an array"
    # One that nothing was tried for is no array.
    array = f"  --arg {example}  # {what}\n" if failed.error else ""
    kind, _, message = failed.error.partition(": ")
    # On no shapes does a function run that calls what the installed libraries do not have.
    gone = outdated(protocol.Raised(kind, message), session.directory)
    named = any(p.kind is ParameterKind.KEYWORD_ONLY for p in facts.parameters)
    returned = "all arguments, as a pair (args, kwargs)" if named else "all arguments"
    raise refused(
        "JP014",
        f"no example was found for argument `{failed.path or name}` of `{facts.name}`{why}",
        gone
        or f"{run or 'Describe'} it, or give a function that returns {returned}:\n"
        f"{array}  --arg '{name}=py:EXPRESSION'  # an object, as your module makes it\n"
        "  --inputs FILE::make_inputs",
        facts.span,
        (failed.error,) if failed.error else (),
    )


def _with_arrays(form: Spec) -> Spec:
    """A form that an argument is seen to have, with arrays of some shape for its leaves."""
    if form.get("kind") in ("dict", "object"):
        return {**form, "items": [[name, _with_arrays(each)] for name, each in form["items"]]}
    if form.get("kind") in ("tuple", "list"):
        return {**form, "items": [_with_arrays(each) for each in form["items"]]}
    return {"kind": "array", "dtype": "float32", "shape": [24, 8]}


def request_for(
    search: protocol.SearchInputs, facts: FunctionFacts, bound: Sequence[str]
) -> protocol.SearchInputs:
    """The question of shapes; arguments beside `bound` ones are passed by name."""
    if not bound:
        return search
    free = {p.name for p in facts.parameters if p.kind is ParameterKind.POSITIONAL_OR_KEYWORD}
    rows = ({**row, "how": "keyword"} if row["name"] in free else row for row in search.parameters)
    return dataclasses.replace(search, parameters=tuple(rows))


def _given(texts: Sequence[str], facts: FunctionFacts) -> dict[str, Any]:
    known = [parameter.name for parameter in facts.parameters]
    given: dict[str, Any] = {}
    for text in texts:
        name, spec = parse_argument(text)
        if name not in known:
            raise no_argument("arg", name, known, f"`{facts.name}`", facts.span)
        given[name] = spec
    return given
