"""What `read` finds in source: names, decorators, gradients, collectives, and their exact places."""

import ast
import symtable
from pathlib import Path

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, PositionProvider

import jax_pmap
from jax_pmap.locate import locate
from jax_pmap.model import ParameterKind, RefusalError, Source
from jax_pmap.reading.calls import body_calls
from jax_pmap.reading.facts import FunctionFacts
from jax_pmap.reading.read import read
from jax_pmap.syntax.parse import parse
from jax_pmap.worker.scopes import free_names

PACKAGE = Path(jax_pmap.__file__).parent


def source(text: str, qualname: str = "f", module: str = "pkg.train", file: str = "pkg/train.py") -> Source:
    path = Path("/project") / file
    return Source(f"{file}::{qualname}", path, file, module, Path("/project"), qualname, text)


def facts(text: str, qualname: str = "f", **options: str) -> FunctionFacts:
    return read(source(text, qualname, **options))


def refusal(text: str, qualname: str = "f") -> tuple[str, int]:
    with pytest.raises(RefusalError) as caught:
        parse(source(text, qualname))
    found = caught.value.refusal
    assert found.span is not None
    return found.code, found.span.line


# --- nothing to find ------------------------------------------------------------------------


def test_a_plain_function_has_no_findings() -> None:
    found = facts("def f(x):\n    return x * 2\n")
    assert found.decorators == found.imported == found.module_names == found.unknown_names == ()
    assert found.gradient_calls == found.collectives == found.static_parameters == found.compared == ()
    assert (found.pmap_axis_name, found.pmap_in_axes, found.docstring) == (None, (), None)
    assert not found.is_async and not found.is_generator and found.owner == ""


def test_other_functions_calls_and_jits_do_not_count() -> None:
    found = facts(
        "import jax\ndef g(p, x):\n    return jax.lax.psum(jax.grad(h)(p), 'i')\n"
        "def f(x):\n    return x\nG = jax.jit(g, static_argnums=0)\n"
        "P = jax.pmap(g, axis_name='z', in_axes=(0, None))\n"
    )
    assert found.collectives == found.gradient_calls == found.static_parameters == found.pmap_in_axes == ()
    assert found.pmap_axis_name is None


def test_local_names_are_not_imports() -> None:
    found = facts("import jax\nfrom jax import lax\ndef f(x, lax):\n    return lax.psum(x, 'i')\n")
    assert found.collectives == () and found.imported == ()


# --- finding the target ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "qualname", "line"),
    [
        ("def f(): pass\ndef f(): pass\n", "f", 2),
        ("if a:\n    def f(): pass\nelse:\n    def f(): pass\n", "f", 4),
        ("def f(): pass\nif a:\n    def f(): pass\n", "f", 1),
        ("class A:\n    def f(self): pass\n", "A.f", 2),
        ("def outer():\n    with a:\n        def f(): pass\n", "outer.f", 3),
        ("if __name__ == '__main__':\n    def f(): pass\n", "f", 2),
        ("try:\n    pass\nexcept E:\n    def f(): pass\n", "f", 4),
        ("match a:\n    case 1:\n        def f(): pass\n", "f", 3),
        ("@deco\n@deco\ndef f(): pass\n", "f", 3),
    ],
)
def test_definition_is_the_one_python_binds(text: str, qualname: str, line: int) -> None:
    assert facts(text, qualname).span.line == line


def test_what_is_not_a_function_is_refused() -> None:
    assert refusal("def g(): pass\n") == ("JP002", 1)
    assert refusal("x = 1\nclass f:\n    pass\n") == ("JP004", 2)
    assert refusal("def g():\n    return (1\n") == ("JP005", 2)
    assert refusal("x = 1\ndef f():\n  a\n b\n") == ("JP005", 4)
    assert refusal("def f(): pass\0\n")[0] == "JP005"
    assert refusal("def f():\n    return " + "(" * 500 + ")" * 500 + "\n")[0] == "JP005"


# --- signature ------------------------------------------------------------------------------


