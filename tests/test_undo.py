"""Taking a change in place back: what was woven goes, what the user wrote stays."""

import re
import textwrap

import pytest

from jax_pmap.emit.mark import marks
from jax_pmap.emit.undo import is_same, taken_back

MARK = """\
# Parallel by jax-pmap 0.1.0: `p_step` runs on every device, `step` as before. By:
#   jax-pmap gen train.py::step --in-place
# Source: train.py::step sha256:0123456789abcdef
# Proved: 2, 3, 4, 8 devices
# Instead of: @jax.jit
# With: `AXIS`, `shard`, `own_share`, `gather_joined`, `unseen`, `modes`, `unproved`, `p_loss`
"""
FILE = """\
import jax

AXIS = "batch"


def shard(x):
    return x


def unseen(code):
    raise NotImplementedError(code)


def gather_joined(x, count, rows, axis=0):
    return x


def own_share(x):
    return x


def modes(x):
    return x


def unproved(expected, found):
    return ValueError(expected)


def loss(w, x):
    return w  # mine


# `loss` on one device's share, for `step`.
def p_loss(w, x):
    return jax.lax.psum(w, axis_name=AXIS)  # mine


{mark}# A comment of mine.
@functools.partial(jax.pmap, axis_name=AXIS, in_axes=(None, 0), out_axes=None)
@mine
def p_step(w, x):
    \"\"\"`step` on one device's share.\"\"\"
{body}


def step(w, x):  # typed
    \"\"\"A step.\"\"\"
    return p_step(w, shard(x))


step(1, 2)
"""
BACK = """\
import jax


def loss(w, x):
    return w  # mine


@jax.jit
@mine
# A comment of mine.
def step(w, x):  # typed
    \"\"\"A step.\"\"\"
{body}


step(1, 2)
"""


def indented(body):
    return textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")


@pytest.mark.parametrize(
    ("woven", "plain"),
    [
        ("return p_loss(w, x)", "return loss(w, x)"),
        ("return jax.lax.pmean(w + 1, axis_name=AXIS)", "return w + 1"),
        ("return 2 * jax.lax.psum(w + 1, axis_name=AXIS)", "return 2 * (w + 1)"),
        ("a = own_share(w, axis=1) @ x\nreturn a", "a = w @ x\nreturn a"),
        ("a = gather_joined(w + x, 2, x.shape[0])\nreturn a", "a = w + x\nreturn a"),
        ('a = 2 * (x if x else unseen("w + 1"))\nreturn a', "a = 2 * (x if x else w + 1)\nreturn a"),
        (
            "y = f(x)\ny, w = jax.lax.pmean((y, w), axis_name=AXIS)\n# kept\nreturn y",
            "y = f(x)\n# kept\nreturn y",
        ),
        (
            "m = {**m, 'n': jax.lax.psum(m['n'], axis_name=AXIS)}\nreturn m",
            "return m",
        ),
        ("s = s._replace(n=jax.lax.psum(s.n, axis_name=AXIS))\nreturn s", "return s"),
        ("t = (jax.lax.psum(t[0], axis_name=AXIS), t[1])\nreturn t", "return t"),
        (
            "if w:\n    result = f(w)\n    result = jax.lax.pmax(result, axis_name=AXIS)\n    return result\n"
            "return x",
            "if w:\n    return f(w)\nreturn x",
        ),
        (
            "k = jax.random.fold_in(k, jax.lax.axis_index(AXIS))\n"
            "return draw(jax.random.fold_in(k, jax.lax.axis_index(AXIS)))",
            "return draw(k)",
        ),
        ("return draw(jax.random.fold_in(k, ~jax.lax.axis_index(AXIS)))", "return draw(k)"),
        (
            "return f((lambda d: {**d, 'a': jax.random.fold_in(d['a'], jax.lax.axis_index(AXIS))})(g(x)))",
            "return f(g(x))",
        ),
        ("return (lambda m: {**m, 'a': m['a']})(g(x))",) * 2,
        ("g = jax.lax.all_gather(x, axis_name=AXIS, axis=0, tiled=True).T\nreturn g", "g = x.T\nreturn g"),
        ("# Once.\nif w.ndim != 0:\n    raise unproved('`w.ndim` must be 0', w.ndim)\nreturn w", "return w"),
        ("# Once.\nif modes(w) != {'a=True'}:\n    raise ValueError('no')\nreturn w", "return w"),
        ("if flags(w) != {'a=True'}:\n    return x\nreturn w",) * 2,
        # Those of the user's own stay, and so does what only looks alike.
        (
            "y = jax.lax.psum(y, axis_name='batch')\nreturn y",
            "y = jax.lax.psum(y, axis_name='batch')\nreturn y",
        ),
        ("y = y\nresult = y\nreturn result", "y = y\nresult = y\nreturn result"),
        ("x = jax.random.fold_in(x, 3)\nreturn x", "x = jax.random.fold_in(x, 3)\nreturn x"),
    ],
)
def test_what_was_woven_goes_and_the_rest_stays(woven, plain):
    text = FILE.format(mark=MARK, body=indented(woven))
    (mark,) = marks(text)
    assert (mark.line, mark.command) == (39, "jax-pmap gen train.py::step --in-place")
    assert taken_back(text, mark) == BACK.format(body=indented(plain))


