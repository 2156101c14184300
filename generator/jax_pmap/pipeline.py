"""The way of the data: locate → read → inputs → observe → plan → render → prove.

Each stage is a function of frozen values; this module only puts them in a row. Nothing here
prints, and nothing writes to the user's files.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jax_pmap.config import read_config
from jax_pmap.interpreter import find_interpreter
from jax_pmap.locate import locate
from jax_pmap.model import (
    Argument,
    Backend,
    Evidence,
    Generated,
    Guard,
    Plan,
    Refusal,
    RefusalError,
    Request,
    Source,
    Sync,
)
from jax_pmap.session import Session, WorkerProblem, error_details, error_span

if TYPE_CHECKING:
    from jax_pmap.emit.places import Body
    from jax_pmap.planning.observe import Observation
    from jax_pmap.planning.roles import Described, Roles
    from jax_pmap.reading.facts import FunctionFacts
    from jax_pmap.reading.parse import ParsedSource

Say = Callable[[str], None]
T = TypeVar("T")
#: Methods that change a dict or a list.
MUTATORS = frozenset(
    {"append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"}
)
#: Refusals of explicit collectives that the compiler's global view does not share.
COMPILER_CAN = frozenset({"JP043", "JP051", "JP053", "JP054"})
#: Assignments of roles that are observed before giving up.
CANDIDATES = 4
#: Simulated devices the worker has: as many as the largest count of the proof.
SIMULATED = 8


def quiet(_: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is known of the target before anything runs."""

    source: Source
    parsed: ParsedSource
    facts: FunctionFacts
    axis_name: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The target in the worker, with its example inputs."""

    described: tuple[Described, ...]
    #: ``--arg`` lines that reproduce what the tool assumed.
    assumed: tuple[str, ...]
    #: Source of definitions the emitted file must carry, when the module cannot be imported.
    definitions: tuple[str, ...]
    #: Names those definitions bind.
    defined: frozenset[str]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Observed:
    """A confirmed plan and what the proof needs beside it."""

    plan: Plan
    roles: Roles
    #: Values for static arguments (Python source by name), one dict for each variant observed.
    variants: tuple[dict[str, str], ...]


def generate(request: Request, say: Say = quiet) -> Generated | Refusal:
    """The multi-device version of a function, shown equal to it, or why there is none.

    Args:
        request: the question; see `Request`.
        say: told in a line what is going on.
    """
    return answered(lambda: _generate(request, say))


def make_plan(request: Request, say: Say = quiet) -> Plan | Refusal:
    """The plan alone: roles, collectives and outputs, observed but not rendered or proved."""
    return answered(lambda: _make_plan(request, say))


def answered(work: Callable[[], T]) -> T | Refusal:
    """The result of `work`, or the refusal it ended with."""
    try:
        return work()
    except RefusalError as error:
        return error.refusal


def _make_plan(request: Request, say: Say) -> Plan:
    source = locate(request.target, request.directory)
    if not request.proof:
        return _static_plan(request, _read(source, request))
    with _session(request) as session:
        target = _read(source, request)
        loaded = _load(session, target, request, say)
        return _observe(session, target, loaded, request, say).plan


def _generate(request: Request, say: Say) -> Generated:
    source = locate(request.target, request.directory)
    if not request.proof:
        target = _read(source, request)
        plan = _saved_plan(request, target) or _static_plan(request, target)
        code = _render(target, plan, request, None, (), frozenset())
        return Generated(code, plan, request.backend, None)
    with _session(request) as session:
        target = _read(source, request)
        loaded = _load(session, target, request, say)
        saved = _saved_plan(request, target)
        observed = _observe(session, target, loaded, request, say, saved)
        return _proved(session, target, loaded, observed, request, say)


def _session(request: Request) -> Session:
    config = read_config(request.directory)
    interpreter = find_interpreter(request.python, request.directory, config.python)
    ids = request.devices.ids
    devices = (
        max(SIMULATED, request.devices.count or 0, *(i + 1 for i in ids))
        if ids or request.devices.count
        else SIMULATED
    )
    return Session(interpreter.path, request.directory, devices, request.timeout, request.memory)


# --- read ---------------------------------------------------------------------------------


def _read(source: Source, request: Request) -> Target:
    from jax_pmap.reading.read import parse, read

    parsed = parse(source)
    facts = read(source, parsed)
    where = facts.span
    if facts.is_async or facts.is_generator:
        what = "`async def`" if facts.is_async else "a generator"
        raise refused(
            "JP056", f"`{facts.name}` is {what}; jax runs plain functions", "Return arrays instead", where
        )
    if facts.owner or facts.closure_names:
        what = "a method" if facts.owner == "class" else "defined inside another function"
        raise refused(
            "JP050",
            f"`{source.qualname}` is {what}: its other values exist only in the running program",
            "Move it to module level and pass what it needs as arguments",
            where,
        )
    if facts.global_names:
        names = ", ".join(f"`{name}`" for name in facts.global_names)
        raise refused(
            "JP049",
            f"`{facts.name}` assigns {names} outside itself; on several devices that happens once, while tracing",
            "Return the new value instead of assigning it",
            where,
        )
    for decorator in facts.decorators:
        if not decorator.set_aside:
            raise refused(
                "JP042",
                f"`{facts.name}` is decorated with `@{decorator.text}`, and what that does to it is not known",
                f"Name a function that calls it (def step(…): return {facts.name}(…)), or take the decorator off",
                decorator.span,
            )
    return Target(source, parsed, facts, _axis_name(facts, request))


def _axis_name(facts: FunctionFacts, request: Request) -> str:
    own = [c.axis_name for c in facts.collectives if c.axis_name is not None]
    if request.axis_name is None:
        return own[0] if own else facts.pmap_axis_name or "batch"
    for collective in facts.collectives:
        if collective.axis_name not in (None, request.axis_name):
            raise refused(
                "JP048",
                f"`{collective.op}` in the body names the axis {collective.axis_name!r}, not {request.axis_name!r}",
                f"Pass --axis-name {collective.axis_name}",
                collective.span,
            )
    return request.axis_name


# --- load and inputs ----------------------------------------------------------------------


def _load(session: Session, target: Target, request: Request, say: Say) -> Loaded:
    from jax_pmap.reading.slice import slice_for
    from jax_pmap.reading.text import function_text

    source, facts = target.source, target.facts
    text = function_text(target.parsed)
    say(f"loading {source.shown_path}")

    def load(replacement: str | None) -> None:
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

    definitions: tuple[str, ...] = ()
    defined: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    try:
        load(None)
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
        part = slice_for(target.parsed, needed)
        try:
            load(slice_for(target.parsed, needed | _inputs_name(target, request)).text)
        except WorkerProblem:
            raise RefusalError(refusal) from None
        definitions, defined = part.definitions, part.names
        where = f" (line {line.line})" if line else ""
        carries = ", and the emitted file carries a copy of it" if part.definitions else ""
        notes = (
            f"`{source.shown_path}` cannot be imported{where}: {problem.message}; only what `{facts.name}` needs "
            f"was loaded{carries}",
        )
    described, assumed = _inputs(session, target, request, say)
    return Loaded(tuple(described), tuple(assumed), definitions, defined, notes)


def dispensable(target: Target, error: Mapping[str, Any]) -> bool:
    """Whether what failed at import is use of jax at the top of the target's file, such as a demo.

    ``@jax.pmap(axis_name=...)`` on another function, or a call of a pmapped one with the wrong number of
    devices, is what people come here with: the target may not need it. An import that fails, an
    error that is raised on purpose or anything else is the user's to mend.
    """
    import ast

    from jax_pmap.reading.slice import defined, needs

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
    session: Session, target: Target, request: Request, say: Say
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
        from jax_pmap.inputs.collect import collect

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


# --- observe ------------------------------------------------------------------------------


def _observe(
    session: Session, target: Target, loaded: Loaded, request: Request, say: Say, saved: Plan | None = None
) -> Observed:
    from jax_pmap.emit.places import Body
    from jax_pmap.planning.roles import RoleFinder
    from jax_pmap.reading.text import function_text

    facts = target.facts
    body = Body(function_text(target.parsed))
    finder = RoleFinder(session, target.source, facts, request, loaded.described)
    whole = _reference_runs(session, target, finder)
    if whole["opaque"]:
        bad = whole["opaque"][0]
        raise refused(
            "JP044",
            f"output `result{bad['path']}` is a {bad['type']}; a function on several devices returns arrays",
            "Return only arrays and numbers; keep strings and functions outside",
            facts.span,
        )
    _check_mutation(target, loaded)
    session.ask("precision", "tracing the function", statics=finder.statics)
    first: Refusal | None = None
    for number, roles in enumerate(finder.candidates()):
        if number >= CANDIDATES:
            break
        too_small = _batch_refusal(target, loaded, roles, request)
        if too_small is not None:
            # Of a size that only came up because the likelier one does not trace, nothing is said.
            first = first or (None if finder.trace_error else too_small)
            continue
        outcome = _observe_variants(session, target, body, roles, loaded, say, saved)
        if isinstance(outcome, Refusal):
            first = first or outcome
            if request.backend is not Backend.JIT or outcome.code not in COMPILER_CAN:
                continue
            outcome = _global_view(session, target, roles, loaded, whole, body)
        elif not depends_on_batch(outcome[0], target.facts):
            first = first or Refusal(
                "JP055",
                f"no output of `{target.facts.name}` depends on the batch, so there is nothing to run in parallel",
                "Name the argument that holds the batch: --shard NAME",
                target.facts.span,
            )
            continue
        observation, variants, values, reached = outcome
        return _plan(target, loaded, request, body, roles, whole, observation, variants, values, reached)
    if first is not None:
        raise RefusalError(first)
    raise _no_batch(target, loaded, finder.trace_error)


def depends_on_batch(observation: Observation, facts: FunctionFacts) -> bool:
    """Whether anything in the result was sharded, or had to be made whole."""
    sharded = any(leaf["kind"].startswith("sharded") for leaf in observation.leaves)
    return sharded or bool(observation.syncs or facts.collectives)


def _global_view(
    session: Session, target: Target, roles: Roles, loaded: Loaded, whole: Mapping[str, Any], body: Body
) -> tuple[Observation, tuple[dict[str, str], ...], dict[str, tuple[str, ...]], frozenset[int]]:
    """What the jit backend needs of a function whose examples depend on each other.

    The compiler keeps the meaning; which outputs grow with the batch is asked by tracing with
    half of it. Branches are all taken as reached: nothing is woven into them.
    """
    from jax_pmap.planning.observe import Observation

    size = batch_of(roles, loaded)
    fewer = session.ask("trace", "tracing the function with fewer rows", **roles.request(), size=size // 2)
    leaves = []
    for leaf, other in zip(whole["out"], fewer["out"], strict=True):
        grown = [i for i, (a, b) in enumerate(zip(leaf["shape"], other["shape"], strict=True)) if a != b]
        kind = f"sharded {grown[0]}" if grown and leaf["shape"][grown[0]] == size else "replicated"
        leaves.append({**leaf, "kind": kind})
    every = frozenset(branch.index for branch in body.branches)
    observation = Observation((), tuple(leaves), whole["tree"], 0, every)
    return observation, ({},), {}, every


def _reference_runs(session: Session, target: Target, finder: Any) -> dict[str, Any]:
    """Trace the function as given; Python numbers it needs as numbers become static."""
    facts = target.facts
    numbers = [
        name
        for name, argument in finder.described.items()
        if name not in finder.statics
        and argument["leaves"]
        and all(leaf["category"] == "int" for leaf in argument["leaves"])
    ]
    while True:
        answer = session.ask("trace", "tracing the function", axes={}, statics=finder.statics, size=None)
        if answer["traced"]:
            return answer
        error = answer["error"]
        if not answer["concrete"]:
            break
        if not numbers:
            raise refused(
                "JP052",
                f"`{facts.name}` needs the value of a traced array: {first_line(error['message'])}",
                "Use jnp.where or lax.cond for branches on data; arguments that choose branches: --static NAME",
                error_span(error, session.directory, target.source) or facts.span,
                error_details(error),
            )
        name = numbers.pop(0)
        finder.statics = (*finder.statics, name)
        finder.why[name] = "its value is needed while tracing"
    raise refused(
        "JP015",
        f"`{facts.name}` fails on these inputs: {error['type']}: {first_line(error['message'])}",
        "Give inputs it runs on: --inputs FILE::callable, or --arg NAME=SPEC",
        error_span(error, session.directory, target.source) or facts.span,
        error_details(error),
    )


def _check_mutation(target: Target, loaded: Loaded) -> None:
    """A compiled function changes copies of its arguments; the caller of the original sees the change."""
    import ast

    if any(decorator.set_aside for decorator in target.facts.decorators):
        return
    containers = {
        a["name"]
        for a in loaded.described
        if isinstance(a["tree"], dict) and a["tree"]["kind"] in ("dict", "list")
    }
    nodes = sorted(
        (
            n
            for n in ast.walk(target.parsed.definition)
            if isinstance(n, ast.Name | ast.Call) and hasattr(n, "lineno")
        ),
        key=lambda node: (node.lineno, node.col_offset),
    )
    changed = {
        id(node.value)
        for node in ast.walk(target.parsed.definition)
        if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)
    } | {
        id(node.func.value)
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS
    }
    for node in nodes:
        if not isinstance(node, ast.Name) or node.id not in containers:
            continue
        if isinstance(node.ctx, ast.Store):
            containers.discard(node.id)
        elif id(node) in changed:
            raise refused(
                "JP049",
                f"`{target.facts.name}` changes its argument `{node.id}` in place; on several devices that changes a copy",
                f"Copy it first (`{node.id} = dict({node.id})`) and return what changed",
                target.parsed.span(node),
            )


def _batch_refusal(target: Target, loaded: Loaded, roles: Roles, request: Request) -> Refusal | None:
    """The batch must be large enough for the proof, and divisible where a count was asked for."""
    by_name = {argument["name"]: argument for argument in loaded.described}
    for name, leaves in roles.axes.items():
        for index, axis in leaves.items():
            leaf = by_name[name]["leaves"][index]
            size = leaf["shape"][axis]
            wanted = request.devices.number
            if wanted is not None and size % wanted:
                return Refusal(
                    "JP041",
                    f"`{leaf['path']}` has shape {tuple(leaf['shape'])}: its batch of {size} does not divide over "
                    f"{wanted} devices",
                    f"Give inputs with a batch of {max(1, round(size / wanted)) * wanted}, or another --devices",
                    target.facts.span,
                )
            if size < (wanted or SIMULATED):
                return Refusal(
                    "JP041",
                    f"`{leaf['path']}` has shape {tuple(leaf['shape'])}: a batch of {size} is smaller than the "
                    f"{wanted or SIMULATED} devices of the proof",
                    f"Give example inputs with a batch of at least {2 * (wanted or SIMULATED)}",
                    target.facts.span,
                )
    return None


def _observe_variants(
    session: Session,
    target: Target,
    body: Body,
    roles: Roles,
    loaded: Loaded,
    say: Say,
    saved: Plan | None,
) -> Refusal | tuple[Observation, tuple[dict[str, str], ...], dict[str, tuple[str, ...]], frozenset[int]]:
    """Observe with the given static values, then with each other value the body asks about."""
    from jax_pmap.planning.merge import merge_neighbours
    from jax_pmap.planning.observe import Observer

    by_name = {argument["name"]: argument for argument in loaded.described}
    observer = Observer(
        session, body, target.facts, target.axis_name, itemsize(loaded), say, definitions_of(target)
    )
    size = batch_of(roles, loaded)
    # As many shards as leave two rows to each: the more they differ, the more is seen.
    count = next(count for count in (8, 4, 2, 1) if size >= 2 * count)
    start = saved.syncs if saved is not None else ()
    base = observer.observe(roles, {}, count, start)
    if isinstance(base, Refusal):
        return base
    syncs, reached = base.syncs, base.reached
    variants: list[dict[str, str]] = [{}]
    values: dict[str, tuple[str, ...]] = {}
    for name in by_name:
        argument = by_name[name]
        given = argument["repr"]
        if argument["none"]:
            values[name] = ("None",)
            continue
        if name not in roles.statics or argument["type"] not in ("bool", "str", "NoneType"):
            continue
        proved = [given]
        others = [value for asked, value in target.facts.compared if asked == name and value not in proved]
        if argument["type"] == "bool":
            others = [value for value in ("True", "False") if value != given]
        for value in dict.fromkeys(others):
            outcome = observer.observe(roles, {name: value}, count, syncs)
            if isinstance(outcome, Refusal) or kinds(outcome) != kinds(base):
                continue
            syncs, reached = outcome.syncs, reached | outcome.reached
            variants.append({name: value})
            proved.append(value)
        values[name] = tuple(proved)
    final = dataclasses.replace(
        base, syncs=merge_neighbours(body, minimal(observer, roles, count, syncs, target))
    )
    return final, tuple(variants), values, reached


def minimal(
    observer: Any, roles: Roles, count: int, syncs: tuple[Sync, ...], target: Target
) -> tuple[Sync, ...]:
    """Without the collectives that the body's own ones make unnecessary."""
    if not target.facts.collectives:
        return syncs
    kept = list(syncs)
    for sync in syncs:
        fewer = [other for other in kept if other is not sync]
        outcome = observer.observe(roles, {}, count, fewer)
        if not isinstance(outcome, Refusal) and len(outcome.syncs) == len(fewer):
            kept = fewer
    return tuple(kept)


