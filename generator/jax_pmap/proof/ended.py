"""Where a derivation ended early, in the user's words and lines, and what that leaves without a run."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping
from pathlib import Path

from jax_pmap.model import Derivation, Refusal, RefusalError, Span, refused
from jax_pmap.problems import error_details, error_span, first_line
from jax_pmap.reading.target import Target
from jax_pmap.syntax.lines import parsed_expression
from jax_pmap.worker import protocol
from jax_pmap.worker.protocol import Raised

#: What jax raises where the types of arrays leave open how a result lies; functions of `jax.numpy` that may
#: be told raise a `ValueError` that names the parameter.
UNTYPED, OUT_SHARDING = "ShardingTypeError", "`out_sharding`"
#: Why nothing is run where that was asked for.
NO_RUN = "--no-run"


def why_not_run(answer: protocol.Derivation) -> str:
    """Why there cannot be a run, of what the worker derived; ``""`` where there can be one."""
    return answer.run.why if answer.run is not None and not answer.run.counts else ""


def in_source(derivation: Derivation, emitted: str, code: str, target: Target) -> Derivation:
    """`derivation`, with its places in the target's file and not in the `emitted` one.

    An expression that stands in `code` as it does in the target is the user's; any other has no place.
    """

    def own(span: Span | None) -> Span | None:
        if span is None or Path(span.file).name != emitted:
            return span
        wanted = _expression(code, span)
        nodes = (node for node in ast.walk(target.parsed.definition) if isinstance(node, ast.expr))
        found = next((node for node in nodes if wanted and ast.unparse(node) == wanted), None)
        return target.parsed.span(found) if found is not None else None

    needed = tuple(span for each in derivation.multiple_for if (span := own(each)) is not None)
    return dataclasses.replace(derivation, span=own(derivation.span), multiple_for=needed)


def _expression(code: str, span: Span) -> str:
    """The expression at `span`, in the form in which it can be compared; ``""`` where none starts there."""
    lines = code.splitlines()[span.line - 1 : span.end_line]
    if not lines:
        return ""
    # Columns are counted in bytes.
    lines[-1] = lines[-1].encode()[: span.end_column].decode(errors="replace")
    lines[0] = lines[0].encode()[span.column :].decode(errors="replace")
    try:
        return ast.unparse(parsed_expression("\n".join(lines)))
    except SyntaxError:
        return ""


def untyped(raised: Raised, emitted: str, code: str, target: Target, directory: Path) -> RefusalError:
    """The refusal of an operation whose operands leave open how its result is to lie."""
    span = error_span(raised, directory)
    if span is not None and Path(span.file).name == emitted:
        # Statements stand in the `emitted` file as they do in the target's, or nearly so.
        line, function = code.splitlines()[span.line - 1].strip(), target.facts.span
        lines = enumerate(target.parsed.lines[: target.parsed.definition.end_lineno], start=1)
        rows = [number for number, text in lines if number >= function.line and text.strip() == line]
        span = Span(function.file, rows[0]) if len(rows) == 1 else function
    return refused(
        "JP046",
        f"explicit mode does not say how the result of this is to lie: {first_line(raised.message)}",
        "Leave out --explicit, and the compiler decides; or say there how it is to lie: `out_sharding=`, or "
        "`jax.sharding.reshard` of an operand",
        span or target.facts.span,
        error_details(raised),
    )


def neither(
    derivation: Derivation,
    why: str,
    target: Target,
    statics: Mapping[str, str],
    *,
    by_size: bool = False,
) -> Refusal:
    """What to say where the derivation ended early and, for the reason `why`, nothing is run.

    `statics` are values of static arguments, as source, that are others than those of the example inputs.
    `by_size` says whether it is derived for the given batch, and not for one of another size.
    """
    at = f" at `{derivation.primitive}`" if derivation.primitive else ""
    terms = ""
    if any(derivation.terms):
        terms = f": `{derivation.terms[0]}`, where the original has `{derivation.terms[1]}`"
    constants = ", ".join(f"{name}={value}" for name, value in statics.items())
    given = f" with `{constants}`, which the example inputs do not have," if constants else ""
    hint = "Give smaller example inputs, as arrays, so that it is tried on them"
    if by_size:
        hint = (
            "Have an `if` ask for the size of the batch, which is then that of the whole batch, or hand in "
            "what depends on it; or try --backend jit, where the compiler keeps the global meaning"
        )
    elif why == NO_RUN:
        hint = "Leave out --no-run, so that it is tried on inputs"
    return Refusal(
        "JP061",
        f"`{target.facts.name}`{given} was not derived equal for all inputs and not run ({why}), so nothing "
        f"is shown: after {derivation.operations:,} operations the derivation ended{at}: "
        f"{derivation.reason}{terms}",
        hint,
        derivation.span or target.facts.span,
    )
