"""Places in a function's body, and what weaving puts at them; no jax in here."""

from __future__ import annotations

import ast
import base64
import colorsys
import dataclasses
import fnmatch
import functools
import importlib
import inspect
import statistics
import string
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import libcst as cst
import pytest

from jax_pmap.emit.lines import as_written, shifted
from jax_pmap.emit.places import Body, Branch, Expression, Statement, place
from jax_pmap.emit.syntax import without_annotations
from jax_pmap.emit.weave import RECORDER, Words, inside_of, name_node, rebuild, weave, woven_source
from jax_pmap.model import ADDED, Guard, Source, Span, Sync
from jax_pmap.syntax.parse import parse
from jax_pmap.syntax.text import FunctionText

#: Modules of the standard library whose functions are the corpus.
MODULES = ("base64", "colorsys", "contextlib", "difflib", "heapq", "shlex", "textwrap")
#: Of each module as many functions, none longer than so many lines, to be quick.
FUNCTIONS, LINES = 16, 60


def body_of(source: str, line: int = 1, indent: int = 0) -> Body:
    return Body(FunctionText(textwrap.dedent(source).lstrip("\n"), line, indent, "user.py"))


def woven(body: Body, *syncs: Sync, **options: Any) -> str:
    return body.definition(weave(body, syncs, **options))


def statement(body: Body, text: str, number: int = 0) -> Statement:
    found = [s for node, s in body.statement_nodes.items() if body.code(node).rstrip("; ") == text]
    return found[number]


def expression(body: Body, text: str, number: int = 0) -> Expression:
    return [e for e in body.expressions if e.text == text][number]


def after(body: Body, text: str, value: str, op: str = "pmean", **details: Any) -> Sync:
    return Sync(op, value, "after", statement(body, text).span, **details)


def around(body: Body, text: str, op: str = "pmean", number: int = 0) -> Sync:
    return Sync(op, text, "wrap", expression(body, text, number).span)


def guard(body: Body, condition: str) -> Guard:
    branch = next(b for b in body.branches if b.condition == condition)
    return Guard(branch.span, branch.condition)


def source(text: str) -> str:
    return textwrap.dedent(text).lstrip("\n")


# --- nothing woven ----------------------------------------------------------------------------


@functools.cache
def corpus(module: str) -> tuple[Body, ...]:
    """Every function of a module, methods and nested ones too."""
    path = importlib.import_module(module).__file__
    assert path is not None
    text = Path(path).read_text(encoding="utf-8")
    lines = text.splitlines()
    bodies = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and len(bodies) < FUNCTIONS:
            if (node.end_lineno or 0) - node.lineno > LINES:
                continue
            code = "\n".join(lines[node.lineno - 1 : node.end_lineno]) + "\n"
            dedented = textwrap.dedent(code)
            bodies.append(Body(FunctionText(dedented, node.lineno, node.col_offset, f"{module}.py")))
    return tuple(bodies)


@pytest.mark.parametrize("module", MODULES)
def test_weaving_nothing_changes_nothing(module: str) -> None:
    for body in corpus(module):
        assert woven(body) == body.text.text


@pytest.mark.parametrize("module", MODULES)
def test_tapped_code_is_python(module: str) -> None:
    for body in corpus(module):
        taps = {e.point for e in body.expressions}
        taps |= {point for s in body.statements.values() for _, point in s.names}
        code = woven(body, taps=taps, reach=True)
        ast.parse(code)
        assert code == woven(body, taps=taps, reach=True)


@pytest.mark.parametrize("module", MODULES)
def test_every_branch_can_be_guarded(module: str) -> None:
    for body in corpus(module):
        spans = [place(branch.span) for branch in body.branches]
        assert len(set(spans)) == len(spans)
        for branch in body.branches[:4]:
            code = woven(body, guards=(Guard(branch.span, branch.condition),))
            assert "NotImplementedError" in code
            ast.parse(code)
        for side in [each for each in body.expressions if each.side_of is not None][:4]:
            code = woven(body, guards=(Guard(side.span, side.text, True),))
            assert "unseen(" in code
            ast.parse(code)


