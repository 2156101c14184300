"""The target as reading knows it, and what reading alone refuses."""

from __future__ import annotations

import ast
import dataclasses
import shlex
from dataclasses import dataclass

from jax_pmap.model import Backend, Binding, RefusalError, Request, Source, refused
from jax_pmap.reading.decorators import receiver_of
from jax_pmap.reading.facts import FunctionFacts
from jax_pmap.reading.read import read
from jax_pmap.syntax.library import BATCHERS, SHARD_MAPS
from jax_pmap.syntax.parse import ParsedSource, parse, parse_file
from jax_pmap.syntax.slice import Module
from jax_pmap.worker.scopes import attribute_of_itself, is_private

#: Names of the axis of the devices, where a map inside the function has the usual one.
OTHER_NAMES = ("devices", "replicas", "shards")


@dataclass(frozen=True, slots=True)
class Target:
    """What is known of the target before anything runs."""

    source: Source
    parsed: ParsedSource
    facts: FunctionFacts
    axis_name: str
    #: Whether that was asked for.
    axis_given: bool = False
    #: Whether it runs only where that axis is bound, which running it tells.
    own_axis: bool = False


def read_target(
    source: Source, request: Request, *, mapped: bool = False, given_back: bool = False
) -> Target:
    """Read a located target and refuse what no run could make parallel.

    Args:
        source: where it is.
        request: what is asked of it.
        mapped: whether it may be decorated with `shard_map`, which is taken off like `jax.pmap`.
        given_back: whether running has shown that its decorators give back what they are given.

    Raises:
        RefusalError: JP042, JP048, JP049, JP050 or JP056, and what `parse` raises.
    """
    parsed = parse(source)
    facts = read(source, parsed, given_back=given_back)
    where = facts.span
    if facts.is_async or facts.is_generator:
        what, instead = "a generator", "Return arrays where it yields them, as one result"
        if facts.is_async:
            what, instead = "`async def`", "Take `async` off, and hand in as arguments what it awaits"
        raise refused("JP056", f"`{facts.name}` is {what}; jax runs plain functions", instead, where)
    facts = as_called(facts, source.binding, request)
    if takes_object(parsed, request) or binds_its_class(source):
        facts = dataclasses.replace(facts, receiver="")
    # Of the edited file, the function around it makes the one with the collectives.
    nested = request.in_place and any(isinstance(each, ast.FunctionDef) for each in parsed.enclosing)
    running = facts.receiver or facts.closure_names or nested
    if running and request.run is None and not made_by_import(source):
        first = "its arguments" if facts.is_class_method else "the object and the arguments"
        with_inputs = (
            f"; or a function that returns {first}: --inputs FILE::callable" if facts.receiver else ""
        )
        from jax_pmap.inputs.callers import command_of

        maker = source.qualname.rpartition(".")[0]
        instead = "move it to module level and pass what it needs as arguments"
        if not facts.receiver and maker.isidentifier():
            instead = (
                f"make one at module level, `NAME = {maker}(…)`, and name that: {source.shown_path}::NAME"
            )
        if not facts.receiver and not facts.closure_names:
            instead = "have a file of its own for it, without --in-place"
        command = command_of(source, request.directory) or "python train.py"
        raise refused(
            "JP050",
            f"`{source.qualname}` {running_values(facts)}, and only the running program has it"
            if not facts.is_class_method
            else f"`{source.qualname}` {running_values(facts)}, and is looked at where it is called",
            f"Name a program that calls it: --run {shlex.quote(command)}{with_inputs}. Or {instead}",
            where,
        )
    if facts.global_names:
        names = ", ".join(f"`{name}`" for name in facts.global_names)
        raise refused(
            "JP049",
            f"`{facts.name}` assigns {names} outside itself; on devices that happens once, while tracing",
            "Return the new value instead of assigning it",
            where,
        )
    is_method = any(isinstance(each, ast.ClassDef) for each in parsed.enclosing[-1:])
    own = None if is_method else attribute_of_itself(parsed.definition)
    if own is not None:
        raise refused(
            "JP049",
            f"`{ast.unparse(own)}` belongs to `{facts.name}` itself, and the emitted function is another one",
            "Keep it in a variable of the module, or make it an argument",
            parsed.span(own),
        )
    for decorator in facts.decorators:
        if not decorator.set_aside and not (mapped and decorator.name in SHARD_MAPS):
            does = (
                "which makes of it a function of many examples"
                if decorator.name in BATCHERS
                else "and what that does is not known"
            )
            raise refused(
                "JP042",
                f"`{facts.name}` is decorated with `@{decorator.text}`, {does}",
                f"Name a function that calls it (def step(…): return {facts.name}(…)), or take it off",
                decorator.span,
            )
    given = request.axis_name is not None or bool(request.mesh)
    return Target(source, parsed, facts, axis_name_of(facts, request), axis_given=given)


def takes_object(parsed: ParsedSource, request: Request) -> bool:
    """Whether a method becomes a function that its object is the first argument of.

    ``Agent.update(agent, batch)`` is a call that any file can make. In the text of the class alone `super()`
    finds its bases, and ``self.__name`` its own.
    """
    binding = parsed.source.binding
    of_object = binding is not None and binding.of_object
    given = request.inputs is not None or request.run is not None
    return given and not of_object and not _is_class_method(parsed) and _is_method_alone(parsed, request)


