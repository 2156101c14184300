"""What Python code does differently where jax traces it: the way it takes, and what it asks of types.

A traced function meets a tracer where a call of it meets a float, a NumPy array or an array of jax's. Nearly
all of Python raises there. What does not is watched here: `isinstance`, an exception of jax's that the code
catches, and with these any other way through the code.
"""

import ast
import bisect
import builtins
import contextlib
import dis
import enum
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from .leaves import NUMBERS, category
from .origins import is_users, users_modules

#: Errors of jax that mean: this Python code needs the number, not a traced value.
CONCRETE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.TracerArrayConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
#: Statements and functions without which code that goes another way for a size without a number raises, or
#: compares it.
PARTING = (ast.Try, ast.Match, getattr(ast, "TryStar", ast.Try))
#: Constants that are no number to ask for by `is`.
SINGLETONS = (None, True, False, ...)
#: Classes of what else is no number, by whatever name it is read.
NO_NUMBERS = (type, str, enum.Enum, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
#: Context managers that catch nothing.
PASSING = frozenset(
    {"named_scope", "default_matmul_precision", "ensure_compile_time_eval", "nullcontext", "TraceAnnotation"}
)
ASKING = frozenset(
    {"suppress", "isinstance", "issubclass", "type", "hasattr", "getattr", "callable", "singledispatch"}
)


class Watch:
    """What the user's code did in one trace.

    Attributes:
        taken: the instructions that were reached, by code object.
        caught: places where an error of tracing was raised; they count where the code went on.
        asked: places of `isinstance` whose answer depends on tracing, with what was asked.
        told: indices of the leaves whose type was asked for.
    """

    def __init__(self) -> None:
        self.taken: dict[types.CodeType, set[int]] = {}
        self.caught: dict[tuple[str, int], str] = {}
        self.asked: dict[tuple[str, int], str] = {}
        self.told: set[int] = set()
        self._leaves: dict[int, tuple[int, Any]] = {}
        self._kept: list[Any] = []
        self._trace: Any = None
        # Made outside of a trace, which would make a tracer of it.
        self._array = jax.numpy.zeros(())

    def stands_for(self, tracers: Sequence[Any], given: Sequence[Any]) -> None:
        """Say which leaves the tracers of this trace stand for."""
        self._kept = list(tracers)
        self._leaves = {
            id(tracer): (index, leaf)
            for index, (tracer, leaf) in enumerate(zip(tracers, given, strict=True))
            if tracer is not leaf
        }

    def begin(self, tracer: Any) -> None:
        """Take the trace of `tracer` for the one in which a call would have arrays."""
        self._trace = getattr(tracer, "_trace", None)

    def end(self) -> None:
        """Forget the trace, which its tracers would keep."""
        self._kept, self._leaves, self._trace = [], {}, None

    @contextlib.contextmanager
    def __call__(self, spaces: Sequence[dict[str, Any]]) -> Iterator[None]:
        """Watch what runs inside; functions whose globals are one of `spaces` count beside all modules."""
        modules = [namespace for namespace, _ in users_modules()]
        put = [space for space in (*spaces, *modules) if "isinstance" not in space]
        for space in put:
            space["isinstance"] = self._isinstance
        if sys.version_info >= (3, 12):
            watched = self._monitored()
        else:
            watched = self._traced()
        try:
            with watched:
                yield
        finally:
            for space in put:
                space.pop("isinstance", None)

    @contextlib.contextmanager
    def _traced(self) -> Iterator[None]:
        others: set[str] = set()

        def entered(frame: types.FrameType, _: str, __: Any) -> Callable[..., Any] | None:
            # This is called for each of the calls inside jax, which are millions.
            code = frame.f_code
            if code.co_filename in others:
                return None
            if not is_users(code.co_filename):
                others.add(code.co_filename)
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            reached = self.taken.setdefault(code, set())

            def inside(frame: types.FrameType, event: str, value: Any) -> Any:
                if event == "opcode":
                    reached.add(frame.f_lasti)
                elif event == "exception" and isinstance(value[1], CONCRETE):
                    self.caught.setdefault((code.co_filename, frame.f_lineno), value[0].__name__)
                return inside

            return inside

        before = sys.gettrace()
        sys.settrace(entered)
        try:
            yield
        finally:
            sys.settrace(before)

    if sys.version_info >= (3, 12):

        @contextlib.contextmanager
        def _monitored(self) -> Iterator[None]:
            """The same from Python 3.12 on, where `settrace` misses the instructions of a first call."""
            monitoring, events = sys.monitoring, sys.monitoring.events
            tool = next(each for each in range(6) if monitoring.get_tool(each) is None)
            watched: list[types.CodeType] = []

            def entered(code: types.CodeType, _: int) -> Any:
                if code not in self.taken and is_users(code.co_filename):
                    self.taken[code] = set()
                    watched.append(code)
                    monitoring.set_local_events(tool, code, events.INSTRUCTION)
                return monitoring.DISABLE  # Once is enough.

            def reached(code: types.CodeType, offset: int) -> Any:
                self.taken[code].add(offset)
                return monitoring.DISABLE

            def raised(code: types.CodeType, offset: int, error: BaseException) -> None:
                if isinstance(error, CONCRETE) and is_users(code.co_filename):
                    place = code.co_filename, line_at(code, offset)
                    self.caught.setdefault(place, type(error).__name__)

            monitoring.use_tool_id(tool, "jax-pmap")
            for event, callback in (
                (events.PY_START, entered),
                (events.PY_RESUME, entered),
                (events.INSTRUCTION, reached),
                (events.RAISE, raised),
            ):
                monitoring.register_callback(tool, event, callback)
            monitoring.restart_events()
            monitoring.set_events(tool, events.PY_START | events.PY_RESUME | events.RAISE)
            try:
                yield
            finally:
                monitoring.set_events(tool, events.NO_EVENTS)
                for code in watched:
                    monitoring.set_local_events(tool, code, events.NO_EVENTS)
                monitoring.free_tool_id(tool)

    def _isinstance(self, value: Any, kinds: Any) -> bool:
        answer = builtins.isinstance(value, kinds)
        if not builtins.isinstance(value, jax.core.Tracer):
            return answer
        known = self._leaves.get(id(value))
        if known is None and (self._trace is None or getattr(value, "_trace", None) is not self._trace):
            return answer  # Of a loop or a gradient inside the function, which a call has too.
        stand_ins = examples(known[1]) if known else [self._array]
        stand_ins = [self._array if each is jax.Array else each for each in stand_ins]
        if any(builtins.isinstance(each, kinds) != answer for each in stand_ins):
            frame = sys._getframe(1)
            if not (known and category(known[1]) in NUMBERS) and only_raises(frame):
                return answer  # An array of the other kind may be refused: with those taken it is the same.
            every = kinds if builtins.isinstance(kinds, tuple) else (kinds,)
            names = [getattr(kind, "__name__", str(kind)).rpartition(".")[2] for kind in every]
            said = names[0] if len(names) == 1 else f"({', '.join(names)})"
            self.asked.setdefault((frame.f_code.co_filename, frame.f_lineno), f"isinstance(…, {said})")
            if known:
                self.told.add(known[0])
        return answer


def examples(leaf: Any) -> list[Any]:
    """What a caller may pass in place of a leaf; `jax.Array` stands for an array of jax's."""
    kind = category(leaf)
    if kind in NUMBERS:
        return [leaf, 1, 1.0, np.float32(1)]
    if kind == "key":
        return [leaf] if isinstance(leaf, jax.Array) else []
    # An array of either kind is the same argument; NumPy's scalars are arrays to jax.
    other = leaf if isinstance(leaf, np.generic) else np.zeros((), leaf.dtype)
    return [jax.Array, other]


def may_part() -> bool:
    """Whether any of the user's code may go another way for a size without a number, and raise nothing."""
    return any(_may_part(file) for file in {file for _, file in users_modules()})


def only_raises(frame: types.FrameType | None) -> bool:
    """Whether what is asked where a frame is decides whether the code raises, and nothing else.

    As in ``assert isinstance(x, jax.Array)``, which none of the user's code around it catches.
    """
    if frame is None or frame.f_lineno not in _raising(frame.f_code.co_filename)[0]:
        return False
    while frame is not None:
        path = frame.f_code.co_filename
        if is_users(path) and frame.f_lineno in _raising(path)[1]:
            return False
        frame = frame.f_back
    return True


@functools.cache
def _raising(file: str) -> tuple[frozenset[int], frozenset[int]]:
    """The lines of a file that hold parts of assertions, or of tests for nothing but a raise, and no more.

    And those behind which an exception may be caught.
    """
    try:
        with open(file, "rb") as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return frozenset(), frozenset()
    found, others, caught = set[int](), set[int](), set[int]()
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt):
            continue
        managers = node.items if isinstance(node, (ast.With, ast.AsyncWith)) else []
        if isinstance(node, (ast.Try, getattr(ast, "TryStar", ast.Try))) or not all(map(_passes, managers)):
            caught.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        # What a statement holds has lines of its own.
        inside = [each.lineno for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)]
        end = max(node.lineno, min(inside) - 1) if inside else node.end_lineno or node.lineno
        lines = range(node.lineno, end + 1)
        test = node.test if isinstance(node, (ast.Assert, ast.If)) else None
        if isinstance(node, ast.If) and [*map(type, (*node.body, *node.orelse))] != [ast.Raise]:
            test = None
        if test is not None and not _keeps_what_it_asks(test):
            found.update(lines)
        elif not isinstance(node, ast.Raise):
            others.update(lines)
    return frozenset(found - others), frozenset(caught)


