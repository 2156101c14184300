"""Run the user's program up to its first call of the target, and keep that call."""

import ast
import builtins
import contextlib
import functools
import importlib
import importlib.machinery
import importlib.util
import linecache
import os
import re
import runpy
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import jax
import numpy as np

from . import load, prove
from .server import Answer, Problem, describe_exception, summary

#: Names the transformed definition calls; no class mangles them, no program has them.
INNER, OUTER = "__jax_pmap_inner__", "__jax_pmap_outer__"
#: Functions that compile their first argument, by the module that defines them. At these the arguments of
#: a call are still concrete.
COMPILERS = {"equinox._jit": "filter_jit", "flax.nnx.transforms.compilation": "jit"}
#: Folders of code that is not the user's.
INSTALLED = re.compile(r"[/\\](?:site-packages|dist-packages|lib[/\\]python3\.\d+)[/\\]")
#: Methods of a compiled function that trace it with the arguments they are given.
TRACING = frozenset({"lower", "trace"})
#: Calls under tracing that are let pass before giving up on a concrete one.
PATIENCE = 20
#: Seconds the program has to end by itself once the call is kept, and between reminders after that.
GRACE, AGAIN = 5.0, 1.0
#: What interrupts the main thread, whatever it waits for.
INTERRUPT = signal.SIGRTMIN + 8 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR1


#: Leaves that a kept call must have in another form.
OURS = (jax.core.Tracer, np.ndarray)


class Stop(BaseException):
    """Ends the program once the call is kept; not an Exception, so that few programs catch it."""


class Traced(Exception):
    """An argument is a tracer that stands for no one value."""


class Call:
    """The target as the program called it: the function object, what it closes over, the arguments."""

    def __init__(
        self,
        raw: types.FunctionType,
        called: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        owner: str | None,
        caller: str,
    ) -> None:
        #: The function as written, less its decorators.
        self.raw = raw
        #: What the program called: `raw` in its decorators.
        self.called = called
        self.args, self.kwargs = concrete(tuple(args)), concrete(dict(kwargs))
        #: Name of the class whose body the function is defined in.
        self.owner = owner
        #: ``FILE:LINE`` of the call.
        self.caller = caller
        self.closure = {name: concrete(value) for name, value in closure_of(raw).items()}
        self.x64 = bool(jax.config.jax_enable_x64)

    @property
    def module(self) -> types.ModuleType:
        """The module the function was defined in."""
        name = self.raw.__globals__.get("__name__", "")
        module = sys.modules.get(name)
        if module is None or vars(module) is not self.raw.__globals__:
            module = types.ModuleType(name)
            vars(module).update(self.raw.__globals__)
        return module

    def namespace(self) -> dict[str, Any]:
        """Globals of the function, with the variables of the functions around it."""
        return {**self.raw.__globals__, **self.closure}

    def define(self, source: str, filename: str, name: str, namespace: dict[str, Any]) -> Any:
        """Run `source`, which defines another version of the function, where that was defined.

        Defaults are those of the function, annotations are left out: both may use names that nothing but
        the place of the definition has.
        """
        load.show_lines(source, filename)
        tree = ast.parse(source)
        (index,) = (i for i, node in enumerate(tree.body) if getattr(node, "name", "") == name)
        node = tree.body[index]
        assert isinstance(node, ast.FunctionDef)
        strip(node)
        holder = self.owner or name
        if self.owner:  # Python mangles `__names` by the class they stand in.
            tree.body[index] = ast.copy_location(class_around(self.owner, node), node)
        hidden = {holder: namespace[holder]} if holder in namespace else {}
        exec(compile(tree, filename, "exec", dont_inherit=True), namespace)
        made = namespace.pop(holder)
        namespace.update(hidden)
        if self.owner:
            (made,) = (each for each in vars(made).values() if isinstance(each, types.FunctionType))
        made.__defaults__, made.__kwdefaults__ = self.raw.__defaults__, self.raw.__kwdefaults__
        for variable, cell in zip(made.__code__.co_freevars, made.__closure__ or (), strict=True):
            if variable in self.closure:  # `__class__`, for `super()`
                cell.cell_contents = self.closure[variable]
        return made

    def define_edited(self, source: str, filename: str, name: str, owner: str) -> Callable[..., Any]:
        """Run what an edit adds to the file, where the function was defined; the drop-in `name`.

        What is new beside a method is put into the class of the running program.
        """
        load.show_lines(source, filename)
        namespace, tree = self.namespace(), ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                strip(node, defaults=node.name == name)
        real = namespace.get(owner) if owner else None
        exec(compile(tree, filename, "exec", dont_inherit=True), namespace)
        found = namespace
        if owner:
            found = dict(vars(namespace[owner]))
            if real is None:
                real = self.class_called(owner)
            namespace[owner] = real
            for each, value in found.items():
                if each != name and not (each.startswith("__") and each.endswith("__")):
                    type.__setattr__(real, each, value)
        made = getattr(found[name], "__func__", found[name])
        for value in found.values():
            function = function_under(value)
            if function is None or function.__globals__ is not namespace:
                continue
            for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
                if variable in self.closure:  # `__class__`, for `super()`
                    cell.cell_contents = self.closure[variable]
        drop_in = function_under(made)
        assert drop_in is not None
        drop_in.__defaults__, drop_in.__kwdefaults__ = self.raw.__defaults__, self.raw.__kwdefaults__
        return made  # type: ignore[no-any-return]

    def class_called(self, name: str) -> type:
        """The class `name` of the object that the method was called on."""
        receiver = self.args[0] if self.args else None
        own = receiver if isinstance(receiver, type) else type(receiver)
        return next((each for each in own.__mro__ if each.__name__ == name), own)