@pytest.mark.parametrize("module", MODULES)
def test_every_assignment_can_be_synced(module: str) -> None:
    for body in corpus(module):
        syncs = [
            Sync("pmean", name, "after", s.span)
            for s in body.statements.values()
            for name, _ in s.names[:1]
            if s.kind == "assign"
        ]
        code = woven(body, *syncs)
        ast.parse(code)
        assert code.count("jax.lax.pmean(") - body.text.text.count("jax.lax.pmean(") == len(syncs)
        assert code == woven(body, *syncs)


class Recorder:
    def __init__(self) -> None:
        self.seen: dict[int, list[Any]] = {}
        self.reached: set[int] = set()

    def tap(self, point: int, value: Any) -> Any:
        self.seen.setdefault(point, []).append(value)
        return value

    def side(self, point: int, value: Any) -> Any:
        self.reached.add(point)
        return value

    def reach(self, branch: int) -> None:
        self.reached.add(branch)


def run(body: Body, arguments: Sequence[Any], scope: dict[str, Any], **options: Any) -> tuple[Any, Recorder]:
    """What the tapped function returns, and what its taps saw."""
    recorder = Recorder()
    scope = {**scope, RECORDER: recorder}
    taps = {e.point for e in body.expressions}
    taps |= {point for s in body.statements.values() for _, point in s.names}
    exec(woven(body, taps=taps, reach=True, **options), scope)
    return scope[body.scope.name](*arguments), recorder


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (base64.b32encode, (b"some bytes",)),
        (colorsys.rgb_to_hsv, (0.2, 0.4, 0.1)),
        (fnmatch.translate, ("a*[b-d]?.py",)),
        (statistics.quantiles, ([1.0, 2.0, 4.0, 8.0],)),
        (statistics.median, ([3, 1, 2],)),
        (string.capwords, ("two words",)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_tapped_code_does_the_same(function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    body = body_of(inspect.getsource(function))
    result, recorder = run(body, arguments, function.__globals__)
    assert result == function(*arguments)
    assert recorder.seen


# --- collectives ------------------------------------------------------------------------------


def test_comments_and_blank_lines_stay() -> None:
    body = body_of("""
        def step(w, x):
            # The loss of
            # this batch.
            loss = jnp.mean(x @ w)  # a scalar

            # Done.
            return loss  # to the caller
            # Nothing below.
    """)
    assert woven(body, after(body, "loss = jnp.mean(x @ w)", "loss")) == source("""
        def step(w, x):
            # The loss of
            # this batch.
            loss = jnp.mean(x @ w)  # a scalar
            loss = jax.lax.pmean(loss, axis_name=AXIS)

            # Done.
            return loss  # to the caller
            # Nothing below.
    """)


def test_layout_inside_a_wrapped_expression_stays() -> None:
    body = body_of("""
        def f(x):
            return g(
                # the mean
                jnp.mean( x ),  # of x
                axis=0,
            )
    """)
    assert woven(body, around(body, "jnp.mean( x )")) == source("""
        def f(x):
            return g(
                # the mean
                jax.lax.pmean(jnp.mean( x ), axis_name=AXIS),  # of x
                axis=0,
            )
    """)


def test_one_collective_for_names_of_one_kind() -> None:
    body = body_of("""
        def f(x):
            a, b, n = g(x)
            return a, b, n
    """)
    text = "a, b, n = g(x)"
    code = woven(body, after(body, text, "a"), after(body, text, "n", "psum"), after(body, text, "b"))
    assert "a, b = jax.lax.pmean((a, b), axis_name=AXIS)\n    n = jax.lax.psum(n, axis_name=AXIS)\n" in code


def test_statements_on_one_line_are_parted() -> None:
    body = body_of("""
        def f(x):
            # Moments.
            m = x.mean(0); v = ((x - m) ** 2).mean(0); s = 2  # both
            return m, v, s
    """)
    first = after(body, "m = x.mean(0)", "m")
    second = after(body, "v = ((x - m) ** 2).mean(0)", "v")
    assert woven(body, first) == source("""
        def f(x):
            # Moments.
            m = x.mean(0)
            m = jax.lax.pmean(m, axis_name=AXIS)
            v = ((x - m) ** 2).mean(0); s = 2  # both
            return m, v, s
    """)
    assert woven(body, second) == source("""
        def f(x):
            # Moments.
            m = x.mean(0); v = ((x - m) ** 2).mean(0)
            v = jax.lax.pmean(v, axis_name=AXIS)
            s = 2  # both
            return m, v, s
    """)


def test_a_return_behind_a_semicolon() -> None:
    body = body_of("""
        def f(x):
            y = x; return g(y);
    """)
    sync = after(body, "return g(y)", "result", paths=("[0]",), containers=(("", "tuple 2"),))
    assert woven(body, sync) == source("""
        def f(x):
            y = x; result = g(y)
            result = (jax.lax.pmean(result[0], axis_name=AXIS), result[1])
            return result
    """)


def test_one_line_suites() -> None:
    body = body_of("""
        def f(x):
            if g: y = x.mean(); z = y  # the mean
            else: y = x.sum()
            return y
    """)
    syncs = after(body, "y = x.mean()", "y"), after(body, "y = x.sum()", "y", "psum")
    assert woven(body, *syncs) == source("""
        def f(x):
            if g:
                y = x.mean()
                y = jax.lax.pmean(y, axis_name=AXIS)
                z = y  # the mean
            else:
                y = x.sum()
                y = jax.lax.psum(y, axis_name=AXIS)
            return y
    """)


def test_one_line_function() -> None:
    body = body_of("def f(x): return x.mean()\n")
    assert woven(body, around(body, "x.mean()")) == (
        "def f(x): return jax.lax.pmean(x.mean(), axis_name=AXIS)\n"
    )
    assert body.body_source(weave(body)) == "return x.mean()\n"


def test_nested_functions_decorators_and_lambdas() -> None:
    body = body_of("""
        def f(w, x):
            @jax.checkpoint  # saves memory
            def loss(w):
                out = jnp.mean(x @ w)
                return out

            g = jax.grad(lambda w: jnp.sum(x @ w))(w)
            return loss(w), g
    """)
    code = woven(body, after(body, "out = jnp.mean(x @ w)", "out"), around(body, "jnp.sum(x @ w)", "psum"))
    assert code == source("""
        def f(w, x):
            @jax.checkpoint  # saves memory
            def loss(w):
                out = jnp.mean(x @ w)
                out = jax.lax.pmean(out, axis_name=AXIS)
                return out

            g = jax.grad(lambda w: jax.lax.psum(jnp.sum(x @ w), axis_name=AXIS))(w)
            return loss(w), g
    """)


@pytest.mark.parametrize(
    ("line", "text", "expected"),
    [
        ("return(x.mean())", "(x.mean())", "return(pmean((x.mean())))"),
        ("return-x.mean()", "-x.mean()", "return(pmean(-x.mean()))"),
        ("return[x.mean()]", "[x.mean()]", "return(pmean([x.mean()]))"),
        ("return not( # why\n x)", "( # why\n x)", "return not(pmean(( # why\n x)))"),
        ("return not(x)(y)", "y", "return not(x)(pmean(y))"),
        ("return (x)if(y)else(x)", "(y)", "return (x)if(pmean((y)))else(x)"),
    ],
)
def test_words_and_calls_are_kept_apart(line: str, text: str, expected: str) -> None:
    body = body_of(f"def f(x, y):\n    {line}\n")
    code = woven(body, around(body, text))
    assert code.replace("jax.lax.", "").replace(", axis_name=AXIS", "") == f"def f(x, y):\n    {expected}\n"


def test_bare_tuples_become_one_argument() -> None:
    body = body_of("""
        def f(x):
            return x.mean(), x.sum()
    """)
    assert "return jax.lax.pmean((x.mean(), x.sum()), axis_name=AXIS)" in woven(
        body, around(body, "x.mean(), x.sum()")
    )
    assert "return jax.lax.pmean(x.mean(), axis_name=AXIS), x.sum()" in woven(body, around(body, "x.mean()"))


def test_values_of_a_dict() -> None:
    body = body_of("""
        def f(x):
            return {
                "loss": x.mean(),  # over the batch
                **more,
                "n": len(x),
            }
    """)
    code = woven(body, around(body, "x.mean()"), around(body, "len(x)", "psum"))
    assert code == source("""
        def f(x):
            return {
                "loss": jax.lax.pmean(x.mean(), axis_name=AXIS),  # over the batch
                **more,
                "n": jax.lax.psum(len(x), axis_name=AXIS),
            }
    """)


def test_the_names_of_jax_and_of_the_axis() -> None:
    body = body_of("""
        def f(jax):
            m = jax.mean()
            return m + jax.sum()
    """)
    syncs = after(body, "m = jax.mean()", "m"), around(body, "jax.sum()", "psum")
    assert woven(body, *syncs, words=Words(jax="jax_", axis="'data'")) == source("""
        def f(jax):
            m = jax.mean()
            m = jax_.lax.pmean(m, axis_name='data')
            return m + jax_.lax.psum(jax.sum(), axis_name='data')
    """)


def test_a_sync_finds_its_place_by_the_span_alone() -> None:
    text = "def f(x):\n    m = x.mean(); return m\n"
    first, second = body_of(text, 12, 4), body_of(text, 12, 4)
    sync = after(first, "m = x.mean()", "m")
    assert (sync.span.line, sync.span.column) == (13, 8)
    assert woven(first, sync) == woven(second, sync)
    assert inside_of(first, [sync]) == [sync]
    assert inside_of(body_of(text, 40), [sync]) == []


def test_keys_inside_objects_are_folded_around_the_body() -> None:
    """Behind the docstring, and with the user's lines one step further in where they are edited."""
    text = '''
        def f(model, x):
            """What it does."""
            # Why.
            y = model(
              x)
            note = """
        as it is
        """
            return y
        '''
    body = body_of(text)
    fold = Sync("fold_in", "model.dropout", "around", body.head)
    made = weave(body, [fold])
    code = body.body_source(made)
    assert code.startswith("with own_draws(model.dropout):\n    # Why.\n    y = model(\n      x)\n")
    assert code.endswith('note = """\nas it is\n"""\n    return y\n')
    parsed = parse(Source("f", Path("f.py"), "user.py", "f", Path(), "f", source(text)))
    lines = as_written(parsed, shifted(code, "    "), "    ")
    assert lines[:4] == [
        "    with own_draws(model.dropout):",
        *(" " * 8 + x for x in ("# Why.", "y = model(", "  x)")),
    ]
    assert lines[4:] == ['        note = """', "as it is", '"""', "        return y"]
    with pytest.raises(LookupError):
        weave(body, [dataclasses.replace(fold, span=body.scope.span)])


def test_what_a_statement_adds_to_objects_is_summed_up_around_it() -> None:
    """Comments stay where they stood, what follows stays behind the block, in a loop of the user's too."""
    text = """
        def f(model, metrics, x):
            for i in range(3):
                # Why.
                metrics.update(
                  values=x)  # all of them
                y = model(x); metrics.other.update(y)
            return metrics
        """
    body = body_of(text)
    first, second = (s for s in body.statements.values() if s.kind == "other" and "metrics" in s.reads)
    syncs = [
        Sync("psum", "metrics", ADDED, first.span, paths=(".loss", ".known")),
        Sync("psum", "metrics.other", ADDED, second.span),
    ]
    code = body.body_source(weave(body, syncs))
    assert code == (
        "for i in range(3):\n"
        "    # Why.\n"
        "    with summed(metrics.loss, metrics.known):\n"
        "        metrics.update(\n"
        "          values=x)  # all of them\n"
        "    y = model(x)\n"
        "    with summed(metrics.other):\n"
        "        metrics.other.update(y)\n"
        "return metrics\n"
    )
    parsed = parse(Source("f", Path("f.py"), "user.py", "f", Path(), "f", source(text)))
    assert as_written(parsed, shifted(code, "    "), "    ") == shifted(code, "    ")
    with pytest.raises(LookupError):
        weave(body, [dataclasses.replace(syncs[0], span=body.head)])


def test_a_sync_without_a_place_is_an_error() -> None:
    body = body_of("def f(x):\n    return x.mean()\n")
    with pytest.raises(LookupError, match=r"no place at .* for psum of y"):
        weave(body, [Sync("psum", "y", "wrap", Span("user.py", 2, 0, 2, 3))])
    moved = around(body, "x.mean()")
    with pytest.raises(LookupError):
        weave(body_of("def f(x):\n    return y.mean()\n"), [moved])


# --- containers -------------------------------------------------------------------------------


def collective(op: str, value: str) -> str:
    return f"{op}({value})"


def leaf(path: str, op: str, *containers: tuple[str, str]) -> Sync:
    return Sync(op, "r", "after", Span("user.py", 1, 0, 1, 1), paths=(path,), containers=containers)


@pytest.mark.parametrize(
    ("syncs", "expected"),
    [
        ([leaf("['n']", "psum", ("", "dict"))], "{**r, 'n': psum(r['n'])}"),
        ([leaf("[0]", "psum", ("", "tuple 1"))], "(psum(r[0]),)"),
        ([leaf("[1]", "psum", ("", "list 2"))], "[r[0], psum(r[1])]"),
        ([leaf(".a", "pmax", ("", "namedtuple"))], "r._replace(a=pmax(r.a))"),
        (
            [
                leaf("[0]['a'].b", "pmean", ("", "tuple 2"), ("[0]", "dict"), ("[0]['a']", "namedtuple")),
                leaf("[0]['c']", "psum", ("", "tuple 2"), ("[0]", "dict"), ("[0]['a']", "namedtuple")),
            ],
            "({**r[0], 'a': r[0]['a']._replace(b=pmean(r[0]['a'].b)), 'c': psum(r[0]['c'])}, r[1])",
        ),
        (
            [leaf("['a]']['b.c']", "psum", ("", "dict"), ("['a]']", "dict"))],
            "{**r, 'a]': {**r['a]'], 'b.c': psum(r['a]']['b.c'])}}",
        ),
        ([leaf("[3]", "psum", ("", "dict"))], "{**r, 3: psum(r[3])}"),
    ],
)
def test_containers_are_made_again(syncs: list[Sync], expected: str) -> None:
    assert rebuild("r", syncs, collective) == expected


# --- guards -----------------------------------------------------------------------------------


def conditions(body: Body) -> list[str]:
    return [branch.condition for branch in body.branches]


def test_the_code_after_an_early_return_is_a_branch() -> None:
    body = body_of("""
        def f(x):
            n = x.shape[0]
            if n > 10:
                return x.sum(0) / n  # many

            # Few.
            y = x.sum(0)

            return y
            # The end.
    """)
    assert conditions(body) == ["if n > 10", "code after `if n > 10`"]
    text = "code after `if n > 10` was not reached by the inputs this code was proved with"
    assert woven(body, guards=[guard(body, "code after `if n > 10`")]) == source(f"""
        def f(x):
            n = x.shape[0]
            if n > 10:
                return x.sum(0) / n  # many

            raise NotImplementedError('{text}')
            # The end.
    """)
    few = next(branch for branch in body.branches if branch.condition.startswith("code after"))
    recorded = woven(body, reach=True).replace("\n\n", "\n")
    assert f"\n    {RECORDER}.reach({few.index})\n    # Few.\n    y = x.sum(0)\n" in recorded


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("if a:\n    b = 1\nreturn b", ["if a", "the way past `if a`"]),
        ("if a:\n    raise E\nreturn b", ["if a", "code after `if a`"]),
        ("if a:\n    return 1\nraise E", ["if a", "code after `if a`"]),
        ("for i in a:\n    break\nreturn b", ["for i in a"]),
        (
            "for i in a:\n    if b:\n        break\n    c()\nreturn b",
            ["for i in a", "if b", "code after `if b`"],
        ),
        (
            "for i in a:\n    c()\nelse:\n    return 1\nreturn b",
            ["for i in a", "else", "code after `for i in a`"],
        ),
        ("while a:\n    return 1\nreturn b", ["while a", "code after `while a`"]),
        ("with a as b, c:\n    return 1\nreturn b", ["code after `with a as b, c`"]),
        ("def g():\n    return 1\nreturn g()", []),
        ("if a:\n    def g():\n        return 1\nreturn g()", ["if a", "the way past `if a`"]),
        (
            "if a: return 1\nif b: return 1\nreturn 2",
            ["if a", "code after `if a`", "if b", "code after `if b`"],
        ),
    ],
)
def test_what_leaves_a_suite(lines: str, expected: list[str]) -> None:
    found = conditions(body_of("def f(a, b):\n" + textwrap.indent(lines, "    ") + "\n"))
    assert found == expected


