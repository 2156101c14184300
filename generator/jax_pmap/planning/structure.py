"""Code whose course depends on which parts an argument has, where the emitted file cannot notice.

In the target, in functions nested in it and in those beside it that are watched a branch that no input took
raises, and so does a side of an expression. In other functions, and in calls such as
``batch.get(key, default)``, nothing does: those are refused when they ask an argument that is split, since
what they would do with other parts was never compared.
"""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from jax_pmap.model import refused
from jax_pmap.planning.roles import Described, Roles
from jax_pmap.reading.target import Target
from jax_pmap.worker.protocol import FixedForm
from jax_pmap.worker.scopes import names_stored, root_name

Function = ast.FunctionDef | ast.Lambda
#: Attributes every array has.
OF_ARRAYS = ("dtype", "ndim", "shape", "size")


def check_structure(
    target: Target,
    roles: Roles,
    described: Sequence[Described],
    guards: Callable[[ast.FunctionDef, Path], bool] = lambda *_: False,
    value: Callable[[str, str], str | None] = lambda *_: None,
) -> tuple[FixedForm, ...]:
    """Refuse what asks for the parts of a split argument unseen, or chooses by a size what is called.

    `described` are the example arguments; `guards` tells of a function in a file whether what no input
    reached in it raises, and `value` of what an expression reads of an argument its source, where it is no
    array. The answer is what the emitted code has to check of their parts.

    Raises:
        RefusalError: JP058, at the first such place.
    """
    definition = target.parsed.definition
    if isinstance(definition, ast.AsyncFunctionDef):
        return ()
    forms = dict[FixedForm, None]()
    at_top = {node.name: node for node in target.parsed.tree.body if isinstance(node, ast.FunctionDef)}
    nested = {node.name: node for node in ast.walk(definition) if isinstance(node, ast.FunctionDef)}
    known: dict[str, ast.FunctionDef] = {**at_top, **nested}
    apart = {node for node in at_top.values() if node is not definition}
    # Names that hold (parts of) split arguments, for each function that such a value was seen to enter.
    divided: dict[Function, set[str]] = {definition: set(roles.axes)}
    waiting: list[Function] = [definition]
    while waiting:
        function = waiting.pop()
        names = divided[function]
        spread(function, names)
        for inner in inner_functions(function):
            # A nested function sees the names around it, less those it binds as parameters.
            enter(divided, waiting, inner, names - set(parameters(inner)))
        for call in own_nodes(function):
            if isinstance(call, ast.Call):
                for callee, entered in passed(call, known, names):
                    enter(divided, waiting, callee, {*entered})
    whole = handed_on(definition, divided, known, roles.axes)
    for function, names in sorted(divided.items(), key=lambda item: item[0].lineno):
        for node in chosen_by_size(function):
            raise refused(
                "JP058",
                f"`{target.parsed.segment(node)}` chooses by a size what is called, and what it chooses for "
                "another size was never compared",
                "Choose it with an if statement, whose unseen branch then raises, or pass it as an argument",
                target.parsed.span(node),
            )
        guarded = isinstance(function, ast.FunctionDef) and guards(function, target.source.path)
        own = function not in apart
        for node, name in asking(function, names, own, tested(function) if own or guarded else frozenset()):
            if own and is_told(node, definition):
                continue
            argument = whole[function].get(name, "")
            if stays_absent(node, argument, described, roles):
                continue
            parts = divided_parts(node, argument, described) or attribute(node, argument, described, value)
            if parts is not None:
                forms[parts] = None
                continue
            raise refused(
                "JP058",
                f"`{target.parsed.segment(node)}` may turn out otherwise for another `{name}`, and what the "
                "function does then was never compared",
                "Index it (`batch['mask']`), or decide it with an if statement in the function itself, whose "
                "unseen branch then raises",
                target.parsed.span(node),
            )
    return tuple(forms)


def enter(
    divided: dict[Function, set[str]], waiting: list[Function], function: Function, names: set[str]
) -> None:
    """Note that `names` of a function hold split values; look at it again if that is news."""
    before = divided.setdefault(function, set())
    if names - before:
        before |= names
        waiting.append(function)


