"""What the user's code reads from outside itself, and their code changes later."""

import gc
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

from ..functions import enclosed, unwrapped
from ..origins import file_of, is_users, is_users_object, users_modules
from ..protocol import Later, Site
from ..type_tests import Watch, line_at
from .files import File, Mention, calls_in, changers_in, done_at_import, handed_on, mentions_in, names_module
from .objects import (
    ANY_MODULE,
    FIXED,
    HandedOn,
    Spaces,
    kept_elsewhere,
    kept_parameters,
    may_lead_to,
    objects_in,
    places_of,
    values_of,
)
from .uses import FUNCTIONS, LOCALS, LOOPS, Scope, Use, remembering, uses_of_module, uses_of_statements


@remembering()
def changed_later(
    watch: Watch,
    target: types.ModuleType,
    function: Callable[..., Any],
    left_out: Collection[str] = (),
    constants: Mapping[str, Any] = MappingProxyType({}),
    maker: "Callable[..., Any] | None" = None,
) -> Later | None:
    """The first line that was reached and reads what another line changes after the import; None without any.

    What a module does when it is imported is not later, but for what comes behind the target, `function`,
    or is in a loop with it; what its functions do is. Functions that nothing names but the module that
    calls them as it is imported, ahead of the target, as a decorator that fills a table, are done by then,
    but for what they do after they call the target; so are the function in which the target is defined, and
    the `maker` of the example inputs where nothing else names it, in its file or in one that imports that.
    What is read in functions that are `left_out` of the emitted code does not count: decorators, by the
    names that the target's module has for them. Arguments that are `constants` of the emitted code, as the
    object of a method is, are kept with what they hold.
    """
    loaded = (*users_modules(), (vars(target), file_of(target)))
    modules = {path: space for space, path in loaded if is_users(path)}
    plain = unwrapped(function)[0]
    spaces = Spaces(modules, {} if plain is None else _enclosed(plain))
    files = [File(path) for path in modules]
    name = function.__name__
    around = ("", "") if plain is None else _outermost(plain)
    made = None if maker is None else unwrapped(maker)[0]
    made_by = ("", "") if made is None else (made.__code__.co_filename, made.__name__)
    changers = changers_in(files, around)
    uses = [
        use
        for file in files
        for of in (uses_of_statements, uses_of_module)
        for use in of(file.tree.body, Scope(file.path, changers=changers))
    ]
    named = _names_read(uses)
    mentions = [mention for file in files for mention in mentions_in(file, name)]
    order = Order(files, mentions, _leading_to(name, mentions))
    done, not_done = set[str](), named
    makers, otherwise = set[str](), named
    for file in files:
        called, read = done_at_import(file.tree)
        done |= called.keys()
        decorating, plainly = calls_in(file)
        makers, otherwise = makers | decorating, otherwise | plainly
        not_done = not_done | read
        not_done |= {
            part
            for part, lines in called.items()
            if any(order.comes_after(file.path, "", line, itself=False) for line in lines)
        }
    done -= not_done
    # What these return is called with what stands below, and kept by nothing: ``@table.register("name")``.
    makers = (makers & done) - otherwise
    stem = PurePath(made_by[0]).stem
    near = {file.path for file in files if file.path == made_by[0] or names_module(file, stem)}
    if made_by[1] in _names_read(use for use in uses if use.scope.path in near):
        made_by = ("", "")
    # What a call makes anew, and its nested functions change, is its own affair.
    ran = {(code.co_filename, code.co_name) for code in watch.taken}

    def is_later(change: Use) -> bool:
        own = (change.scope.path, change.scope.function)
        if (change.is_free and own in ran) or (change.is_cell and (own[0], change.scope.within) in ran):
            return False
        if change.made:
            # What it changes ahead of the target is what the target begins with, but for one made before.
            return order.may_follow(change, itself=False)
        if not own[1]:
            return order.may_follow(change)
        if change.scope.nested > (own[1] in makers):
            return True
        new = change.scope.copied if change.outer else change.scope.fresh
        if change.root in new and not change.attributes:
            return order.may_follow(change)
        if change.is_cell or own in (around, made_by) or (not change.is_free and own[1] in done):
            return order.may_follow(change)
        return True

    changes = [use for use in uses if use.changes and is_later(use)]
    reached = {(code.co_filename, line_at(code, at)) for code, taken in watch.taken.items() for at in taken}
    apart = {_defined(vars(target), name) for name in left_out}
    reads = [
        use
        for use in uses
        if not use.changes
        and (use.scope.path, use.line) in reached
        and (use.scope.path, use.scope.function) not in apart
    ]
    globals_ = [value for use in reads if use.is_global for value in values_of(use, spaces)]
    kept = [*constants.values(), *(value for own in spaces.enclosed.values() for value in own.values())]
    objects = [value for value in globals_ if is_users_object(value)]
    objects += [value for value in kept if not isinstance(value, FIXED)]
    deep = objects_in(objects)
    own_parameters = set() if plain is None else kept_parameters(plain)
    everything = [*objects, *deep]
    given = HandedOn(handed_on(files), spaces)
    written = {place: use for use in changes for place in places_of(use, spaces, everything)}
    written |= {place: use for use in changes for place in kept_elsewhere(use, given, everything)}
    for use in sorted(reads, key=lambda use: (use.scope.path, use.line)):
        # A local is seldom what an object has deep inside, such as a logger: `state.step` is of another one.
        may_be = [*objects, *(deep if use.is_own else (each for each in deep if may_lead_to(each, use)))]
        if plain is not None and use.root in own_parameters and use.scope.is_of(plain):
            may_be = [constants[use.root]] if use.root in constants else []
        for place in places_of(use, spaces, may_be):
            if (change := written.get(place) or written.get((ANY_MODULE, place[1]))) is not None:
                if use.is_free and _is_made_by_call(use, watch):
                    break
                what = ".".join((use.root.rpartition(LOCALS)[2], *use.attributes))
                by = Site(change.scope.path, change.line, what)
                return Later(Site(use.scope.path, use.line, what), by)
    return None