def test_parameters_with_kinds_annotations_and_defaults() -> None:
    text = "def f(a, /, b: 'Array', c=(1,\n    2), *args, d: int = 3, e, **kw): pass\n"
    rows = [(p.name, p.kind, p.annotation, p.default) for p in facts(text).parameters]
    assert rows == [
        ("a", ParameterKind.POSITIONAL_ONLY, None, None),
        ("b", ParameterKind.POSITIONAL_OR_KEYWORD, "'Array'", None),
        ("c", ParameterKind.POSITIONAL_OR_KEYWORD, None, "(1,\n    2)"),
        ("args", ParameterKind.VAR_POSITIONAL, None, None),
        ("d", ParameterKind.KEYWORD_ONLY, "int", "3"),
        ("e", ParameterKind.KEYWORD_ONLY, None, None),
        ("kw", ParameterKind.VAR_KEYWORD, None, None),
    ]


def test_docstring_async_generator_and_globals() -> None:
    assert facts('def f(x):\n    """One "line".\n\n    More.\n    """\n').docstring == 'One "line".\n\nMore.'
    assert facts("async def f(x):\n    await x\n").is_async
    assert facts("def f(x):\n    yield x\n").is_generator
    assert not facts("def f(x):\n    def g():\n        yield x\n    return g\n").is_generator
    assert facts("c = 0\ndef f(x):\n    global c\n    c = 1\n").global_names == ("c",)
    inside = "def f(x):\n    c = 0\n    def g():\n        nonlocal c\n        c = x\n    g()\n    return c\n"
    assert facts(inside).global_names == ()


# --- names ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "use", "statement"),
    [
        ("import jax.numpy as jnp", "jnp.sum(x)", "import jax.numpy as jnp"),
        ("from a import b as c, d", "c(x)", "from a import b as c"),
        ("from .loss import g", "g(x)", "from pkg.loss import g"),
        ("from . import loss", "loss.g(x)", "from pkg import loss"),
        ("from ..top import g", "g(x)", "from top import g"),
        ("import a, b as c", "c(x)", "import b as c"),
        ("import numpy.linalg", "numpy.linalg.norm(x)", "import numpy.linalg"),
    ],
)
def test_imports_are_normalised(line: str, use: str, statement: str) -> None:
    found = facts(f"{line}\ndef f(x):\n    return {use}\n")
    assert [row.statement for row in found.imported] == [statement]
    assert found.unknown_names == found.module_names == ()


def test_a_package_file_imports_relative_to_itself() -> None:
    found = facts("from .loss import g\ndef f(x):\n    return g(x)\n", module="pkg", file="pkg/__init__.py")
    assert found.imported[0].statement == "from pkg.loss import g"


def test_submodules_that_are_spelled_out_keep_their_imports() -> None:
    text = "import jax\nimport jax.extend\nimport jax.random\ndef f(x):\n    return jax.extend.g(jax.h(x))\n"
    assert [row.statement for row in facts(text).imported] == ["import jax", "import jax.extend"]


def test_competing_bindings_come_from_the_module() -> None:
    found = facts(
        "try:\n    from jax import shard_map as s\nexcept ImportError:\n"
        "    from jax.experimental.shard_map import shard_map as s\n"
        "import a as t\nt = 1\ndef f(x):\n    return s(x) + t\n"
    )
    assert found.imported == () and found.module_names == ("s", "t")


def test_type_checking_imports_are_marked() -> None:
    found = facts(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from jax import Array\n"
        "def f(x: 'Array', y: 'unknown shape', z: T['batch']) -> 'Array': pass\n"
    )
    assert [(row.name, row.typing_only) for row in found.imported] == [("Array", True)]
    assert found.unknown_names == ("T",)


def test_free_names_of_body_defaults_annotations_and_kept_decorators() -> None:
    found = facts(
        "import jax\nA = B = C = D = E = G = 1\n@jax.jit\n@D\ndef f(x: A, y=B):\n"
        "    def g(z=C):\n        return [q + z + w + E for q in x if (w := q)]\n"
        "    import os\n    return g, os, len(x), typo\n"
    )
    assert found.module_names == ("A", "B", "C", "D", "E")
    assert found.imported == () and found.unknown_names == ("typo",)
    assert {"G", "f", "w", "q", "typo"} <= found.taken_names


