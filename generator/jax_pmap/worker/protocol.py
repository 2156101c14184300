"""What the two processes say to each other: one frozen record for each request, one for its answer.

The generator imports this file as ``jax_pmap.worker.protocol``, the worker as part of its own package. On the
way a record is a line of JSON: `encode` writes it, `decode` reads it by the types of its fields.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import (
    Any,
    Generic,
    Literal,
    ParamSpec,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

A = TypeVar("A")
T = TypeVar("T")
P = ParamSpec("P")
#: An object of JSON that is read elsewhere: `planning/events.py`, `inputs/spec.py`.
Row = dict[str, Any]
#: File, line and function of one call.
Frame = tuple[str, int, str]
#: How each argument is given to parallel code: see `parallel.Layout`.
Layout = Mapping[str, str]
#: Why a request has no answer.
Kind = Literal[
    "another",
    "bug",
    "count",
    "graph",
    "import",
    "inputs",
    "interpreter",
    "memory",
    "missing",
    "opaque",
    "other",
    "program",
    "reference",
    "topology",
    "traced",
    "transport",
]


#: Kinds of problems with which an object of the user's is not to be had: importing its file fails, there is
#: none of that name, or the program that makes it fails.
NOT_FOUND: tuple[Kind, ...] = ("import", "inputs", "program")
#: Those of a reference that does not take what it is traced or called with.
NOT_TAKEN: tuple[Kind, ...] = ("reference",)


class Request(Generic[A]):
    """What the generator asks for; `A` is the type of the answer."""

    __slots__ = ()

    @classmethod
    def read(cls, data: Any) -> A:
        """The answer to such a request, decoded."""
        answer: A = decode(get_args(cls.__orig_bases__[0])[0], data)  # type: ignore[attr-defined]
        return answer


# --- as JSON --------------------------------------------------------------------------------


def encode(value: object) -> str:
    """A record, or what holds some, as JSON on one line.

    Example:
        ``encode(Roles({"x": {0: 1}}, ()))`` is ``'{"axes": {"x": {"0": 1}}, "statics": []}'``.
    """
    return json.dumps(value, default=_fields)


def request_of(line: str) -> Request[Any]:
    """The request that is ``{"method": its type, "request": its fields}``."""
    data = json.loads(line)
    request: Request[Any] = decode(globals()[data["method"]], data["request"])
    return request


def _fields(value: Any) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}


def decode(kind: Any, data: Any, where: str = "") -> Any:
    """What `encode` wrote of a value of type `kind`, parsed: ``decode(Roles, json.loads(line))``.

    Types are records, numbers, strings, tuples and mappings of such, `Literal`, ``X | None``, and `Any` for
    what stays as JSON has it. A record may stand where it is decoded already.

    Raises:
        ValueError: a field that has no default is missing, or one is unknown or of another type; by its name.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return data
    if dataclasses.is_dataclass(kind) and isinstance(data, dict):
        return _record(kind, data, where or getattr(kind, "__name__", ""))
    if origin in (Union, types.UnionType):
        # Two that are both no scalars would be told apart by nothing.
        fitting = [each for each in inner if each is type(data)] or [e for e in inner if e is not type(None)]
        return decode(fitting[0], None if fitting[0] is type(None) else data, where)
    if origin is tuple and isinstance(data, (list, tuple)):
        kinds = [inner[0]] * len(data) if inner[1:] == (...,) else inner
        if len(kinds) == len(data):
            pairs = zip(kinds, data, strict=True)
            return tuple(decode(each, value, f"{where}[{i}]") for i, (each, value) in enumerate(pairs))
    if origin in (dict, Mapping) and isinstance(data, dict):
        return {inner[0](key): decode(inner[1], value, f"{where}[{key}]") for key, value in data.items()}
    if origin is Literal and data in inner:
        return data
    if isinstance(kind, type) and isinstance(data, (int, float) if kind is float else kind):
        return data
    raise ValueError(f"{where} is {data!r}, no {getattr(kind, '__name__', kind)}")


def _record(kind: Any, data: dict[str, Any], where: str) -> Any:
    kinds, made = _kinds(kind), {}
    known = {each.name: each for each in dataclasses.fields(kind)}
    for name in dict.fromkeys([*data, *known]):
        if name not in known:
            raise ValueError(f"{where} has no field {name}")
        if name in data:
            made[name] = decode(kinds[name], data[name], f"{where}.{name}")
        elif known[name].default is known[name].default_factory is dataclasses.MISSING:
            raise ValueError(f"{where}.{name} is missing")
    return kind(**made)


@functools.cache
def _kinds(kind: Any) -> dict[str, Any]:
    # By our own names: user code may take this module out of `sys.modules`.
    return get_type_hints(kind, globals())


# --- what went wrong ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of the user's code."""

    type: str
    message: str
    #: The last place in code that is not ours; None and 0 where there is none.
    file: str | None = None
    line: int = 0
    frames: tuple[Frame, ...] = ()
    #: Its blocks, as `traceback` formats them, without our frames.
    traceback: tuple[str, ...] = ()


@dataclass(eq=False)
class Problem(Exception):
    """Why a request has no answer: raised in the worker, and again where the generator asked."""

    kind: Kind
    message: str
    #: What the user's code raised.
    error: Raised | None = None
    #: ``"missing"``: what is not there; ``"opaque"``: the argument; ``"graph"``: the other place.
    name: str = ""
    #: ``"opaque"``, ``"graph"``: the type of the object.
    type: str = ""
    #: ``"inputs"``: the names that there are, in place of one that is not.
    known: tuple[str, ...] = ()
    #: ``"traced"``: the classes of the tracers.
    tracers: tuple[str, ...] = ()
    #: ``"program"``: how far it came, and the exit code or message of one that ended.
    state: str = ""
    code: int | str | None = None
    #: ``"bug"``: of the worker itself.
    traceback: str = ""

    def __str__(self) -> str:
        """The message."""
        return self.message


