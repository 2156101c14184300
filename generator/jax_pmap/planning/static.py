"""A plan from reading alone, for ``--no-proof``: nothing is run.

Roles come from structure first (what is differentiated, optimised, returned), then from names; kinds are
followed through the body by the rules of `planning.rules`. What had to be assumed is a note of the plan.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from jax_pmap.model import (
    UNKNOWN,
    Argument,
    Axes,
    AxesNode,
    Leaf,
    ParameterKind,
    Plan,
    Request,
    Role,
    Source,
    refused,
)
from jax_pmap.options import no_argument
from jax_pmap.planning.values import REPLICATED, Value, flat
from jax_pmap.planning.walk import Walk
from jax_pmap.reading.facts import FunctionFacts, Parameter
from jax_pmap.reading.names import DATA_NAMES, STATE_NAMES
from jax_pmap.reading.parse import ParsedSource
from jax_pmap.reading.read import make_resolver
from jax_pmap.reading.text import function_text

_SCALARS = frozenset(["int", "float", "complex"])
_CONSTANTS = frozenset(["str", "bool", "Callable", "callable", "typing.Callable", "bytes"])
_STATE = re.compile(r".*(params|state|model|optimizer|weights|stats)", re.ASCII)
_DATA = re.compile(r".*(batch|inputs|images|labels|targets|tokens|mask|data|logits)", re.ASCII)
_PATH = re.compile(r"(\w+)(.*?)(?::(-?\d+))?", re.ASCII)
_ITEM = re.compile(r"\[(['\"])(\w+)\1\]", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The role of one parameter, or of one item of a dict parameter."""

    role: Role
    axis: int | None
    why: str


def plan_statically(source: Source, parsed: ParsedSource, facts: FunctionFacts, request: Request) -> Plan:
    """Plan the target without running anything.

    Leaves have shape ``()`` and dtype ``"unknown"``: arguments and results are planned as wholes, or by the
    items the source spells out.

    Raises:
        RefusalError: JP007 / JP018 for options, JP014 where only inputs can tell, JP040 without a batch axis,
            JP043 and JP051 at values that cannot be split.
    """
    axis_name = request.axis_name or _axis_name(facts)
    roles = _Roles(parsed, facts, request)
    arguments = tuple(roles.argument(parameter) for parameter in facts.parameters)
    walk = Walk(parsed, make_resolver(parsed), roles.values())
    walk.body(parsed.definition.body)
    result = _result(walk)
    notes = [*roles.notes, *walk.notes]
    if not facts.returned_names and not walk.returned:
        notes.append("The function returns nothing.")
    return Plan(
        target=f"{source.shown_path}::{source.qualname}",
        axis_name=axis_name,
        arguments=arguments,
        syncs=tuple(sorted(walk.syncs.values(), key=lambda sync: (sync.span.line, sync.span.column))),
        output_axes=_axes(result),
        outputs=tuple(_outputs(result, "result")),
        devices=request.devices,
        notes=tuple(notes),
        chain=tuple(_chain(facts)),
        source_hash=function_text(parsed).digest,
        observed=False,
    )


def _axis_name(facts: FunctionFacts) -> str:
    used = [found.axis_name for found in facts.collectives if found.axis_name]
    return used[0] if used else facts.pmap_axis_name or "batch"


