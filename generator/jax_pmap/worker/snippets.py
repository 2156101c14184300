"""Run the blocks of one page: ``python snippets.py REQUEST``, a JSON file; the answer goes beside it.

A block runs statement by statement in the namespace of the page, so that one mistake does not hide the next.
What only fails because an earlier statement failed is not told again.
"""

import ast
import builtins
import contextlib
import doctest
import importlib
import importlib.util
import io
import json
import linecache
import os
import re
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

#: ``print(x)  # Output: (4, 5)``
SHOWN = re.compile(r"#\s*(?:Output|Prints|Printed|Result)\s*:\s*(\S.*)$", re.IGNORECASE)
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL

Block = dict[str, Any]


class Page:
    """One page: its namespace, what went wrong so far, and the names that are missing for it."""

    def __init__(self, path: str, lines: list[str], known: dict[str, str]) -> None:
        self.path = path
        #: Names that pages use without importing them, and how they are imported.
        self.known = known
        self.namespace: dict[str, Any] = {"__name__": "__main__", "__file__": path, "__builtins__": builtins}
        self.found: list[dict[str, Any]] = []
        self.broken: set[str] = set()
        self.flags = 0
        self.lines = lines
        linecache.cache[path] = (1, None, [line + "\n" for line in lines], path)

    def tell(self, what: str, line: int, end: int, **more: Any) -> None:
        """Note something that is wrong at lines of the page."""
        self.found.append({"what": what, "line": line, "end_line": end, **more})

    def run(self, block: Block) -> str:
        """Run a Python block; returns what it printed."""
        try:
            tree = ast.parse(block["code"])
        except SyntaxError as error:
            if block["expect_error"] is None:
                line = block["line"] + (error.lineno or 1) - 1
                self.tell("error", line, line, type="SyntaxError", message=error.msg, name="", trace=[])
            return ""
        ast.increment_lineno(tree, block["line"] - 1)
        printed = []
        for statement in tree.body:
            output, raised = self.step(statement, block["expect_error"] is not None)
            printed.append(output)
            if raised is not None and block["expect_error"] is not None:
                self.judge(block, raised)
                return "".join(printed)
            if raised is None:
                self.compare_comment(statement, output)
        if block["expect_error"] is not None:
            self.tell("no-error", block["line"], block["line"], want=block["expect_error"])
        return "".join(printed)

    def judge(self, block: Block, error: BaseException) -> None:
        """Hold an error that was announced to the name it was announced under."""
        names = [kind.__name__ for kind in type(error).__mro__]
        if block["expect_error"] and block["expect_error"] not in names:
            got = f"{type(error).__name__}: {first_line(error)}"
            self.tell("other-error", block["line"], block["line"], want=block["expect_error"], got=got)

    def step(self, statement: ast.stmt, expected: bool) -> tuple[str, BaseException | None]:
        """Run one statement; what it printed, and the error it raised."""

        def compiled() -> types.CodeType:
            code: types.CodeType = compile(
                ast.Module([statement], []), self.path, "exec", flags=self.flags, dont_inherit=True
            )
            self.flags |= code.co_flags & FUTURE
            return code

        for _ in range(len(self.known) + 1):
            output, error = self.executed(compiled)
            if error is None or expected:
                return output, error
            if not self.import_known(statement, error):
                self.note(statement, error)
                return output, error
        return "", None

    def executed(self, compiled: Callable[[], types.CodeType]) -> tuple[str, BaseException | None]:
        """Compile and run code; what it printed, and the error that this raised."""
        output = io.StringIO()
        try:
            code = compiled()
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
                exec(code, self.namespace)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return output.getvalue(), error
        return output.getvalue(), None

    def import_known(self, statement: ast.stmt, error: BaseException) -> bool:
        """Import what everybody imports and the page forgot, and say so."""
        name = error.name if isinstance(error, NameError) else None
        if not name or name not in self.known or name in self.namespace or name in self.broken:
            return False
        try:
            exec(self.known[name], self.namespace)
        except ImportError:
            return False
        line = self.line_of(error, statement)
        self.tell("import", line, line, name=name, statement=self.known[name])
        return True

    def note(self, statement: ast.stmt, error: BaseException) -> None:
        """Report an error, unless it only follows from an earlier one."""
        name = error.name if isinstance(error, NameError) else None
        follows = name in self.broken
        self.broken |= stored(statement)
        if follows:
            return
        self.tell(
            "error",
            first_lineno(statement),
            statement.end_lineno or statement.lineno,
            type=type(error).__name__,
            message=first_line(error),
            name=name or (error.name if isinstance(error, ImportError) else "") or "",
            trace=self.trace(error),
            at=self.line_of(error, statement),
        )

    def line_of(self, error: BaseException, statement: ast.stmt) -> int:
        """The deepest line of the page in the traceback of `error`."""
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == self.path]
        return (frames[-1].lineno if frames else None) or statement.lineno

    def trace(self, error: BaseException) -> list[str]:
        """The frames of the page, as a traceback has them."""
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == self.path]
        return traceback.format_list(frames)

    def compare_comment(self, statement: ast.stmt, output: str) -> None:
        """Hold ``print(x)  # Output: …`` to what was printed."""
        if not isinstance(statement, ast.Expr) or not output.strip() or statement.end_lineno is None:
            return
        line = self.lines[statement.end_lineno - 1]
        shown = SHOWN.search(line[statement.end_col_offset or 0 :])
        if shown is None:
            return
        want, got = " ".join(shown[1].split()), " ".join(output.split())
        if not want.startswith(got):
            self.tell("output", statement.end_lineno, statement.end_lineno, want=shown[1], got=output)

    def doctest(self, block: Block) -> None:
        """Run ``>>>`` examples and compare what they print."""
        try:
            examples = doctest.DocTestParser().get_examples(block["code"])
        except ValueError as error:
            self.tell(
                "error",
                block["line"],
                block["line"],
                type="ValueError",
                message=str(error),
                name="",
                trace=[],
            )
            return
        checker = doctest.OutputChecker()
        for example in examples:
            line = block["line"] + example.lineno
            end = line + example.source.count("\n") - 1
            options = OPTIONS
            for option, on in example.options.items():
                options = options | option if on else options & ~option
            if options & doctest.SKIP:
                continue
            output, raised = self.example(example.source, line)
            if raised is not None:
                expected = example.exc_msg is not None or block["expect_error"] is not None
                if expected:
                    want = (example.exc_msg or "").partition(":")[0].rpartition(".")[2].strip()
                    if want and want != type(raised).__name__:
                        got = f"{type(raised).__name__}: {first_line(raised)}"
                        self.tell("other-error", line, end, want=want, got=got)
                    continue
                names = {"name": getattr(raised, "name", "") or ""}
                kind = type(raised).__name__
                self.tell(
                    "error", line, end, type=kind, message=first_line(raised), trace=[], at=line, **names
                )
            elif example.exc_msg is not None:
                self.tell("no-error", line, end, want=example.exc_msg.partition(":")[0])
            elif not checker.check_output(example.want, output, options) and (example.want or output):
                self.tell("output", line, end, want=example.want, got=output)

    def example(self, source: str, line: int) -> tuple[str, BaseException | None]:
        """One example: what it printed, the value of an expression included."""
        text = "\n" * (line - 1) + source
        return self.executed(lambda: compile(text, self.path, "single", self.flags, True))


