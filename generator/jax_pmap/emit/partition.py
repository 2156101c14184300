"""Arguments that hold things that are no arrays: taken apart before the call, put together inside it.

Activation functions, flags and names are leaves of an Equinox module, or of a dataclass with a
function in it. No transformation of jax takes them as arrays, so they go beside the arrays as
compile-time constants, and the results that hold them get them back after the call.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from jax_pmap.emit.names import Names
from jax_pmap.emit.source import returned
from jax_pmap.model import Plan


@dataclass(frozen=True, slots=True)
class Part:
    """One argument that is partitioned."""

    name: str
    #: Name of the parameter that gets its constants.
    static: str
    #: Name of its arrays in the drop-in: its own, unless the caller's object is wanted after the call.
    arrays: str
    #: Whether Equinox's own functions do it.
    equinox: bool


def parts_of(plan: Plan, taken: frozenset[str]) -> tuple[Part, ...]:
    """The arguments to partition, in order, with names for their constants."""
    names = taken | {argument.name for argument in plan.arguments}

    def free(name: str) -> str:
        while name in names:
            name += "_"
        return name

    return tuple(
        Part(
            name := argument.name,
            free(f"{name}_static"),
            free(f"{name}_arrays") if name in plan.mutated else name,
            argument.partition == "equinox",
        )
        for argument in plan.arguments
        if argument.partition
    )


class Partition:
    """What the templates show of the arguments that are partitioned, for one plan."""

    def __init__(self, plan: Plan, taken: frozenset[str], names: Names, *, enclosed: bool = False) -> None:
        self.parts = parts_of(plan, taken)
        self.by_name = {part.name: part for part in self.parts}
        self.kept = {path: self.by_name[name] for path, name in plan.kept}
        self.mutated = plan.mutated
        self.shared = plan.shared
        self.n = names
        #: Whether the mapped function has the static arguments from the function around it.
        self.enclosed = enclosed
        #: Static arguments that are passed in something that can be hashed.
        self.wrapped = [argument.name for argument in plan.arguments if argument.wrapped]

    def passed(self, name: str) -> str:
        """What the drop-in passes of an argument."""
        part = self.by_name.get(name)
        return name if part is None else part.arrays

    @property
    def statics(self) -> list[str]:
        """Parameters behind the function's own: the constants of each argument."""
        return [part.static for part in self.parts]

    def before(self) -> list[str]:
        """Lines of the drop-in that take the arguments apart."""
        apart = [f"{part.arrays}, {part.static} = {self._apart(part, part.name)}" for part in self.parts]
        return [*apart, *(f"{name} = {self.n.Constant}({name})" for name in self.wrapped)]

    def inside(self) -> list[str]:
        """Lines of the mapped function that put them together again."""
        together = [f"{part.name} = {self.together(part, part.name)}" for part in self.parts]
        # What is one object outside is one inside.
        joined = [f"{place} = {other}" for place, other in self.shared]
        return [*together, *(() if self.enclosed else self.unwrapped()), *joined]

    def unwrapped(self) -> list[str]:
        """Lines that take out the static arguments that are passed in something else."""
        return [f"{name} = {name}.value" for name in self.wrapped]

    def _apart(self, part: Part, value: str) -> str:
        n = self.n
        return f"{n.eqx}.partition({value}, {n.eqx}.is_array)" if part.equinox else f"{n.partition}({value})"

    def together(self, part: Part, value: str) -> str:
        """Source of `value` with the constants of `part` in it."""
        combine = f"{self.n.eqx}.combine" if part.equinox else self.n.combine
        return f"{combine}({value}, {part.static})"

    def arrays(self, part: Part, value: str) -> str:
        """Source of the arrays alone of `value`."""
        n = self.n
        return f"{n.eqx}.filter({value}, {n.eqx}.is_array)" if part.equinox else f"{n.partition}({value})[0]"

    def body(self, body: str, guards: Sequence[str] = ()) -> str:
        """The body with the arguments put together and only arrays returned; `guards` are its first lines."""
        if not self.inside() and not self.mutated:
            return "\n".join([*guards, body])
        module = cst.parse_module(body)
        if self.kept:
            module = module.visit(_Returns(self))
        left = [self.arrays(self.by_name[x], x) if x in self.by_name else x for x in self.mutated]
        if self.mutated:
            module = module.visit(_Changes(left[0] if len(left) == 1 else f"({', '.join(left)})"))
        last = [] if not self.mutated or returns_value(body) else [f"return {', '.join(left)}"]
        return "\n".join([*self.inside(), *guards, module.code.rstrip(), *last])

    @property
    def objects(self) -> str:
        """Source of the arguments that are changed in place, as one value."""
        return self.mutated[0] if len(self.mutated) == 1 else f"({', '.join(self.mutated)})"

    def update(self) -> str:
        """The line of the drop-in that changes the caller's own objects."""
        return f"{self.n.nnx}.update({self.objects}, {self.n.nnx}.state({self.n.changed}))"

    def result(self, body: str, call: str, names: list[str], values: list[str]) -> list[str]:
        """Lines of the drop-in that make the call and put the constants into its result.

        Args:
            body: the body as the user wrote it.
            call: source of the call.
            names: what the elements of the result are called, where they are merged one by one.
            values: source of each, merged.
        """
        if "" in self.kept:
            return [f"return {self.together(self.kept[''], call)}"]
        holders = {int(path[1:-1]): part.name for path, part in self.kept.items() if path[1:-1].isdigit()}
        names = names or _element_names(body, holders)
        if names and all(path[1:-1].isdigit() for path in self.kept):
            values = values or list(names)
            for path, part in self.kept.items():
                values[int(path[1:-1])] = self.together(part, values[int(path[1:-1])])
            return [f"{', '.join(names)} = {call}", f"return {', '.join(values)}"]
        # Made by jax, so a dict or list here is nobody else's; a tuple is opened.
        lines = [f"result = {call}"]
        if as_list := all(path[1:-1].isdigit() for path in self.kept):
            lines.append("values = list(result)")
        value = "values" if as_list else "result"
        lines += [f"{value}{p} = {self.together(part, value + p)}" for p, part in self.kept.items()]
        return [*lines, "return type(result)(values)" if as_list else "return result"]