class _Roles:
    """Chooses a role for every parameter."""

    def __init__(self, parsed: ParsedSource, facts: FunctionFacts, request: Request) -> None:
        self.parsed, self.facts, self.request = parsed, facts, request
        self.notes: list[str] = []
        self.names = [parameter.name for parameter in facts.parameters]
        self.chosen: dict[str, _Chosen] = {}
        #: Roles by item, for dict parameters an option names an item of.
        self.items: dict[str, dict[str, _Chosen]] = {}
        self._options()
        self._structure()
        self._by_name()
        for name in self.items:
            self._complete(name)
        chosen = [*self.chosen.values(), *(item for items in self.items.values() for item in items.values())]
        if not any(choice.role is Role.BATCH for choice in chosen):
            raise refused(
                "JP040",
                f"No argument of `{facts.name}` could be told to hold a batch.",
                f"Name one: `--shard {self.names[0]}`."
                if self.names
                else "Give the function its data as an argument.",
                facts.span,
            )

    # -- choosing ----------------------------------------------------------------------------

    def _options(self) -> None:
        options = (
            ("shard", Role.BATCH, self.request.shard),
            ("replicate", Role.REPLICATED, self.request.replicate),
            ("static", Role.STATIC, self.request.static),
            ("key", Role.KEY, self.request.key),
        )
        for option, role, texts in options:
            for text in texts:
                match = _PATH.fullmatch(text.strip())
                name, path, axis = match.groups() if match else (text, "", None)
                self._check_name(option, name)
                choice = _Chosen(role, int(axis or 0) if role is Role.BATCH else None, f"by --{option}")
                item = _ITEM.fullmatch(path)
                if not path:
                    self.chosen[name] = choice
                elif item and role is not Role.STATIC:
                    self.items.setdefault(name, {})[item[2]] = choice
                else:
                    raise refused(
                        "JP054",
                        f"`--{option} {text}`: without inputs only a whole argument or one item of a "
                        "dict (`batch['x']`) can be named.",
                        "Give example inputs with `--inputs` or `--arg`, and leave out `--no-proof`.",
                        self.facts.span,
                    )

    def _check_name(self, option: str, name: str) -> None:
        if name not in self.names:
            raise no_argument(option, name, self.names, f"`{self.facts.name}`", self.facts.span)

    def _choose(self, name: str, role: Role, why: str, axis: int | None = None) -> None:
        if name in self.names:
            self.chosen.setdefault(name, _Chosen(role, axis, why))

    def _structure(self) -> None:
        facts = self.facts
        for name in facts.static_parameters:
            self._choose(name, Role.STATIC, "static under jit")
        for name, axis in facts.pmap_in_axes:
            if axis is not None:
                self._choose(name, Role.BATCH, "in_axes of its pmap", axis)
            elif name not in facts.key_parameters:
                self._choose(name, Role.REPLICATED, "in_axes of its pmap")
        differentiated = {name for call in facts.gradient_calls for name in call.of}
        for parameter in facts.parameters:
            name, annotation, default = parameter.name, parameter.annotation or "", parameter.default or ""
            head = annotation.strip("\"'").partition("[")[0]
            if name in {re.split(r"[.\[]", path)[0] for path in differentiated}:
                self._choose(name, Role.REPLICATED, "a gradient is taken of it")
            elif name in facts.called_parameters and not _STATE.fullmatch(name):
                self._choose(name, Role.STATIC, "it is called")
            elif head in _CONSTANTS or _is_constant(default):
                self._choose(name, Role.STATIC, "not an array")
            elif any(other == name and value[0] in "'\"" for other, value in facts.compared):
                self._choose(name, Role.STATIC, "compared with strings")
            elif head in _SCALARS or _is_number(default):
                self._choose(name, Role.REPLICATED, "a number")
        for name in self._optimised():
            self._choose(name, Role.REPLICATED, "goes through the optimiser")
        for name in facts.key_parameters:
            self._choose(name, Role.KEY, "a PRNG key")

    def _optimised(self) -> Iterator[str]:
        """State in ``tx.update(grads, opt_state, params)`` and ``state.apply_gradients(…)``."""
        for node in ast.walk(self.parsed.definition):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in ("apply_gradients", "apply_updates", "update") and (
                node.args or node.keywords
            ):
                receiver = node.func.value
                if isinstance(receiver, ast.Name) and node.func.attr != "apply_updates":
                    yield receiver.id
                yield from (part.id for part in node.args[1:] if isinstance(part, ast.Name))

    def _by_name(self) -> None:
        rest = [parameter for parameter in self.facts.parameters if parameter.name not in self.chosen]
        unclear: list[Parameter] = []
        for parameter in rest:
            lower = parameter.name.lower()
            if parameter.kind in (ParameterKind.VAR_POSITIONAL, ParameterKind.VAR_KEYWORD):
                self._choose(parameter.name, Role.REPLICATED, "further arguments")
                self.notes.append(f"`{parameter.name}` is taken to be replicated on every device.")
            elif lower in DATA_NAMES:
                self._choose(parameter.name, Role.BATCH, "named like data", 0)
            elif lower in STATE_NAMES:
                self._choose(parameter.name, Role.REPLICATED, "named like parameters")
            elif _DATA.fullmatch(lower):
                self._choose(parameter.name, Role.BATCH, "named like data", 0)
            elif _STATE.fullmatch(lower) or parameter.name in self.facts.returned_names:
                self._choose(parameter.name, Role.REPLICATED, "like state, returned or named so")
            else:
                unclear.append(parameter)
        named = any(choice.role is Role.BATCH for choice in self.chosen.values()) or self.items
        for parameter in unclear:
            first = not named and parameter is unclear[0]
            role = Role.BATCH if first and parameter.name not in self.items else Role.REPLICATED
            self._choose(parameter.name, role, "nothing else to go by", 0 if role is Role.BATCH else None)
            if role is Role.BATCH:
                self.notes.append(
                    f"`{parameter.name}` is taken to hold the batch on axis 0; `--shard` names another."
                )
            else:
                name = parameter.name
                self.notes.append(f"`{name}` is taken to be replicated; `--shard {name}` if it holds data.")

    def _complete(self, name: str) -> None:
        """All items of a dict parameter: those an option names, and those the body reads."""
        base = self.chosen.get(name, _Chosen(Role.REPLICATED, None, ""))
        keys = set(self.items[name])
        for node in ast.walk(self.parsed.definition):
            match node:
                case ast.Subscript(value=ast.Name(id=found), slice=ast.Constant(value=str(key))) if (
                    found == name
                ):
                    keys.add(key)
        self.items[name] = {key: self.items[name].get(key, base) for key in sorted(keys)}
        self.notes.append(f"`{name}` is taken to have the items {', '.join(sorted(keys))} and no others.")

    # -- answering ---------------------------------------------------------------------------

    def argument(self, parameter: Parameter) -> Argument:
        """The plan's record of one parameter."""
        name, choice = parameter.name, self.chosen[parameter.name]
        axes: Axes = choice.axis
        leaves: tuple[Leaf, ...] = (Leaf(name, choice.role, choice.axis, (), UNKNOWN),)
        if items := self.items.get(name):
            axes = AxesNode(
                "dict", tuple(repr(key) for key in items), tuple(item.axis for item in items.values())
            )
            leaves = tuple(
                Leaf(f"{name}[{key!r}]", item.role, item.axis, (), UNKNOWN) for key, item in items.items()
            )
        donated = name in (*self.facts.donated_parameters, *self.request.donate)
        static = choice.role is Role.STATIC
        return Argument(
            name,
            parameter.kind,
            axes,
            () if static else leaves,
            static=static,
            donated=donated,
            why=choice.why,
        )

    def values(self) -> dict[str, Value]:
        """What the parameters are at the start of the body."""
        found: dict[str, Value] = {}
        for name, choice in self.chosen.items():
            found[name] = _value(choice)
            if items := self.items.get(name):
                found[name] = Value(
                    items=tuple(_value(item) for item in items.values()),
                    keys=tuple(repr(key) for key in items),
                )
        return found