def strip(node: ast.FunctionDef, *, defaults: bool = True) -> None:
    """Take annotations off a definition, and put None for its `defaults`."""
    node.returns = None
    rest = [each for each in (node.args.vararg, node.args.kwarg) if each is not None]
    for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, *rest):
        argument.annotation = None
    if not defaults:
        return
    none = functools.partial(ast.Constant, value=None, lineno=node.lineno, col_offset=node.col_offset)
    node.args.defaults = [none() for _ in node.args.defaults]
    node.args.kw_defaults = [None if each is None else none() for each in node.args.kw_defaults]


def class_around(name: str, node: ast.stmt) -> ast.ClassDef:
    """``class name:`` with `node` as its body."""
    (made,) = ast.parse(f"class {name}: pass").body
    assert isinstance(made, ast.ClassDef)
    made.body = [node]
    return made


def closure_of(fn: types.FunctionType) -> dict[str, Any]:
    """Variables of the functions around `fn`: its own, then those of the functions among them."""
    found: dict[str, Any] = {}
    pending, seen = [fn], set()
    while pending:
        function = pending.pop(0)
        seen.add(id(function))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # assigned later, or deleted
                continue
            found.setdefault(name, value)
            inner = function_under(value)
            if inner is not None and id(inner) not in seen and inner.__globals__ is fn.__globals__:
                pending.append(inner)
    return found


def function_under(value: Any) -> types.FunctionType | None:
    """The plain function that bound methods, partials and wrappers stand for, or None."""
    for _ in range(64):
        if isinstance(value, types.FunctionType) and "__wrapped__" not in vars(value):
            return value
        if isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, types.MethodType):
            value = value.__func__
        elif callable(value) and hasattr(value, "__wrapped__"):
            value = value.__wrapped__
        else:
            return None
    return None


def concrete(value: Any) -> Any:
    """`value` with numbers in place of the tracers of a gradient, and with arrays of its own.

    Raises:
        Traced: a tracer that stands for no one value.
    """

    def leaf(each: Any) -> Any:
        while isinstance(each, jax.core.Tracer) and hasattr(each, "primal"):
            each = each.primal
        if isinstance(each, jax.core.Tracer):
            raise Traced(type(each).__name__)
        # Loaders fill the same buffer again.
        return each.copy() if isinstance(each, np.ndarray) else each

    try:
        leaves = jax.tree.leaves(value)
    except (TypeError, ValueError):  # A dict whose keys cannot be sorted; whoever takes it apart says so.
        return value
    # What holds neither stays the same object.
    return jax.tree.map(leaf, value) if any(isinstance(each, OURS) for each in leaves) else value


