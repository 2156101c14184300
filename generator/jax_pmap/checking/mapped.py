"""Which functions of a module are mapped over devices or axes, how, and where collectives are called."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

from jax_pmap.checking.module import Module
from jax_pmap.syntax.library import COLLECTIVES
from jax_pmap.syntax.resolve import UNKNOWN, Application, FunctionRef, Unknown, Value
from jax_pmap.worker.scopes import Function, names_in

if TYPE_CHECKING:
    from jax_pmap.checking.values import Events

Kind: TypeAlias = Literal["pmap", "vmap", "shard_map", "other"]

_KINDS: dict[str, Kind] = {
    "jax.pmap": "pmap",
    "equinox.filter_pmap": "pmap",
    "flax.nnx.pmap": "pmap",
    "jax.vmap": "vmap",
    "equinox.filter_vmap": "vmap",
    "flax.nnx.vmap": "vmap",
    "flax.linen.vmap": "vmap",
    "haiku.vmap": "vmap",
    "jax.shard_map": "shard_map",
    "jax.smap": "shard_map",
    "jax.experimental.maps.xmap": "other",
    "jax.soft_pmap": "pmap",
}
#: Collectives after which every device holds the same value.
REDUCTIONS = frozenset({"jax.lax.psum", "jax.lax.pmean", "jax.lax.pmax", "jax.lax.pmin"})


@dataclass(frozen=True, eq=False, slots=True)
class Mapping:
    """One place where a function is mapped."""

    kind: Kind
    application: Application
    #: The function, where it is one of this module.
    function: FunctionRef | None
    #: Axis names it binds: literals, None for "not given", UNKNOWN for what cannot be told.
    axis: Value | Unknown

    @property
    def node(self) -> ast.expr:
        """Where the mapping stands."""
        return self.application.node

    @property
    def is_unchecked(self) -> bool:
        """Whether a `shard_map` leaves gradients as they are, as `pmap` does: ``check_vma=False``."""
        given = self.application.keywords
        off = given.get("check_vma", given.get("check_rep"))
        return self.kind == "shard_map" and isinstance(off, ast.Constant) and off.value is False

    @property
    def is_jax_pmap(self) -> bool:
        """Whether it is `jax.pmap` itself, whose rules are known exactly."""
        return self.application.qualname == "jax.pmap"


@dataclass(frozen=True, slots=True)
class Collective:
    """One call of a collective."""

    call: ast.Call
    qualname: str
    #: The axis name's expression, None where it is not given.
    axis_node: ast.AST | None
    axis: Value | Unknown

    @property
    def name(self) -> str:
        """``"psum"``."""
        return self.qualname.rpartition(".")[2]


class Mappings:
    """All mappings and collectives of a module."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._reachable: dict[ast.AST, list[ast.AST]] = {}
        self._mentioned: dict[ast.AST, set[str]] = {}
        #: What happens in the mapped functions, as far as it was asked; `flow.events` fills it.
        self.events: dict[Mapping, Events] = {}

    @cached_property
    def all(self) -> list[Mapping]:
        """Every mapping: calls and decorators."""
        found = []
        decorators: set[ast.AST] = set()
        for node in self.module.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for decorator in node.decorator_list:
                    made = self.module.decoration(node, decorator)
                    if made is not None and made.qualname in _KINDS:
                        decorators.add(decorator)
                        found += self._mappings(made)
        for call in self.module.all_calls:
            if call in decorators:
                continue
            made = self.module.application(call)
            if made is not None and made.qualname in _KINDS:
                found += self._mappings(made)
        return sorted(found, key=lambda m: (m.node.lineno, m.node.col_offset))

    @cached_property
    def pmaps(self) -> list[Mapping]:
        """Those that map over devices with pmap."""
        return [mapping for mapping in self.all if mapping.kind == "pmap"]

    def of(self, function: Function) -> list[Mapping]:
        """The mappings that are applied to `function` itself."""
        return [m for m in self.all if m.function is not None and m.function.node is function]

    def pmap_at(self, node: ast.AST) -> Mapping | None:
        """The pmap that made the function which `node` stands for: a call, or a name it was given."""
        if not self.pmaps:
            return None
        if isinstance(node, ast.Attribute):
            return self._by_attribute.get(node.attr)
        return self._by_node.get(self.module.assigned(node))

    @cached_property
    def _by_node(self) -> dict[ast.AST | None, Mapping]:
        """Calls of pmap, and the functions that it decorates."""
        found: dict[ast.AST | None, Mapping] = {mapping.node: mapping for mapping in reversed(self.pmaps)}
        for mapping in self.pmaps:
            parent = self.module.parents.get(mapping.node)
            if isinstance(parent, ast.FunctionDef) and mapping.node in parent.decorator_list:
                found[parent] = mapping
        return found

    @cached_property
    def _by_attribute(self) -> dict[str, Mapping]:
        """``self.step`` that is assigned a pmap, in the one place of the module where it is assigned."""
        assigned: dict[str, list[ast.expr]] = {}
        for node in self.module.nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Attribute):
                        assigned.setdefault(target.attr, []).append(node.value)
        return {
            name: self._by_node[values[0]]
            for name, values in assigned.items()
            if len(values) == 1 and values[0] in self._by_node
        }

    def _mappings(self, application: Application) -> list[Mapping]:
        """One for each function that the application may be given."""
        kind = _KINDS[application.qualname]
        first = application.argument(0, "fun") or application.argument(0, "f")
        given = [FunctionRef(first)] if isinstance(first, ast.FunctionDef) else self.module.functions(first)
        axis = self._axis(kind, application)
        if not given:
            return [Mapping(kind, application, None, axis)]
        return [Mapping(kind, application, function, axis) for function in given]

    def _axis(self, kind: Kind, application: Application) -> Value | Unknown:
        if kind in ("shard_map", "other") or (application.open and "axis_name" not in application.keywords):
            return UNKNOWN
        node = application.argument(1 if application.qualname == "jax.pmap" else 99, "axis_name")
        return None if node is None else self.module.constant(node)

    @cached_property
    def mesh_axes(self) -> set[str]:
        """Every string in a call that makes a mesh: names that a `shard_map` of this module may bind."""
        found: set[str] = set()
        for call in self.module.all_calls:
            name = self.module.qualname(call.func) or ""
            if name.rpartition(".")[2] in ("Mesh", "make_mesh", "AbstractMesh", "xmap", "shard_map"):
                strings = (node.value for node in ast.walk(call) if isinstance(node, ast.Constant))
                found |= {value for value in strings if isinstance(value, str)}
        return found

    def collectives(self, node: ast.AST) -> Iterator[Collective]:
        """Every call of a collective in `node`, also in functions inside it."""
        for call in self.module.calls(node):
            made = self.module.application(call)
            if made is None or made.qualname not in COLLECTIVES:
                continue
            if made.open and "axis_name" not in made.keywords:
                yield Collective(call, made.qualname, call, UNKNOWN)
                continue
            axis = made.argument(COLLECTIVES[made.qualname], "axis_name")
            value = UNKNOWN if axis is None else self.module.constant(axis)
            yield Collective(call, made.qualname, axis, value)

    @cached_property
    def _by_name(self) -> dict[str, list[ast.AST]]:
        """Functions of the module, and what may hold one, by the names they are given."""
        by_name: dict[str, list[ast.AST]] = {}
        for node in self.module.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                by_name.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda | ast.Call):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        by_name.setdefault(target.id, []).append(node.value)
        return by_name

    def reachable(self, function: ast.AST) -> list[ast.AST]:
        """`function` and the functions of this module that it mentions, and those they mention."""
        if function in self._reachable:
            return self._reachable[function]
        seen: dict[ast.AST, None] = {}
        todo = [function]
        while todo:
            node = todo.pop()
            if node in seen:
                continue
            seen[node] = None
            for name in self.mentioned(node):
                todo += self._by_name.get(name, [])
        self._reachable[function] = list(seen)
        return self._reachable[function]

    def mentioned(self, node: ast.AST) -> set[str]:
        """Names and attributes in `node`."""
        if node not in self._mentioned:
            attributes = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
            self._mentioned[node] = names_in(node) | attributes
        return self._mentioned[node]