def kinds(observation: Observation) -> list[tuple[str, str]]:
    """Paths and kinds of the result's leaves."""
    return [(leaf["path"], leaf["kind"]) for leaf in observation.leaves]


def itemsize(loaded: Loaded) -> Callable[[str], int]:
    """Bytes of one element in the user's own precision, of dtypes observed in 64-bit mode."""
    import re

    wide = any(leaf["dtype"] in ("float64", "complex128") for a in loaded.described for leaf in a["leaves"])

    def size(dtype: str) -> int:
        if dtype == "bool":
            return 1
        bits = int(re.sub(r"\D", "", dtype.partition("_")[0].removeprefix("key")) or 32)
        return bits // 8 if wide or dtype not in ("float64", "complex128", "int64") else bits // 16

    return size


def batch_of(roles: Roles, loaded: Loaded) -> int:
    """Size of the batch."""
    by_name = {argument["name"]: argument for argument in loaded.described}
    for name, leaves in roles.axes.items():
        for index, axis in leaves.items():
            return int(by_name[name]["leaves"][index]["shape"][axis])
    return 0


def _plan(
    target: Target,
    loaded: Loaded,
    request: Request,
    body: Body,
    roles: Roles,
    whole: Mapping[str, Any],
    observation: Observation,
    variants: tuple[dict[str, str], ...],
    values: dict[str, tuple[str, ...]],
    reached: frozenset[int],
) -> Observed:
    from jax_pmap.planning.plan import chain, plan_arguments, plan_outputs
    from jax_pmap.reading.text import function_text

    facts = target.facts
    donated = [*request.donate]
    for name in donated:
        if name not in {p.name for p in facts.parameters}:
            raise refused(
                "JP007",
                f"--donate names `{name}`, which is no argument of `{facts.name}`",
                f"It takes: {', '.join(p.name for p in facts.parameters)}",
                facts.span,
            )
    arguments = plan_arguments(facts, loaded.described, roles, values, donated)
    output_axes, outputs = plan_outputs(observation, facts, whole["out"])
    guards = tuple(
        Guard(branch.span, branch.condition)
        for branch in body.branches
        if branch.index not in reached and not branch.harmless and branch.condition != "except"
    )
    return Observed(
        Plan(
            target=f"{target.source.shown_path}::{target.source.qualname}",
            axis_name=target.axis_name,
            arguments=arguments,
            syncs=observation.syncs,
            output_axes=output_axes,
            outputs=outputs,
            devices=request.devices,
            guards=guards,
            notes=(*loaded.notes, *_notes(arguments)),
            assumed_inputs=loaded.assumed,
            chain=chain(loaded.described, roles, observation.tree, outputs, facts.returned_names),
            source_hash=function_text(target.parsed).digest,
        ),
        roles,
        variants,
    )