def test_harmless_branches() -> None:
    body = body_of("""
        def f(a):
            for i in a:
                if i: continue
                pass
            if not a:
                raise ValueError("empty")
            assert a
            raise TypeError
    """)
    assert {b.condition: b.harmless for b in body.branches} == {
        "for i in a": False,
        "if i": True,
        "code after `if i`": True,
        "if not a": True,
        "code after `if not a`": True,
    }


def test_heads_of_statements() -> None:
    body = body_of("""
        def f(a):
            match a.shape:
                case (1, n) | [n] if n > 2: b = 1
                case {"k": _}: b = 2
                case _: return 3
            if (a and
                    b): return 4
            try:
                return 5
            except* ValueError: pass
            return 6
    """)
    assert set(conditions(body)) == {
        "case (1, n) | [n] if n > 2",
        'case {"k": _}',
        "case _",
        "code after `match a.shape`",
        "if (a and b)",
        "code after `if (a and b)`",
        "except ValueError",
        "code after `try`",
    }


def test_guarded_suites_and_rests_lose_their_collectives() -> None:
    body = body_of("""
        def f(x, mask):
            if mask is not None:
                y = x.sum(); return y
            z = x.mean()
            def g():
                return z
            return g()
    """)
    syncs = after(body, "y = x.sum()", "y", "psum"), after(body, "z = x.mean()", "z")
    taken = woven(body, *syncs, guards=[guard(body, "code after `if mask is not None`")])
    assert "psum(y" in taken and "pmean" not in taken and "def g" not in taken
    other = woven(body, *syncs, guards=[guard(body, "if mask is not None")])
    assert "pmean(z" in other and "psum" not in other
    assert "'`if mask is not None` was not reached by the inputs this code was proved with'" in other
    both = woven(body, *syncs, guards=[Guard(b.span, b.condition) for b in body.branches])
    assert both.count("raise NotImplementedError") == 2