def parameters(function: Function) -> list[str]:
    """Names of a function's parameters, by position first."""
    each = function.args
    extra = [one.arg for one in (each.vararg, each.kwarg) if one is not None]
    return [one.arg for one in (*each.posonlyargs, *each.args, *each.kwonlyargs)] + extra


def own_nodes(function: Function) -> Iterator[ast.expr | ast.stmt]:
    """Expressions and statements of a function, those of nested functions left out."""
    body: list[ast.AST] = list(function.body) if isinstance(function, ast.FunctionDef) else [function.body]
    waiting = deque(body)
    while waiting:
        node = waiting.popleft()
        if isinstance(node, ast.expr | ast.stmt):
            yield node
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


def inner_functions(function: Function) -> list[Function]:
    """Functions and lambdas directly inside a function."""
    return [node for node in own_nodes(function) if isinstance(node, ast.FunctionDef | ast.Lambda)]


def spread(function: Function, names: set[str]) -> None:
    """Add the names that parts of `names` are bound to: ``x, y = batch``, ``mask = batch.get("mask")``."""
    size = -1
    while len(names) != size:
        size = len(names)
        for node in own_nodes(function):
            if isinstance(node, ast.Assign) and (asked(node.value) or root_name(node.value)) in names:
                names |= stored(node)


def handed_on(
    definition: ast.FunctionDef,
    divided: dict[Function, set[str]],
    known: dict[str, ast.FunctionDef],
    arguments: Collection[str],
) -> dict[Function, dict[str, str]]:
    """By function, the names that are an argument of the target as it was given, in every call: and which.

    In ``def weights(data): return data.get("mask")`` that is called as ``weights(batch)``, `data` is `batch`.
    """
    given: dict[Function, dict[str, set[str]]] = {function: {} for function in divided}
    given[definition] = {name: {name} for name in arguments}
    kept = {function: dict[str, set[str]]() for function in divided}
    bound = {function: names_stored(function) for function in divided}
    size = -1
    while size != (size := sum(len(of) for each in given.values() for of in each.values())):
        for function, names in divided.items():
            kept[function] = {name: of for name, of in given[function].items() if name not in bound[function]}
            for inner in inner_functions(function):
                own = parameters(inner)
                for name, of in kept[function].items():
                    if name not in own:
                        given[inner].setdefault(name, set()).update(of)
            for call in own_nodes(function):
                for callee, entered in passed(call, known, names) if isinstance(call, ast.Call) else ():
                    for name, value in entered.items():
                        of = kept[function].get(value.id, {""}) if isinstance(value, ast.Name) else {""}
                        given[callee].setdefault(name, set()).update(of)
    return {
        function: {name: next(iter(of)) for name, of in names.items() if len(of) == 1}
        for function, names in kept.items()
    }


def passed(
    call: ast.Call, known: dict[str, ast.FunctionDef], names: set[str]
) -> Iterator[tuple[Function, dict[str, ast.expr | None]]]:
    """Functions that a call hands split values to, and the parameters that get them, with what they get.

    What holds such values is no function, whatever else has its name in the module.
    """
    known = {name: function for name, function in known.items() if name not in names}

    def holds(node: ast.expr) -> bool:
        return any(isinstance(each, ast.Name) and each.id in names for each in ast.walk(node))

    # `loss(params, batch)`, `jax.grad(loss)(params, batch)`: arguments keep their places.
    inside = [call.func, *call.func.args] if isinstance(call.func, ast.Call) else [call.func]
    for node in inside:
        callee: Function | None = node if isinstance(node, ast.Lambda) else None
        if isinstance(node, ast.Name):
            callee = known.get(node.id)
        if callee is None:
            continue
        order = parameters(callee)
        starred = any(isinstance(argument, ast.Starred) for argument in call.args)
        by_name = ((k.arg, k.value) for k in call.keywords if k.arg in order)
        by_place = () if starred else zip(order, call.args, strict=False)
        taken: dict[str, ast.expr | None] = {
            name: value for name, value in (*by_place, *by_name) if name and root_name(value) in names
        }
        if starred and any(holds(argument) for argument in call.args):
            taken = dict.fromkeys(order)
        yield callee, taken
    # `jax.lax.scan(step, carry, batch)`: anything may end up anywhere.
    if any(holds(argument) for argument in call.args):
        for node in call.args:
            handed = known.get(node.id) if isinstance(node, ast.Name) else None
            if handed is not None:
                yield handed, dict.fromkeys(parameters(handed))