def _notes(arguments: tuple[Argument, ...]) -> list[str]:
    notes = []
    for argument in arguments:
        if len(argument.proved_values) > 1 or (
            argument.proved_values and argument.proved_values != ("None",)
        ):
            allowed = " and ".join(argument.proved_values)
            notes.append(
                f"`{argument.name}` was tried with {allowed}; the emitted function takes no other value"
            )
    return notes


def _no_batch(target: Target, loaded: Loaded, error: Mapping[str, Any]) -> RefusalError:
    shapes = ", ".join(
        f"{leaf['path']} {tuple(leaf['shape'])}"
        for argument in loaded.described
        for leaf in argument["leaves"]
    )
    why = f" ({first_line(error['message'])})" if error else ""
    return refused(
        "JP040",
        f"no axis was found along which the inputs of `{target.facts.name}` can be split{why}: {shapes or 'no arrays'}",
        "Name it: --shard NAME or --shard NAME:AXIS",
        target.facts.span,
    )


# --- plans from elsewhere -----------------------------------------------------------------


def _static_plan(request: Request, target: Target) -> Plan:
    from jax_pmap.planning.static import plan_statically

    return plan_statically(target.source, target.parsed, target.facts, request)


def _saved_plan(request: Request, target: Target) -> Plan | None:
    if request.plan is None:
        return None
    from jax_pmap.reading.text import function_text
    from jax_pmap.report.as_json import read_plan

    plan = read_plan(request.plan)
    if plan.source_hash != function_text(target.parsed).digest:
        raise refused(
            "JP017",
            f"`{request.plan}` was made for another version of `{target.facts.name}`",
            f"Make it again: jax-pmap plan {request.target} --output-format json > {request.plan}",
            target.facts.span,
        )
    return plan


