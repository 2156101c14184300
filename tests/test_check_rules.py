"""The rules of `check`, held to their examples and to the snippets in `check_rules/`."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import jax_pmap
from jax_pmap import diagnostics
from jax_pmap.checking.findings import apply_edits
from jax_pmap.checking.module import Module
from jax_pmap.checking.static import ABOUT, check_text, rules

#: Codes of the rules, each of which has the name of its file.
RULES = [find.__module__.rpartition(".")[2].upper() for find in rules()]


def snippets_of(code, kind):
    """Those that a rule must find one thing in, ``"INVALID"``, or that none may say anything of."""
    entry = diagnostics.find(code)
    first = entry.example if kind == "INVALID" else entry.fixed
    return (first, *getattr(importlib.import_module(f"check_rules.{code.lower()}"), kind))


def snippets(kind):
    return [
        pytest.param(code, text, id=f"{code}-{number}")
        for code in RULES
        for number, text in enumerate(snippets_of(code, kind), 1)
    ]


@pytest.mark.parametrize(("code", "text"), snippets("VALID"))
def test_valid_snippets_are_left_alone(code, text):
    """Not one rule, the snippet's own or another, has anything to say."""
    assert check_text(text, "snippet.py") == []


@pytest.mark.parametrize(("code", "text"), snippets("INVALID"))
def test_invalid_snippets_are_found_once(code, text):
    (found,) = check_text(text, "snippet.py")
    assert found.code == code
    assert ABOUT.search(text.encode()), "the file would not even be read"
    line = text.splitlines()[found.span.line - 1]
    assert line[found.span.column :].strip()
    assert found.hint
    assert "`" in found.message
    assert not found.message.endswith(".")


def test_what_to_write_for_a_key_fits_the_map():
    text = "import jax\n\n\n@jax.pmap\ndef f(k, x):\n    return x + jax.random.normal(k, x.shape)\n\n\n"
    text += "def run(key, x):\n    return f(jax.numpy.stack([key] * 8), x)\n"
    (found,) = check_text(text, "snippet.py")
    assert (found.code, found.hint.startswith('Give the map an axis to name, `axis_name="batch"`.')) == (
        "JP106",
        True,
    )
    named = text.replace("@jax.pmap", '@functools.partial(jax.pmap, axis_name="i")').replace(
        "import jax", "import jax, functools"
    )
    assert check_text(named, "snippet.py")[0].hint.startswith("Make it differ: `k = jax.random.fold_in(k, ")


FIXABLE = [each for each in snippets("INVALID") if check_text(each.values[1], "snippet.py")[0].fixable]


@pytest.mark.parametrize(("code", "text"), FIXABLE)
def test_a_fix_leaves_nothing_to_be_found(code, text):
    found = check_text(text, "snippet.py")
    mended, count = apply_edits(text, found)
    assert count == 1
    ast.parse(mended)
    assert check_text(mended, "snippet.py") == []


@pytest.mark.parametrize(("code", "text"), snippets("INVALID"))
def test_a_comment_switches_a_rule_off(code, text):
    (found,) = check_text(text, "snippet.py")
    lines = text.splitlines()
    number = found.span.line - 1
    for comment, silent in [
        (f"# jax-pmap: ignore[{code}]", True),
        (f"# jax-pmap: ignore[JP199, {code.lower()}]", True),
        ("# jax-pmap: ignore", True),
        ("# jax-pmap: ignore[JP199]", False),
    ]:
        written = [*lines[:number], f"{lines[number]}  {comment}", *lines[number + 1 :]]
        assert (check_text("\n".join(written), "snippet.py") == []) is silent, comment
    assert check_text(f"# jax-pmap: ignore-file[{code}]\n{text}", "snippet.py") == []


def test_rules_are_diagnostics():
    folder = Path(jax_pmap.__file__).parent / "checking" / "rules"
    assert sorted(path.stem.upper() for path in folder.glob("jp*.py")) == RULES
    for code in RULES:
        assert diagnostics.exit_code(code) == 1
        assert len(snippets_of(code, "VALID")) + len(snippets_of(code, "INVALID")) >= 3


@pytest.mark.parametrize(
    "alias",
    [
        "import jax\npmap = jax.pmap",
        "from jax import pmap",
        "import jax as j\npmap = j.pmap",
        "import functools\nimport jax\npmap = functools.partial(jax.pmap)",
        "try:\n    from jax import pmap\nexcept ImportError:\n    from jax.api import pmap",
    ],
)
def test_aliases_are_seen_through(alias):
    text = f"{alias}\nimport jax.lax as L\nAXIS = 'a'\nf = pmap(lambda x: L.psum(x, 'b'), axis_name=AXIS)\n"
    assert [finding.code for finding in check_text(text, "snippet.py")] == ["JP102"]


@pytest.mark.parametrize(
    "prelude",
    [
        "from mine import pmap",
        "def pmap(f, axis_name):\n    return f",
        "import jax\npmap = jax.pmap\nif input():\n    pmap = None",
        "import jax\nfor pmap in (jax.pmap, jax.vmap):\n    pass",
    ],
)
def test_what_may_be_something_else_is_left_alone(prelude):
    text = f"{prelude}\nimport jax.lax as L\nf = pmap(lambda x: L.psum(x, 'b'), axis_name='a')\n"
    assert check_text(text, "snippet.py") == []


