"""Run the user's program up to its first call of the target, or to where it has made an object."""

import ast
import builtins
import contextlib
import dataclasses
import functools
import importlib
import importlib.machinery
import importlib.util
import linecache
import os
import runpy
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import jax

from . import load, protocol, prove
from .call import Call, Traced
from .exceptions import describe_exception, summary
from .origins import is_users
from .protocol import Problem

#: Names the transformed definition calls; no class mangles them, no program has them.
INNER, OUTER = "__jax_pmap_inner__", "__jax_pmap_outer__"
#: Functions that compile their first argument, by the module that defines them. At these the arguments of
#: a call are still concrete.
COMPILERS = {"equinox._jit": "filter_jit", "flax.nnx.transforms.compilation": "jit"}
#: Loops of `jax.lax`, which without jit run round by round in Python.
LOOPS = ("scan", "while_loop", "fori_loop", "map")
#: Methods of a compiled function that trace it with the arguments they are given.
TRACING = frozenset({"lower", "trace"})
#: Calls under tracing that are let pass before giving up on a concrete one.
PATIENCE = 20
#: Seconds the program has to end by itself once the call is kept, and between reminders after that.
GRACE, AGAIN = 5.0, 1.0
#: What interrupts the main thread, whatever it waits for.
INTERRUPT = signal.SIGRTMIN + 8 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR1


class Stop(BaseException):
    """Ends the program once the call is kept; not an Exception, so that few programs catch it."""


class Met(BaseException):
    """The target is called in what is being traced to find that out."""