# --- render and prove ---------------------------------------------------------------------


def _proved(
    session: Session, target: Target, loaded: Loaded, observed: Observed, request: Request, say: Say
) -> Generated:
    from jax_pmap.proof.prove import prove

    plan, facts = observed.plan, target.facts
    fixed = plan.devices.number is not None
    path = str(target.source.path.with_name(f"{facts.name}_parallel.py"))

    def run(code: str, fixed: bool) -> Evidence:
        return prove(
            session,
            plan,
            observed.roles,
            code,
            facts.name,
            path,
            observed.variants,
            facts.span,
            say,
            fixed=fixed,
        )

    def emit(plan: Plan, evidence: Evidence | None) -> str:
        return _render(target, plan, request, evidence, loaded.definitions, loaded.defined)

    try:
        free = dataclasses.replace(plan, devices=type(plan.devices)())
        evidence = run(emit(free, None), False)
        if fixed:
            chosen = run(emit(plan, None), True)
            evidence = dataclasses.replace(evidence, checks=(*evidence.checks, *chosen.checks))
    except WorkerProblem as problem:
        raise refused(
            "JP015",
            f"`{facts.name}` fails on these inputs: {problem.message}",
            "Give inputs it runs on: --inputs FILE::callable",
            facts.span,
            error_details(problem.error),
        ) from None
    return Generated(emit(plan, evidence), plan, request.backend, evidence)


