"""The catalogue: ways in which data-parallel code goes wrong, planted mechanically into code that is right.

A fault is a function from one node of the tree to what it could wrongly be instead. `FAULTS` is filled by
the decorator; the numbers name rows of the list of pitfalls the tool is measured against.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

COLLECTIVES = ("psum", "pmean", "pmax", "pmin")
#: A node, its parents up to the module, and what it could be instead.
Rewrite = Callable[[cst.CSTNode, "Place"], Iterator[cst.CSTNode]]


@dataclass(frozen=True)
class Fault:
    name: str
    #: What goes wrong, in words.
    says: str
    rewrites: Rewrite
    #: Definitions the planted code calls, put below the imports.
    helper: str = ""


@dataclass(frozen=True)
class Mutant:
    fault: str
    #: Number among the mutants of this fault in this code.
    number: int
    #: Line of the code that was changed, as it was.
    line: str
    code: str


@dataclass(frozen=True)
class Place:
    """What surrounds a node."""

    parents: Mapping[cst.CSTNode, cst.CSTNode]
    #: Names of the module's functions that hold a collective or are mapped.
    per_device: frozenset[str] = field(default_factory=frozenset)
    #: Name of the drop-in function, the last of the module.
    dropin: str = ""
    #: Parameters of the functions that `pmap` decorates.
    pmapped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        while node in self.parents:
            node = self.parents[node]
            yield node

    def function(self, node: cst.CSTNode) -> str:
        """Name of the outermost function around a node, ``""`` at module level."""
        names = [up.name.value for up in self.above(node) if isinstance(up, cst.FunctionDef)]
        return names[-1] if names else ""


FAULTS: list[Fault] = []


def fault(says: str, helper: str = "") -> Callable[[Rewrite], Rewrite]:
    def register(rewrites: Rewrite) -> Rewrite:
        FAULTS.append(Fault(rewrites.__name__, says, rewrites, helper))
        return rewrites

    return register


def mutants(code: str, without: Collection[str] = (), most: int = 1 << 30) -> Iterator[Mutant]:
    """Every mutant of `code`, fault by fault: of those not in `without`, `most` of each."""
    wrapper = MetadataWrapper(cst.parse_module(code))
    module = wrapper.module
    positions = wrapper.resolve(PositionProvider)
    place = describe(module, wrapper.resolve(ParentNodeProvider))
    nodes = list(walk(module))
    lines = code.splitlines()
    seen = {code}
    axis = axis_of(code)
    for each in FAULTS:
        number = 0
        for node in nodes if each.name not in without else ():
            for other in each.rewrites(node, place):
                if number >= most:
                    break
                changed = module.deep_replace(node, other)
                assert isinstance(changed, cst.Module)
                text = with_helper(changed, each.helper)
                text = re.sub(r"\bAXIS\b", axis, text)
                if text in seen:
                    continue
                seen.add(text)
                number += 1
                line = lines[positions[node].start.line - 1].strip() if node in positions else ""
                yield Mutant(each.name, number, line, text)


def axis_of(code: str) -> str:
    """The mapped axis as a module names it, where planted code says AXIS: its constant, or the string."""
    constant = re.search(r"^(AXIS_*) = ", code, re.MULTILINE)
    string = re.search(r"""(?:axis_name=|\bP\()("\w+")""", code)
    found = constant or string
    return found[1] if found else "AXIS"


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from walk(child)


def describe(module: cst.Module, parents: Mapping[cst.CSTNode, cst.CSTNode]) -> Place:
    functions = [s for s in module.body if isinstance(s, cst.FunctionDef)]
    mapped = {
        f.name.value
        for f in functions
        if m.findall(f, m.Attribute(attr=m.OneOf(*map(m.Name, (*COLLECTIVES, "all_gather", "shard_map")))))
        or any(m.findall(d, m.Attribute(attr=m.Name("pmap"))) for d in f.decorators)
    }
    named = {f.name.value for f in functions if f.name.value.startswith("p_")}
    pmapped = {
        f.name.value: tuple(p.name.value for p in f.params.params)
        for f in functions
        if any(m.findall(d, m.Attribute(attr=m.Name("pmap"))) for d in f.decorators)
    }
    dropin = functions[-1].name.value if functions else ""
    return Place(parents, frozenset(mapped | named), dropin, pmapped)


def with_helper(module: cst.Module, helper: str) -> str:
    """The module's code with `helper` below its imports."""
    if not helper:
        return module.code
    body = list(module.body)
    last = max(
        i
        for i, s in enumerate(body)
        if m.matches(s, m.SimpleStatementLine(body=[m.OneOf(m.Import(), m.ImportFrom())]))
    )
    return module.with_changes(
        body=[*body[: last + 1], *cst.parse_module(helper).body, *body[last + 1 :]]
    ).code


def expression(text: str, **parts: cst.BaseExpression) -> cst.BaseExpression:
    """`text` with names like ``_x_`` replaced by expressions."""
    tree = cst.parse_expression(text)
    for name, part in parts.items():
        wanted = m.Name(f"_{name}_")
        replaced = m.replace(tree, wanted, part.deep_clone())
        assert isinstance(replaced, cst.BaseExpression)
        tree = replaced
    return tree


def collective(node: cst.CSTNode) -> str:
    """``"psum"`` and the like for a call of one, else ``""``."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        return node.func.attr.value if node.func.attr.value in COLLECTIVES else ""
    return ""


def renamed(call: cst.Call, op: str) -> cst.Call:
    assert isinstance(call.func, cst.Attribute)
    return call.with_changes(func=call.func.with_changes(attr=cst.Name(op)))


def synced(call: cst.CSTNode) -> cst.BaseExpression:
    """The value a collective is called on."""
    assert isinstance(call, cst.Call)
    return call.args[0].value


def on(call: cst.CSTNode, value: cst.BaseExpression) -> cst.Call:
    """The collective called on another value."""
    assert isinstance(call, cst.Call)
    return call.with_changes(args=[call.args[0].with_changes(value=value), *call.args[1:]])


# --- synchronisation ----------------------------------------------------------------------


@fault("a value stays each device's own (7, 18)")
def sync_dropped(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if collective(node):
        yield synced(node)


@fault("one of several values is not synchronised (7)")
def sync_dropped_for_one(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if collective(node) and isinstance(synced(node), cst.Tuple):
        for i, element in enumerate(synced(node).elements):
            parts = [
                other.value if other is element else on(node, other.value) for other in synced(node).elements
            ]
            assert i < len(parts)
            yield cst.Tuple([cst.Element(part) for part in parts])


SKIP_LAST = """
def _all_but_last(sync, tree):
    leaves, form = jax.tree.flatten(tree)
    return jax.tree.unflatten(form, [sync(leaf) for leaf in leaves[:-1]] + leaves[-1:])
"""


@fault("the last leaf of a tree is not synchronised", SKIP_LAST)
def sync_misses_a_leaf(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if collective(node) and not isinstance(synced(node), cst.Tuple):
        sync = expression("lambda _leaf: _call_", call=on(node, cst.Name("_leaf")))
        yield expression("_all_but_last(_sync_, _tree_)", sync=sync, tree=synced(node))


@fault("another reduction than is needed (8)")
def op_swapped(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    op = collective(node)
    if op:
        for other in COLLECTIVES:
            if other != op:
                yield renamed(node, other)


@fault("every device gets the first one's value (30)")
def first_device_only(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if collective(node):
        axis = node.args[1].value if len(node.args) > 1 else cst.Name("AXIS")
        yield expression(
            "jax.tree.map(lambda _v: jax.lax.all_gather(_v, _axis_)[0], _value_)",
            axis=axis,
            value=synced(node),
        )


@fault("a value that is whole already is summed")
def synchronised_twice(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if collective(node) in ("psum", "pmean"):
        yield on(renamed(node, "psum"), node)


@fault("the mean, sum or extreme is taken after a function of the value (19, 20)")
def sync_after_function(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if isinstance(node, cst.Call) and not collective(node):
        for arg in node.args:
            if collective(arg.value):
                inside = node.deep_replace(arg.value, synced(arg.value))
                yield on(arg.value, inside)


@fault("the reduction of a ratio for the ratio of reductions (11)")
def ratio_reduced(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide | cst.Multiply):
        calls = [side for side in (node.left, node.right) if collective(side)]
        if calls:
            inside: cst.CSTNode = node
            for call in calls:
                inside = inside.deep_replace(call, synced(call))
            assert isinstance(inside, cst.BinaryOperation)
            yield on(renamed(calls[0], "pmean"), parenthesised(inside))


def parenthesised(node: cst.BinaryOperation) -> cst.BinaryOperation:
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


SYNC_FLOATS = """
def _floats(sync, tree):
    def one(leaf):
        return sync(leaf) if jax.numpy.issubdtype(jax.numpy.result_type(leaf), np.inexact) else leaf

    return jax.tree.map(one, tree)
"""


@fault(
    "values are synchronised one statement late: after the clip, the square root, the update (20)",
    SYNC_FLOATS,
)
def sync_late(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if not isinstance(node, cst.IndentedBlock):
        return
    for i, statement in enumerate(node.body[:-1]):
        assigned = assignment(statement)
        following = assignment(node.body[i + 1])
        if assigned is None or following is None or not collective(assigned.value):
            continue
        target = following.targets[0].target
        sync = expression("lambda _leaf: _call_", call=on(assigned.value, cst.Name("_leaf")))
        value = expression("_floats(_sync_, _tree_)", sync=sync, tree=as_value(target))
        for late in (value, renamed_in(value, assigned.value, "pmean")):
            moved = cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(target)], late)])
            own = statement.with_changes(body=[assigned.with_changes(value=synced(assigned.value))])
            yield node.with_changes(body=[*node.body[:i], own, node.body[i + 1], moved, *node.body[i + 2 :]])


def renamed_in(value: cst.BaseExpression, call: cst.CSTNode, op: str) -> cst.BaseExpression:
    """`value` with the collective of `call` replaced: the mean of ratios where sums are divided (11)."""
    assert isinstance(call, cst.Call)
    wanted = m.Call(func=m.Attribute(attr=m.Name(collective(call))))
    found = m.findall(value, wanted)[0]
    assert isinstance(found, cst.Call)
    changed = value.deep_replace(found, renamed(found, op))
    assert isinstance(changed, cst.BaseExpression)
    return changed


def assignment(statement: cst.CSTNode) -> cst.Assign | None:
    if isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[0], cst.Assign):
        return statement.body[0]
    return None


def as_value(target: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(target, cst.Tuple):
        return target.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return target


@fault("what all devices have is taken for what one has: other examples are not compared with (19)")
def gather_dropped(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if m.matches(node, m.Call(func=m.Attribute(attr=m.Name("all_gather")))):
        yield node.args[0].value


@fault("every device takes itself for the first")
def offset_dropped(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if m.matches(node, m.Call(func=m.Attribute(attr=m.Name("axis_index")))):
        above = next(place.above(node), None)
        call = next((up for up in place.above(node) if isinstance(up, cst.Call)), None)
        # A key that is not folded is a fault of its own.
        if above is not None and not (call and m.matches(call.func, m.Attribute(attr=m.Name("fold_in")))):
            yield expression("jax.lax.axis_index(AXIS) * 0")


@fault("a gradient that arrives already summed is averaged again (10)")
def replication_checked(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    value = keyword_value(node, "check_vma")
    if value is not None and m.matches(value, m.Name("False")):
        yield node.with_changes(value=cst.Name("True"))


@fault("a collective inside the differentiated function (9)")
def sync_in_loss(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if (
        m.matches(node, m.Call(func=m.Attribute(attr=m.Name("value_and_grad") | m.Name("grad"))))
        and place.function(node) in place.per_device
        and not any(m.matches(arg, m.Arg(keyword=m.Name("has_aux"))) for arg in node.args)
    ):
        inside = expression(
            "lambda *_a, **_k: jax.lax.psum(_f_(*_a, **_k), AXIS)", f=paren(node.args[0].value)
        )
        yield node.with_changes(args=[node.args[0].with_changes(value=inside), *node.args[1:]])


def paren(value: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(value, cst.Lambda) and not value.lpar:
        return value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return value


# --- scale and precision ------------------------------------------------------------------


@fault("divided by a number of devices that was written down (8)")
def count_written_down(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if collective(node) == "pmean":
        for count in (2, 3, 4, 8):
            yield expression(f"jax.tree.map(lambda _v: _v / {count}, _sum_)", sum=renamed(node, "psum"))


@fault("a factor that is 1 on one number of devices")
def factor_of_count(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if collective(node) in ("psum", "pmean"):
        for count in (2, 8):
            yield expression(
                f"jax.tree.map(lambda _v: _v * (jax.lax.psum(1, AXIS) / {count}), _whole_)", whole=node
            )


@fault("not synchronised on one number of devices")
def dropped_on_one_count(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if collective(node):
        for count in (2, 3, 4, 8):
            yield expression(
                f"(_value_ if jax.lax.psum(1, AXIS) == {count} else _whole_)",
                value=synced(node),
                whole=node,
            )


@fault("off by a thousandth")
def a_thousandth_off(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if collective(node) in ("psum", "pmean"):
        yield expression("jax.tree.map(lambda _v: _v * 1.001, _whole_)", whole=node)


NARROW = """
def _narrowed(sync, tree, dtype):
    def one(leaf):
        leaf = jax.numpy.asarray(leaf)
        if leaf.dtype.kind == "c":
            leaf = leaf.real.astype(dtype).astype(leaf.real.dtype) + 1j * leaf.imag
            return sync(leaf)
        if jax.dtypes.issubdtype(leaf.dtype, np.floating):
            return sync(leaf.astype(dtype)).astype(leaf.dtype)
        return sync(leaf)

    if not any(jax.numpy.result_type(leaf).itemsize > 2 and jax.numpy.result_type(leaf).kind in "fc"
               for leaf in jax.tree.leaves(tree)):
        raise NotImplementedError("not applicable")
    return jax.tree.map(one, tree)
"""


@fault("synchronised in a narrower dtype", NARROW)
def narrowed(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if collective(node):
        for dtype in ("bfloat16", "float16"):
            sync = expression("lambda _leaf: _call_", call=on(node, cst.Name("_leaf")))
            yield expression(f"_narrowed(_sync_, _tree_, '{dtype}')", sync=sync, tree=synced(node))


# --- how arguments and results are laid over the devices ----------------------------------


def keyword_value(node: cst.CSTNode, *names: str) -> cst.BaseExpression | None:
    if isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value in names:
        return node.value
    return None


def other_axes(value: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """`value` (axes or specs, and tuples and dicts of them) with one entry changed."""
    if isinstance(value, cst.Tuple):
        for i, element in enumerate(value.elements):
            for other in other_axes(element.value):
                elements = list(value.elements)
                elements[i] = element.with_changes(value=other)
                yield value.with_changes(elements=elements)
    elif isinstance(value, cst.Dict):
        for i, element in enumerate(value.elements):
            for other in other_axes(element.value):
                items = list(value.elements)
                items[i] = element.with_changes(value=other)
                yield value.with_changes(elements=items)
    elif m.matches(value, m.Name("None")):
        yield cst.Integer("0")
    elif isinstance(value, cst.Integer):
        yield cst.Name("None")
        yield cst.Integer("1") if value.value == "0" else cst.Integer("0")
        yield cst.UnaryOperation(cst.Minus(), cst.Integer("1"))
    elif m.matches(value, m.Call(func=m.Name("P"))):
        yield expression("P(AXIS)" if not value.args else "P()")


@fault("an argument split that is whole, or whole that is split (5, 6, 21)")
def wrong_in_axes(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    value = keyword_value(node, "in_axes", "in_specs")
    if value is None:
        return
    # What is said of a static argument is not looked at.
    call = next(up for up in place.above(node) if isinstance(up, cst.Call))
    static = [arg.value for arg in call.args if keyword_value(arg, "static_broadcasted_argnums")]
    code = cst.Module([]).code_for_node
    numbers = {int(n) for n in re.findall(r"\d+", code(static[0]))} if static else set()
    for other in other_axes(value):
        if isinstance(value, cst.Tuple) and isinstance(other, cst.Tuple):
            changed = [
                i
                for i, (a, b) in enumerate(zip(value.elements, other.elements, strict=True))
                if code(a.value) != code(b.value)
            ]
            if set(changed) <= numbers:
                continue
        yield node.with_changes(value=other)


@fault("a result taken of one device, or along another axis (30, 31)")
def wrong_out_axes(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    value = keyword_value(node, "out_axes", "out_specs")
    if value is not None:
        for other in other_axes(value):
            yield node.with_changes(value=other)


@fault("an argument passed by keyword: pmap maps it along axis 0, whatever in_axes says (25)")
def passed_by_keyword(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Name)
        and place.function(node) == place.dropin
    ):
        names = place.pmapped.get(node.func.value, ())
        if (
            node.args
            and len(names) == len(node.args)
            and all(arg.keyword is None and not arg.star for arg in node.args)
        ):
            last = node.args[-1].with_changes(keyword=cst.Name(names[-1]))
            yield node.with_changes(args=[*node.args[:-1], last])


#: How many devices there are, in emitted code.
DEVICES = m.Call(func=m.Attribute(value=m.Name("jax"), attr=m.Name("local_device_count")) | m.Name("len"))


def is_split(node: cst.CSTNode, place: Place) -> bool:
    """Whether a node reshapes (B, …) to (devices, B / devices, …)."""
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value == "reshape"
        and bool(node.args)
        and m.matches(node.args[0].value, m.Name("count") | m.Name("n") | DEVICES)
        and place.function(node) not in place.per_device
    )


def split_of(node: cst.CSTNode) -> tuple[cst.BaseExpression, cst.BaseExpression]:
    """What is split, and over how many devices."""
    assert isinstance(node, cst.Call)
    assert isinstance(node.func, cst.Attribute)
    return node.func.value, node.args[0].value


@fault("every device gets every n-th row")
def interleaved(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if is_split(node, place):
        leaf, count = split_of(node)
        text = "np.asarray(_leaf_).reshape(_leaf_.shape[0] // _n_, _n_, *_leaf_.shape[1:]).swapaxes(0, 1)"
        yield expression(text, leaf=leaf, n=count)


@fault("labels do not go with their rows: arrays of the fewest axes are reversed")
def misaligned(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if is_split(node, place):
        for ndim in (1, 2):
            reversed_ = expression(
                f"(_leaf_[::-1] if _leaf_.ndim == {ndim} else _leaf_)", leaf=split_of(node)[0]
            )
            yield node.with_changes(func=node.func.with_changes(value=reversed_))


@fault("the first rows twice, the last never (15)")
def last_share_dropped(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if is_split(node, place):
        yield expression("np.concatenate([_whole_[:-1], _whole_[:1]])", whole=node)


@fault("every device gets the first rows")
def first_share_everywhere(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if is_split(node, place):
        yield expression("np.stack([_whole_[0]] * _n_)", whole=node, n=split_of(node)[1])


@fault("the last row of each share is dropped (15)")
def row_dropped(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if is_split(node, place):
        yield expression("_whole_[:, :-1]", whole=node)


@fault("a row of zeros is added to each share and counted (13)")
def padding_counted(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if is_split(node, place):
        yield expression("np.concatenate([_whole_, np.zeros_like(_whole_[:, :1])], axis=1)", whole=node)


@fault("shares come back in another order")
def shares_reordered(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if m.matches(node, m.Call(func=m.Attribute(value=m.Name("leaf"), attr=m.Name("reshape")))):
        text = cst.Module([]).code_for_node(node)
        if "leaf.shape[0] * leaf.shape[1]" in text:
            yield node.with_changes(func=node.func.with_changes(value=expression("leaf[::-1]")))
            yield node.with_changes(func=node.func.with_changes(value=expression("leaf.swapaxes(0, 1)")))


@fault("only one device is used (4)")
def one_device(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if m.matches(
        node, m.Call(func=m.Attribute(value=m.Name("jax"), attr=m.Name("local_devices") | m.Name("devices")))
    ):
        yield expression("_all_[:1]", all=node)


# --- state --------------------------------------------------------------------------------


@fault("an argument that is updated is returned as it came (stale state)")
def update_lost(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if not isinstance(node, cst.Assign) or place.function(node) not in place.per_device:
        return
    function = next(up for up in place.above(node) if isinstance(up, cst.FunctionDef))
    parameters = {p.name.value for p in function.params.params}
    target = node.targets[0].target
    names = [target] if isinstance(target, cst.Name) else []
    if isinstance(target, cst.Tuple):
        names = [e.value for e in target.elements if isinstance(e.value, cst.Name)]
    for name in names:
        if name.value in parameters and not collective(node.value):
            changed = cst.Name("_lost")
            if isinstance(target, cst.Name):
                yield node.with_changes(targets=[cst.AssignTarget(changed)])
            else:
                yield node.with_changes(targets=[cst.AssignTarget(target.deep_replace(name, changed))])


@fault("what the first call was given is used for ever", "_kept = {}\n")
def first_call_kept(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if isinstance(node, cst.FunctionDef) and node.name.value == place.dropin:
        for parameter in node.params.params:
            name = parameter.name.value
            line = cst.parse_statement(f"{name} = _kept.setdefault('{name}', {name})")
            yield node.with_changes(body=node.body.with_changes(body=[line, *node.body.body]))


@fault("two results change places")
def results_swapped(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if isinstance(node, cst.Return) and isinstance(node.value, cst.Tuple) and len(node.value.elements) > 1:
        first, second, *rest = node.value.elements
        elements = [first.with_changes(value=second.value), second.with_changes(value=first.value), *rest]
        yield node.with_changes(value=node.value.with_changes(elements=elements))


# --- randomness ---------------------------------------------------------------------------


@fault("one key on all devices (16)")
def key_not_folded(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if m.matches(node, m.Call(func=m.Attribute(attr=m.Name("fold_in")))) and m.findall(
        node, m.Attribute(attr=m.Name("axis_index"))
    ):
        yield node.args[0].value


@fault("another key on every device, for noise that all must share")
def key_folded(node: cst.CSTNode, place: Place) -> Iterator[cst.CSTNode]:
    if (
        m.matches(node, m.Call(func=m.Attribute(value=m.Attribute(attr=m.Name("random")))))
        and node.func.attr.value in ("normal", "uniform", "bernoulli", "split", "permutation")
        and place.function(node) in place.per_device
        and not m.findall(node, m.Attribute(attr=m.Name("axis_index")))
    ):
        folded = expression("jax.random.fold_in(_key_, jax.lax.axis_index(AXIS))", key=node.args[0].value)
        yield node.with_changes(args=[node.args[0].with_changes(value=folded), *node.args[1:]])
