"""The user's module and function, loaded under the names their own program would use."""

import contextlib
import importlib
import importlib.util
import inspect
import linecache
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax

from . import neighbours
from .exceptions import describe_exception, raising, summary
from .origins import file_of
from .protocol import Module, Problem

#: jax settings that decide the devices. The worker has settled them; a module that sets them
#: again at import would fail, because jax is already running. Without jit, a proof takes minutes.
SETTLED = frozenset({"jax_num_cpu_devices", "jax_platforms", "jax_platform_name", "jax_disable_jit"})

#: Texts that were run in place of those of files, by path: what was needed of them, and all of it.
_RUN: dict[str, str] = {}
_WHOLE: dict[str, str] = {}


def text_of(path: str) -> str | bytes:
    """The text of a module's file as it was run.

    Raises:
        OSError: it cannot be read.
    """
    for texts in (_RUN, _WHOLE):
        if path in texts:
            return texts[path]
    with open(path, "rb") as stream:
        return stream.read()


def keep_text(path: str, text: str) -> None:
    """Take `text` for that of a file: a program runs it, all of it, in that place."""
    _WHOLE[path] = text


def is_in_part(module: types.ModuleType) -> bool:
    """Whether it ran another text than its file has: what was needed of one that cannot be imported."""
    path = module.__file__ or ""
    return path in _RUN and not path.endswith(".ipynb")


def keep_devices() -> None:
    """Make `jax.config.update` ignore the settings that decide the devices."""
    update = jax.config.update

    def update_but_devices(name: str, value: Any) -> None:
        if name not in SETTLED:
            update(name, value)

    jax.config.update = update_but_devices


def taken(module: Module) -> bool:
    """Whether importing `module` by its name in the user's program gives that of another file."""
    head = module.name.partition(".")[0]
    if head in sys.stdlib_module_names:
        return True
    loaded = file_of(sys.modules.get(head))
    return bool(loaded) and loaded != module.path and not loaded.startswith(module.root + os.sep)


def import_file(made: Module, source: str | None = None, *, tolerant: bool = False) -> types.ModuleType:
    """Import a file as the module that it is, with its root last on ``sys.path``.

    Last, so that a neighbour called ``logging.py`` does not shadow the standard library. The
    module itself is loaded by path, so a package of the same name does not shadow it either, and one
    that has the name of such a package does not take its place.
    With `source`, that text is run in place of the file's own. With `tolerant`, modules of the user's that
    it imports are loaded as far as they can be.
    """
    path, name = made.path, made.name
    if made.root not in sys.path:
        sys.path.append(made.root)
    neighbours.install(made.root, tolerant=tolerant)
    if taken(made):
        name = private_name(name)
    package = name.rpartition(".")[0]
    forget = keep_flags(path)
    try:
        if package:
            neighbours.FINDER.package = package.partition(".")[0]
            importlib.import_module(package)
        if name in sys.modules and file_of(sys.modules[name]) == path and source is None:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None:
            # A notebook: its cells come as `source`.
            spec = importlib.util.spec_from_loader(name, None, origin=path)
        if spec is None or (spec.loader is None and source is None):
            raise Problem("import", f"`{path}` is not a Python file")
        module = importlib.util.module_from_spec(spec)
        module.__file__ = path
        sys.modules[name] = module
        if source is None:
            assert spec.loader is not None
            spec.loader.exec_module(module)
        else:
            is_notebook = path.endswith(".ipynb")
            if is_notebook:
                linecache.cache[path] = (len(source), None, source.splitlines(True), path)
            _RUN[path] = source
            with in_folder(os.path.dirname(path)) if is_notebook else contextlib.nullcontext():
                exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
        if package:
            setattr(sys.modules[package], name.rpartition(".")[2], module)
        return module
    except (MemoryError, Problem):
        raise
    except BaseException as error:
        sys.modules.pop(name, None)
        neighbours.forget_orphans()
        forget()
        raise Problem("import", summary(error), error=describe_exception(error)) from error