def _element_names(body: str, known: Mapping[int, str]) -> list[str]:
    """Names for the elements of the tuple that every return shows, or nothing."""
    found: list[list[str]] = []
    for value in returned(body):
        if not isinstance(value, ast.Tuple) or any(isinstance(each, ast.Starred) for each in value.elts):
            return []
        rows = enumerate(value.elts)
        found.append([e.id if isinstance(e, ast.Name) else known.get(i, f"result_{i}") for i, e in rows])
    names = found[0] if found and all(each == found[0] for each in found) else []
    return names if len(set(names)) == len(names) else []


def returns_value(body: str) -> bool:
    """Whether any return of a body has a value."""
    return any(value is not None for value in returned(body))


class _OwnReturns(cst.CSTTransformer):
    """Changes the returns of a body, not those of functions in it."""

    def on_visit(self, node: cst.CSTNode) -> bool:
        """What nested functions return is not the result."""
        return not isinstance(node, cst.FunctionDef | cst.Lambda)

    def on_leave(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        """A return, changed."""
        return self.changed(updated) if isinstance(updated, cst.Return) else updated

    def changed(self, node: cst.Return) -> cst.Return:
        """What a return becomes."""
        raise NotImplementedError


class _Changes(_OwnReturns):
    """Makes every return of a body hand out the objects it changed, behind its value."""

    def __init__(self, objects: str) -> None:
        super().__init__()
        self.objects = objects

    def changed(self, node: cst.Return) -> cst.Return:
        """``return loss`` becomes ``return loss, (model, optimizer)``."""
        value = cst.parse_expression(self.objects)
        if node.value is None:
            space = cst.SimpleWhitespace(" ")
            return node.with_changes(value=value, whitespace_after_return=space)
        old = node.value
        if isinstance(old, cst.Tuple) and not old.lpar:
            old = old.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        return node.with_changes(value=cst.Tuple([cst.Element(old), cst.Element(value)], lpar=[], rpar=[]))


class _Returns(_OwnReturns):
    """Makes every return of a body hand out the arrays of what holds constants."""

    def __init__(self, partition: Partition) -> None:
        super().__init__()
        self.partition = partition

    def changed(self, updated: cst.Return) -> cst.Return:
        """Wrap the returned elements that are kept, or all of what cannot be taken apart here."""
        value = updated.value
        if value is None:
            return updated
        kept = self.partition.kept
        if isinstance(value, cst.Tuple | cst.List) and "" not in kept:
            elements = [
                each.with_changes(value=self._filtered(kept[f"[{i}]"], each.value))
                if f"[{i}]" in kept and isinstance(each, cst.Element)
                else each
                for i, each in enumerate(value.elements)
            ]
            return updated.with_changes(value=value.with_changes(elements=elements))
        if isinstance(value, cst.Dict) and "" not in kept:
            members = []
            for each in value.elements:
                path = ""
                if isinstance(each, cst.DictElement) and isinstance(each.key, cst.SimpleString):
                    path = f"[{each.key.evaluated_value!r}]"
                part = kept.get(path)
                members.append(
                    each if part is None else each.with_changes(value=self._filtered(part, each.value))
                )
            return updated.with_changes(value=value.with_changes(elements=members))
        return updated.with_changes(value=self._filtered(next(iter(kept.values())), value))

    def _filtered(self, part: Part, value: cst.BaseExpression) -> cst.BaseExpression:
        text = self.partition.arrays(part, cst.Module([]).code_for_node(value))
        return cst.parse_expression(text)