def test_closures_methods_and_star_imports() -> None:
    nested = facts("def outer(tx):\n    k = 1\n    def f(x):\n        return tx(x) + k\n", "outer.f")
    assert (nested.closure_names, nested.owner) == (("k", "tx"), "function")
    counts = facts("def outer():\n    k = 1\n    def f(x):\n        nonlocal k\n        k = x\n", "outer.f")
    assert counts.global_names == ("k",)
    assert facts("class A:\n    k = 1\n    def f(self):\n        return k\n", "A.f").unknown_names == ("k",)
    assert facts("class A:\n    def f(self): pass\n", "A.f").owner == "class"
    assert facts("from m import *\ndef f(x):\n    return g(x)\n").star_imports == ("m",)


def test_free_names_agree_with_pythons_own_symbol_tables() -> None:
    checked = 0
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        tables = {table.get_name(): table for table in symtable.symtable(text, "file", "exec").get_children()}
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef):
                found, wanted = free_names(node), _globals(tables[node.name])
                # Annotations inside a body are never evaluated, but they are emitted.
                inside = [part.annotation for part in ast.walk(node) if hasattr(part, "annotation")]
                inside += [part.returns for part in ast.walk(node) if isinstance(part, ast.FunctionDef)]
                written = set().union(*(free_names(part) for part in inside if part))
                assert wanted <= found <= wanted | written, f"{path.name}::{node.name}"
                checked += 1
    assert checked > 50


def _globals(table: symtable.SymbolTable) -> set[str]:
    found = {
        symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() and symbol.is_referenced()
    }
    return found.union(*map(_globals, table.get_children()))


def test_a_generated_table_beside_the_function_may_be_nested_deeper_than_calls_may() -> None:
    table = " + ".join(["1"] * 1500)
    found = facts(f"T = {table}\ndef table():\n    return {table}\ndef f(x):\n    return x * T\n")
    assert found.module_names == ("T",)
    assert "table" in found.taken_names


# --- decorators -----------------------------------------------------------------------------

ALIASES = """
import functools
import jax
import jax as j
import equinox as eqx
from flax import nnx
from functools import partial
from jax import jit as compiled
my_jit = partial(jax.jit, static_argnums=(1,))
also = jax.jit
"""


@pytest.mark.parametrize(
    ("decorator", "name"),
    [
        ("jax.jit", "jax.jit"),
        ("j.jit", "jax.jit"),
        ("compiled", "jax.jit"),
        ("also", "jax.jit"),
        ("my_jit", "jax.jit"),
        ("jax.jit(static_argnums=1)", "jax.jit"),
        ("partial(jax.jit, static_argnums=(1,))", "jax.jit"),
        ("functools.partial(j.pmap, axis_name='batch')", "jax.pmap"),
        ("jax.pmap(axis_name='batch')", "jax.pmap"),
        ("eqx.filter_jit", "equinox.filter_jit"),
        ("eqx.filter_jit(donate='all')", "equinox.filter_jit"),
        ("nnx.jit", "flax.nnx.jit"),
        ("jax.named_call", "jax.named_call"),
    ],
)
def test_compiling_decorators_are_set_aside(decorator: str, name: str) -> None:
    (row,) = facts(f"{ALIASES}@{decorator}\ndef f(x, n): pass\n").decorators
    assert (row.text, row.name, row.set_aside) == (decorator, name, True)
    assert row.span.line == ALIASES.count("\n") + 1 and row.span.column == 1


