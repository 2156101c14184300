"""The part of a file that one function needs: what to load when the whole file cannot, or should not, run.

Needed are the statements that bind a name the function reaches, and those that change what such a name
stands for (``table["x"] = f``, ``registry.register(f)``, ``jax.config.update(…)``), transitively. Where it
is not certain that a statement changes something, it is left out and said so.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from jax_pmap.sources import module_among
from jax_pmap.syntax.imports import Import, import_rows
from jax_pmap.syntax.parse import ParsedSource
from jax_pmap.worker.scopes import bound_names, names_in, own_nodes, parameters, root_name, used_names

_Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_Loop: TypeAlias = ast.For | ast.AsyncFor | ast.While
#: Last part of a call on an imported module that sets something up rather than doing work.
_SETS_UP = re.compile(
    r"(set|update|regist|define|enable|disable|use|mark|add|append|insert|seed|filter|alias|extend|remove|pop)",
    re.IGNORECASE,
)
#: What starts a program it is given.
_STARTS = frozenset({"run", "Fire", "main", "launch"})
#: Settings of the process that decide how the imports below them go.
_PROCESS = frozenset({("sys", "path"), ("os", "environ")})
#: In place of the names by which a statement is needed: it is for a setting of jax.
_JAX = "jax.config"
#: And for a setting of the process.
_PATH = "sys.path"
_CHANGERS = frozenset({"setattr", "delattr"})


@dataclass(frozen=True, slots=True)
class Slice:
    """The statements a function reaches through names, at the lines they have in the file."""

    #: The file with every other line blank, so that line numbers stay.
    text: str
    #: Source of the definitions and assignments among them (not the imports), dedented, in order.
    definitions: tuple[str, ...]
    #: Import statements among them, one for each name, relative modules made absolute.
    imports: tuple[str, ...]
    #: Names those statements bind.
    names: frozenset[str]
    #: (first line, last line) of what was left out.
    left_out: tuple[tuple[int, int], ...]
    #: (first line, last line, names bound, names) of each statement: by which names the function needs it.
    chains: tuple[tuple[int, int, frozenset[str], tuple[str, ...]], ...]
    #: (line, name) of calls that were left out and may change what a needed name stands for.
    doubtful: tuple[tuple[int, str], ...]
    #: Names of classes among them.
    classes: tuple[str, ...]

    def chain(self, line: int) -> tuple[str, ...]:
        """The names by which the function needs the statement at `line`, or ``()``."""
        return next((names for first, last, _, names in self.chains if first <= line <= last), ())

    def chain_of(self, name: str) -> tuple[str, ...]:
        """The names by which the function needs `name`, itself the last."""
        return next((names for _, _, bound, names in self.chains if name in bound), (name,))


@dataclass(frozen=True, slots=True)
class Unit:
    """One statement of the module, with what it does to names."""

    node: ast.stmt
    binds: frozenset[str]
    changes: frozenset[str]
    needs: frozenset[str]
    #: Whether it stands under ``if __name__ == "__main__":``.
    guarded: bool

    @property
    def first(self) -> int:
        """Its first line, decorators included."""
        decorators: list[ast.expr] = getattr(self.node, "decorator_list", [])
        return min([self.node.lineno, *(decorator.lineno for decorator in decorators)])

    @property
    def last(self) -> int:
        """Its last line."""
        return self.node.end_lineno or self.node.lineno


class Module:
    """The statements of the target's file, and which of them reach the target."""

    def __init__(self, parsed: ParsedSource, body: Iterable[ast.stmt] | None = None) -> None:
        """Look at the statements at the top of the target's file, or at those of `body` in their place."""
        self.parsed = parsed
        tree = parsed.tree
        self.future = any(
            isinstance(s, ast.ImportFrom)
            and s.module == "__future__"
            and any(alias.name == "annotations" for alias in s.names)
            for s in tree.body
        )
        nodes = list(_flattened(tree.body if body is None else body))
        self.imported = {
            name for node, _ in nodes if isinstance(node, Import) for name in bound_names([node])
        }
        self.functions = {node.name: node for node, _ in nodes if isinstance(node, ast.FunctionDef)}
        self.classes = {node.name for node, _ in nodes if isinstance(node, ast.ClassDef)}
        self.units = [self._unit(node, guarded) for node, guarded in nodes]
        #: Names that they bind.
        self.bound = frozenset().union(*(unit.binds for unit in self.units))
        #: Names that anything in the file uses.
        self.used = names_in(tree)
        #: Names through which the target can be called: functions that call it, aliases, objects.
        self.reaching = {parsed.definition.name}
        if parsed.source.binding is not None:
            self.reaching.add(parsed.source.binding.qualname.partition(".")[0])
        while (
            more := {name for unit in self.units if self._hands_on(unit) for name in unit.binds}
            - self.reaching
        ):
            self.reaching |= more
        self.setting = self._names_setting()

    def _unit(self, node: ast.stmt, guarded: bool) -> Unit:
        return Unit(
            node,
            frozenset(bound_names([node])),
            frozenset(self._changes(node)),
            frozenset(used_names([node], annotations=not self.future)),
            guarded,
        )

    def _changes(self, statement: ast.stmt) -> Iterator[str]:
        """Names whose value a statement changes in place, as far as reading can tell."""
        if isinstance(statement, _Definition):
            for decorator in statement.decorator_list:
                called = decorator.func if isinstance(decorator, ast.Call) else decorator
                root = root_name(called) if isinstance(called, ast.Attribute) else None
                registers = root != "jax" and "regist" in getattr(called, "attr", "").lower()
                if root and (root not in self.imported or registers):
                    yield root
                if isinstance(called, ast.Name):  # `@register("name")`, which fills a table
                    yield from self._globals_changed(called.id, frozenset())
            return
        for node in own_nodes([statement]):
            if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
                if root := root_name(node):
                    yield root
            elif isinstance(node, ast.Call):
                if isinstance(node.func, ast.Name):
                    yield from self._changed_by_call(node, node.func.id)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                called = node.value.func
                root = root_name(called)
                if isinstance(called, ast.Attribute) and root:
                    if root not in self.imported or _SETS_UP.match(called.attr):
                        yield root
                elif isinstance(called, ast.Name) and called.id not in self.functions:
                    yield called.id  # `FLAGS(sys.argv)`

    def _globals_changed(self, name: str, seen: frozenset[str]) -> set[str]:
        """Names of the module that a call of one of its functions assigns or changes in place."""
        function = self.functions.get(name)
        if function is None or name in seen:
            return set()
        nodes = list(ast.walk(function))
        local = {node.arg for node in nodes if isinstance(node, ast.arg)} | bound_names(function.body)
        found = _changed_inside(function) - local - self.imported
        found |= {each for node in nodes if isinstance(node, ast.Global) for each in node.names}
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                found |= self._globals_changed(node.func.id, seen | {name})
        return found

    def _changed_by_call(self, call: ast.Call, name: str) -> Iterator[str]:
        """Arguments that a function of the file changes, and the globals it assigns."""
        if name in _CHANGERS and call.args and (root := root_name(call.args[0])):
            yield root
        function = self.functions.get(name)
        if function is None:
            return
        yield from self._globals_changed(name, frozenset())
        changed = _changed_inside(function)
        names = [parameter.arg for parameter in parameters(function.args)]
        for parameter, value in [
            *zip(names, call.args, strict=False),
            *((keyword.arg or "", keyword.value) for keyword in call.keywords),
        ]:
            if parameter in changed and (root := root_name(value)):
                yield root

    def _hands_on(self, unit: Unit) -> bool:
        """Whether what a statement binds leads to the target, rather than holding what it returned."""
        return bool(unit.needs & self.reaching) and (
            isinstance(unit.node, _Definition) or not self.runs_target(unit)
        )

    def runs_target(self, unit: Unit) -> bool:
        """Whether a statement calls the target, or something that reaches it, while the module loads."""
        return any(self._calls_reaching(node) for node in _run_nodes(unit.node))

    def _calls_reaching(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return False
        root = root_name(node.func)
        if root in self.reaching and root not in self.classes:
            return True
        last = node.func.attr if isinstance(node.func, ast.Attribute) else root
        return last in _STARTS and any(
            isinstance(argument, ast.Name) and argument.id in self.reaching for argument in node.args
        )

    def work(self) -> int | None:
        """Line of the first statement that trains, or does the like, when the file is imported.

        That is a loop around the target, or a call of a function that is called ``main`` or has such a
        loop. One call of the target, as in a demonstration, is none.
        """
        for unit in self.units:
            if unit.guarded or isinstance(unit.node, _Definition) or not self.runs_target(unit):
                continue
            nodes = list(_run_nodes(unit.node))
            if any(isinstance(node, _Loop) and self._loop_runs(node) for node in nodes):
                return unit.node.lineno
            for node in nodes:
                named = {root_name(node.func)} if isinstance(node, ast.Call) else set()
                if isinstance(node, ast.Call) and self._calls_reaching(node):
                    named |= {a.id for a in node.args if isinstance(a, ast.Name)}
                if any(name and self._is_program(name, frozenset()) for name in named):
                    return unit.node.lineno
        return None

    def _loop_runs(self, loop: ast.AST) -> bool:
        return any(self._calls_reaching(node) for node in ast.walk(loop))

    def _is_program(self, name: str, seen: frozenset[str]) -> bool:
        function = self.functions.get(name)
        if function is None or name in seen or name not in self.reaching:
            return False
        if function is self.parsed.definition:
            return False
        if name == "main":
            return True
        nodes = list(ast.walk(function))
        if any(isinstance(node, _Loop) and self._loop_runs(node) for node in nodes):
            return True
        called = {
            node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        return any(self._is_program(each, seen | {name}) for each in called)

    # --- the slice ------------------------------------------------------------------------

    def under_guard(self, names: Iterable[str]) -> bool:
        """Whether something `names` need is bound only under ``if __name__ == "__main__":``."""
        return any(unit.guarded for unit in self._kept(frozenset(names)))

    def reached(self, names: frozenset[str]) -> Iterable[Unit]:
        """The statements that bind or change `names`, and what those need in turn."""
        return self._kept(names)

    def slice_for(self, names: frozenset[str], *, itself: bool = False) -> Slice:
        """Keep the statements that bind or change `names`, and what those need in turn.

        The target's definition, which is made by itself, is kept with `itself`.
        """
        kept = self._kept(names, itself=itself)
        wanted = set(names).union(*(unit.needs for unit in kept))
        lines = [""] * len(self.parsed.lines)
        definitions: list[str] = []
        plain_until = 0
        imports: list[str] = []
        chains: list[tuple[int, int, frozenset[str], tuple[str, ...]]] = []
        spelled = {
            chain
            for node in [self.parsed.definition, *(unit.node for unit in kept)]
            if not isinstance(node, Import)
            for inner in ast.walk(node)
            if (chain := _dotted(inner))
        }
        for unit in self.units:
            if unit not in kept:
                continue
            node = unit.node
            chains.append((unit.first, unit.last, unit.binds, kept[unit]))
            if isinstance(node, Import):
                alone = self._is_for_effect(unit)
                used = [alias for alias in node.names if alone or _used_alias(alias, node, wanted, spelled)]
                text = ast.unparse(_import_of(node, used)) if used else ""
                if used == node.names or self._shares_line(unit):
                    lines[unit.first - 1 : unit.last] = self.parsed.lines[unit.first - 1 : unit.last]
                else:
                    lines[node.lineno - 1] = " " * node.col_offset + text
                taken = bool(used) and kept[unit][:1] not in ((_JAX,), (_PATH,))
                parsed = self.parsed
                made = _import_of(node, used)
                rows = import_rows(made, parsed.module, package=parsed.package) if taken else []
                imports += [row.statement for row in rows if row.name in wanted or row.name == "*"]
                continue
            lines[unit.first - 1 : unit.last] = self.parsed.lines[unit.first - 1 : unit.last]
            if kept[unit][:1] == (_JAX,) or self._sets_jax(node):
                continue  # A file made of it says what jax is set to.
            if node is not self.parsed.definition and not (unit.changes and _of_process(node)):
                text = _dedented(self.parsed.lines[unit.first - 1 : unit.last], node.col_offset)
                plain = not isinstance(node, _Definition)
                if plain and definitions and plain_until == unit.first - 1:
                    definitions[-1] += f"\n{text}"
                else:
                    definitions.append(text)
                plain_until = unit.last if plain else 0
        for number, guard in self._guards():
            if any(unit.guarded and number < unit.first <= (guard.end_lineno or 0) for unit in kept):
                lines[number - 1] = " " * guard.col_offset + "if True:"
        return Slice(
            text="\n".join(lines) + "\n",
            definitions=tuple(definitions),
            imports=tuple(dict.fromkeys(imports)),
            # A function may bind a needed name by `global`.
            names=frozenset().union(*(unit.binds | (unit.changes & wanted) for unit in kept)),
            left_out=tuple(
                (unit.first, unit.last)
                for unit in self.units
                if unit not in kept
                and unit.node is not self.parsed.definition
                and not _is_docstring(unit.node)
            ),
            chains=tuple(chains),
            doubtful=tuple(self._doubtful(kept, wanted)),
            classes=tuple(unit.node.name for unit in kept if isinstance(unit.node, ast.ClassDef)),
        )

    def _kept(self, names: frozenset[str], *, itself: bool = False) -> dict[Unit, tuple[str, ...]]:
        """The units to keep, each with the names that lead to it."""
        kept: dict[Unit, tuple[str, ...]] = {}
        wanted: dict[str, tuple[str, ...]] = dict.fromkeys(sorted(names), ())
        # `from __future__` changes how the rest is read.
        for unit in self.units:
            if isinstance(unit.node, ast.ImportFrom) and unit.node.module == "__future__":
                kept[unit] = ()
        definition = self.parsed.definition
        grown = True
        while grown:
            grown = False
            for name, chain in list(wanted.items()):
                for unit in self._units_of(name):
                    if unit in kept or (unit.node is definition and name in names and not itself):
                        continue
                    kept[unit] = (*chain, name)
                    grown = True
                    for needed in sorted(unit.needs):
                        wanted.setdefault(needed, (*chain, name))
            if not grown:
                known = self.bound | set(dir(builtins))
                for unit in self.units:
                    unknown = next((name for name in wanted if name not in known), None)
                    if unknown and "*" in unit.binds and unit not in kept:
                        kept[unit] = (*wanted[unknown], unknown)
                        grown = True
                    elif unit not in kept and not unit.guarded and self._is_setting(unit):
                        kept[unit] = (_PATH,) if _of_process(unit.node) else (_JAX,)
                        grown = True
                        for needed in sorted(unit.needs):
                            wanted.setdefault(needed, kept[unit])
        return kept

    def _units_of(self, name: str) -> list[Unit]:
        """The units that bind or change `name`, those that run the target left out where others bind it."""
        binding = [unit for unit in self.units if name in unit.binds]
        plain = [unit for unit in binding if not unit.guarded] or binding
        before = [unit for unit in plain if isinstance(unit.node, _Definition) or not self.runs_target(unit)]
        guarded = any(unit.guarded for unit in plain)
        changing = [
            unit
            for unit in self.units
            if name in unit.changes
            and unit not in binding
            and (guarded or not unit.guarded)
            and (isinstance(unit.node, _Definition) or not self.runs_target(unit))
        ]
        return [*(before or plain), *changing]

    def _is_setting(self, unit: Unit) -> bool:
        """Whether a statement is there for what it does to the process, or to jax."""
        return _of_process(unit.node) or self._sets_jax(unit.node) or self._is_for_effect(unit)

    def _sets_jax(self, statement: ast.stmt) -> bool:
        """Whether a statement changes ``jax.config``, or calls what does and does not run the target."""
        if isinstance(statement, _Definition | Import):
            return False
        calls = (node for node in own_nodes([statement]) if isinstance(node, ast.Call))
        return any(self._is_update(call.func) or root_name(call.func) in self.setting for call in calls)

    def _is_update(self, node: ast.AST) -> bool:
        return self.parsed.qualname(node) == "jax.config.update"

    def _names_setting(self) -> set[str]:
        """Names of the file that stand for what changes ``jax.config`` when it is called."""
        found: set[str] = set()
        while True:
            more = {
                name
                for unit in self.units
                if not isinstance(unit.node, Import) and not unit.binds & self.reaching
                for node in ast.walk(unit.node)
                if self._is_update(node) or (isinstance(node, ast.Name) and node.id in found)
                for name in unit.binds
            } - found
            if not more:
                return found
            found |= more

    def _is_for_effect(self, unit: Unit) -> bool:
        """Whether a statement imports a file of the project by a name that nothing uses."""
        node = unit.node
        if not isinstance(node, ast.Import) or unit.binds & self.used:
            return False
        return any(module_among(self.parsed.source.folders, alias.name) is not None for alias in node.names)

    def _shares_line(self, unit: Unit) -> bool:
        return any(
            other.first <= unit.last and unit.first <= other.last for other in self.units if other != unit
        )

    def _guards(self) -> Iterator[tuple[int, ast.If]]:
        for node in self.parsed.tree.body:
            if guard := _main_guard(node):
                yield guard.lineno, guard

    def _doubtful(self, kept: dict[Unit, tuple[str, ...]], wanted: set[str]) -> Iterator[tuple[int, str]]:
        """Calls left out that are given something the target needs, and may change it."""
        own = {name for unit in kept if not isinstance(unit.node, Import) for name in unit.binds}
        for unit in self.units:
            if unit in kept or unit.guarded or isinstance(unit.node, _Definition | Import):
                continue
            for node in own_nodes([unit.node]):
                if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
                    continue
                root = root_name(node.value.func)
                if root in dir(builtins) or root in self.reaching:
                    continue
                given = [*node.value.args, *(keyword.value for keyword in node.value.keywords)]
                for value in given:
                    if isinstance(value, ast.Name) and value.id in own & wanted - self.functions.keys():
                        yield node.lineno, value.id


def _flattened(body: Iterable[ast.stmt]) -> Iterator[tuple[ast.stmt, bool]]:
    """The statements of the module, those of a main guard one by one."""
    for statement in body:
        if guard := _main_guard(statement):
            yield from ((inner, True) for inner in guard.body)
        else:
            yield statement, False


def _main_guard(statement: ast.stmt) -> ast.If | None:
    """``if __name__ == "__main__":`` without an ``else``, which would run at import."""
    if not isinstance(statement, ast.If) or statement.orelse or not isinstance(statement.test, ast.Compare):
        return None
    sides = [statement.test.left, *statement.test.comparators]
    texts = {getattr(side, "id", getattr(side, "value", None)) for side in sides}
    return statement if texts == {"__name__", "__main__"} else None


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _run_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """Nodes that are evaluated when the statement runs: not the insides of functions."""
    return own_nodes([statement])


def _dotted(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := _dotted(node.value)):
        return f"{base}.{node.attr}"
    return None


def _changed_inside(function: ast.FunctionDef) -> set[str]:
    """Parameters that a function changes in place, as far as reading can tell."""
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            found.add(root_name(node))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if isinstance(node.value.func, ast.Attribute):
                found.add(root_name(node.value.func))
            elif (
                isinstance(node.value.func, ast.Name) and node.value.func.id in _CHANGERS and node.value.args
            ):
                found.add(root_name(node.value.args[0]))
    return {name for name in found if name}


def changes_path(tree: ast.Module) -> bool:
    """Whether importing a file puts folders on ``sys.path``, by statements at its top."""
    return any("path" in _changed(statement) for statement in tree.body)


def _of_process(statement: ast.stmt) -> bool:
    """Whether a statement changes ``sys.path`` or ``os.environ``."""
    return bool(_changed(statement))


def _changed(statement: ast.stmt) -> set[str]:
    """Which of ``sys.path`` and ``os.environ`` a statement changes: ``"path"``, ``"environ"``."""
    found = set[str]()
    for node in () if isinstance(statement, _Definition) else own_nodes([statement]):
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            part: ast.AST = node.value
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            part = node.value.func.value if isinstance(node.value.func, ast.Attribute) else node
        elif isinstance(node, ast.AugAssign):
            part = node.target
        else:
            continue
        if isinstance(part, ast.Attribute) and (root_name(part), part.attr) in _PROCESS:
            found.add(part.attr)
    return found


def _used_alias(alias: ast.alias, node: Import, wanted: set[str], spelled: set[str]) -> bool:
    if alias.name == "*" or (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
        return True
    if (alias.asname or alias.name.partition(".")[0]) not in wanted:
        return False
    # Of `import a.b` and `import a.c`, those whose module is spelled out.
    dotted = isinstance(node, ast.Import) and alias.asname is None and "." in alias.name
    return (
        not dotted
        or alias.name in spelled
        or alias.name.partition(".")[0] not in {name.partition(".")[0] for name in spelled if "." in name}
    )


def _import_of(node: Import, aliases: list[ast.alias]) -> Import:
    if isinstance(node, ast.Import):
        return ast.Import(names=aliases)
    return ast.ImportFrom(module=node.module, names=aliases, level=node.level)


def _dedented(lines: Iterable[str], columns: int) -> str:
    return "\n".join(line[columns:] if not line[:columns].strip() else line for line in lines)