#: Flags of `from __future__` imports, which hold for the blocks that follow.
FUTURE = 0x1FF0000


def first_lineno(statement: ast.stmt) -> int:
    """The first line of a statement, its decorators included."""
    decorators = getattr(statement, "decorator_list", [])
    lines: list[int] = [statement.lineno, *(decorator.lineno for decorator in decorators)]
    return min(lines)


def stored(statement: ast.stmt) -> set[str]:
    """The names a statement would have bound."""
    names = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        names |= {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    return names


def first_line(error: BaseException) -> str:
    """The first line of a message that says something."""
    try:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    except Exception:
        lines = []
    text = lines[0] if lines else "no message"
    return text.encode("utf-8", "backslashreplace").decode()[:300]


def import_module(path: str) -> dict[str, Any]:
    """The names of the Python file at `path`, for the examples of its docstrings."""
    folder, names = os.path.dirname(path), [os.path.splitext(os.path.basename(path))[0]]
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, last = os.path.split(folder)
        names.insert(0, last)
    if names[-1] == "__init__" and len(names) > 1:
        names.pop()
    sys.path.insert(0, folder)
    return dict(vars(importlib.import_module(".".join(names))))


def main() -> None:
    """Read the request, run its blocks, write what was found."""
    asked = sys.argv[1]
    with open(asked, encoding="utf-8") as stream:
        request = json.load(stream)
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [*request["sys_path"], *(e for e in sys.path if os.path.abspath(e or ".") != here)]
    sys.argv[:] = [request["path"]]
    answer: dict[str, Any] = {}
    try:
        importlib.import_module("jax")
    except ImportError as error:
        answer["no_jax"] = str(error)
    page = Page(request["path"], request["lines"], request["known"])
    if "no_jax" not in answer:
        if request["module"]:
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    page.namespace = import_module(request["path"])
            except BaseException as error:
                answer["no_module"] = f"{type(error).__name__}: {first_line(error)}"
                request["blocks"] = []
        for block in request["blocks"]:
            if block["name"]:
                with open(block["name"], "w", encoding="utf-8") as stream:
                    stream.write(block["code"])
                importlib.invalidate_caches()
            if block["kind"] == "doctest":
                page.doctest(block)
                continue
            before = len(page.found)
            output = page.run(block)
            if block["output"] is not None and len(page.found) == before:
                want = block["output"]
                checker = doctest.OutputChecker()
                if not checker.check_output(want, output, OPTIONS):
                    page.tell("output", block["output_line"], block["output_line"], want=want, got=output)
    answer["found"] = page.found
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    answer["files"] = sorted({file for file in files if isinstance(file, str) and file.endswith(".py")})
    with open(asked + ".answer", "w", encoding="utf-8") as stream:
        json.dump(answer, stream)
    # Threads and exit handlers of the page must not keep the process.
    os._exit(0)


if __name__ == "__main__":
    main()
