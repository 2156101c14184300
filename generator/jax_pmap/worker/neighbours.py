"""The user's own modules: which file an import means, and loading one that fails in parts.

An import that a file of the user's writes means their neighbouring file first, as when they run a script;
an import that a library writes never does, so a neighbour called ``types.py`` or ``jax.py`` shadows nothing.
"""

import ast
import functools
import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .origins import INSTALLED
from .scopes import bound_names

_HERE = os.path.dirname(os.path.abspath(__file__))


class MissingError(Exception):
    """Something was used that could not be loaded."""


class Missing:
    """Stands for a name whose statement failed while a module of the user's was loaded.

    While modules load, attributes of it can be named, as annotations do. Every other use raises.
    """

    def __init__(self, name: str, why: str) -> None:
        self.__dict__.update(name=name, why=why)

    def __getattr__(self, attribute: str) -> Any:
        """A stand-in of the attribute, while modules load."""
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(attribute)
        if FINDER.loading:
            return Missing(f"{self.__dict__['name']}.{attribute}", self.__dict__["why"])
        return self._fail()

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise MissingError(f"`{self.__dict__['name']}` is needed, and {self.__dict__['why']}")

    __call__ = __getitem__ = __iter__ = __len__ = __contains__ = __bool__ = __enter__ = __exit__ = _fail
    __setattr__ = __setitem__ = __delattr__ = __delitem__ = __int__ = __float__ = __index__ = _fail
    __mro_entries__ = __array__ = __jax_array__ = __eq__ = __ne__ = __hash__ = _fail
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _fail
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _fail
    __and__ = __rand__ = __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __pos__ = __abs__ = __invert__ = _fail

    def __or__(self, other: Any) -> Any:
        """Itself, for the annotation `tf.Tensor | None`."""
        return self if FINDER.loading else self._fail()

    __ror__ = __or__


class Finder(importlib.abc.MetaPathFinder):
    """Finds what the user's files import beside them, and loads their modules."""

    def __init__(self) -> None:
        self.roots: list[str] = []
        self.tolerant = False
        self.loading = 0
        #: The package of the target, while we import it ourselves.
        self.package = ""
        #: (module, line, why) of each statement that failed and was passed over.
        self.failed: list[tuple[str, int, str]] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A file of the user's, for an import of theirs; anything else is left to Python."""
        importer = next(user_frames(), None)
        ours = importer is None and name == self.package
        if path is None and not ours and not (importer and self.is_users(importer.f_code.co_filename)):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, self.roots if path is None else path, target)
        if spec is None or not spec.origin or not self.is_users(spec.origin):
            return None
        if path is None and importer is not None and spec.origin == importer.f_code.co_filename:
            return None
        strict = not self.tolerant or in_try()
        if not strict and type(spec.loader) is importlib.machinery.SourceFileLoader:
            spec.loader = _InParts(name, spec.origin)
        return spec

    def is_users(self, path: str) -> bool:
        """Whether a file lies below a folder of the user's and is not installed."""
        return any(
            path.startswith(root + os.sep) and not INSTALLED.search(path[len(root) :]) for root in self.roots
        )


FINDER = Finder()


def user_frames() -> Iterator[types.FrameType]:
    """The frames of the running program, innermost first, less Python's import machinery and ours."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(("<frozen", _HERE)) and f"{os.sep}importlib{os.sep}" not in file:
            yield frame
        frame = frame.f_back  # type: ignore[assignment]


def install(root: str, *, tolerant: bool) -> None:
    """Have imports of files below `root` find each other; `tolerant`: load what of them can be loaded."""
    if FINDER not in sys.meta_path:
        sys.meta_path.insert(0, FINDER)
    if root not in FINDER.roots:
        FINDER.roots.append(root)
    FINDER.tolerant = tolerant
    FINDER.failed.clear()


def forget_orphans() -> None:
    """Forget namespace packages of a package that failed to import: each looks for that in `sys.modules`."""
    for name, module in sorted(sys.modules.items()):  # a parent before what is in it
        parent = name.rpartition(".")[0]
        path = getattr(module, "__path__", None)
        if parent and parent not in sys.modules and path is not None and not isinstance(path, list):
            del sys.modules[name]


def in_try() -> bool:
    """Whether the program itself says what to do when the import under way fails."""
    for frame in user_frames():
        if not FINDER.is_users(frame.f_code.co_filename):
            continue
        if any(first <= frame.f_lineno <= last for first, last in try_lines(frame.f_code.co_filename)):
            return True
    return False


@functools.cache
def try_lines(file: str) -> tuple[tuple[int, int], ...]:
    """(first, last) line of each ``try`` body in a file."""
    try:
        with open(file, "rb") as stream:
            tree = ast.parse(stream.read())
    except (OSError, SyntaxError, ValueError):
        return ()
    return tuple(
        (node.body[0].lineno, node.body[-1].end_lineno or 0)
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
    )


class _InParts(importlib.machinery.SourceFileLoader):
    """Runs a module, and goes on behind a statement that fails, with stand-ins for its names."""

    def exec_module(self, module: types.ModuleType) -> None:
        path = str(self.path)
        tree = ast.parse(self.get_data(path))
        compared = {
            inner.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Compare) and any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops)
            for inner in ast.walk(node)
            if isinstance(inner, ast.Name)
        }
        future = [s for s in tree.body if isinstance(s, ast.ImportFrom) and s.module == "__future__"]
        body = tree.body
        FINDER.loading += 1
        try:
            while body:
                part = ast.Module([*future, *(s for s in body if s not in future)], [])
                try:
                    exec(compile(part, path, "exec", dont_inherit=True), module.__dict__)
                    return
                except MemoryError:
                    raise
                except BaseException as error:
                    line = top_line(error, path)
                    failed = next((s for s in body if s.lineno <= line <= (s.end_lineno or 0)), None)
                    names = bound_names([failed]) if failed is not None else set()
                    # `x is None` is the one use of a stand-in that could not be seen.
                    if failed is None or names & compared or "*" in names:
                        raise
                    why = f"{os.path.basename(path)} line {line} failed: {type(error).__name__}: {error}"
                    FINDER.failed.append((module.__name__, line, f"{type(error).__name__}: {error}"))
                    for name in names:
                        module.__dict__[name] = Missing(name, why)
                    body = body[body.index(failed) + 1 :]
        finally:
            FINDER.loading -= 1


def top_line(error: BaseException, path: str) -> int:
    """The line of the module at `path` that was running at its top level."""
    trace, line = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path and trace.tb_frame.f_code.co_name == "<module>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def is_missing(value: Any) -> bool:
    """Whether a value is a stand-in; ``isinstance`` on its type alone, as its operators raise."""
    return type(value) is Missing


def keep_flags() -> Callable[[], None]:
    """Have absl's flags give their defaults, and a way to forget those that a failed import defined."""
    try:
        from absl import flags
    except Exception:
        return lambda: None
    before = set(flags.FLAGS)
    flags.FLAGS.mark_as_parsed()

    def forget() -> None:
        for name in set(flags.FLAGS) - before:
            delattr(flags.FLAGS, name)

    return forget