def _value(choice: _Chosen) -> Value:
    if choice.role is Role.BATCH:
        return Value("sharded", choice.axis or 0)
    return Value(form="key") if choice.role is Role.KEY else REPLICATED


def _is_constant(default: str) -> bool:
    return default in ("True", "False") or default[:1] in ("'", '"')


def _is_number(default: str) -> bool:
    try:
        float(default)
    except ValueError:
        return False
    return True


# -- the result ------------------------------------------------------------------------------


def _result(walk: Walk) -> Value:
    """The kinds of what the function returns; of several returns, they have to agree."""
    found = [(node, value) for node, value in walk.returned if node is not None]
    if not found:
        return REPLICATED
    node, value = found[-1]
    for other, earlier in found[:-1]:
        if _shape_of(earlier) != _shape_of(value):
            walk.note(
                other or node,
                f"this return and line {node.lineno} differ; line {node.lineno} decides the plan",
            )
    for leaf in flat(value):
        if leaf.kind == "varying" or (leaf.kind == "partial" and not leaf.is_size):
            walk.refuse(
                "JP043",
                node,
                "The result differs between devices, and no collective could be told that makes it whole.",
                "Give example inputs with `--inputs` or `--arg`, and leave out `--no-proof`.",
            )
        if leaf.kind == "sharded" and leaf.axis < 0:
            walk.refuse(
                "JP014",
                node,
                "The result holds the batch on its last axis, whose number reading alone cannot tell.",
                "Give example inputs with `--inputs` or `--arg`, and leave out `--no-proof`.",
            )
    return value


def _shape_of(value: Value) -> object:
    if value.items is None:
        return value.kind, value.axis
    return value.keys, tuple(_shape_of(item) for item in value.items)


def _axes(value: Value) -> Axes:
    if value.items is None:
        return value.axis if value.kind == "sharded" else None
    children = tuple(_axes(item) for item in value.items)
    return AxesNode("dict" if value.keys else "tuple", value.keys, children)


def _outputs(value: Value, path: str) -> Iterator[Leaf]:
    if value.items is None:
        split = value.kind == "sharded"
        yield Leaf(path, Role.BATCH if split else Role.REPLICATED, value.axis if split else None, (), UNKNOWN)
        return
    for number, item in enumerate(value.items):
        yield from _outputs(item, f"{path}[{value.keys[number] if value.keys else number}]")


def _chain(facts: FunctionFacts) -> Iterator[tuple[str, str]]:
    several = len(facts.returned_names) > 1
    for number, name in enumerate(facts.returned_names):
        if name:
            yield name, f"[{number}]" if several else ""
