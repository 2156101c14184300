"""Snippets of pages and docstrings: found, run on simulated devices, compared."""

import sys
import textwrap

import pytest
from project import Project

from jax_pmap.checking.pages import blocks_of

# --- finding blocks -----------------------------------------------------------------------


def markdown(text):
    return blocks_of(textwrap.dedent(text).lstrip("\n"), ".md")


def test_markdown_without_python_has_no_blocks():
    text = """
        # Title

        Some `inline` code, and

            an indented block

        ```console
        $ ls
        ```

        ```
        nothing said
        ```
    """
    assert markdown(text) == ([], [])


def test_fences():
    text = """
        ```python
        a
        ```
        ~~~py title="x.py"
        b
        ```
        c
        ~~~
        - a list

          ```{.python .numberLines}
          d
          ```
        > ```Python
        > e
        >   f
        > ```
        ````pycon
        >>> g
        ````
        ```python
        never closed
    """
    blocks, bad = markdown(text)
    assert bad == []
    codes = ["a\n", "b\n```\nc\n", "d\n", "e\n  f\n", ">>> g\n", "never closed\n"]
    assert [block.code for block in blocks][:5] == codes[:5]
    assert blocks[5].code.startswith("never closed")
    assert [block.line for block in blocks] == [2, 5, 12, 15, 19, 22]
    assert [block.kind for block in blocks] == ["python"] * 4 + ["doctest", "python"]
    assert blocks[2].indent == 2


def test_markers():
    text = """
        <!-- jax-pmap: skip -->

        ```python
        a
        ```
        <!-- jax-pmap: devices=4 expect-error TypeError -->
        ```python
        b
        ```
        <!-- jax-pmap: expect-error -->

        A paragraph between: the marker is not for the block below.

        ```python
        # helper.py
        c
        ```
        <!-- jax-pmap: output -->
        ```text
        1
        ```
        <!-- jax-pmap: file=other.py -->
        <!-- another comment -->
        ```python
        d
        ```
    """
    (a, b, c, d), bad = markdown(text)
    assert bad == []
    assert a.skip and a.expect_error is None
    assert (b.devices, b.expect_error, b.skip) == (4, "TypeError", False)
    assert (c.expect_error, c.name, c.output) == (None, "helper.py", "1\n")
    assert d.name == "other.py"


@pytest.mark.parametrize(
    "marker", ["devises=4", "devices=0", "devices=x", "skip it", "file=../x.py", "file="]
)
def test_bad_markers(marker):
    (block,), (bad,) = markdown(f"<!-- jax-pmap: {marker} -->\n```python\na\n```\n")
    assert bad.text == marker
    assert (block.skip, block.devices) == (False, None)


def test_restructuredtext():
    text = textwrap.dedent(
        """
        .. code-block:: python
           :linenos:

           a

           b

        Text.

        .. jax-pmap: skip

        .. code:: python

           c

        >>> d
        1

        .. testcode::

           e

        .. testoutput::

           2

        .. code-block:: console

           $ f
        """
    )
    blocks, _ = blocks_of(text, ".rst")
    assert [block.code for block in blocks] == ["a\n\nb\n", "c\n", ">>> d\n1\n", "e\n"]
    assert [block.skip for block in blocks] == [False, True, False, False]
    assert (blocks[3].output, blocks[0].line) == ("2\n", 5)


def test_docstrings():
    text = 'X = """>>> no"""\n\n\ndef f():\n    """Sum.\n\n    >>> f()\n    1\n    """\n'
    (block,), _ = blocks_of(text, ".py")
    assert block.kind == "doctest"
    assert text.splitlines()[block.line - 1 + 2].strip() == ">>> f()"


# --- running them -------------------------------------------------------------------------


def check(pages, *words):
    return pages.run("check", *words)


@pytest.fixture
def pages(project: Project) -> Project:
    project.write("pyproject.toml", '[project]\nname = "example"\n')
    return project


def test_right_pages(pages):
    """One namespace for a page, eight devices, modules of the project, named files, outputs, errors."""
    pages.write("mine.py", "def double(x):\n    return 2 * x\n")
    pages.write(
        "docs/page.md",
        """
        ```python
        # local.py
        OFFSET = 1
        ```
        ```python
        import jax
        import jax.numpy as jnp

        from local import OFFSET
        from mine import double

        print(jax.local_device_count())  # Output: 8
        ```
        ```python
        x = jnp.arange(16.0).reshape(8, 2)
        y = jax.pmap(double)(x)
        print(y.shape, OFFSET)
        ```
        ```output
        (8, 2) 1
        ```
        <!-- jax-pmap: expect-error TypeError -->
        ```python
        jax.pmap(axis_name="i")
        ```
        <!-- jax-pmap: devices=2 -->
        ```python
        import jax
        ```
        ```pycon
        >>> jax.device_count()
        2
        >>> jax.pmap(axis_name="i")
        Traceback (most recent call last):
            ...
        TypeError: anything
        ```
        <!-- jax-pmap: skip -->
        ```python
        import a_package_nobody_has
        ```
        """,
    )
    result = check(pages)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.files == {".jax-pmap-cache/.gitignore", ".jax-pmap-cache/check.json"}
    again = check(pages)
    assert (again.exit_code, again.files) == (0, set())
    assert again.workers == 0
    pages.write("mine.py", "def double(x):\n    raise ValueError('changed')\n")
    result = check(pages)
    assert result.exit_code == 1
    assert "docs/page.md:16:1: JP160 this block fails: ValueError: changed" in result.stdout