def test_rests_inside_rests() -> None:
    body = body_of("""
        def f(a, b):
            if a: return 1
            if b: return 2
            c = 3
            return c
    """)
    inner, outer = guard(body, "code after `if b`"), guard(body, "code after `if a`")
    kept = woven(body, guards=[inner])
    assert "if b: return 2\n    raise NotImplementedError" in kept and "c = 3" not in kept
    gone = woven(body, guards=[outer, inner])
    assert gone.count("raise") == 1 and "if b" not in gone.partition("raise")[0] and "c = 3" not in gone


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [((True, True), {"if a"}), ((False, True), {"code after `if a`", "if b"}), ((False, False), None)],
)
def test_what_is_reached_is_recorded(arguments: tuple[bool, bool], expected: set[str] | None) -> None:
    body = body_of("""
        def f(a, b):
            if a: return 1
            if b:
                return 2
            return 3
    """)
    _, recorder = run(body, arguments, {})
    reached = {b.condition for b in body.branches if b.index in recorder.reached}
    assert reached == ({"code after `if a`", "code after `if b`"} if expected is None else expected)


def test_a_guard_raises() -> None:
    body = body_of("def f(n):\n    if n > 10:\n        return n\n    return -n\n")
    scope: dict[str, Any] = {}
    exec(woven(body, guards=[guard(body, "code after `if n > 10`")]), scope)
    assert scope["f"](11) == 11
    with pytest.raises(NotImplementedError, match="code after `if n > 10` was not reached"):
        scope["f"](10)