@pytest.mark.parametrize(
    ("decorator", "name"),
    [
        ("jax.vmap", "jax.vmap"),
        ("jax.grad", "jax.grad"),
        ("jax.checkpoint", "jax.checkpoint"),
        ("mine", "mine"),
        ("mine(jax.jit)", "mine(jax.jit)"),
        ("table['k']", "table['k']"),
        ("property", "builtins.property"),
    ],
)
def test_other_decorators_are_kept(decorator: str, name: str) -> None:
    (row,) = facts(f"{ALIASES}@{decorator}\ndef f(x): pass\n").decorators
    assert (row.name, row.set_aside) == (name, False)


@pytest.mark.parametrize(
    ("before", "after", "static", "donated"),
    [
        ("@partial(jax.jit, static_argnums=(1, -1), donate_argnums=0)", "", ("b", "c"), ("a",)),
        ("@jax.jit(static_argnames='k')", "", ("k",), ()),
        ("@my_jit", "", ("b",), ()),
        ("NUMS = (0, 2)\n@partial(jax.jit, donate_argnums=NUMS)", "", (), ("a", "c")),
        ("@eqx.filter_jit(donate='all-except-first')", "", (), ("b", "c", "k")),
        ("", "f = jax.jit(f, static_argnames=['b', 'other'])", ("b",), ()),
        ("", "def main():\n    step = partial(jax.jit, static_argnums=0)(f)", ("a",), ()),
        ("", "p = jax.pmap(f, 'x', static_broadcasted_argnums=(2,))", ("c",), ()),
        ("", "p = jax.jit(f, static_argnums=compute())", (), ()),
        ("", "p = jax.jit(f, static_argnums=9)", (), ()),
    ],
)
def test_static_and_donated(before: str, after: str, static: tuple[str], donated: tuple[str]) -> None:
    found = facts(f"{ALIASES}{before}\ndef f(a, b, c, *, k=1): pass\n{after}\n")
    assert (found.static_parameters, found.donated_parameters) == (static, donated)


@pytest.mark.parametrize(
    ("after", "axis_name", "in_axes"),
    [
        ("jax.pmap(f, axis_name='i', in_axes=(0, None))", "i", (("a", 0), ("b", None))),
        ("jax.pmap(f, 'i', in_axes=[1, {'x': 0}])", "i", (("a", 1),)),
        ("jax.pmap(f, axis_name=NAME)", "batch", ()),
        ("jax.pmap(f, in_axes=0)", None, ()),
        ("jax.pmap(f, axis_name=name(), in_axes=axes)", None, ()),
        ("partial(jax.pmap, axis_name='i')(f)", "i", ()),
    ],
)
def test_pmap_hints(after: str, axis_name: str | None, in_axes: tuple[tuple[str, int | None], ...]) -> None:
    found = facts(f"{ALIASES}NAME = 'batch'\ndef f(a, b): pass\np = {after}\n")
    assert (found.pmap_axis_name, found.pmap_in_axes) == (axis_name, in_axes)


# --- calls in the body ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "function", "of"),
    [
        ("jax.grad(loss)(p, x)", "loss", ("p",)),
        ("jax.value_and_grad(loss, has_aux=True)(p.w, x)", "loss", ("p.w",)),
        ("jax.grad(loss, argnums=(0, 1))(p, x)", "loss", ("p", "x")),
        ("jax.grad(loss, 1)(p, x)", "loss", ("x",)),
        ("jax.grad(lambda q: loss(q, x))(p)", "lambda q: loss(q, x)", ("p",)),
        ("eqx.filter_value_and_grad(loss)(p, x)", "loss", ("p",)),
        ("nnx.grad(loss)(p, x)", "loss", ("p",)),
        ("partial(jax.grad, has_aux=True)(loss)(p, x)", "loss", ("p",)),
        ("module_grad(p, x)", "loss", ("p",)),
        ("decorated(p, x)", "decorated", ("p",)),
        ("jax.grad(loss, argnums=n)(p, x)", "loss", ()),
        ("jax.grad(loss)(*p)", "loss", ()),
        ("jax.grad(loss)(p, *x)", "loss", ("p",)),
        ("jax.grad(loss, argnums=(0, 2))(p, *x)", "loss", ("p",)),
    ],
)
def test_gradient_calls(lines: str, function: str, of: tuple[str]) -> None:
    found = facts(
        f"{ALIASES}module_grad = jax.value_and_grad(loss)\n"
        "@eqx.filter_value_and_grad\ndef decorated(p, x): pass\n"
        f"def f(p, x):\n    return {lines}\n"
    )
    (call,) = found.gradient_calls
    assert (call.function, call.of) == (function, of)