def unless(kinds: tuple[Kind, ...], call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """What a call gives; None where it ends in a problem of one of these kinds."""
    try:
        return call(*args, **kwargs)
    except Problem as problem:
        if problem.kind not in kinds:
            raise
        return None


# --- the process ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Versions:
    """What the worker runs."""

    jax: str
    python: str
    #: Whether XLA compiles for TPUs that are not there: libtpu is installed.
    compiles_for_tpu: bool


@dataclass(frozen=True, slots=True)
class Hello(Request[Versions]):
    """Import jax and NumPy."""


@dataclass(frozen=True, slots=True)
class Member:
    """One of several processes that jax makes one of."""

    #: ``"127.0.0.1:54321"``, where the first of them waits for the others.
    address: str
    processes: int
    index: int


@dataclass(frozen=True, slots=True)
class MakeDevices(Request[None]):
    """Make the simulated devices, then set the memory limit."""

    devices: int
    #: Bytes beyond what jax itself maps; 0 for no limit.
    memory: int
    #: Whether programs are compiled as they are to run for long; else quickly, see `compiling`.
    optimized: bool
    member: Member | None


@dataclass(frozen=True, slots=True)
class Forget(Request[bool]):
    """Drop everything that is known of the target before; imported modules stay.

    Whether settings of jax stay with them, which another target must not have.
    """


@dataclass(frozen=True, slots=True)
class LoadedFiles(Request[tuple[str, ...]]):
    """The source files of all modules that are imported now, and the files that were read."""


@dataclass(frozen=True, slots=True)
class Importing:
    """How modules of the user's were imported."""

    #: The folders that they came from, by ``sys.path`` or an import hook.
    folders: tuple[str, ...]
    #: The names of the file asked for: ``python -m pkg.train`` gives it that too. None for a script alone.
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FindImporting(Request[Importing]):
    """How modules of the user's, among them the one at `path`, were imported."""

    path: str


# --- the target -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Module:
    """A file of the user's, the name that it is imported by, and the folder that this is below."""

    path: str
    name: str
    root: str


@dataclass(frozen=True, slots=True)
class Program:
    """A Python program, as it is started."""

    #: ``"script"``, ``"notebook"``, ``"module"``, ``"code"`` or ``"pytest"``.
    kind: str
    #: Absolute path of a script or notebook, dotted name of a module, text of ``-c``; empty for pytest.
    what: str
    #: ``sys.argv``, without its first element and with it.
    args: tuple[str, ...]
    argv: tuple[str, ...]
    #: What Python puts first on ``sys.path``, if anything.
    first: str | None
    #: Of a notebook, the Python code of its cells.
    text: str = ""


@dataclass(frozen=True, slots=True)
class Made:
    """The program that makes an object, and the statement of its file behind which that is there.

    Lines count from 1 and columns from 0, as `ast` has them.
    """

    program: Program
    line: int
    column: int
    #: What it is there: ``"p_step"``, ``"trainer.p_step"``.
    expression: str


@dataclass(frozen=True, slots=True)
class Object:
    """What a module has by a dotted name, or a function of it makes."""

    module: Module
    name: str
    #: None where importing the module makes it.
    made: Made | None = None


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a callable."""

    name: str
    #: As `inspect` has it: ``"KEYWORD_ONLY"``.
    kind: str
    #: Source of the default where that is plain, ``""`` for any other, None where there is none.
    default: str | None


@dataclass(frozen=True, slots=True)
class FindParameters(Request[tuple[Parameter, ...] | None]):
    """The parameters of an object of the user's; None where it is no callable."""

    object: Object


@dataclass(frozen=True, slots=True)
class Definition:
    """The text of a function, without its compiling decorators."""

    text: str
    path: str
    #: The first line of the text in the file.
    line: int
    name: str


@dataclass(frozen=True, slots=True)
class Written:
    """How a function is written in its file."""

    #: The line of the first decorator, or of the ``def`` where there is none.
    first: int
    #: How many of its decorators may put something around it, those that compile left out.
    decorators: int


@dataclass(frozen=True, slots=True)
class IsDefinition(Request[bool]):
    """Whether an object of the user's is the very function that a ``def`` makes, with nothing around it."""

    object: Object
    definition: Definition
    written: Written


@dataclass(frozen=True, slots=True)
class Loaded:
    """What importing the target's module did."""

    #: Parameters that are bound already, to what the module's object holds.
    given: tuple[str, ...]
    #: Settings of jax that it makes, and those that it makes as variables of the process, too late.
    settings: Mapping[str, Any]
    too_late: Mapping[str, str]
    #: Whether the name of the module stands for another one.
    taken: bool
    #: Whether it reads absl's flags.
    flags: bool
    #: Module, line and error of each statement of another module that was passed over.
    failed: tuple[tuple[str, int, str], ...]


@dataclass(frozen=True, slots=True)
class Load(Request[Loaded]):
    """Import the target's module and define the undecorated function in it."""

    module: Module
    definition: Definition
    devices: int
    #: Whether collectives stand in the function, and whether its caller sees changes in the arguments.
    collectives: bool
    in_place: bool
    #: The name of the axis that the batch is going to be mapped over, and whether it may be no other.
    axis: str = ""
    axis_given: bool = True
    #: Run in place of what the file holds.
    source: str | None = None
    #: Whether failures in other modules are passed over, unless one of these names is missing.
    tolerant: bool = False
    names: tuple[str, ...] = ()
    #: The object of a module that has values which the text has not, the class and the functions around it.
    taken_from: Object | None = None
    owner: str | None = None
    nested: bool = False
    #: What the text calls its module, where it only calls that one's object.
    called_by: str = ""
    #: As what the module is to have it under its name; None where that is not looked up.
    written: Written | None = None


@dataclass(frozen=True, slots=True)
class Captured:
    """The call that the program came to."""

    arguments: tuple[Row, ...]
    #: ``FILE:LINE``, or ``""``.
    called_at: str


@dataclass(frozen=True, slots=True)
class Def:
    """Where a ``def`` stands."""

    path: str
    line: int
    column: int
    #: The class around it.
    owner: str | None


#: What the program that calls a method with its inputs calls the function that makes them.
MAKER = "_make_inputs"


@dataclass(frozen=True, slots=True)
class Capture(Request[Captured]):
    """Run the user's program up to its first call of the target, which becomes the example."""

    program: Program
    place: Def
    definition: Definition
    root: str
    #: Texts by path that stand in for files.
    sources: Mapping[str, str]
    #: Whether it runs without jit.
    eager: bool
    collectives: bool
    in_place: bool
    axis: str
    axis_given: bool
    #: Whether it is a class method that has to be called on the class that it stands in.
    on_its_class: bool


@dataclass(frozen=True, slots=True)
class SetReference(Request[None]):
    """Take the original's text as the reference, where the edited program is loaded."""

    definition: Definition
    #: Texts of the functions beside it that have adapted copies.
    enclosed: tuple[str, ...]


# --- the example inputs ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inputs:
    """The example arguments, described, and how many sets there are."""

    arguments: tuple[Row, ...]
    seeds: int


@dataclass(frozen=True, slots=True)
class InputsFromCallable(Request[Inputs]):
    """Call the user's function that makes the inputs."""

    #: ``FILE::NAME`` or ``module:NAME``, and of the first the file.
    reference: str
    directory: str
    file: Module | None
    #: Whether only the shapes are wanted.
    abstract: bool = False


@dataclass(frozen=True, slots=True)
class Renamed:
    """The argument whose tree has another form now, and all arguments, described."""

    argument: str
    arguments: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Rename(Request[Renamed]):
    """Have the reference take and return trees in the form that a function of the user's gives them."""

    #: ``FILE::NAME`` or ``module:NAME``, and of the first the file.
    reference: str
    directory: str
    file: Module | None
    #: Whose tree it changes; empty for the first that it does not fail on.
    argument: str


@dataclass(frozen=True, slots=True)
class InputsFromSpecs(Request[Inputs]):
    """Make arguments from specs, by name."""

    specs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DrawInputs(Request[Inputs]):
    """Have arrays of random numbers where the inputs are shapes, if they are of moderate size."""


@dataclass(frozen=True, slots=True)
class Switch(Request[Inputs]):
    """Switch modules among the arguments to another mode, by such calls: ``"model.eval()"``."""

    calls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NotFound:
    """Why no inputs were found: the argument, the leaf of it, the reason and the error of the last trace."""

    argument: str
    path: str
    reason: str
    error: str


@dataclass(frozen=True, slots=True)
class InputsFound:
    """Specs under which the function traces, and the names of those that were not given."""

    tried: int
    specs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    failed: NotFound | None = None


@dataclass(frozen=True, slots=True)
class SearchInputs(Request[InputsFound]):
    """Find shapes for the arguments nobody described; see `guess.find_inputs`."""

    parameters: tuple[Row, ...]
    readings: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Constants(Request[Mapping[str, str | None]]):
    """``repr`` of what expressions read of an argument, by expression.

    None where it is not plain, or not the same for all inputs.
    """

    name: str
    expressions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Identity:
    """What a constant is told from others by.

    Attributes:
        digest: of its contents.
        imported: the module and the name under which emitted code can import it, where an installed module
            has it by its own name: ``"jax.nn:relu"``; else empty.
        arrays: whether there are arrays in it, of which the digest has shapes and dtypes alone.
    """

    digest: str
    imported: str
    arrays: bool


@dataclass(frozen=True, slots=True)
class Identities(Request[Mapping[str, Identity | None]]):
    """What each expression is told from others by: its digest as the function `name` of `code` computes it.

    None where it has no contents to be told by, or not the same for all inputs.
    """

    code: str
    name: str
    expressions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CapturedConstant:
    """A constant that the target reads and is not given.

    Attributes:
        path: the expression that reads it in the drop-in: ``"self.kind"``.
        value: Python source of it, ``"'mean'"`` or ``"jnp.mean"``; empty where no source says it.
        digest: of its contents, where that is so; empty where nothing tells it from others.
        type: the name of its type, or ``"function"``.
    """

    path: str
    value: str
    digest: str
    type: str


@dataclass(frozen=True, slots=True)
class FindCaptured(Request[tuple[CapturedConstant, ...]]):
    """What the target's object, and the functions around it, hold that the target may depend on.

    Attributes:
        code: defines the function `name`, which computes digests.
        text: the target's file, in which its definition begins at `line`.
        receiver: the parameter that a method is called on, or ``""``.
        owner: the class that a method stands in, or ``""``.
        around: variables of functions around that the target reads.
        visible: all that it could read there.
        defined: those that are the one function that is defined under the name.
        hidden: the parameters, which stand for other things in the drop-in than around it.
        objects: the parameters that are no constants; they may be objects, whose methods are called.
        unreached: places, as line, column and their ends, that the emitted code raises in.
    """

    code: str
    name: str
    text: str
    line: int
    receiver: str
    owner: str
    around: tuple[str, ...]
    visible: tuple[str, ...]
    defined: tuple[str, ...]
    hidden: tuple[str, ...]
    objects: tuple[str, ...]
    unreached: tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class EnclosedArray:
    """An array that the target reads and is not given, by its path in what has the name.

    `through` is the function of the user's that reads it, ``""`` for the target.
    """

    path: str
    name: str
    shape: tuple[int, ...]
    through: str


@dataclass(frozen=True, slots=True)
class EnclosedArrays(Request[tuple[EnclosedArray, ...]]):
    """The arrays in what these dotted names stand for where the target runs."""

    expressions: tuple[str, ...]


# --- traces ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Roles:
    """What the arguments are to the target."""

    #: Batch axis by argument name and leaf index; every other array leaf is replicated.
    axes: Mapping[str, Mapping[int, int]]
    #: Arguments that are constants.
    statics: tuple[str, ...]
    #: Rows of what the function makes itself and the devices divide; 0 where the arguments have the batch.
    made: int = 0
    #: Of how many groups of consecutive rows each device has its part; 1 where it has rows in one piece.
    minibatches: int = 1


@dataclass(frozen=True, slots=True)
class RepeatRows(Request[tuple[Row, ...] | None]):
    """Give the example so many times its rows, in another order: the arguments, described.

    None where the target does not take them.
    """

    roles: Roles
    times: int


@dataclass(frozen=True, slots=True)
class TakeRowsBack(Request[None]):
    """Have the example as it was before its rows were repeated."""


@dataclass(frozen=True, slots=True)
class Site:
    """A line of the user's, and what is so there."""

    file: str
    line: int
    what: str


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis that has to be bound for the target to run, and the error of running without."""

    name: str
    error: Raised


@dataclass(frozen=True, slots=True)
class Mutated:
    """An argument that is changed in place: whether it is an NNX graph, and keeps its structure."""

    name: str
    graph: bool
    same_structure: bool


@dataclass(frozen=True, slots=True)
class Traced:
    """What tracing the reference shows: an error, or its results."""

    error: Raised | None = None
    #: Whether Python code met a traced value where it needs the number.
    concrete: bool = False
    #: The leaves of the result, and its containers.
    out: tuple[Row, ...] = ()
    tree: Any = None
    axes: tuple[Axis, ...] = ()
    #: Places of the arguments that are one object.
    shared: tuple[tuple[str, str], ...] = ()
    #: Parts of the result that hold the constants of an argument: path, name of the argument.
    kept: tuple[tuple[str, str], ...] = ()
    #: Leaves of the result that are no arrays: path and type.
    opaque: tuple[tuple[str, str], ...] = ()
    #: Calls of Python for their effect; file and line are empty where they are not known.
    callbacks: tuple[Site, ...] = ()
    #: Whether it runs anything on several devices by itself.
    mapped: bool = False
    mutated: tuple[Mutated, ...] = ()
    #: Calls of layers that take statistics of the batch they see, over no axis that the function needs.
    layers: tuple[Layer, ...] = ()
    #: Leaves over which loops go from one step to the next: argument, index, number of steps.
    steps: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Trace(Request[Traced]):
    """Trace the reference with so many rows; None for as many as there are."""

    roles: Roles
    size: int | None = None
    #: Whether a call of it is not traced, and is going to be compared with the trace.
    watched: bool = False


@dataclass(frozen=True, slots=True)
class Precision(Request[None]):
    """Measure the coarsest rounding in the function, in the user's own dtypes."""

    statics: tuple[str, ...]


#: It means the same each time; is a program for several devices; means another thing each time; means another
#: thing where jax shows it another number of devices.
Repeated: TypeAlias = Literal["same", "mapped", "other", "devices"]


@dataclass(frozen=True, slots=True)
class Repeats(Request[Repeated]):
    """What the reference means where it is traced twice, and with one more device than there are."""

    statics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FindChanged(Request[str]):
    """What each call of the reference changes of the objects it is given: ``"trainer.seen"``, or ``""``."""

    statics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunsInMap(Request[Raised | None]):
    """What the reference raises inside a map over devices that are all given the same."""

    statics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Synchronise(Request[bool]):
    """Have batch norms take their statistics over the devices, by the helper that `code` defines.

    Whether the results on one device are those of before.
    """

    code: str
    statics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """A call of a library's layer that normalises by the batch it sees."""

    #: ``"flax.linen.BatchNorm"``, and its path in the model or the arguments.
    layer: str
    path: str
    #: The attribute with the name of the axis, the names that it has, and whether these are of a map.
    axis: str
    axes: tuple[str, ...]
    mapped: bool
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class FindReductions(Request[tuple[tuple[Frame, ...], ...]]):
    """Where the function reduces over the examples: the calls that lead there, the outermost first."""

    roles: Roles


@dataclass(frozen=True, slots=True)
class FindSites(Request[tuple[str, ...] | None]):
    """Names of the sites of numpyro models that have a value for each example; see `sites`."""

    roles: Roles


@dataclass(frozen=True, slots=True)
class Minibatches:
    """The groups of consecutive rows that a function cuts its batch into."""

    #: How many there are; 1 where it does not, or as many as the batch has rows to.
    number: int
    #: Whether all of them are made by reshapes, and none taken by itself.
    reshaped: bool
    #: Where larger batches have more groups, how many rows a reshape puts into each; 0 where none does.
    rows: int = 0
    #: How many rows are in groups into which it cuts an axis as long as the batch, shuffled ones too.
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FindMinibatches(Request[Minibatches]):
    """Into how many groups of consecutive rows the function cuts its batch, whatever size that has."""

    roles: Roles
    #: Sizes that are looked at beside the given one and twice that.
    sizes: tuple[int, ...]


# --- the function as it is called -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Later:
    """A line that reads what another one changes after the import."""

    read: Site
    change: Site


@dataclass(frozen=True, slots=True)
class Narrowed:
    """A leaf that the call computes with in more bits than the trace."""

    name: str
    dtype: str
    #: How large integers of 64 bits may be for both to give the same; None where no limit was seen.
    up_to: int | None = None


@dataclass(frozen=True, slots=True)
class Apart:
    """The output that differs, and the values."""

    path: str
    got: str
    want: str


@dataclass(frozen=True, slots=True)
class CallComparison:
    """How the traced function compares with the call of it."""

    #: Whether it was followed as called, and why not.
    run: bool = True
    why: str = ""
    #: Arguments whose type is asked for.
    told: tuple[str, ...] = ()
    #: Where the two go other ways.
    parted: Site | None = None
    later: Later | None = None
    #: The error of the call, where the trace has none.
    failed: Raised | None = None
    #: Leaves that the call changes in place.
    changed: tuple[str, ...] = ()
    apart: Apart | None = None
    #: Whether they are alike where the dicts that the call gets have sorted keys.
    reordered: bool = False
    #: Leaves whose narrowing moves the result, and leaves that NumPy computes with in 64 bits, or would if
    #: they had as many.
    narrowed: tuple[Narrowed, ...] = ()
    wide: tuple[Narrowed, ...] = ()


@dataclass(frozen=True, slots=True)
class CompareWithCall(Request[CallComparison]):
    """Compare the traced function with the call of it."""

    statics: tuple[str, ...]
    #: Decorators that are no part of the emitted code.
    left_out: tuple[str, ...]
    #: Arguments that are no parameters and no state: what is an array of jax there may be one of NumPy's.
    data: tuple[str, ...]
    #: Whether nobody said of which type the inputs are.
    specified: bool
    #: Bytes and seconds that it may take.
    room: int
    seconds: float


# --- the search for collectives -------------------------------------------------------------

#: Where the namespaces of observed code have the copies of methods that a library runs, by the plain
#: functions behind these.
COPIES = "__jax_pmap_modules__"


@dataclass(frozen=True, slots=True)
class Around:
    """The functions around tapped code, tapped themselves."""

    #: For the namespace of the target's module, and by module for those of others.
    prelude: str
    elsewhere: Mapping[str, str]
    #: Module or ``""`` for the target's, the name as called there, the module it is from, its name there.
    exports: tuple[tuple[str, str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Tapped:
    """The target and what it calls with taps in them, under the name of the target."""

    name: str
    code: str
    around: Around


#: Names by which code asks for the type of what it is given.
ASKS_FOR_TYPES = frozenset({"type", "isinstance", "issubclass", "__class__", "singledispatch"})
#: Parameters under which functions of libraries take the name of a mapped axis, to synchronise over it.
AXIS_ARGUMENTS = ("axis_name", "pmap_axis_name", "cross_replica_axis")


@dataclass(frozen=True, slots=True)
class Callee:
    """What a call was seen to run."""

    #: ``"function"``, ``"method"``, or ``"other"`` for what is not known to be one of these.
    kind: str
    #: Of anything other, and of the object of a method.
    type: str = ""
    #: What anything other wraps.
    wrapped: str = ""
    path: str = ""
    line: int = 0
    name: str = ""
    qualname: str = ""
    module: str = ""
    #: Its number in the source, where it is in what was tapped.
    scope: int | None = None
    #: Whether it, or the class of a method, is found in the module by its name.
    named: bool = False
    #: Whether that holds of what arguments are bound to.
    importable: bool = False
    #: Whether a function is called as it is: nothing is bound to it, and what is around it merely compiles.
    alone: bool = False
    #: Whether arguments are bound to a function, or an object: a method that a value holds.
    bound: bool = False
    #: The class that defines a method, and whether its objects can have no other one.
    owner: str = ""
    frozen: bool = False
    #: Whether a method is the function that stands in its class, and its object has none of its own.
    as_written: bool = False
    #: The parameter that takes the name of a mapped axis, and takes None where there is none.
    axis: str = ""
    #: Attributes of what is called, or of the object that a method is called on, where it is a library's and
    #: is for good what it was made as, unless other code sets one of these; else None.
    kept: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ModuleMethod:
    """A method of a module of the user's that a library ran: ``"flax.linen"``, ``"haiku"``."""

    library: str
    method: Callee
    #: The calls that led to it, the outermost first.
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class FindModuleMethods(Request[tuple[ModuleMethod, ...]]):
    """Methods of the user's modules that libraries run, where the target is traced on the whole batch."""

    statics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FindCallees(Request[Mapping[int, tuple[Callee, ...]]]):
    """What is called, by the number of the tap, where the target is traced on the whole batch."""

    statics: tuple[str, ...]
    overrides: Mapping[str, str]
    tapped: Tapped


@dataclass(frozen=True, slots=True)
class Observation:
    """What each tapped value is on shards; without `raised`, on all of the function."""

    #: `planning.events.Event` reads them.
    events: tuple[Row, ...]
    #: Why it is not traced on shares, and the last point before.
    raised: Raised | None = None
    last: int | None = None
    #: The work on a share as part of that on the whole.
    share: float = 0.0
    #: Whether a collective is taken of what is whole already, by point.
    idle: tuple[tuple[int, bool], ...] = ()
    reached: tuple[int, ...] = ()
    #: Of methods that have a copy, by the scope, another one that objects have.
    others: tuple[tuple[int, str], ...] = ()
    #: Whether a share is another program than the whole batch, or than that on every other number of devices.
    apart: bool = False
    #: Operations of the original.
    operations: int = 0


@dataclass(frozen=True, slots=True)
class Observe(Request[Observation]):
    """What each value of tapped code is on shards, beside the tapped original on the whole batch."""

    roles: Roles
    overrides: Mapping[str, str]
    original: Tapped
    tapped: Tapped
    #: Points of the results.
    results: tuple[int, ...]
    axis_name: str
    #: How many shares there are.
    count: int
    #: Rows of the batch, where it is not the given one.
    rows: int | None = None
    #: Whether what is divided is no batch: each leaf has a size of its own, as parameters have.
    own_sizes: bool = False


@dataclass(frozen=True, slots=True)
class TellSizes(Request[tuple[int, ...]]):
    """Sizes of the batch for which the target is another program than for the given one."""

    roles: Roles


@dataclass(frozen=True, slots=True)
class ReturnsAlike(Request[bool]):
    """Whether the target returns leaves at the same paths with other values of static arguments."""

    roles: Roles
    overrides: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TellFew(Request[tuple[tuple[int, int], ...]]):
    """From and up to how many rows, multiples of some number, the target is another program than for many."""

    roles: Roles
    overrides: Mapping[str, str]
    multiple: int


@dataclass(frozen=True, slots=True)
class Draw:
    """A draw of random numbers on a share."""

    #: Whether it is for examples; whether its key differs between devices.
    example: bool
    varying: bool
    #: Marks that its key has passed, and those that it passes in every round of a loop.
    marks: tuple[int, ...]
    always: tuple[int, ...]
    #: Whether its key is, in some round of a loop, one that numbers for everybody are drawn from.
    mixed: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """A key at a point of the source."""

    point: int
    path: str
    #: Whether it is a key by itself; whether what passed it is returned.
    bare: bool
    kept: bool
    #: Whether what all devices draw, or is returned, has a key made of it that did not pass here.
    divided: bool
    #: Whether a loop hands it to its next round, which would fold it again.
    carried: bool
    #: The containers around it.
    tree: Any


@dataclass(frozen=True, slots=True)
class Draws:
    """The draws of a function, and where their keys come by."""

    draws: tuple[Draw, ...] = ()
    marks: tuple[Mark, ...] = ()
    #: Whether a folded key is returned.
    returned: bool = False
    #: Why draws and shares cannot be matched.
    unfollowed: str = ""
    #: What the function raised on a share.
    raised: Raised | None = None


@dataclass(frozen=True, slots=True)
class SurveyDraws(Request[Draws]):
    """Which draws belong to examples, and which marked keys they come from."""

    roles: Roles
    overrides: Mapping[str, str]
    tapped: Tapped
    axis_name: str
    count: int
    #: Whether draws that go into no result are left out.
    used: bool = False


# --- the proof ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Called:
    """A parallel object, and how it is called."""

    object: Object
    layout: Layout
    #: Arguments that are passed by name.
    named: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The reference and its inputs, as another function is held against them."""

    roles: Roles
    #: Of what feeds the next call, the argument, and the steps into the result: ``("w", (0, "w"))``.
    chain: tuple[tuple[str, tuple[int | str, ...]], ...]
    steps: int
    #: Source by argument, in place of static ones.
    overrides: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: Whether the other one draws the very numbers of one device.
    global_view: bool = True
    donated: tuple[str, ...] = ()
    #: Whether equality is derived.
    derived: bool = False
    #: How many rows are taken; None for all.
    rows: int | None = None
    #: Whether there is room for other inputs than those given.
    others: bool = True
    #: A reference that is parallel itself.
    reference: Called | None = None


@dataclass(frozen=True, slots=True)
class Mesh:
    """A mesh of devices."""

    axes: Mapping[str, int]
    #: Among how many devices the batch is divided, and along which axis.
    shares: int
    along: str
    #: For each leaf of the result the axes that divide each dimension; None for what is no array.
    specs: tuple[tuple[tuple[str, ...], ...] | None, ...]
    #: Dimensions of leaves that are no batch and of which devices have parts: the leaf's path, and which.
    parts: tuple[tuple[str, int], ...] = ()

    @property
    def devices(self) -> int:
        """How many devices it has."""
        return math.prod(self.axes.values())


@dataclass(frozen=True, slots=True)
class InPlace:
    """An edit of the user's file."""

    #: Whether the edited program is loaded: its function is run.
    program: bool
    #: The class of a method, or ``""``.
    owner: str


@dataclass(frozen=True, slots=True)
class Emitted:
    """Code that was emitted."""

    code: str
    name: str
    module: str
    path: str
    axis_name: str
    #: Leaves of the result that must be the same on every device.
    replicated: tuple[int, ...]
    mesh: Mesh | None = None
    in_place: InPlace | None = None
    #: The target's file where the code imports that, which a program that ran may be.
    imports: Module | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """An expression in a file. Lines from 1; columns from 0, both 0 where Python does not tell (3.10)."""

    file: str
    line: int
    column: int = 0
    end_line: int = 0
    end_column: int = 0

    def __str__(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Multiple:
    """A number that the rows on a device must be a multiple of, and why."""

    #: The number, and the length in the traces of what it is about, which may be another than the batch's.
    multiple: int
    length: int
    primitive: str
    #: The user's expressions that led there, the innermost first.
    places: tuple[Place, ...] = ()
    #: The axis of the mesh along which the rows are divided.
    axis: str = ""


@dataclass(frozen=True, slots=True)
class FixedForm:
    """A size, the ranks and kinds of an argument, or a constant, for which alone something holds."""

    argument: str
    #: The leaf by its path from the argument on, as ``"params['w']"``.
    leaf: str
    #: The axis whose size it is; None for the ranks and kinds of all leaves of the argument, or a `value`.
    axis: int | None = None
    #: Source of the value of what is no leaf, a constant of a container (`leaf` is how the code reads it).
    value: str = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """Where a derivation of one result came to its end before it was shown equal."""

    #: Index of the result.
    output: int
    #: What is not known, or not equal, in words.
    why: str
    #: The primitive at which, as ``"reduce_max"``; ``""`` where there is none.
    primitive: str = ""
    #: The user's expressions that led there, the innermost first.
    places: tuple[Place, ...] = ()
    #: Where meanings differ: the parts at which they do, of the parallel program and of the reference.
    terms: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class Affordable:
    """A run that fits: its rows and device counts; or none, and why.

    Without `rows` the batch is as given, cut for each count to what it divides.
    """

    rows: int | None
    counts: tuple[int, ...]
    #: What was left out to make it fit, or why there is none; ``""`` for a run of everything.
    why: str = ""
    #: Processor time that it takes, by the estimate.
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Shown:
    """What deriving showed."""

    #: Operations of the parallel program that were read.
    operations: int
    #: One for each result that was not shown equal; empty where all were.
    endings: tuple[Ending, ...] = ()
    #: Whether random numbers are equal in distribution only.
    draws: bool = False
    #: Where a sum over the devices is taken of what is whole on each of them already.
    repeated: tuple[Place, ...] = ()
    #: Names of primitives without a rule, which were measured.
    measured: tuple[str, ...] = ()
    #: What it holds under, and what more would be shown where the traces met these.
    conditions: tuple[Multiple, ...] = ()
    unmet: tuple[Multiple, ...] = ()
    #: In how many groups of rows each device has its part of the batch.
    minibatches: int = 1
    #: Along how many axes of a mesh it has shares; none where the compiler has the whole in mind.
    axes: int = 1

    @property
    def complete(self) -> bool:
        """Whether the programs are equal for all inputs."""
        return not self.endings


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivation(Shown):
    """What deriving shows on the counts and sizes that code is to take."""

    #: On how many devices it was traced, and with which batch.
    counts: tuple[int, ...]
    batch: int
    #: What the rows on a device must be a multiple of, and for what more would be complete.
    multiple: int
    asked: int
    run: Affordable | None
    #: Whether `shard_map` sums the gradients of what is replicated.
    summed: bool = False
    #: Batches of other sizes for which it is not derived, where it is for the given one.
    unshown: tuple[int, ...] = ()
    #: Forms of the inputs that are to be as given: for others it is not derived.
    forms: tuple[FixedForm, ...] = ()
    #: Counts of devices on which it is not derived, where it is on the usual ones.
    elsewhere: tuple[int, ...] = ()
    #: Counts that are run besides, where it is not derived on the usual ones: each, or each device, may have
    #: another program.
    beside: tuple[int, ...] = ()
    #: Functions whose own gradients are not linear in what they are handed; see `own_derivatives`.
    own_gradients: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Derive(Request[Derivation]):
    """Derive emitted code equal to the reference."""

    comparison: Comparison
    emitted: Emitted
    multiple: int
    #: Bytes and seconds that a run may take.
    room: int
    seconds: float
    #: Where rows are added to uneven batches: the leaves that are zero in them.
    zeros: tuple[str, ...] | None = None
    #: From and up to how many rows, on a device or in all, the code refuses.
    too_few: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Collective:
    """Communication in a compiled program."""

    kind: str
    axes: tuple[str, ...]
    count: int
    bytes: int
    #: Bytes of arrays in which the batch comes out whole.
    batch: int
    #: How many of them each round of a loop has that goes on for as long as its values say.
    rounds: int = 0
    #: How often they are done in one run, and the bytes of their results then: every round of a loop counts
    #: whose rounds are known, one of any other.
    times: int = 0
    moved: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one device of what XLA made of the parallel function, on the batch that it was run with."""

    arguments: int
    #: Without those that take the place of a donated argument.
    results: int
    #: What stands between them at once: activations, gathered parameters, gradients.
    temporary: int

    @property
    def total(self) -> int:
        """All that is there at once."""
        return self.arguments + self.results + self.temporary


#: In which dtypes a run is made: the user's own, or the widest.
Dtypes = Literal["given", "float64"]
#: What a result may have another one of than the reference's.
Form = Literal["constant", "dtype", "shape", "structure", "type"]


#: Ways in which a caller hands arrays over, beside those of NumPy; see `Failure.on`.
WAYS = AS_JAX, DIVIDED, PLACED, RETURNED, REFILLED, REORDERED = (
    "arrays of jax",
    "arrays that are divided over the devices",
    "batches that `place` puts there",
    "results of the call before, handed over as arrays of jax that lie on the devices",
    "arrays of NumPy in which the caller has put other numbers since the call before",
    "dicts whose keys were put in in another order",
)
#: What was done to inputs on which digits are lost that the difference of large numbers has not.
SHIFTED = "a thousand times their spread added to the numbers"
#: Inputs of other shapes; see `Failure.on`.
SEVERAL = "arrays that have several elements along axes where the given ones have one"
LONGER = "larger arrays, beyond a number in its code"
#: Behind a form of the inputs that emitted code raises for; see `Failure.on`.
NOT_REFUSED = ", which it does not refuse"


@dataclass(frozen=True, slots=True)
class Failure:
    """The first difference that a run found."""

    what: Literal[
        Form, "changed", "deleted", "draws", "exception", "keys", "mesh", "replicas", "shares", "value"
    ]
    step: int = 0
    path: str = ""
    leaf: int | None = None
    #: The inputs on which it was found.
    on: str = ""
    error: Raised | None = None
    why: str = ""
    #: What there is, and what the reference has.
    got: str = ""
    want: str = ""
    #: Of a value, how far it is off and may be, relative to its size.
    off: float = 0.0
    tolerance: float = 0.0
    #: How many elements differ, of how many; and how often the reference's the value is.
    differing: tuple[int, int] = (0, 0)
    ratio: float | None = None
    #: What the output is instead; see `proof.causes`.
    cause: str = ""
    #: Whether random numbers go into it.
    drawn: bool = False
    #: The argument that is deleted or changed, and what was left to its default.
    argument: str = ""
    defaults: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One run beside the reference."""

    devices: int
    precision: Dtypes = "given"
    batch: int = 0
    steps: int = 0
    inputs: int = 0
    #: Of the leaf that came closest to its bound, relative to its size.
    error: float = 0.0
    tolerance: float = 0.0
    #: Whether copies on several devices were compared.
    replicas: bool = False
    #: Leaves that are rounding alone, leaves that are zero, and how many others were compared.
    noise: tuple[str, ...] = ()
    zero: tuple[str, ...] = ()
    compared: int = 0
    #: What was compiled, where that was looked at.
    collectives: tuple[Collective, ...] | None = None
    memory: Memory | None = None
    failure: Failure | None = None
    #: Whether the batch is not shared evenly, is of another size, or the run is made on one count alone.
    uneven: bool = False
    resized: bool = False
    alone: bool = False
    processes: int = 1

    @property
    def raised(self) -> Raised | None:
        """The error that it ended in, where it did."""
        return self.failure.error if self.failure is not None else None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A device count that nothing was compared on, as the function fails on a batch cut to fit."""

    devices: int
    batch: int
    error: Raised
    #: Whether it is the emitted code that does.
    emitted: bool = False


@dataclass(frozen=True, slots=True)
class Adequacy:
    """What the inputs show, and what they do not."""

    #: What those given lack, in words, and how many sets were made from them.
    weak: tuple[str, ...] = ()
    sets: int = 0
    #: Places of decisions that go one way on all of them.
    stuck: tuple[str, ...] = ()
    #: Those in which devices exchange something else the other way.
    exchanges: tuple[str, ...] = ()
    #: Where results are made that are given as those of all devices, and are of each's own.
    own: tuple[str, ...] = ()
    #: Whether float16 is computed in, and whether any floats of 16 bits or less are.
    half: bool = False
    narrow: bool = False
    #: Leaves of the result that are NaN throughout on the given inputs.
    nans: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Checks:
    """Runs, in order, up to the first that fails."""

    checks: tuple[Check, ...]
    skipped: tuple[Skipped, ...] = ()
    #: Whether random numbers are drawn for examples.
    equal_draws: bool = False
    notes: tuple[str, ...] = ()
    adequacy: Adequacy = Adequacy()
    #: Of the few rows on a device that were asked for, those with which it is not shown equal.
    unlike: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class TellPadded(Request[tuple[int, ...]]):
    """Two sizes of the batch of which rows that are added to an uneven one may not make one; or none."""

    comparison: Comparison
    multiple: int
    #: The leaves that are zero in added rows.
    zeros: tuple[str, ...]
    #: Up to how many rows a batch is not looked at.
    few: int


@dataclass(frozen=True, slots=True)
class Prove(Request[Checks]):
    """Run emitted code on several device counts beside the reference."""

    comparison: Comparison
    emitted: Emitted
    counts: tuple[int, ...]
    #: Whether it chooses its devices itself.
    fixed: bool
    #: What it does with batches that the devices do not share evenly.
    remainder: str
    #: From and up to how many rows on a device it is run besides; see `TellFew`. Those that it refuses.
    few: tuple[tuple[int, int], ...] = ()
    refused: tuple[tuple[int, int], ...] = ()
    #: What the rows on a device have to be a multiple of.
    multiple: int = 1


@dataclass(frozen=True, slots=True)
class ProveInProcesses(Request[Checks]):
    """Run emitted code in this one of several processes."""

    comparison: Comparison
    emitted: Emitted
    #: Of each leaf of the result the axis along which it is split.
    output_axes: tuple[int | None, ...]
    #: What the rows on a device have to be a multiple of.
    multiple: int


@dataclass(frozen=True, slots=True)
class Machine:
    """What the compiler made for a machine that is not there."""

    kind: str
    devices: int
    batch: int
    memory: Memory | None
    collectives: tuple[Collective, ...] | None
    #: The compiler's words where the memory of a chip does not suffice.
    lacks: str


@dataclass(frozen=True, slots=True)
class Intermediate(Request[int]):
    """Bytes that the reference takes besides its arguments and results, for a batch of `rows`."""

    comparison: Comparison
    rows: int


#: Devices that are simulated at most.
MOST_DEVICES = 256
#: In place of the name of a machine: the simulated devices of the worker.
HERE = "here"


@dataclass(frozen=True, slots=True)
class CompileFor(Request[Machine]):
    """Compile emitted code for a machine that is not there, or for simulated devices; nothing is run."""

    comparison: Comparison
    emitted: Emitted
    topology: str
    #: By argument and leaf, the axes that divide each dimension.
    specs: Mapping[str, Mapping[int, tuple[tuple[str, ...], ...]]]


# --- code that the user wrote ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FindBehind(Request[tuple[str, str] | None]):
    """File and dotted name of the function of the user's that an object calls in the end."""

    object: Object


@dataclass(frozen=True, slots=True)
class Call:
    """How one call of a parallel object ended."""

    layout: Layout
    named: tuple[str, ...]
    #: What differs, or ``"equal"``; of a reference ``"runs"`` for the last two.
    ends: Literal["raises", "form", "value", "equal", "runs"]
    error: Raised | None = None
    #: The share of the results that differ, and how much at most.
    off: tuple[float, ...] = ()
    #: On how many devices the results lie.
    on: int = 0
    #: Whether it runs on several devices.
    mapped: bool = False


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls with a batch of so many rows, or why there were none."""

    batch: int = 0
    tried: tuple[Call, ...] = ()
    skipped: Skipped | None = None
    #: Arguments of the reference that the function does not take, whose values are its own business.
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TryReference(Request[Calls]):
    """Find out how the user's parallel reference is called, in some layouts or in all."""

    roles: Roles
    object: Object
    count: int
    layouts: tuple[Layout, ...] | None


@dataclass(frozen=True, slots=True)
class TryLayouts(Request[Calls]):
    """Find out how the user's parallel function is called, in some layouts or in all."""

    comparison: Comparison
    object: Object
    count: int
    layouts: tuple[Layout, ...] | None
    #: Arguments that look like data, and may be another batch where they are not as long as this one.
    data: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeriveParallel(Request[Derivation]):
    """Derive the user's parallel function equal to the reference."""

    comparison: Comparison
    parallel: Called


@dataclass(frozen=True, slots=True)
class ListedPart:
    """A result of an operation: its placement as `model.Part` has it, and its shape on the whole batch."""

    placement: str
    shape: tuple[int, ...] | None
    dtype: str


@dataclass(frozen=True, slots=True)
class ListedValue:
    """What an expression computes; `places` are those that led to it, the innermost first."""

    places: tuple[Place, ...]
    parts: tuple[ListedPart, ...]


@dataclass(frozen=True, slots=True)
class ListedCollective:
    """A collective of a parallel program."""

    #: ``"psum"``, ``"pmax"``, ``"all_gather"``, …
    primitive: str
    places: tuple[Place, ...]
    axes: tuple[str, ...]
    #: The placements of what it is given.
    given: tuple[str, ...]
    #: Bytes of its results on one device.
    bytes: int
    #: Whether it is in the derivative of what these places compute.
    differentiating: bool


@dataclass(frozen=True, slots=True)
class Listing:
    """What the expressions of a parallel program compute, in order, and its collectives."""

    values: tuple[ListedValue, ...] = ()
    collectives: tuple[ListedCollective, ...] = ()


@dataclass(frozen=True, slots=True)
class ListParallel(Request[Listing]):
    """Tell the placements of the values of the user's parallel function; see `listed`."""

    comparison: Comparison
    parallel: Called


@dataclass(frozen=True, slots=True)
class ProveParallel(Request[Checks]):
    """Run the user's parallel function beside the reference."""

    comparison: Comparison
    parallel: Called
    count: int
    #: Whether it is the one count on which the user's own dtypes are tried too.
    with_given: bool
    #: Batches for which it was not derived.
    unshown: tuple[int, ...] = ()
    #: Whether it is one of `Derivation.elsewhere`, or `beside`: the batch then has rows for all devices, the
    #: given ones over again, and nothing is looked at but whether the two are equal.
    elsewhere: bool = False
    #: What it says of itself that it does with rows that devices do not share evenly, see `Prove.remainder`.
    remainder: str = "error"