# --- what may not be evaluated ----------------------------------------------------------------


def sides(body: Body) -> dict[str, str]:
    return {e.text: e.side_of for e in body.expressions if e.side_of is not None}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("y = x if a else b", {"x": "a", "b": "a"}),
        ("y = jnp.mean if a else jnp.sum", {"jnp.mean": "a", "jnp.sum": "a"}),
        ("y = (jnp.mean if a else jnp.sum)(x)", {"jnp.mean": "a", "jnp.sum": "a"}),
        ("y = eps if a else 1e-6", {"eps": "a"}),
        ("y = None if a else 'b'", {}),
        ("y = (lambda: x) if a else f'{x}'", {"(lambda: x)": "a"}),
        ("y = a or x.sum()", {"x.sum()": "a"}),
        ("y = a and b or x", {"b": "a", "x": "a and b"}),
        ("y = a or 1.0", {}),
        ("y = [f(x) for x in a]", {}),
        ("y = [f(x) for x in a if x.ndim]", {"f(x)": "x.ndim"}),
        ("y = {k: x for k, x in a if k if b}", {"b": "k", "k": "b", "x": "b"}),
        ("y = sum(f(v) for x in a if b for v in g(x))", {"g(x)": "b", "f(v)": "b"}),
        ("if a and x.ndim == 3: raise E", {}),
        ("assert a and x.ndim == 3", {}),
        ("if a and x.ndim == 3: x = b", {"x.ndim == 3": "a"}),
    ],
)
def test_sides(line: str, expected: dict[str, str]) -> None:
    assert sides(body_of(f"def f(x, a, b):\n    {line}\n")) == expected