def test_places_count_characters_not_bytes():
    text = "import jax\nf = ('äöü', jax.pmap(lambda x: x, out_axes=-1))\n"
    (found,) = check_text(text, "snippet.py")
    assert text.splitlines()[1][found.span.column : found.span.end_column] == "-1"


def test_a_file_that_does_not_parse_is_said():
    (found,) = check_text("import jax\njax.pmap(\n", "snippet.py")
    assert (found.code, found.span.line) == ("JP005", 2)


def test_every_node_has_a_scope_and_parents_up_to_the_module():
    text = (
        """
import jax
@jax.pmap
def f(a: int, /, b: "str" = 1, *c: jax.Array, d: float = 2.0, **e: dict) -> int:
    match a:
        case [x, *rest] | {"k": x, **rest}:
            return (lambda y=x: y)()
        case jax.Array(shape=s) as whole if (n := s):
            return [n for n in whole]
    async def g[T](z: T) -> T: ...
    type A = int
    class B[U](dict, metaclass=type): v: U = 1
""".replace("g[T]", "g")
        .replace("B[U]", "B")
        .replace("    type A = int\n", "")
    )
    module = Module(text, "snippet.py", ast.parse(text))
    for node in module.nodes:
        if isinstance(node, ast.expr | ast.stmt):
            assert node in module.scopes, ast.dump(node)
            assert list(module.ancestors(node))[-1] is module.tree


def test_a_file_that_is_nested_too_deeply_is_said():
    """Of a depth that Python itself still reads."""
    (found,) = check_text("import jax\npmap = jax.pmap\nx = " + "1 + " * 3000 + "1\n", "snippet.py")
    assert (found.code, "nested too deeply" in found.message) == ("JP005", True)


def test_fixes_keep_line_endings_and_make_an_import_once():
    text = "import jax\r\n\r\nf = jax.pmap(axis_name='a')\r\ng = jax.pmap(axis_name='b')\r\n"
    mended, count = apply_edits(text, check_text(text, "snippet.py"))
    assert count == 2
    assert mended == (
        "import functools\r\nimport jax\r\n\r\n"
        "f = functools.partial(jax.pmap, axis_name='a')\r\n"
        "g = functools.partial(jax.pmap, axis_name='b')\r\n"
    )


def test_the_table_of_removals_holds_of_the_installed_jax():
    """In a process of its own: it imports every module that jax ever had for this, deprecated ones too."""
    script = Path(__file__).with_name("removals_hold.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("imports", "mended"),
    [
        ("from functools import partial\nimport jax\n", "partial(jax.pmap, axis_name='a')"),
        ("import functools as ft\nimport jax\n", "ft.partial(jax.pmap, axis_name='a')"),
        ("import jax\nimport functools\n", "functools.partial(jax.pmap, axis_name='a')"),
    ],
)
def test_a_fix_adds_no_import_that_is_there_under_another_name(imports, mended):
    text = f"{imports}f = jax.pmap(axis_name='a')\n"
    assert apply_edits(text, check_text(text, "snippet.py"))[0] == f"{imports}f = {mended}\n"


@pytest.mark.parametrize(
    "imports",
    ["import functools\nfunctools = None\nimport jax\n", "if input():\n    import functools\nimport jax\n"],
)
def test_a_fix_trusts_no_import_that_may_not_hold(imports):
    text = f"{imports}f = jax.pmap(axis_name='a')\n"
    mended, _ = apply_edits(text, check_text(text, "snippet.py"))
    assert mended.startswith("import functools\n")
    assert mended.count("import functools") == 2


def test_a_fix_writes_a_new_name_as_the_module_can():
    text = "import jax as j\nimport jax.numpy as jnp\nf = j.pmap(lambda x: j.tree_map(jnp.sin, x))\n"
    assert "j.tree.map(jnp.sin, x)" in apply_edits(text, check_text(text, "snippet.py"))[0]


def test_a_function_that_is_handed_on_may_be_called_with_anything():
    """The one call that is seen, on one device, says nothing of the axis that `pmap` runs it with."""
    text = """\
import functools

import jax


def step(x, axis):
    return jax.lax.pmean(x, axis) if axis else x


mapped = jax.pmap(functools.partial(step, axis="i"), axis_name="i")
alone = step(1.0, None)
"""
    assert check_text(text, "snippet.py") == []


def test_a_mapped_function_that_never_ends_is_given_up():
    """Each level calls the one below twice: what is read is bounded, whatever it would take to run."""
    levels = [f"def f{n}(x):\n    return f{n + 1}(x) + f{n + 1}(x)\n" for n in range(24)]
    text = "import jax\n\n" + "\n".join(levels) + "\n\ndef f24(x):\n    return x\n\n\nmapped = jax.pmap(f0)\n"
    assert check_text(text, "snippet.py") == []
    loop = (
        "import jax\n\n\ndef f(x):\n    return f(x - 1) if x else jax.grad(f)(x)\n\n\nmapped = jax.pmap(f)\n"
    )
    assert check_text(loop, "snippet.py") == []