def with_its_class(source: Source, request: Request) -> Source:
    """A class method as the name of what binds its class to it, which importing the file makes.

    What is written for ``Agent.update`` is called as that is, without the class.
    """
    if "." not in source.qualname or source.binding is not None:
        return source
    parsed = parse(source)
    if not _is_class_method(parsed) or not _is_method_alone(parsed, request):
        return source
    name, span, owner = source.qualname, parsed.span(parsed.definition), parsed.enclosing[0].name
    bound = Binding(name, name, span, positional=(owner,), live=True, of_class=True)
    return dataclasses.replace(source, binding=bound)


def _is_class_method(parsed: ParsedSource) -> bool:
    return any(getattr(each, "id", "") == "classmethod" for each in parsed.definition.decorator_list)


def _is_method_alone(parsed: ParsedSource, request: Request) -> bool:
    """Whether a method of a class at the top of its file can be written into another one, and is to be."""
    if not receiver_of(parsed) or len(parsed.enclosing) != 1 or is_private(parsed.definition):
        return False
    return not request.in_place


def binds_its_class(source: Source) -> bool:
    """Whether it is a class method with its class: see `with_its_class`."""
    return source.binding is not None and source.binding.of_class


def owner_of(target: Target) -> str | None:
    """The innermost class around the target."""
    classes = [node.name for node in target.parsed.enclosing if isinstance(node, ast.ClassDef)]
    return classes[-1] if classes else None


def made_by_import(source: Source) -> bool:
    """Whether importing the module makes the very object that was asked for, with all it holds."""
    return source.binding is not None and source.binding.live


def made_by_a_program(target: Target) -> RefusalError | None:
    """Why no other file can import the object that a factory made, where that is: JP050."""
    source, parsed = target.source, target.parsed
    binding = source.binding
    if binding is None or not binding.live or not target.facts.closure_names:
        return None
    if binding.file is not None:
        parsed = parse_file(dataclasses.replace(binding.file, binding=binding))
    module, shown = Module(parsed), binding.span.file
    line = module.work()
    if module.under_guard({binding.qualname.partition(".")[0]}):
        why = f"`{binding.qualname}` is made only where `{shown}` is run as a program"
        instead = "Make it above `if __name__ == '__main__':`"
    elif line is not None:
        why = f"importing `{shown}`, which makes `{binding.qualname}`, would run the program (line {line})"
        instead = "Put what runs the program under `if __name__ == '__main__':`"
    else:
        return None
    names = ", ".join(f"`{name}`" for name in target.facts.closure_names)
    return refused(
        "JP050",
        f"{why}, and no other file can have what it holds: {names}",
        f"{instead}. Or have the function changed where it stands: {source.shown_path}::{source.qualname} "
        f"--run {shlex.quote(f'python {shown}')} --in-place",
        binding.span,
    )


def as_called(facts: FunctionFacts, binding: Binding | None, request: Request) -> FunctionFacts:
    """Facts with what calls by the name of a `binding` give up, where the emitted function has that name."""
    if binding is None or request.in_place:
        return facts
    given = {name for name, callee in facts.donated_elsewhere if callee == binding.qualname}
    order = [parameter.name for parameter in facts.parameters]
    donated = tuple(name for name in order if name in {*given, *facts.donated_parameters})
    others = tuple(pair for pair in facts.donated_elsewhere if pair[0] not in given)
    return dataclasses.replace(facts, donated_parameters=donated, donated_elsewhere=others)


def running_values(facts: FunctionFacts) -> str:
    """What a method or a nested function takes from the running program."""
    if facts.is_class_method:
        return f"is a class method: it needs its class, `{facts.receiver}`"
    if facts.receiver:
        return f"is a method: it needs the object it is called on, `{facts.receiver}`"
    if not facts.closure_names:
        return "is defined inside another function"
    names = ", ".join(f"`{name}`" for name in facts.closure_names)
    return f"is defined inside another function and needs what that one holds: {names}"


def axis_name_of(facts: FunctionFacts, request: Request) -> str:
    """The axis name to use: as asked for, else that of the body's own collectives, else ``"batch"``.

    None that a map in the body binds.
    """
    own = [c.axis_name for c in facts.collectives if c.axis_name is not None]
    if request.axis_name is None:
        if own:
            return own[0]
        # Functions that it calls may stand in the same file.
        names = (facts.pmap_axis_name or "batch", *OTHER_NAMES)
        return next((name for name in names if name not in facts.mapped_axes), names[0])
    if request.axis_name in facts.inner_axes and request.backend is not Backend.JIT:
        raise refused(
            "JP048",
            f"collectives go over the axis {request.axis_name!r} of a map inside `{facts.name}`, and that of "
            "the devices was given the same name: they would see the inner one alone",
            "Leave --axis-name out, or give another: --axis-name devices",
            facts.span,
        )
    for collective in facts.collectives:
        if collective.axis_name not in (None, request.axis_name):
            raise refused(
                "JP048",
                f"`{collective.op}` names the axis {collective.axis_name!r}, not {request.axis_name!r}",
                f"Pass --axis-name {collective.axis_name}",
                collective.span,
            )
    return request.axis_name