def test_gradient_functions_bound_inside() -> None:
    found = facts(
        "import jax\ndef f(p, x):\n    def loss(q):\n        return q\n    g = jax.value_and_grad(loss)\n"
        "    value = g(p)\n    return value(x)\n"
    )
    (call,) = found.gradient_calls
    assert (call.function, call.of, call.span.line) == ("loss", ("p",), 6)


@pytest.mark.parametrize(
    ("call", "op", "axis_name"),
    [
        ("jax.lax.pmean(x, 'i')", "pmean", "i"),
        ("lax.psum(x, axis_name=AX)", "psum", "k"),
        ("pmax(x, name)", "pmax", None),
        ("jax.lax.axis_index('i')", "axis_index", "i"),
        ("jax.lax.all_gather(x, axis_name='i', tiled=True)", "all_gather", "i"),
    ],
)
def test_collectives(call: str, op: str, axis_name: str | None) -> None:
    found = facts(
        f"import jax\nfrom jax import lax\nfrom jax.lax import pmax\nAX = 'k'\ndef f(x):\n    return {call}\n"
    )
    (row,) = found.collectives
    assert (row.op, row.axis_name, row.span.column) == (op, axis_name, 11)


@pytest.mark.parametrize(
    ("around", "call", "ops"),
    [
        (
            "import functools, jax\ntotal = functools.partial(jax.lax.psum, axis_name='i')",
            "total(x)",
            ["psum"],
        ),
        (
            "try:\n    from jax.lax import psum\nexcept ImportError:\n    from jax.lax import psum",
            "psum(x, 'i')",
            ["psum"],
        ),
        ("from jax.lax import psum\ndef g(psum):\n    return psum", "psum(x, 'i')", ["psum"]),
        ("from jax.lax import psum", "(lambda psum: psum(x, 'i'))(x)", []),
        ("def outer():\n    from jax.lax import psum", "psum(x, 'i')", []),
        ("class A:\n    from jax.lax import psum", "psum(x, 'i')", []),
    ],
)
def test_a_name_means_what_its_scope_gives_it(around: str, call: str, ops: list[str]) -> None:
    found = facts(f"{around}\ndef f(x):\n    return {call}\n").collectives
    assert [row.op for row in found] == ops
    assert all(row.axis_name == "i" for row in found)


def test_compared_called_returned_and_keys() -> None:
    found = facts(
        "import jax\nfrom jax import random\n"
        "def f(state, mode, flag, fn, k, seed, name: str, dropout_rng, mask, api_key: str):\n"
        "    if mode == 'train' or not flag or mask is None:\n        return state\n"
        "    if mode in ('a', 'b'):\n        fn(x)\n    random.normal(k, (3,))\n    jax.random.key(seed)\n"
        "    match name:\n        case 'm':\n            pass\n    return state, 1, k\n"
    )
    compared = [("mode", "'train'"), ("mask", "None"), ("flag", "True"), ("flag", "False")]
    assert set(found.compared) == {*compared, ("mode", "'a'"), ("mode", "'b'"), ("name", "'m'")}
    looked_up = facts(
        "HEADS = {'mean': 0, 'sum': 1}\n"
        "def f(x, head, axis):\n    return HEADS[head](x) + {0: x}.get(axis, x) + x[0]\n"
    )
    assert set(looked_up.compared) == {("head", "'mean'"), ("head", "'sum'"), ("axis", "0")}
    assert found.called_parameters == ("fn",)
    assert found.returned_names == ("state", "", "k")
    assert found.key_parameters == ("k", "dropout_rng")


# --- places ---------------------------------------------------------------------------------