def test_what_decides_the_way() -> None:
    body = body_of("""
        def f(x, a):
            y = [v for v in a if v.shape[0] > 2] or x.shape[1]
            match x.shape[2]:
                case n if n > x.shape[3]: pass
            while x.shape[4]: pass
            return x.shape[5]
    """)
    deciding = {e.text for e in body.expressions if e.in_test}
    assert {"v.shape[0]", "x.shape[2]", "x.shape[3]", "x.shape[4]"} <= deciding
    assert not {"x.shape[1]", "x.shape[5]"} & deciding


# --- taps -------------------------------------------------------------------------------------


def test_taps_see_values_in_order() -> None:
    body = body_of("""
        def f(x):
            y = x + 1; y = y * 2; a, b = y, [v * 2 for v in (y,) if v]
            return {"a": a, "b": b}
    """)
    result, recorder = run(body, (3,), {})
    assert result == {"a": 8, "b": [16]}
    first, second, third = (s for s in body.statements.values() if s.kind == "assign")
    assert recorder.seen[first.names[0][1]] == [4] and recorder.seen[second.names[0][1]] == [8]
    assert [recorder.seen[point] for _, point in third.names] == [[8], [[16]]]
    returned = next(s for s in body.statements.values() if s.kind == "return")
    assert returned.value is not None and recorder.seen[returned.value] == [result]