class Watch:
    """Meets the calls of the target while the program runs."""

    def __init__(self, place: Mapping[str, Any], sources: Mapping[str, str], patient: bool) -> None:
        self.path: str = place["path"]
        self.place = place
        self.sources = sources
        self.names = {os.path.basename(each) for each in (self.path, *sources)}
        #: Whether calls under tracing are let pass.
        self.patient = patient
        self.pid = os.getpid()
        self.call: Call | None = None
        #: Types of the tracers that calls came with.
        self.traced: list[str] = []
        self.loaded = self.defined = self.running = False
        self.pending = threading.local()
        #: What stands for the target: its decorated forms, and what compilers made of them.
        self.forms: dict[int, Any] = {}
        self.over = threading.Event()

    # --- the definition -------------------------------------------------------------------

    def code(self, path: str) -> types.CodeType:
        """Code of a file of the program, with the target's definition handing itself to us."""
        text: str | bytes = self.sources[path] if path in self.sources else read(path)
        if path in self.sources:
            lines = self.sources[path].splitlines(True)
            linecache.cache[path] = (len(self.sources[path]), None, lines, path)
        tree: Any = compile(text, path, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
        if path == self.path:
            self.loaded = True
            tree = Marker(self.place).visit(tree)
        code: types.CodeType = compile(tree, path, "exec", 0, dont_inherit=True)
        return code

    def concerns(self, path: Any) -> bool:
        """Whether a file is one that we compile."""
        if not isinstance(path, str) or os.path.basename(path) not in self.names:
            return False
        return os.path.realpath(path) in (self.path, *self.sources)

    def inner(self, fn: Any) -> Any:
        """Innermost decorator of the target: keep the function as written."""
        if self.running:
            vars(self.pending).setdefault("functions", []).append(fn)
        return fn

    def outer(self, made: Any) -> Any:
        """Outermost decorator of the target: meet its calls."""
        if not self.running:
            return made
        raw = self.pending.functions.pop()
        self.defined = True
        if isinstance(made, (staticmethod, classmethod)):
            return type(made)(self.met_at(made.__func__, raw))
        return self.met_at(made, raw) if callable(made) else made

    # --- the call -------------------------------------------------------------------------

    def met_at(self, made: Callable[..., Any], raw: types.FunctionType) -> Callable[..., Any]:
        """`made`, but with its calls met first."""

        def before(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
            self.meet(raw, made, args, kwargs)

        return self.form(made, before)

    def boundary(self, made: Callable[..., Any], fn: Callable[..., Any]) -> Callable[..., Any]:
        """`made`, the compiled form of `fn`, which stands for the target: go there with what is concrete."""

        def before(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
            if self.running and os.getpid() == self.pid:
                fn(*args, **kwargs)

        return self.form(made, before)

    def form(self, made: Callable[..., Any], before: Callable[..., None]) -> Callable[..., Any]:
        """A function like `made` that does something `before`; remembered as standing for the target."""

        @functools.wraps(made)
        def call(*args: Any, **kwargs: Any) -> Any:
            before(args, kwargs)
            return made(*args, **kwargs)

        def tracing(method: Callable[..., Any]) -> Callable[..., Any]:
            def meet_and_trace(*args: Any, **kwargs: Any) -> Any:
                if not any(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves((args, kwargs))):
                    before(args, kwargs)
                return method(*args, **kwargs)

            return meet_and_trace

        for name in dir(made):
            if not name.startswith("_") and not hasattr(call, name):
                value = getattr(made, name)
                setattr(call, name, tracing(value) if name in TRACING else value)
        self.forms[id(call)] = call
        return call

    def meet(
        self,
        raw: types.FunctionType,
        made: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        """Keep the first concrete call, and stop the program."""
        if not self.running or os.getpid() != self.pid:
            return
        if self.call is None:
            owner = self.place["owner"]
            try:
                self.call = Call(raw, made, args, kwargs, owner, caller())
            except Traced as tracer:
                self.traced.append(str(tracer))
                if self.patient and len(self.traced) < PATIENCE:
                    return
        self.stop()

    def stop(self) -> NoReturn:
        """End the program: this thread now, the main one as soon as it listens."""
        if not self.over.is_set():
            self.over.set()
            here = threading.current_thread() is threading.main_thread()
            threading.Thread(target=self.remind, args=(GRACE if here else 0.0,), daemon=True).start()
        raise Stop

    def remind(self, delay: float) -> None:
        """Interrupt a main thread that waits for others, or that caught `Stop` and goes on."""
        done = threading.Event()
        while not done.wait(delay) and self.running:
            signal.pthread_kill(threading.main_thread().ident or 0, INTERRUPT)
            delay = AGAIN if delay == GRACE else GRACE if delay == 0.0 else AGAIN

    def interrupted(self, number: int, frame: Any) -> None:
        """In the main thread: stop there too."""
        if self.running:
            raise Stop

    # --- compilers ------------------------------------------------------------------------

    def stands_for_target(self, fn: Any) -> bool:
        """Whether calling `fn` calls the target first of all."""
        while True:
            if id(fn) in self.forms:
                return True
            if isinstance(fn, functools.partial):
                fn = fn.func
            elif isinstance(fn, types.MethodType):
                fn = fn.__func__
            else:
                return False

    def seen_through(self, compiler: Callable[..., Any]) -> Callable[..., Any]:
        """`compiler`, whose results for the target are met before they trace."""

        @functools.wraps(compiler)
        def compiling(*args: Any, **kwargs: Any) -> Any:
            made = compiler(*args, **kwargs)
            given = args[0] if args else kwargs.get("fun")
            if given is not None:
                return self.boundary(made, given) if self.stands_for_target(given) else made

            def decorate(fn: Callable[..., Any]) -> Any:
                compiled = made(fn)
                return self.boundary(compiled, fn) if self.stands_for_target(fn) else compiled

            return decorate

        return compiling


class Marker(ast.NodeTransformer):
    """Puts the two decorators around the definition at one place."""

    def __init__(self, place: Mapping[str, Any]) -> None:
        self.line, self.column = place["line"], place["column"]

    def visit(self, node: ast.AST) -> Any:
        """The node with what its definition is wrapped in."""
        if getattr(node, "lineno", None) == self.line and getattr(node, "col_offset", None) == self.column:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                outer, inner = name_at(OUTER, node), name_at(INNER, node)
                node.decorator_list = [outer, *node.decorator_list, inner]
                return node
            if isinstance(node, ast.Lambda):
                inner_call = ast.Call(func=name_at(INNER, node), args=[node], keywords=[])
                call = ast.Call(func=name_at(OUTER, node), args=[inner_call], keywords=[])
                return ast.fix_missing_locations(ast.copy_location(call, node))
        return self.generic_visit(node)


def name_at(name: str, node: ast.AST) -> ast.expr:
    """A name at the place of `node`."""
    return ast.copy_location(ast.Name(id=name, ctx=ast.Load()), node)


def caller() -> str:
    """``FILE:LINE`` of the code that is calling the target."""
    frame, ours = sys._getframe(), os.path.dirname(os.path.abspath(__file__))
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if not file.startswith((ours, "<")) and not INSTALLED.search(file):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


# --- running the program -----------------------------------------------------------------


def run(request: Answer) -> Call:
    """Run the program of `request` until it calls the target with concrete arguments.

    Args:
        request: ``program`` as `start` takes it; ``place`` of the target's definition (``path``, ``line``
            and ``column`` of the ``def``, ``owner``: its class or None); ``sources``: texts by absolute
            path that stand in for files; ``eager``: run without jit; ``visible``: how many devices the
            program sees.

    Raises:
        Problem: ``"program"``, it fails or ends before that call; ``"traced"``, it calls the target, but
            only while jax traces.
    """
    sources = {os.path.realpath(path): text for path, text in request.get("sources", {}).items()}
    place = {**request["place"], "path": os.path.realpath(request["place"]["path"])}
    watch = Watch(place, sources, patient=request["eager"])
    failed: BaseException | None = None
    with watching(watch), set_up(request["program"]), jit_disabled(request["eager"]):
        load.keep_devices()
        with prove.only_devices(request["visible"]):
            watch.running = True
            try:
                failed = start(request["program"], watch)
            except Stop:
                pass
            except BaseException as error:
                failed = error
            watch.running = False
    if watch.call is not None:
        if request["root"] not in sys.path:
            sys.path.append(request["root"])
        return watch.call
    if watch.traced:
        raise Problem("traced", "", tracers=list(dict.fromkeys(watch.traced)))
    if isinstance(failed, (MemoryError, Problem)):
        raise failed
    state = "never called" if watch.defined else "never defined" if watch.loaded else "never loaded"
    if failed is None or isinstance(failed, SystemExit):
        code = 0 if failed is None or failed.code is None else failed.code
        raise Problem("program", "", state=state, code=code if isinstance(code, int) else str(code))
    raise Problem("program", summary(failed), state=state, error=describe_exception(failed))


def start(program: Mapping[str, Any], watch: Watch) -> BaseException | None:
    """Run a program as Python or pytest would; what a failed test raised is returned."""
    kind, what = program["kind"], program["what"]
    if kind == "pytest":
        return run_tests(program["args"])
    if kind == "script" and not os.path.isfile(what):
        raise Problem("program", f"there is no file `{what}`", state="no file")
    module = types.ModuleType("__main__")
    names = vars(module)
    code: Any
    if kind == "module":
        # As `python -m` does, which has no public form that keeps the module.
        _, spec, code = runpy._get_module_details(what)  # type: ignore[attr-defined]
        module.__spec__, module.__loader__ = spec, spec.loader
        names["__file__"], names["__package__"] = spec.origin, spec.parent
        sys.argv[0] = spec.origin
    elif kind == "code":
        code = compile(what, "<string>", "exec", dont_inherit=True)
    else:
        names["__file__"] = what
        loader = importlib.machinery.SourceFileLoader("__main__", what)
        module.__loader__ = loader
        code = (
            watch.code(os.path.realpath(what))
            if watch.concerns(what)
            else compile(read(what), what, "exec", dont_inherit=True)
        )
    names["__builtins__"] = builtins
    # It stays: pickles, dataclasses and annotations look their module up by name.
    sys.modules["__main__"] = module
    exec(code, names)
    # Python waits for these too before it ends.
    executors = sys.modules.get("concurrent.futures.thread")
    if executors is not None:
        executors._python_exit()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    return None


def read(path: str) -> bytes:
    """The bytes of a file."""
    with open(path, "rb") as file:
        return file.read()


class Failures:
    """A pytest plugin that keeps what the first failing test, or its collection, raised."""

    def __init__(self) -> None:
        self.first: BaseException | None = None

    def pytest_exception_interact(self, call: Any) -> None:
        """Called by pytest for every exception it is going to report."""
        if self.first is None and not isinstance(call.excinfo.value, Stop):
            self.first = call.excinfo.value


def run_tests(args: Sequence[str]) -> BaseException | None:
    """Run pytest in this process, its caches and its way of reading test modules left out."""
    import pytest

    failures = Failures()
    options = ["-x", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
    if importlib.util.find_spec("xdist") is not None:
        options += ["-n", "0"]
    code = pytest.main([*options, *args], plugins=[failures])
    return failures.first or (SystemExit(int(code)) if code else None)


@contextlib.contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Have the import system compile the target's file our way, and compilers see through to it."""
    loader = importlib.machinery.SourceFileLoader
    get_code, exec_module = loader.get_code, loader.exec_module
    real_jit = jax.jit

    def own_code(self: Any, fullname: str) -> Any:
        if watch.running and watch.concerns(self.path):
            return watch.code(os.path.realpath(self.path))
        return get_code(self, fullname)

    def patching(self: Any, module: types.ModuleType) -> None:
        exec_module(self, module)
        if watch.running and module.__name__ in COMPILERS:
            name = COMPILERS[module.__name__]
            setattr(module, name, watch.seen_through(getattr(module, name)))

    setattr(builtins, INNER, watch.inner)
    setattr(builtins, OUTER, watch.outer)
    before = signal.signal(INTERRUPT, watch.interrupted)
    loader.get_code, loader.exec_module = own_code, patching  # type: ignore[method-assign]
    jax.jit = watch.seen_through(jax.jit)
    try:
        yield
    finally:
        watch.running = False
        jax.jit = real_jit
        loader.get_code, loader.exec_module = get_code, exec_module  # type: ignore[method-assign]
        signal.signal(INTERRUPT, before)


@contextlib.contextmanager
def set_up(program: Mapping[str, Any]) -> Iterator[None]:
    """``sys.argv``, ``sys.path[0]`` and the folder as Python sets them; put back what programs change."""
    folder, argv, streams = os.getcwd(), sys.argv, (sys.stdin, sys.stdout, sys.stderr)
    sys.argv = list(program["argv"])
    if program["first"] is not None:
        sys.path.insert(0, program["first"])
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        sys.argv = argv
        sys.stdin, sys.stdout, sys.stderr = streams
        os.chdir(folder)


@contextlib.contextmanager
def jit_disabled(wanted: bool) -> Iterator[None]:
    """Jit off for the whole process, threads too, or not."""
    if not wanted:
        yield
        return
    update = type(jax.config).update
    update(jax.config, "jax_disable_jit", True)
    try:
        yield
    finally:
        update(jax.config, "jax_disable_jit", False)