def _passes(manager: ast.withitem) -> bool:
    """Whether a context manager hands on what is raised inside it, as one that names operations does."""
    called = getattr(manager.context_expr, "func", None)
    return getattr(called, "attr", getattr(called, "id", "")) in PASSING


def _keeps_what_it_asks(test: ast.expr) -> bool:
    """Whether a test may leave something behind that depends on a type: by a name, or by what it calls."""
    calls = [each for each in ast.walk(test) if isinstance(each, ast.Call)]
    asking = [each for each in calls if getattr(each.func, "id", "") == "isinstance"]
    others = [each for each in calls if getattr(each.func, "id", "") not in ("isinstance", "all", "any")]
    within = {id(each) for call in others for each in ast.walk(call)}
    named = any(isinstance(each, ast.NamedExpr) for each in ast.walk(test))
    return named or any(id(each) in within for each in asking)


@functools.cache
def _may_part(file: str) -> bool:
    try:
        with open(file, "rb") as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):  # It may be another one by now.
        return True
    functions = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.Lambda)))
    return any(
        isinstance(node, PARTING)
        or getattr(node, "id", getattr(node, "attr", "")) in ASKING
        or (isinstance(node, ast.Compare) and _identifies(node))
        for function in functions
        for node in ast.walk(function)
    )