def test_chosen_taps_alone_are_placed() -> None:
    body = body_of("def f(x):\n    y = x.sum() + x.mean()\n    return y\n")
    point = expression(body, "x.mean()").point
    assert woven(body, taps=[point]) == (
        f"def f(x):\n    y = x.sum() + {RECORDER}.tap({point}, x.mean())\n    return y\n"
    )


def test_a_tap_sees_what_the_collective_made() -> None:
    body = body_of("def f(x):\n    m = x.mean()\n    return m\n")
    call, (_, name) = expression(body, "x.mean()"), statement(body, "m = x.mean()").names[0]
    code = woven(body, after(body, "m = x.mean()", "m"), taps=[call.point, name])
    order = (".mean())", f"before({name}, m)", "pmean(m", f"tap({name}, m)")
    assert [code.index(each) for each in order] == sorted(code.index(each) for each in order)
    code = woven(body, around(body, "x.mean()"), taps=[call.point])
    operand = f"{RECORDER}.before({call.point}, x.mean())"
    assert f"{RECORDER}.tap({call.point}, jax.lax.pmean({operand}, axis_name=AXIS))" in code


def test_functions_inside_are_tapped_where_they_stand() -> None:
    body = body_of("""
        def f(w, x):
            def loss(w):
                a = x * w
                return a

            z = 0; g = grad(loss)(w)
            return g + grad(lambda v: v * x)(w)
    """)
    inner, product = statement(body, "a = x * w").names[0][1], expression(body, "v * x").point
    recorder = Recorder()
    scope: dict[str, Any] = {"grad": lambda fn: lambda w: fn(w) + 100, RECORDER: recorder}
    exec(woven(body, taps=[inner, product]), scope)
    assert scope["f"](2, 3) == 212
    assert recorder.seen == {inner: [6], product: [6]}