@contextlib.contextmanager
def in_folder(folder: str) -> Iterator[None]:
    """Work in `folder`, as the kernel of a notebook does, where `sys.path` may name others from there."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        sys.path[:] = [os.path.abspath(place) if place else place for place in sys.path]
        os.chdir(before)


def is_of(module: types.ModuleType, path: str) -> bool:
    """Whether a module is that of the file at `path`."""
    file = file_of(module)
    same = os.path.basename(file) == os.path.basename(path)
    return same and os.path.realpath(file) == os.path.realpath(path)


def import_program(made: Module) -> None:
    """Import the file of the program that ran under its own name too, with the classes of the program.

    Who calls the emitted file imports that file and has values of the classes that this makes. The values
    here are the program's, so its classes are put in their place. A file that cannot be imported beside the
    program is left to what imports it next.
    """
    program = sys.modules["__main__"]
    if not is_of(program, made.path):
        return
    with contextlib.suppress(Problem):
        module = import_file(made)
        for name, value in vars(program).items():
            if isinstance(value, type) and value.__module__ == "__main__" and name in vars(module):
                setattr(module, name, value)


def private_name(name: str) -> str:
    """What a file is loaded as whose own name means another module."""
    head, dot, rest = name.partition(".")
    return f"{head}_{dot}{rest}" if not rest else name


def keep_flags(path: str) -> Callable[[], None]:
    """Give absl's flags their defaults where the file at `path` names them; see `neighbours.keep_flags`."""
    try:
        with open(path, "rb") as stream:
            text = stream.read()
    except OSError:
        text = b""
    if "absl.flags" not in sys.modules and b"absl" not in text:
        return lambda: None
    return neighbours.keep_flags()


def define(source: str, filename: str, name: str, namespace: dict[str, Any]) -> Any:
    """Run `source`, which defines `name`, in `namespace`; tracebacks show its lines.

    Raises:
        Problem: ``"import"``, its defaults, annotations or decorators fail.
    """
    show_lines(source, filename)
    with raising("import"):
        exec(compile(source, filename, "exec", dont_inherit=True), namespace)
    return namespace[name]


def show_lines(source: str, filename: str) -> None:
    """Have tracebacks show `source` for `filename`, unless that file holds it anyway."""
    if not filename.endswith(".ipynb") and source.strip() not in "".join(linecache.getlines(filename)):
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)


def resolve(reference: str, directory: str, file: Module | None) -> Any:
    """The object ``FILE::name`` or ``module:name`` stands for.

    Args:
        reference: what the user typed.
        directory: folder that modules are looked up in.
        file: of the form ``FILE::name``, the file.

    Raises:
        Problem: ``"inputs"``, there is no such thing; ``"import"``, its file cannot be imported.
    """
    if file is not None:
        if not os.path.isfile(file.path):
            raise Problem("inputs", f"there is no file `{reference.partition('::')[0]}`")
        name = reference.partition("::")[2]
        module = import_file(file)
    else:
        dotted, _, name = reference.partition(":")
        if not dotted or not name:
            raise Problem("inputs", "it is neither FILE::callable nor module:callable")
        if directory not in sys.path:
            sys.path.append(directory)
        with raising("import"):
            module = importlib.import_module(dotted)
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            known = tuple(n for n, v in vars(module).items() if inspect.isfunction(v))
            raise Problem("inputs", f"there is no `{part}` in it", known=known)
        value = getattr(value, part)
    return value


def check_made(made: Any) -> None:
    """Refuse what an input function returns when it forgot to return, or to be called in full."""
    kinds = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, str, bytes)
    if made is None or isinstance(made, kinds):
        what = "None" if made is None else f"a {type(made).__name__}"
        raise Problem("inputs", f"it returns {what}, which is no tuple of arguments")