def test_spans_are_those_libcst_gives() -> None:
    text = (
        "# comment\n\nclass A:\n\n  @deco\n  def f(self, x):\n    '''multi\nline'''\n"
        "    y = (x + \n      'ä' + x.a['ö'](1))\n"
        "    a = 1; b = g(y)\n    if y: z = -y\n    return (y, a), {'k': y}\n"
    )
    parsed = parse(source(text, "A.f"))
    ranges = MetadataWrapper(cst.parse_module(text)).resolve(PositionProvider).values()
    places = {(r.start.line, r.start.column, r.end.line, r.end.column) for r in ranges}
    checked = 0
    for node in ast.walk(parsed.definition):
        # A tuple's parentheses belong to it for `ast` alone.
        if isinstance(node, ast.stmt | ast.expr) and not isinstance(node, ast.Tuple):
            span = parsed.span(node)
            assert (span.line, span.column, span.end_line, span.end_column) in places, ast.dump(node)
            checked += 1
    assert checked > 20
    assert [parsed.segment(call.func) for call in body_calls(parsed)] == ["x.a['ö']", "g"]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_line_endings_and_byte_order_mark(newline: str) -> None:
    text = "\ufeffx = 'a\\\nb'\n\x0c\ndef f(x):\n    return (x +\n            1)\n".replace("\n", newline)
    parsed = parse(source(text))
    assert parsed.span(parsed.definition).line == 4
    assert parsed.segment(parsed.definition.body[0]) == "return (x +\n            1)"


@pytest.mark.parametrize(
    ("lines", "passes"),
    [
        (("return f(*args, **kwargs)",), True),
        (("out = jax.block_until_ready(f(*args, **kwargs))", "print(f.__name__)", "return out"), True),
        (("out = f(*args, **kwargs)", "out.block_until_ready()", "return out"), True),
        (("try:", "    return f(*args, **kwargs)", "finally:", "    print('done')"), True),
        (("f(*args, **kwargs)", "return f(*args, **kwargs)"), False),
        (("return 2 * f(*args, **kwargs)",), False),
        (("return f(*args)",), False),
        (("if args:", "    return f(*args, **kwargs)"), False),
        (("for _ in range(3):", "    out = f(*args, **kwargs)", "return out"), False),
        (("out = f(*args, **kwargs)", "out['x'] = 1", "return out"), False),
        (("args[0]['x'] = 1", "return f(*args, **kwargs)"), False),
        (("kwargs.pop('a')", "return f(*args, **kwargs)"), False),
        (("out = f(*args, **kwargs)", "out = None", "return out"), False),
        (("with jax.disable_jit():", "    return f(*args, **kwargs)"), False),
        (("jax.config.update('jax_enable_x64', True)", "return f(*args, **kwargs)"), False),
        (("settings.update('jax_enable_x64', True)", "return f(*args, **kwargs)"), False),
        (("yield f(*args, **kwargs)",), False),
    ],
)
def test_decorators_that_hand_on_what_they_are_given(
    tmp_path: Path, lines: tuple[str, ...], passes: bool
) -> None:
    body = "\n".join(f"        {line}" for line in lines)
    wrapper = f"    @functools.wraps(f)\n    def wrapper(*args, **kwargs):\n{body}\n    return wrapper\n"
    inner = "\n".join(f"    {line}" if line else "" for line in wrapper.split("\n"))
    factory = f"def named(label):\n    def inner(f):\n{inner}\n    return inner\n"
    imports = "import functools\nimport jax\nfrom jax import config as settings\n"
    (tmp_path / "tools.py").write_text(f"{imports}\n\ndef timed(f):\n{wrapper}\n\n{factory}")
    (tmp_path / "m.py").write_text(
        "from tools import timed, named as told\n\n\n@told('a')\n@timed\ndef step(x):\n    return x\n"
    )
    facts = read(locate("m.py::step", tmp_path))
    assert [decorator.passes_on for decorator in facts.decorators] == [passes, passes]
    assert ("timed" in {row.name for row in facts.imported}) is not passes
