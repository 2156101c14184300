"""The user's module and function, loaded under the names their own program would use."""

import importlib
import importlib.util
import inspect
import linecache
import os
import sys
import types
from typing import Any

import jax

from .server import Problem, describe_exception, text_of

#: jax settings that decide the devices. The worker has settled them; a module that sets them
#: again at import would fail, because jax is already running.
DEVICE_SETTINGS = frozenset({"jax_num_cpu_devices", "jax_platforms", "jax_platform_name"})


def keep_devices() -> None:
    """Make `jax.config.update` ignore the settings that decide the devices."""
    update = jax.config.update

    def update_but_devices(name: str, value: Any) -> None:
        if name not in DEVICE_SETTINGS:
            update(name, value)

    jax.config.update = update_but_devices


def import_file(path: str, name: str, root: str, source: str | None = None) -> types.ModuleType:
    """Import the file at `path` as module `name`, with `root` last on ``sys.path``.

    Last, so that a neighbour called ``logging.py`` does not shadow the standard library. The
    module itself is loaded by path, so a package of the same name does not shadow it either.
    With `source`, that text is run in place of the file's own.
    """
    if root not in sys.path:
        sys.path.append(root)
    package = name.rpartition(".")[0]
    try:
        if package:
            importlib.import_module(package)
        if name in sys.modules and getattr(sys.modules[name], "__file__", None) == path and source is None:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise Problem("import", f"`{path}` is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        if source is None:
            spec.loader.exec_module(module)
        else:
            exec(compile(source, path, "exec"), module.__dict__)
        if package:
            setattr(sys.modules[package], name.rpartition(".")[2], module)
        return module
    except Problem:
        raise
    except MemoryError:
        raise
    except BaseException as error:
        sys.modules.pop(name, None)
        raise Problem(
            "import", f"{type(error).__name__}: {text_of(error)}", error=describe_exception(error)
        ) from error


def define(source: str, filename: str, name: str, namespace: dict[str, Any]) -> Any:
    """Run `source`, which defines `name`, in `namespace`; tracebacks show its lines."""
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    exec(compile(source, filename, "exec", dont_inherit=True), namespace)
    return namespace[name]


def resolve(reference: str, directory: str) -> Any:
    """The object ``FILE::name`` or ``module:name`` stands for."""
    if "::" in reference:
        file, _, name = reference.partition("::")
        path = os.path.abspath(os.path.join(directory, file))
        if not os.path.isfile(path):
            raise Problem("inputs", f"there is no file `{file}`")
        module = import_file(path, os.path.splitext(os.path.basename(path))[0], os.path.dirname(path))
    elif ":" in reference:
        dotted, _, name = reference.partition(":")
        if directory not in sys.path:
            sys.path.append(directory)
        try:
            module = importlib.import_module(dotted)
        except BaseException as error:
            raise Problem(
                "import", f"{type(error).__name__}: {text_of(error)}", error=describe_exception(error)
            ) from error
    else:
        raise Problem("inputs", f"`{reference}` is neither FILE::callable nor module:callable")
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            known: list[str] = [n for n, v in vars(module).items() if inspect.isfunction(v)]
            raise Problem("inputs", f"`{reference}`: there is no `{part}` in it", known=known)
        value = getattr(value, part)
    return value