def asking(
    function: Function, names: set[str], own: bool, left_out: frozenset[ast.AST]
) -> Iterator[tuple[ast.expr, str]]:
    """Expressions that ask `names` for their parts, and the name asked.

    Those of tests are `left_out` where what they decide raises if it was not seen. In the target and in what
    is nested in it (`own`) it is known what comparisons show.
    """
    for node in own_nodes(function):
        name: str | None = None
        if node in left_out:
            continue
        if isinstance(node, ast.Call):
            name = asked(node)
        elif isinstance(node, ast.Compare) and not own and len(node.ops) == 1:
            if isinstance(node.ops[0], ast.In | ast.NotIn):
                name = root_name(node.comparators[0])
            elif isinstance(node.ops[0], ast.Is | ast.IsNot):
                name = root_name(node.left)
        if name in names and isinstance(node, ast.expr) and name is not None:
            yield node, name


def stays_absent(node: ast.expr, argument: str, described: Sequence[Described], roles: Roles) -> bool:
    """Whether ``data.get("mask")`` asks for a part that the `argument` has not: the emitted code takes none.

    It holds every array of an argument that is split to those of the example. A part that is None is none.
    """
    asks = re.fullmatch(r"\w+\.get\(('\w+')(?:, None)?\)", ast.unparse(node))
    if asks is None or not argument:
        return False
    leaves = [leaf for each in described if each["name"] == argument for leaf in each["leaves"]]
    split = len(roles.axes.get(argument, {})) == len(leaves) > 0
    return split and not any(f"{argument}[{asks[1]}]" in leaf["path"] for leaf in leaves)


def divided_parts(node: ast.expr, argument: str, described: Sequence[Described]) -> FixedForm | None:
    """The parts of an `argument` that ``batch.get(key, 1.0)`` asks for one of them: they are checked.

    With those it has in the example, a key is there or not as it was seen, wherever the key comes from.
    """
    get = node.func if isinstance(node, ast.Call) else None
    asks = isinstance(get, ast.Attribute) and get.attr == "get" and isinstance(get.value, ast.Name)
    tree = next((each["tree"] for each in described if each["name"] == argument), None) if asks else None
    if not isinstance(tree, dict) or tree["kind"] != "dict":
        return None
    return FixedForm(argument, f"sorted({argument})", value=f"[{', '.join(tree['keys'])}]")


def attribute(
    node: ast.expr,
    argument: str,
    described: Sequence[Described],
    value: Callable[[str, str], str | None],
) -> FixedForm | None:
    """What is checked where ``getattr(batch, "mask", None)`` or ``hasattr(batch, "mask")`` asks for a field.

    That it is an array where it was one in the `argument`, or else the constant that it was.
    """
    match node:
        case ast.Call(func=ast.Name() as function, args=[ast.Name(), ast.Constant(value=str(field)), *rest]):
            pass
        case _:
            return None
    if not argument:
        return None
    paths = [leaf["path"] for each in described if each["name"] == argument for leaf in each["leaves"]]
    if any(re.match(rf"{argument}\.{field}\b", path) for path in paths):
        return FixedForm(argument, f"(getattr({argument}, {field!r}, None) is None)", value="False")
    asks = ast.unparse(ast.Call(function, [ast.Name(argument), ast.Constant(field), *rest], []))
    found = value(argument, asks)
    return None if found is None else FixedForm(argument, asks, value=found)