class Watch:
    """Meets the calls of the target while the program runs."""

    def __init__(
        self,
        path: str,
        marker: ast.NodeTransformer,
        owner: str | None,
        sources: Mapping[str, str],
        patient: bool,
    ) -> None:
        #: The file of the target, and what puts marks where that is defined.
        self.path, self.marker = path, marker
        #: The class around the target.
        self.owner = owner
        self.sources = sources
        self.names = {os.path.basename(each) for each in (self.path, *sources)}
        #: Whether calls under tracing are let pass.
        self.patient = patient
        self.pid = os.getpid()
        self.call: Call | None = None
        #: Types of the tracers that calls came with.
        self.traced: list[str] = []
        self.loaded = self.defined = self.running = False
        #: Whether what runs is traced to find out whether it calls the target.
        self.looking = False
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
            load.keep_text(path, self.sources[path])
        tree: Any = compile(text, path, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
        if path == self.path:
            self.loaded = True
            tree = self.marker.visit(tree)
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
        if self.looking:
            raise Met
        if self.call is None:
            try:
                self.call = Call(raw, made, args, kwargs, self.owner, caller())
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

    # --- loops ----------------------------------------------------------------------------

    def apart(self, loop: Callable[..., Any]) -> Callable[..., Any]:
        """`loop`, which is compiled in a run without jit where no round of it calls the target."""

        @functools.wraps(loop)
        def looping(*args: Any, **kwargs: Any) -> Any:
            if not self.running or not jax.config.jax_disable_jit or self.is_in(loop, args, kwargs):
                return loop(*args, **kwargs)
            with jax.disable_jit(False):
                return loop(*args, **kwargs)

        return looping

    def is_in(self, loop: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the rounds of a loop call the target, or cannot be traced to see that."""
        self.looking = True
        try:
            with jax.disable_jit(False):
                jax.eval_shape(lambda: loop(*args, **kwargs))
        except (Met, Exception):
            return True
        finally:
            self.looking = False
        return False

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

    def __init__(self, place: protocol.Def) -> None:
        self.line, self.column = place.line, place.column

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


class Making(Watch):
    """Meets the object that is there behind a statement of the program."""

    def __init__(self, asked: protocol.Object, made: protocol.Made) -> None:
        path = os.path.realpath(asked.module.path)
        handing = Handing(made.expression, made.line, made.column)
        super().__init__(path, handing, None, {}, patient=False)
        self.found: list[Any] = []

    def outer(self, made: Any) -> Any:
        """What follows the statement: keep the object, and stop the program."""
        if self.running and os.getpid() == self.pid:
            self.found = [made]
            self.stop()
        return made


class Handing(ast.NodeTransformer):
    """Hands an object over behind the statement at one place."""

    def __init__(self, expression: str, line: int, column: int) -> None:
        self.expression, self.line, self.column = expression, line, column

    def visit(self, node: ast.AST) -> Any:
        """The node, and behind the statement what hands over."""
        at = getattr(node, "lineno", None), getattr(node, "col_offset", None)
        if isinstance(node, ast.stmt) and at == (self.line, self.column):
            handed = ast.parse(self.expression, mode="eval").body
            call = ast.copy_location(ast.Expr(ast.Call(name_at(OUTER, node), [handed], [])), node)
            for each in ast.walk(handed):
                ast.copy_location(each, node)
            return [node, ast.fix_missing_locations(call)]
        return self.generic_visit(node)


def name_at(name: str, node: ast.AST) -> ast.expr:
    """A name at the place of `node`."""
    return ast.copy_location(ast.Name(id=name, ctx=ast.Load()), node)


def caller() -> str:
    """``FILE:LINE`` of the code that is calling the target."""
    frame = sys._getframe()
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


# --- running the program -----------------------------------------------------------------


def run(request: protocol.Capture) -> Call:
    """Run the program of `request` until it calls the target with concrete arguments.

    Raises:
        Problem: ``"program"``, it fails or ends before that call; ``"traced"``, it calls the target, but
            only while jax traces.
    """
    sources = {os.path.realpath(path): text for path, text in request.sources.items()}
    place = dataclasses.replace(request.place, path=os.path.realpath(request.place.path))
    watch = Watch(place.path, Marker(place), place.owner, sources, patient=request.eager)
    with jit_disabled(request.eager), prove.only_devices(1):
        failed = run_until_stopped(request.program, watch)
    if watch.call is not None:
        if request.root not in sys.path:
            sys.path.append(request.root)
        return watch.call
    if watch.traced:
        raise Problem("traced", "", tracers=tuple(dict.fromkeys(watch.traced)))
    raise ended_early(watch, failed)


def make(asked: protocol.Object, made: protocol.Made) -> Any:
    """Run a program until it has made an object, on the devices that there are.

    Raises:
        Problem: ``"program"``, it fails or ends before that.
    """
    watch = Making(asked, made)
    failed = run_until_stopped(made.program, watch)
    if watch.found:
        return watch.found[0]
    raise ended_early(watch, failed)


def run_until_stopped(program: protocol.Program, watch: Watch) -> BaseException | None:
    """Run a program until `watch` stops it; what else ended it is returned."""
    failed: BaseException | None = None
    with watching(watch), set_up(program):
        load.keep_devices()
        watch.running = True
        try:
            failed = start(program, watch)
        except Stop:
            pass
        except BaseException as error:
            failed = error
        watch.running = False
    return failed


def ended_early(watch: Watch, failed: BaseException | None) -> BaseException:
    """What to raise where a program came to its end before the watch met what it waits for."""
    if isinstance(failed, (MemoryError, Problem)):
        return failed
    state = "never called" if watch.defined else "never defined" if watch.loaded else "never loaded"
    if failed is None or isinstance(failed, SystemExit):
        code = 0 if failed is None or failed.code is None else failed.code
        return Problem("program", "", state=state, code=code if isinstance(code, int) else str(code))
    return Problem("program", summary(failed), state=state, error=describe_exception(failed))


def start(program: protocol.Program, watch: Watch) -> BaseException | None:
    """Run a program as Python or pytest would; what a failed test raised is returned."""
    kind, what = program.kind, program.what
    if kind == "pytest":
        return run_tests(program.args)
    if kind == "script" and not os.path.isfile(what):
        raise Problem("program", f"there is no file `{what}`", state="no file")
    module = types.ModuleType("__main__")
    names = vars(module)
    folder: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    code: Any
    if kind == "module":
        # As `python -m` does, which has no public form that keeps the module.
        _, spec, code = runpy._get_module_details(what)  # type: ignore[attr-defined]
        module.__spec__, module.__loader__ = spec, spec.loader
        names["__file__"], names["__package__"] = spec.origin, spec.parent
        sys.argv[0] = spec.origin
    elif kind == "code":
        code = compile(what, "<string>", "exec", dont_inherit=True)
    elif kind == "notebook":
        # As a kernel does: in the folder of the notebook, and with a way to show values.
        folder = load.in_folder(os.path.dirname(what))
        names["display"] = lambda *values, **options: None
        path = os.path.realpath(what)
        linecache.cache[what] = (len(program.text), None, program.text.splitlines(True), what)
        own = watch.concerns(what)
        code = watch.code(path) if own else compile(program.text, what, "exec", dont_inherit=True)
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
    with folder:
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
    """Have the import system compile the target's file our way, and compilers and loops see through to it."""
    loader = importlib.machinery.SourceFileLoader
    get_code, exec_module = loader.get_code, loader.exec_module
    replaced = [(jax, "jit", jax.jit)]
    if watch.patient:
        replaced += [(jax.lax, name, getattr(jax.lax, name)) for name in LOOPS]

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
    for module, name, made in replaced:
        setattr(module, name, watch.seen_through(made) if module is jax else watch.apart(made))
    try:
        yield
    finally:
        watch.running = False
        for module, name, made in replaced:
            setattr(module, name, made)
        loader.get_code, loader.exec_module = get_code, exec_module  # type: ignore[method-assign]
        signal.signal(INTERRUPT, before)


@contextlib.contextmanager
def set_up(program: protocol.Program) -> Iterator[None]:
    """``sys.argv``, ``sys.path[0]`` and the folder as Python sets them; put back what programs change."""
    folder, argv, streams = os.getcwd(), sys.argv, (sys.stdin, sys.stdout, sys.stderr)
    sys.argv = list(program.argv)
    if program.first is not None:
        sys.path.insert(0, program.first)
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
