"""The function as the user wrote it, traced: what it returns, what it changes, what grows with the batch."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jax_pmap.drift import outdated
from jax_pmap.emit.constants import is_compiled
from jax_pmap.inputs.load import Loaded
from jax_pmap.model import refused
from jax_pmap.planning.roles import RoleFinder, Roles
from jax_pmap.problems import error_details, error_span, first_line
from jax_pmap.reading.target import Target
from jax_pmap.session import Session
from jax_pmap.worker import protocol


def reference_runs(session: Session, target: Target, finder: RoleFinder) -> protocol.Traced:
    """Trace the function as given; Python numbers it needs as numbers become static."""
    facts = target.facts
    numbers = [
        name
        # Sizes and counts first: a rate that is static is compiled for anew at every value.
        for kinds in ({"int"}, {"bool", "int", "float"})
        for name, argument in finder.described.items()
        if name not in finder.statics
        and argument["leaves"]
        and {leaf["category"] for leaf in argument["leaves"]} <= kinds
    ]
    numbers = list(dict.fromkeys(numbers))
    added: list[str] = []
    while True:
        answer = traced(session, target, finder.statics)
        error = answer.error
        if error is None:
            # It was the last that was needed; of those before, some may have stood in front of it alone.
            for other in added[:-1]:
                left = tuple(each for each in finder.statics if each != other)
                without = traced(session, target, left)
                if without.error is None:
                    answer, finder.statics = without, left
                    del finder.why[other]
            return answer
        if not answer.concrete:
            break
        if not numbers:
            raise refused(
                "JP052",
                f"`{facts.name}` needs the value of a traced array: {first_line(error.message)}",
                'Print it by jax.debug.print("{}", x), or return it and print it outside'
                if "__format__" in error.message
                else "It takes no arguments: if it is the program, name the step that it calls for each batch"
                if not facts.parameters
                else "Use jnp.where or lax.cond for branches on data; arguments that choose branches: "
                "--static NAME",
                error_span(error, session.directory, target.source) or facts.span,
                error_details(error),
            )
        name = numbers.pop(0)
        added.append(name)
        finder.statics = (*finder.statics, name)
        finder.why[name] = "its value is needed while tracing"
    # Not every error says that a number is missing: `jax.random.split(key, n)` takes it for a bad shape.
    bound = traced(session, target, (*finder.statics, *numbers)).error if numbers else error
    # With the numbers as they are given it is the error of the user's own call.
    error = bound or error
    if bound is None:
        for name in tuple(numbers):
            fewer = [other for other in numbers if other != name]
            if traced(session, target, (*finder.statics, *fewer)).error is None:
                numbers = fewer
        for name in numbers:
            finder.why[name] = "the function does not trace without its value"
        finder.statics = (*finder.statics, *numbers)
        return traced(session, target, finder.statics)
    if error.type == "OverflowError" and re.search("int32|parsing an argument", error.message):
        # Uncompiled, NumPy or Python computes with it, and the call works.
        raise refused(
            "JP062",
            f"`{facts.name}` computes with a whole number of more than 32 bits, which jax does not take "
            f"once the function is traced, as on several devices: {first_line(error.message)}",
            "Do that arithmetic before the call and pass what it gives, or let jax have 64 bits: "
            '`jax.config.update("jax_enable_x64", True)`',
            error_span(error, session.directory, target.source) or facts.span,
            error_details(error),
        )
    reason = f"fails on these inputs: {error.type}: {first_line(error.message)}"
    hint = (
        outdated(error, session.directory)
        or "Give inputs it runs on: --inputs FILE::callable, or --arg NAME=SPEC"
    )
    if error.type == "TraceContextError" or "from different trace level" in error.message:
        # Uncompiled, the call may work: it is the trace that the objects do not belong to.
        reason = f"fails when it is traced, as on several devices: {first_line(error.message)}"
        hint = (
            "It changes an object of Flax NNX that was made outside of what is traced there. Pass the object "
            "as an argument: to the function, and to what takes a gradient or scans inside it; or name the "
            "function that is given the object"
        )
    raise refused(
        "JP015",
        f"`{facts.name}` {reason}",
        hint,
        error_span(error, session.directory, target.source) or facts.span,
        error_details(error),
    )


def traced(session: Session, target: Target, statics: Sequence[str]) -> protocol.Traced:
    """Trace the function as given. What it changes in place is known to the worker from then on."""
    roles = protocol.Roles({}, tuple(statics))
    return session.ask(protocol.Trace(roles, watched=not is_compiled(target)), "tracing the function")


def check_opaque(target: Target, whole: protocol.Traced) -> None:
    """Refuse results that no device can hand back.

    Raises:
        RefusalError: JP044, at the first that is no array.
    """
    for path, kind in whole.opaque:
        raise refused(
            "JP044",
            f"output `result{path}` is a {kind}; a function on several devices returns arrays",
            "Return only arrays and numbers; keep strings and functions outside",
            target.facts.span,
        )


def grown_axes(session: Session, roles: Roles, size: int, whole: protocol.Traced) -> list[int | None]:
    """Of each output leaf the axis that grows with the batch of `size`, by tracing with others."""
    for rows in (size // 2, 2 * size):
        asked = protocol.Trace(roles.request(), rows)
        others = session.ask(asked, "tracing the function with other rows")
        if others.error is None:
            break
    else:
        return [None] * len(whole.out)
    axes: list[int | None] = []
    for leaf, other in zip(whole.out, others.out, strict=True):
        grown = [i for i, (a, b) in enumerate(zip(leaf["shape"], other["shape"], strict=True)) if a != b]
        axes.append(grown[0] if grown and leaf["shape"][grown[0]] == size else None)
    return axes


def batch_of(roles: Roles, loaded: Loaded) -> int:
    """Size of the batch, or of what the function makes itself in place of one."""
    by_name = {argument["name"]: argument for argument in loaded.described}
    for name, leaves in roles.axes.items():
        for index, axis in leaves.items():
            return int(by_name[name]["leaves"][index]["shape"][axis])
    return roles.rows