def is_told(node: ast.expr, definition: ast.FunctionDef) -> bool:
    """Whether no use of ``mask = batch.get("mask")`` is reached but by a test of whether that is None.

    Where a batch with the part and one without go different ways, that which was not seen raises.
    """
    call = ast.unparse(node)
    if not re.fullmatch(r"\w+\.get\('\w+'(, None)?\)|getattr\(\w+, '\w+', None\)", call):
        return False
    within = list(ast.walk(definition))
    made = [each for each in within if isinstance(each, ast.Assign) and each.value is node]
    if len(made) != 1 or len(made[0].targets) != 1 or not isinstance(made[0].targets[0], ast.Name):
        return False
    name = made[0].targets[0].id
    uses: set[ast.AST] = {each for each in within if isinstance(each, ast.Name) and each.id == name}
    uses.remove(made[0].targets[0])
    if any(isinstance(each, ast.arg) and each.arg == name for each in within):
        return False

    def holds_all(*nodes: ast.AST) -> bool:
        return uses <= {each for part in nodes for each in ast.walk(part)}

    tests = [f"{name} is None", f"{name} is not None"]
    for each in within:
        if isinstance(each, ast.IfExp) and ast.unparse(each.test) in tests and holds_all(each):
            return True
        parts = (getattr(each, part, None) for part in ("body", "orelse", "finalbody"))
        for block in (part for part in parts if isinstance(part, list)):
            for at, line in enumerate(block):
                if isinstance(line, ast.If) and ast.unparse(line.test) in tests:
                    sides = [line.body, line.orelse or block[at + 1 :]]
                    return holds_all(*block[at:]) and not any(map(computes_nothing, sides))
    return False


def computes_nothing(lines: Sequence[ast.stmt]) -> bool:
    """Whether lines go on without having computed anything: where no input took them, they do not raise."""
    passes = (ast.Pass, ast.Continue, ast.Assert)
    return bool(lines) and all(isinstance(each, passes) for each in lines)


def asked(node: ast.expr) -> str | None:
    """The name whose parts a call looks for: of ``x.get(key)``, ``getattr(x, name, default)``."""
    if not isinstance(node, ast.Call):
        return None
    function = node.func
    if isinstance(function, ast.Attribute) and (
        function.attr == "get" or (function.attr == "pop" and len(node.args) == 2)
    ):
        return root_name(function.value)
    if isinstance(function, ast.Name) and (
        (function.id == "getattr" and len(node.args) == 3)
        or (function.id == "hasattr" and len(node.args) == 2)
    ):
        attribute = node.args[1]
        of_array = isinstance(attribute, ast.Constant) and attribute.value in OF_ARRAYS
        return None if of_array else root_name(node.args[0])
    return None


def chosen_by_size(function: Function) -> Iterator[ast.expr]:
    """Lookups by a size or a dtype that give what is called: ``{5: f}.get(x.shape[1], g)(x)``.

    An if has branches that raise where no input took them; a lookup has none. Ranks are checked by the
    emitted code.
    """
    nodes = list(own_nodes(function))
    assigned = [(stored(node), node.value) for node in nodes if isinstance(node, ast.Assign)]
    sizes: set[str] = set()
    # A size may go through several names, in whatever order they stand.
    while more := {each for names, value in assigned if reads_size(value, sizes) for each in names} - sizes:
        sizes |= more
    callees = [node.func for node in nodes if isinstance(node, ast.Call)]
    called = {node.id for node in callees if isinstance(node, ast.Name)}
    for node in [*callees, *(value for names, value in assigned if names & called)]:
        key: ast.expr | None = None
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice | ast.Tuple):
            key = node.slice
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "get" and node.args:
            key = node.args[0]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr" and len(node.args) > 1:
            key = node.args[1]
        if key is not None and reads_size(key, sizes):
            yield node


def stored(node: ast.Assign) -> set[str]:
    """Names that an assignment binds."""
    return names_stored(*node.targets)


def reads_size(node: ast.expr, sizes: Collection[str]) -> bool:
    """Whether an expression reads a size or a dtype of an array, or one of the names that hold such."""
    return any(
        (isinstance(each, ast.Attribute) and each.attr in ("dtype", "shape", "size"))
        or (isinstance(each, ast.Name) and each.id in sizes)
        for each in ast.walk(node)
    )


def tested(function: Function) -> frozenset[ast.AST]:
    """Everything in the tests of a function's if statements and conditional expressions."""
    tests = [node.test for node in own_nodes(function) if isinstance(node, ast.If | ast.IfExp)]
    return frozenset(node for test in tests for node in ast.walk(test))