def test_numbers_are_shared_between_bodies() -> None:
    first = body_of("def f(x):\n    return g(x)\n")
    second = Body(FunctionText("def g(x):\n    return x + 1\n", 9, 0, "user.py"), first.numbers)
    points = [e.point for body in (first, second) for e in body.expressions]
    assert len(set(points)) == len(points)
    assert not set(first.statements) & set(second.statements)
    renamed = weave(second).with_changes(name=name_node("h"))
    assert second.definition(renamed) == "def h(x):\n    return x + 1\n"


# --- spans and sources ------------------------------------------------------------------------


def test_places_are_those_of_the_file() -> None:
    body = body_of("def f(x):\n    return x.mean(  0)\n", line=20, indent=8)
    span = expression(body, "x.mean(  0)").span
    assert (span.file, *place(span)) == ("user.py", 21, 19, 21, 30)


def test_the_source_of_a_body() -> None:
    body = body_of('''
        def f(x):
            """Docstring."""; y = 1
            # Comment.
            return y
            # Footer.
    ''')
    assert body.body_source(weave(body)) == "y = 1\n# Comment.\nreturn y\n# Footer.\n"


def test_records_are_immutable() -> None:
    branch = Branch(0, 0, Span("user.py", 1, 0, 1, 1), "if a", False)
    with pytest.raises(AttributeError):
        branch.index = 1  # type: ignore[misc]


def test_a_copy_above_the_classes_of_its_file_names_none_of_them():
    text = "def f(self, x: Steps, /, y: int = 2, *a: A, z: Later = 3, **k: K) -> Steps:\n    return x\n"
    made = cst.Module([without_annotations(cst.parse_module(text).body[0])]).code
    assert made == "def f(self, x, /, y=2, *a, z=3, **k):\n    return x\n"


def test_what_is_written_for_a_reduction_stays_one_operand() -> None:
    text = "def f(x):\n    return -jnp.ptp(x) ** 2\n"
    body = Body(FunctionText(text, 1, 0, "user.py", called={"jnp.ptp": "jax.numpy.ptp"}))
    largest, smallest = (f"jax.lax.p{op}(jnp.{op}(x), axis_name=AXIS)" for op in ("max", "min"))
    assert f"return -({largest} - {smallest}) ** 2" in woven(body, around(body, "jnp.ptp(x)", "ptp"))


def test_a_body_knows_all_of_its_places() -> None:
    body = body_of("""
        def step(model, batch, rate=0.1):
            scale = rate if rate > 0 else 1.0

            def loss(w, *, x):
                y = [each * 2 for each in x]
                return sum(y) + w

            model.count.value += len(batch)
            for key, rows in batch.items():
                model[key] = scale * loss(model.w, x=rows)
                model.update(rows)
            if (n := len(batch)) > 3:
                assert n, "rows"
                del n
            return {"loss": scale, **batch}, lambda x: x + scale
    """)
    every = range(next(body.numbers))
    assert woven_source(body, taps=every) == woven(body, taps=every)
    assert woven_source(body, taps=every).count(RECORDER) > 20
    # What other bodies are tapped at changes nothing of it.
    assert woven_source(body, taps=range(500, 600)) == woven(body)