#: A page with the mistakes that the first texts about this tool had, in other words.
FAULTY = """
# Averages on several devices

```python
@jax.pmap(axis_name="rows")
def average(v):
    return jax.lax.pmean(jnp.mean(v), axis_name="rows")
```

```python
@jax.pmap(axis_name="rows")
def update(weights, rows):
    value, slope = jax.value_and_grad(squared_error)(weights, rows)
    return jax.lax.pmean(slope, axis_name="rows"), value
```

```python
count = jax.device_count()
rows = jnp.ones((count * 3, 2)).reshape((count, 3, 2))
doubled = jax.pmap(lambda r: 2 * r)(rows)
print(doubled.shape)  # Output: (4, 3, 2), one part per device
```

```python
from jax.experimental.maps import Mesh
```

```python
jax.pmap(lambda r: r)(jnp.ones((9, 2)))
follows = undefined + 1
later = follows + 1
```
"""


def test_a_faulty_page(pages):
    pages.write("page.md", FAULTY)
    result = check(pages)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    found = [tuple(line.split()[:2]) for line in lines if line.startswith("page.md:")]
    assert [(place.split(":")[1], code) for place, code in found] == [
        ("4", "JP160"),
        ("4", "JP101"),
        ("10", "JP101"),
        ("12", "JP160"),
        ("18", "JP160"),
        ("18", "JP113"),
        ("20", "JP161"),
        ("24", "JP107"),
        ("28", "JP160"),
        ("29", "JP160"),
    ], result.stdout
    for cure in (
        'functools.partial(jax.pmap, axis_name="rows")',
        "Put `import jax` into this block",
        "Put `import jax.numpy as jnp` into this block",
        "`squared_error` is used in a function and defined nowhere on this page",
        "jax.local_device_count()",
        "Use `jax.sharding.Mesh`",
        "<!-- jax-pmap: devices=4 -->",
        "Define `undefined`",
    ):
        assert cure in result.stdout, cure
    assert "(8, 3, 2)" in result.stdout
    json = check(pages, "--output-format", "json", "--select", "JP161")
    assert json.exit_code == 1


def test_outputs_and_errors_that_are_not_as_shown(pages):
    pages.write(
        "page.rst",
        """
        .. code-block:: python

           import jax
           f = jax.pmap(lambda x: x)
           print("one")

        .. testoutput::

           two

        .. jax-pmap: expect-error

        .. code-block:: python

           1 + 1

        .. jax-pmap: expect-error KeyError

        .. code-block:: python

           1 / 0

        >>> 1 + 1
        3

        .. jax-pmap: nonsense

        .. code-block:: python

           this does not parse
        """,
    )
    pages.write(
        "mod.py",
        '''
        """A module about parallel code.

        >>> double(2)
        5
        """
        import jax


        def double(x):
            """Double.

            >>> double(1)
            2
            """
            return 2 * x


        p = jax.pmap(double)
        ''',
    )
    result = check(pages)
    lines = [line.split(" ", 2) for line in result.stdout.splitlines() if line.startswith(("page", "mod"))]
    assert [(place, code) for place, code, _ in lines] == [
        ("mod.py:3:1:", "JP161"),
        ("page.rst:9:1:", "JP161"),
        ("page.rst:15:1:", "JP162"),
        ("page.rst:21:1:", "JP162"),
        ("page.rst:23:1:", "JP161"),
        ("page.rst:30:1:", "JP160"),
        ("page.rst:30:1:", "JP160"),
    ], result.stdout


def test_modules_named_like_those_of_python(pages):
    """A package is imported from the folder that it is in: its `types` is not Python's."""
    for name in ("__init__", "types", "numbers"):
        pages.write(f"net/{name}.py", "")
    text = '"""A step.\n\n    >>> import net.step, types\n    >>> len(dir(types)) > 20\n    True\n"""\n'
    pages.write("net/step.py", text + "import jax\n\np = jax.pmap(abs)\n")
    result = check(pages)
    assert result.exit_code == 0, result.stdout


def test_pages_that_are_not_run(pages):
    """Pages about other things, unless they are named; and none with --no-run."""
    pages.write("other.md", "```python\nraise SystemExit(3)\ndef step(x): return inner(x)\n```\n")
    pages.write("about.md", "```python\nimport jax\njax.pmap(axis_name=1)\n1 / 0\n```\n")
    result = check(pages, "--no-run")
    assert [line.split()[1] for line in result.stdout.splitlines() if "md:" in line] == ["JP101"]
    assert "JP160" not in check(pages, "about.md", "--ignore", "JP16").stdout
    pages.write("note.txt", "```python\nimport jax\njax.pmap(axis_name=1)\n```\n")
    assert "note.txt:3:1: JP101" in check(pages, "note.txt", "--no-run").stdout
    result = check(pages, "other.md")
    assert "other.md:2:1: JP160 this block fails: SystemExit: 3" in result.stdout


def test_a_page_that_does_not_end(pages):
    pages.write("page.md", "```python\nimport jax\njax.pmap\nwhile True:\n    pass\n```\n")
    result = check(pages, "--timeout", "4")
    assert result.exit_code == 1
    assert "did not end within 4 s" in result.stdout


def test_a_page_without_jax(pages):
    pages.write("page.md", "```python\nimport jax\njax.pmap\n```\n")
    pages.options = ["--python", "/usr/bin/env"]
    result = check(pages)
    assert result.exit_code in (1, 2)
    assert sys.executable not in result.stdout