def _is_made_by_call(use: Use, watch: Watch) -> bool:
    """Whether the call that was watched made the function that a variable is read in, and left none of it.

    What a function around such a one has is of that call too, and any other call has its own.
    """
    scope = use.scope
    read_in = {
        code
        for code, taken in watch.taken.items()
        if (code.co_filename, code.co_name) == (scope.path, scope.within)
        and use.line in {line_at(code, at) for at in taken}
    }
    gc.collect()  # Functions that know themselves, as recursive ones do, are there until then.
    kept = (each for each in gc.get_objects() if isinstance(each, types.FunctionType))
    return bool(read_in) and not any(each.__code__ in read_in for each in kept)


def _names_read(uses: Iterable[Use]) -> set[str]:
    return {part for use in uses if not use.changes for part in (use.root, *use.attributes)}


def _leading_to(name: str, mentions: Collection[Mention]) -> set[str]:
    """A name, the functions and variables that mention it, those that mention them, and so on."""
    found, more = {name}, {name}
    while more:
        more = {each.by for each in mentions if each.name in more} - found - {""}
        found |= more
    return found


class Order:
    """Where functions come to the target, for what they change behind that."""

    def __init__(self, files: Iterable[File], mentions: Iterable[Mention], names: Collection[str]) -> None:
        """For the target and what leads to it, of these `names`."""
        self._files = {file.path: file for file in files}
        #: The lines on which a function or variable of a file mentions one of the names.
        self._lines: dict[tuple[str, str], list[int]] = {}
        for each in mentions:
            if each.name in names:
                self._lines.setdefault((each.path, each.by), []).append(each.line)
        #: By file, the lines on which its functions begin, and those of its loops.
        self._laid_out: dict[str, tuple[dict[str, int], list[range]]] = {}

    def may_follow(self, change: Use, *, itself: bool = True) -> bool:
        """Whether a change comes behind one of the names in its function, or is in a loop with one.

        One on the line of the change counts where it is not the change `itself` that is named there.
        """
        return self.comes_after(change.scope.path, change.scope.function, change.line, itself=itself)

    def comes_after(self, path: str, function: str, at: int, *, itself: bool) -> bool:
        """Whether line `at` of a function, of a module for ``""``, comes behind one of the names there."""
        lines = self._lines.get((path, function))
        if not lines:
            return False
        begins, loops = self._layout(path)
        around = [loop for loop in loops if at in loop]
        # Decorators, as `hydra.main` of a `main`, stand ahead of all that the function does.
        first = begins.get(function, 0)
        return any(
            line < at + itself or any(line in loop for loop in around) for line in lines if line >= first
        )

    def _layout(self, path: str) -> tuple[dict[str, int], list[range]]:
        if path not in self._laid_out:
            begins, loops = dict[str, int](), []
            for _, node in self._files[path].nodes:
                if isinstance(node, FUNCTIONS[:2]):
                    begins[node.name] = min(node.lineno, begins.get(node.name, node.lineno))
                elif isinstance(node, LOOPS):
                    loops.append(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            self._laid_out[path] = begins, loops
        return self._laid_out[path]


def _defined(space: dict[str, Any], name: str) -> tuple[str, str]:
    """File and outermost function that define what a dotted name stands for; empty for no function."""
    found: Any = None
    for part in name.split("."):
        found = space.get(part)
        space = getattr(found, "__dict__", {})
    if not isinstance(found, types.FunctionType):
        return "", ""
    return found.__code__.co_filename, found.__qualname__.partition(".")[0]


def _outermost(function: types.FunctionType) -> tuple[str, str]:
    """The file of a nested function, and the outermost function around it; ``""`` for none."""
    outer, inner, _ = function.__qualname__.partition(LOCALS)
    return function.__code__.co_filename, outer.rpartition(".")[2] if inner else ""


def _enclosed(function: types.FunctionType) -> dict[str, dict[str, Any]]:
    """What a function has from functions around, and what functions among that have: by file.

    The names are ``F.<locals>.name``.
    """
    found: dict[str, dict[str, Any]] = {}
    waiting, seen = [function], set()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        path, outer = _outermost(one)
        for name, value in enclosed(one).items():
            found.setdefault(path, {})[f"{outer}{LOCALS}{name}"] = value
            plain = unwrapped(value)[0]
            waiting += [plain] if plain is not None else []
    return found