#: Lines in the body that belong to what the drop-in does: helpers, body, drop-in, and what was there.
AROUND = [
    (  # Constants beside the arrays, by the helpers of emitted code.
        "partition combine",
        "w = combine(w, w_static)\nif x is None:\n    return x\nreturn partition(f(w))[0], x",
        "w, w_static = partition(w)\nw, x = p_step(w, x, w_static)\nreturn combine(w, w_static), x",
        "if x is None:\n    return x\nreturn f(w), x",
    ),
    (  # By those of Equinox, beside a filter of the user's own that is no result.
        "",
        "w = eqx.combine(w, w_static)\ns = init(eqx.filter(w, eqx.is_array))\n"
        "return {'w': eqx.filter(w, eqx.is_array), 's': s}",
        "w, w_static = eqx.partition(w, eqx.is_array)\nresult = p_step(w, x, w_static)\n"
        "result['w'] = eqx.combine(result['w'], w_static)\nreturn result",
        "s = init(eqx.filter(w, eqx.is_array))\nreturn {'w': w, 's': s}",
    ),
    (  # A static argument in something that can be hashed.
        "Constant",
        "w = w.value\nreturn x * w.value",
        "w = Constant(w)\nreturn p_step(w, x)",
        "return x * w.value",
    ),
    (  # Objects changed in place, by a function without a result and by one with several.
        "",
        "def loss(w):\n    return w, x\n\nw.update(loss(w))\nreturn w, x",
        "changed = p_step(w, x)\nnnx.update((w, x), nnx.state(changed))",
        "def loss(w):\n    return w, x\n\nw.update(loss(w))",
    ),
    (
        "own_draws",
        "with own_draws(w):\n    # kept\n    a = f(w)\n    if x:\n        return (a, x), w\n    return a, w",
        "result, changed = p_step(w, x)\nnnx.update(w, nnx.state(changed))\nreturn result",
        "# kept\na = f(w)\nif x:\n    return a, x\nreturn a",
    ),
    (  # What is added to objects, and a block of the user's own.
        "summed",
        "with timed(w):\n    # kept\n    with summed(w.a, w.b):\n        w.update(x)\n    x.set(w)\nreturn x",
        "return p_step(w, x)",
        "with timed(w):\n    # kept\n    w.update(x)\n    x.set(w)\nreturn x",
    ),
]


@pytest.mark.parametrize(("helpers", "woven", "drop_in", "plain"), AROUND)
def test_what_the_call_needs_goes_too(helpers, woven, drop_in, plain):
    text = FILE.format(
        mark=MARK.replace("`own_share`", ", ".join(["`own_share`", *map("`{}`".format, helpers.split())])),
        body=indented(woven),
    )
    text = text.replace("    return p_step(w, shard(x))", indented(drop_in))
    if "_static" in woven:
        text = text.replace("def p_step(w, x):", "def p_step(w, x, w_static):")
    for name in helpers.split():
        kind = "class {}:\n    pass" if name[0].isupper() else "def {}(tree):\n    return tree"
        text = text.replace("def own_share", kind.format(name) + "\n\n\ndef own_share")
    (mark,) = marks(text)
    assert is_same(taken_back(text, mark), BACK.format(body=indented(plain)))


def test_a_mark_whose_definitions_are_gone():
    text = FILE.format(mark=MARK, body="    return w")
    (mark,) = marks(text)
    for name in ("def p_step", "def own_share", "AXIS = "):
        assert (
            taken_back(text.replace(name, name.replace("p_step", "q").replace("own", "our").lower()), mark)
            is None
        )
    # Comments of other tools, and of versions that say less, are left alone.
    assert list(marks("# Parallel by jax-pmap, as somebody wrote\n")) == []
    (old,) = marks(re.sub(r"# With: .*\n", "", text))
    assert old.added is None


def test_a_mark_in_a_string_is_none():
    """A test or a page that shows what a change looks like was not changed."""
    there = FILE.format(mark=MARK, body="    return 1")
    assert [mark.line for mark in marks(f"{MARK}def step(w, x): ...\n")] == [1]
    assert not list(marks(f'shown = """\\\n{there}"""\n'))


def test_layout_is_no_difference():
    text = FILE.format(mark=MARK, body="    return f(w, 'a')")
    formatted = text.replace("f(w, 'a')", 'f(\n        w,\n        "a",\n    )  # so').replace(
        "import jax\n", "import functools\n\nimport jax\n"
    )
    assert is_same(text, formatted, "step")
    assert is_same(text, text.replace("shard(x):\n    return x\n", "shard(x): return x"), "step")
    assert not is_same(text, text.replace("return w  # mine", "return -w"), "step")