def _render(
    target: Target,
    plan: Plan,
    request: Request,
    evidence: Evidence | None,
    definitions: tuple[str, ...],
    defined: frozenset[str],
) -> str:
    import jax_pmap
    from jax_pmap.emit.places import Body
    from jax_pmap.emit.render import EmitUnit, Header, render
    from jax_pmap.emit.weave import weave
    from jax_pmap.reading.text import function_text

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
    own_names = {other.facts.name for other in adapted}
    every = [facts, *(other.facts for other in adapted)]
    names = tuple(
        sorted({name for each in every for name in each.module_names} - defined - own_names - {facts.name})
    )
    imports = [row.statement for each in every for row in each.imported if not row.typing_only]
    if definitions:
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
    body = Body(function_text(target.parsed))
    result = "result"
    while result in facts.taken_names:
        result += "_"
    axis = unit.names.axis
    try:
        elsewhere = {sync for other in adapted for sync in other.syncs}
        here = [sync for sync in syncs if sync not in elsewhere]
        woven = weave(body, here, plan.guards, axis=axis, result=result)
        copies = [other.body.definition(weave(other.body, other.syncs, axis=axis)) for other in adapted]
    except LookupError as error:
        raise refused(
            "JP017", f"the plan does not fit the source: {error}", "Make the plan again", facts.span
        ) from None
    unit = dataclasses.replace(unit, body=body.body_source(woven), definitions=(*definitions, *copies))
    digest = function_text(target.parsed).digest
    command = request.command or f"jax-pmap gen {shlex.quote(request.target)}"
    header = Header(
        jax_pmap.__version__, command, f"{source.shown_path}::{source.qualname}", digest, evidence
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
    from jax_pmap.emit.places import Body
    from jax_pmap.planning.observe import inside_of
    from jax_pmap.reading.read import parse, read
    from jax_pmap.reading.text import function_text

    import ast

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


def definitions_of(target: Target) -> Callable[[str, Body], tuple[Body, Any] | None]:
    """Finds functions of the target's file by name, for looking into them."""
    from jax_pmap.emit.places import Body
    from jax_pmap.reading.read import parse, read
    from jax_pmap.reading.text import function_text

    def find(name: str, beside: Body) -> tuple[Body, Any] | None:
        if name not in target.facts.module_names and name not in vars_of(target):
            return None
        try:
            source = dataclasses.replace(target.source, qualname=name)
            parsed = parse(source)
        except RefusalError:
            return None
        facts = read(source, parsed)
        if facts.is_async or facts.is_generator or any(not d.set_aside for d in facts.decorators):
            return None
        return Body(function_text(parsed), beside.numbers), facts.gradient_calls

    return find


def vars_of(target: Target) -> frozenset[str]:
    """Names of the functions defined at the top of the target's file."""
    import ast

    return frozenset(node.name for node in target.parsed.tree.body if isinstance(node, ast.FunctionDef))


def _docstring(target: Target) -> str | None:
    import ast

    first = target.parsed.definition.body[0]
    if target.facts.docstring is None or not isinstance(first, ast.Expr):
        return None
    return target.parsed.segment(first.value)


def _imports_of(target: Target, names: frozenset[str]) -> list[str]:
    """Import statements of the file that bind any of `names`."""
    import ast

    found = []
    for statement in target.parsed.tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            bound = {(item.asname or item.name).partition(".")[0] for item in statement.names}
            if bound & names:
                found.append(target.parsed.segment(statement))
    return found


# --- words --------------------------------------------------------------------------------


def refused(code: str, reason: str, hint: str, span: Any, details: tuple[str, ...] = ()) -> RefusalError:
    """A `RefusalError` in one line."""
    return RefusalError(Refusal(code, reason, hint, span, details))


def first_line(text: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")