def _identifies(comparison: ast.Compare) -> bool:
    """Whether a comparison asks by `is` for what may be a number."""
    sides = [comparison.left, *comparison.comparators]
    return any(
        isinstance(operator, (ast.Is, ast.IsNot)) and not any(map(_is_singleton, sides[at : at + 2]))
        for at, operator in enumerate(comparison.ops)
    )


def _is_singleton(side: ast.expr) -> bool:
    return isinstance(side, ast.Constant) and any(side.value is each for each in SINGLETONS)


def identified(watch: Watch) -> bool:
    """Whether the code that ran asked by `is` for what may be a number, which no number is told of."""
    return any(
        every[at].opname == "IS_OP" and every[at].offset in reached and not _is_no_number(every[:at], code)
        for code, reached in watch.taken.items()
        for every in [[each for each in dis.get_instructions(code) if each.opname != "CACHE"]]
        for at in range(1, len(every))
    )


def _is_no_number(before: Sequence[dis.Instruction], code: types.CodeType) -> bool:
    """Whether what the last of these instructions loads is no number: a constant, or ``Kind.START``."""
    names: list[str] = []
    at = len(before) - 1
    while before[at].opname == "LOAD_ATTR":
        names.append(before[at].argval)
        at -= 1
    if before[at].opname != "LOAD_GLOBAL":
        return not names and any(before[at].argval is each for each in SINGLETONS)
    spaces = (space for space, file in users_modules() if file == code.co_filename)
    value: Any = next(spaces, {}).get(before[at].argval)
    for name in reversed(names):
        # What computes an attribute may give another one the next time.
        value = inspect.getattr_static(value, name, None)
    return isinstance(value, NO_NUMBERS)


def parted(called: Watch, traced: Watch) -> "tuple[str, int, bool] | None":
    """The first line that one of two runs of the same code reached and the other did not.

    With whether it was the call that did. Of functions that only one of them entered nothing is said: jax
    keeps what it compiled.
    """
    found = []
    for code in called.taken.keys() & traced.taken.keys():
        for only, is_call in (
            (called.taken[code] - traced.taken[code], True),
            (traced.taken[code] - called.taken[code], False),
        ):
            lines = [line for line in (line_at(code, offset) for offset in only) if line]
            if lines:
                found.append((code.co_filename, min(lines), is_call))
    return min(found) if found else None


def line_at(code: types.CodeType, offset: int) -> int:
    """The line of an instruction; 0 where it has none."""
    starts, lines = _lines_of(code)
    at = bisect.bisect_right(starts, offset) - 1
    return lines[at] if at >= 0 else 0


@functools.lru_cache(maxsize=1024)
def _lines_of(code: types.CodeType) -> tuple[list[int], list[int]]:
    """The instructions with which lines of code begin, in order, and these lines; 0 for none."""
    found = [(start, line or 0) for start, _, line in code.co_lines()]
    return [start for start, _ in found], [line for _, line in found]
