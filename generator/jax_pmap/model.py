"""The records that pass between the stages: frozen, and free of jax.

Everything here can be compared, printed and (the plan and the evidence) written as JSON.
Shapes are tuples of ints, dtypes are NumPy names such as ``"float32"``, sizes are bytes.
"""

from __future__ import annotations

import enum
import math
import os
import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from jax_pmap.worker.protocol import FixedForm, Memory

PLAN_SCHEMA_VERSION = 2
#: Seconds one run of the worker may take.
DEFAULT_TIMEOUT = 300.0


@dataclass(frozen=True, slots=True)
class Span:
    """A place in a file. Lines count from 1, columns from 0 (printed as column + 1)."""

    file: str
    line: int
    column: int = 0
    end_line: int = 0
    end_column: int = 0

    def __str__(self) -> str:
        """``file:line:column``, as editors and terminals link it."""
        return f"{self.file}:{self.line}:{self.column + 1}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A stage's answer when it cannot go on. `exit_code` is 1 (no) or 2 (could not ask)."""

    #: Stable diagnostic code, e.g. ``"JP040"``; `jax-pmap explain` prints it at length.
    code: str
    #: One or two sentences: what was expected, what was found. Names in backticks.
    reason: str
    #: What to type or change next.
    hint: str
    #: Where in the user's files, when there is such a place.
    span: Span | None = None
    #: Longer material: the user's own traceback, a list of candidates, a table of errors.
    details: tuple[str, ...] = ()
    #: Whether it holds whatever is split: nothing else is then tried.
    final: bool = False
    #: Of a parallel function that differs from its reference: what was found of it.
    found: Verified | None = None


class RefusalError(Exception):
    """Carries a `Refusal` out of nested calls; every stage's entry point turns it back."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


def refused(
    code: str, reason: str, hint: str, span: Span | None = None, details: tuple[str, ...] = ()
) -> RefusalError:
    """A `RefusalError` in one line, to be raised."""
    return RefusalError(Refusal(code, reason, hint, span, details))


#: Is told in a line what is going on: ``"STAGE: what"``, as in ``"planning: tracing on 8 devices"``.
Say: TypeAlias = Callable[[str], None]


def quiet(_: str) -> None:
    """Say nothing."""


def staged(stage: str, say: Say) -> Say:
    """`say`, for work that is a part of `stage` and does not know it."""
    return lambda what: say(f"{stage}: {what}")


@dataclass(frozen=True, slots=True)
class Stage:
    """How long one stage of the work took, all its parts together."""

    name: str
    #: Of wall time.
    seconds: float


# --- locate -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Binding:
    """The assignment whose name was asked for, as in ``update = jax.jit(partial(_update, cfg))``."""

    #: The name that was asked for: ``"update"``, ``"Agent.update"``.
    qualname: str
    #: Source of the value.
    text: str
    span: Span
    #: What compiles the function: (compiler, call as written, how many parameters are bound inside it).
    calls: tuple[tuple[str, str, int], ...] = ()
    #: Source of what `partial` binds, by position and by name.
    positional: tuple[str, ...] = ()
    keywords: tuple[tuple[str, str], ...] = ()
    #: Whether importing a module makes the object: the target's, or the one of `file`.
    live: bool = False
    #: The file of the assignment, where it is another than the function's.
    file: Source | None = None
    #: Whether the function is written there itself, as a lambda.
    is_lambda: bool = False
    #: Whether it is a method bound to an object: ``agent.update``, and not ``Agent.update``.
    of_object: bool = False
    #: Whether it is a class method, bound to its class, which no assignment of the file says.
    of_class: bool = False
    #: Where the target's text is a function that calls the module's object, what it calls the module.
    called_by: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """A located target: one function in one file, with the file's exact text."""

    #: What the user typed.
    target: str
    #: Absolute path of the file.
    path: Path
    #: Path as shown to people and in headers: relative to the project root, POSIX slashes.
    shown_path: str
    #: Dotted name to import the file under, e.g. ``"train"`` or ``"pkg.train"``.
    module: str
    #: Folder that has to be on ``sys.path`` for `module` to be importable.
    root: Path
    #: Dotted name inside the file: ``"train_step"``, ``"Trainer.step"``, ``"main.step"``.
    qualname: str
    #: Decoded text, line endings as in the file.
    text: str
    encoding: str = "utf-8"
    newline: str = "\n"
    #: The assignment that gives the target the name that was asked for; None where a `def` has it.
    binding: Binding | None = None
    #: The file's own text, where `text` has a `def` in place of what the file has.
    written: str | None = None
    #: What the file has under the target's name, where `text` has a function that calls it.
    forwards: str = ""
    #: Folders besides `root` that modules of the user's are imported from, and may be below it.
    others: tuple[Path, ...] = ()

    @property
    def file_text(self) -> str:
        """The text of the file as it is on the disk."""
        return self.text if self.written is None else self.written

    @property
    def name(self) -> str:
        """The function's own name, the last part of `qualname`."""
        return self.qualname.rpartition(".")[2]

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders that modules of the user's are imported from, that of the file's own first."""
        return tuple(dict.fromkeys((self.root, *self.others)))

    def shown(self, path: Path) -> str:
        """How another file is shown: as seen from where `shown_path` starts."""
        way = os.path.relpath(path, self.path.parent).replace(os.sep, "/")
        return posixpath.normpath(posixpath.join(posixpath.dirname(self.shown_path), way))

    @property
    def is_package(self) -> bool:
        """Whether the file is an ``__init__.py``."""
        return self.path.name == "__init__.py"


# --- arguments and roles ------------------------------------------------------------------


class Role(enum.StrEnum):
    """What happens to an argument leaf."""

    BATCH = "batch"
    REPLICATED = "replicated"
    STATIC = "static"
    KEY = "key"


@dataclass(frozen=True, slots=True)
class AxesNode:
    """A container in an axes tree; leaves of the tree are an int (batch axis) or None."""

    #: ``"dict"``, ``"tuple"``, ``"list"``, ``"namedtuple"`` or ``"dataclass"``.
    kind: str
    #: Keys of a dict (as Python source, e.g. ``"'x'"``) or field names; empty for sequences.
    keys: tuple[str, ...]
    children: tuple[Axes, ...]
    #: ``"module:QualName"`` of a namedtuple or dataclass; empty otherwise.
    type_name: str = ""


#: A pytree prefix of batch axes: an int where a leaf (or a whole subtree) is split along
#: that axis, None where it is replicated. Same meaning as `in_axes` / `out_axes` of pmap.
Axes: TypeAlias = "int | AxesNode | None"


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """One axis of the mesh that the devices are arranged in."""

    name: str
    #: Devices along it.
    size: int


#: How an array lies on a mesh: for each of its first dimensions the mesh axes that divide it, none where it
#: is whole. Same meaning as a `PartitionSpec`: ``((), ("model",))`` is ``P(None, "model")``.
Spec: TypeAlias = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class SpecRule:
    """How leaves lie on the mesh whose path a pattern fits."""

    #: A regular expression that has to fit all of a path such as ``params.dense.kernel``.
    pattern: str
    spec: Spec
    #: As typed.
    text: str


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array leaf of an argument or of the result."""

    #: Path as Python source, starting at the argument: ``"batch['x']"``, ``"params[0].w"``.
    path: str
    role: Role
    #: Batch axis (non-negative) when the role is BATCH, else None.
    axis: int | None
    #: Shape on the whole batch.
    shape: tuple[int, ...]
    dtype: str
    #: Of a constant in a dict, list or tuple: its Python source. The emitted code rejects any other.
    value: str = ""
    #: Of a constant that no source says, a callable say: the digest of what it is, as the emitted code
    #: computes it (`contents`). The emitted code rejects any other.
    identity: str = ""
    #: Of such a constant, the module and the name under which the emitted code can import it, to compare it
    #: with: ``"jax.nn:relu"``; empty where there is none.
    imported: str = ""
    #: How it lies on the mesh of the plan; empty where it is whole on every device, or there is no mesh.
    spec: Spec = ()

    def per_device(self, devices: int, mesh: tuple[MeshAxis, ...] = ()) -> tuple[int, ...]:
        """Shape of one device's share on `devices` devices, or on those of `mesh`."""
        if mesh:
            parts = [math.prod(axis.size for axis in mesh if axis.name in names) for names in self.spec]
            parts += [1] * (len(self.shape) - len(parts))
            return tuple(size // part for size, part in zip(self.shape, parts, strict=True))
        if self.axis is None:
            return self.shape
        head, size, tail = self.shape[: self.axis], self.shape[self.axis], self.shape[self.axis + 1 :]
        return (*head, size // devices, *tail)

    def bytes(self, devices: int = 1, mesh: tuple[MeshAxis, ...] = ()) -> int:
        """Bytes of the array, or of one device's share of it; 0 of what is no array."""
        if self.role is Role.STATIC:
            return 0
        # A PRNG key is taken as its words, of which there mostly are two.
        bits = None if self.dtype.startswith("key") else re.search(r"\d+", self.dtype)
        width = 1 if self.dtype == "bool" else max(int(bits[0]) // 8, 1) if bits else 8
        return math.prod(self.per_device(devices, mesh)) * width


class ParameterKind(enum.StrEnum):
    """How Python binds a parameter."""

    POSITIONAL_ONLY = "positional_only"
    POSITIONAL_OR_KEYWORD = "positional_or_keyword"
    VAR_POSITIONAL = "var_positional"
    KEYWORD_ONLY = "keyword_only"
    VAR_KEYWORD = "var_keyword"


@dataclass(frozen=True, slots=True)
class Argument:
    """One parameter of the target, with what is done to its leaves."""

    name: str
    kind: ParameterKind
    #: Batch axes as a pytree prefix; None for replicated, static and key arguments.
    axes: Axes
    leaves: tuple[Leaf, ...]
    #: True when the whole argument is passed as a compile-time constant.
    static: bool = False
    #: Whether it is a static argument that is wrapped in one which is equal to others of the same contents:
    #: it cannot be hashed, or is the same object with other arrays.
    wrapped: bool = False
    #: True when its buffers are given up to the call.
    donated: bool = False
    #: How leaves that are no arrays (roles `STATIC`) come apart from the others before the call:
    #: ``"equinox"`` by `eqx.partition`, ``"leaves"`` by a helper; ``""`` when there are none.
    partition: str = ""
    #: For a static argument, and for one that was None: the values (Python source) the plan
    #: was observed with. The emitted code rejects any other. Empty: not restricted.
    proved_values: tuple[str, ...] = ()
    #: Whether the function asks for its type: then the values must be of the same one.
    typed: bool = False
    #: In which mode the modules in it were, as ``"deterministic=True"``. The emitted code rejects any other.
    modes: tuple[str, ...] = ()
    #: Of functions that it holds beside its leaves, where the code may take no others: path, type and digest,
    #: as of a leaf's `identity`.
    functions: tuple[tuple[str, str, str], ...] = ()
    #: Leaves of integers with which the original computes in NumPy or Python, and up to which size jax was
    #: seen to give the same in 32 bits. The emitted code rejects larger ones.
    fits: tuple[tuple[str, int], ...] = ()
    #: Why the roles are what they are, in a few words.
    why: str = ""

    @property
    def role(self) -> str:
        """One word for the whole argument: a role, or ``"mixed"``."""
        if self.static:
            return Role.STATIC
        roles = {leaf.role for leaf in self.leaves if leaf.role is not Role.STATIC}
        return str(roles.pop()) if len(roles) == 1 else "mixed" if roles else Role.REPLICATED


# --- the plan -----------------------------------------------------------------------------


#: Collectives that make a partial value whole: by adding up what the devices have, or taking the extreme.
SUMS, EXTREMES = frozenset({"psum", "pmean"}), frozenset({"pmax", "pmin"})
REDUCING = SUMS | EXTREMES
#: Operations of a `Sync` that are no collectives, and need nothing of other devices: a key made another one
#: on every device; a device's part of what all have, and of a number of rows; a value divided by the
#: number of devices.
ON_DEVICE = FOLD, OWN_SHARE, OWN_SIZE, DIVIDE = "fold_in", "own_share", "own_size", "divide"
#: A `Sync` of a matrix of which devices have columns and get rows.
EXCHANGE = "all_to_all"
#: A `Sync` that puts the parts of all devices together.
GATHERED = "gather_parts"
#: What a sum, or a mean, over the devices becomes of which each keeps its part.
SCATTERED = {"psum": "psum_scatter", "pmean": "pmean_scatter"}


#: Where a `Sync` stands that is of no value in the function: a fold of the keys inside an object, which holds
#: for all of the body, and a sum of what one statement adds to objects.
AROUND, ADDED = "around", "added"


@dataclass(frozen=True, slots=True)
class Sync:
    """One value that a collective makes whole, at one place in the body."""

    #: ``"psum"``, ``"pmean"``, ``"pmax"``, ``"pmin"``, ``"all_gather"`` or ``"all_to_all"``; ``"var"``,
    #: ``"std"`` or ``"norm"`` for a call of that name whose means or sums are taken over the devices; one of
    #: `protocol.AXIS_ARGUMENTS` for a
    #: call that is given the axis under that name, and synchronises by itself. No collectives are
    #: ``"fold_in"``, a PRNG key made another on every device, for numbers that belong to examples, and
    #: ``"own_share"``, a device's part of a value that all of them have whole; ``"own_size"``, of a number of
    #: rows; ``"divide"``, a value for each row, divided by the number of devices. For arrays that the devices
    #: have in parts, ``"gather_parts"`` puts these together; ``"psum_scatter"`` and ``"pmean_scatter"`` give
    #: a device its part of a sum or a mean. Of ``"psum"`` and ``"pmean"`` with `like`, a device has its part
    #: already, or cuts it out.
    op: str
    #: The value as the reader knows it: ``"loss"``, ``"metrics['n']"`` or a short expression.
    value: str
    #: ``"after"``: the name is reassigned after the statement at `span`.
    #: ``"wrap"``: the expression at `span` is wrapped where it stands.
    #: ``"around"``: while the function runs, the keys inside the object `value` are folded; of a
    #: ``"fold_in"``, whose `span` is the function's name.
    #: ``"added"``: what the statement at `span` adds to the objects at `paths` inside `value` is summed up;
    #: of a ``"psum"``.
    where: str
    #: Place in the *original* file of the statement or expression.
    span: Span
    #: Paths of the leaves and containers inside the value that are synced, as Python source
    #: behind the value (``"['n']"``); ``("",)`` for the whole value.
    paths: tuple[str, ...] = ("",)
    #: (path, kind) of the containers above those, to make the value again around them:
    #: ``"dict"``, ``"namedtuple"``, ``"tuple 3"``, ``"list 3"`` or ``"dataclass.loss.count"``. Of a
    #: ``"divide"`` of all leaves of a value that is no array itself, ``("", "tree")``.
    containers: tuple[tuple[str, str], ...] = ()
    #: Bytes of one device's copy in the user's own dtypes, 0 when unknown.
    bytes: int = 0
    #: For ``"all_gather"``, ``"own_share"`` and what reads a diagonal, the axis along which the devices have
    #: their shares; for ``"all_to_all"``, along which they get them.
    axis: int | None = None
    #: For ``"all_gather"`` of several batches that are joined one behind the other, how many these are, and
    #: the rows of one of them on a device, as source.
    joined: tuple[int, str] | None = None
    #: What the devices have in parts, where it is put together or something is divided like it: the argument
    #: or its part, as source: ``"state.params"``.
    like: str = ""
    #: The axes of a mesh along which it goes; ``""`` is that of the batch.
    along: tuple[str, ...] = ("",)
    #: Of a ``"fold_in"``, whether the index counts down from the largest number there is: other keys are made
    #: of the key, by small numbers.
    downward: bool = False
    #: Of a ``"pmax"`` or ``"pmin"``, of which jax has no derivative, whether ``stop_gradient`` is around the
    #: value: what would flow back there is not used.
    constant: bool = False


@dataclass(frozen=True, slots=True)
class Guard:
    """A branch no example input reached: the emitted code raises there instead of guessing."""

    span: Span
    #: Condition as the reader knows it, e.g. ``"if mask is not None"``.
    condition: str
    #: Whether it is a side of an expression, as in ``A if TEST else B``, and not a block of statements.
    is_side: bool = False


@dataclass(frozen=True, slots=True)
class Callee:
    """A method that a call was seen to run, where no name in the source tells which."""

    #: The function the call stands in: ``"critic.py::update_critic"``.
    caller: str
    #: Source of what is called there: ``"critic.apply_gradient"``.
    called: str
    #: The method, by the class that defines it: ``"common:Model.apply_gradient"``.
    function: str
    #: Whether its object is the first argument: what stands before the dot is no object of the class.
    unbound: bool = False
    #: Whether a value holds it with its object bound to it, as ``getattr(self, name)`` does.
    by_value: bool = False
    #: The library that runs it on modules of its own, whoever calls these: ``"flax.linen"``. Then `caller` is
    #: the target, and `called` the method.
    library: str = ""
    #: Whether code of the project may give an object, or its class, another method of that name.
    replaceable: bool = False
    #: Whether it is an object that a library makes of functions, to be made anew of copies of these; then
    #: `function` is what its module calls it.
    made: bool = False


@dataclass(frozen=True, slots=True)
class Devices:
    """Which devices the emitted code runs on: all local ones, the first N, or chosen ids."""

    count: int | None = None
    ids: tuple[int, ...] = ()

    @property
    def number(self) -> int | None:
        """How many devices, or None for all that are there."""
        return len(self.ids) if self.ids else self.count


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be done to each argument, value and output, independent of the backend."""

    #: ``"train.py::train_step"``.
    target: str
    axis_name: str
    arguments: tuple[Argument, ...]
    syncs: tuple[Sync, ...]
    #: Batch axes of the result, a pytree prefix as `out_axes` of pmap.
    output_axes: Axes
    outputs: tuple[Leaf, ...]
    devices: Devices = field(default_factory=Devices)
    #: The axes in which the devices are arranged, `axis_name` among them; empty for that one of all devices.
    mesh: tuple[MeshAxis, ...] = ()
    guards: tuple[Guard, ...] = ()
    #: Constants that the object of a method, or a function around the target, holds and that the target may
    #: depend on. The emitted code rejects others.
    captured: tuple[Leaf, ...] = ()
    #: Methods that were found by running the function. The emitted code rejects objects with another one.
    callees: tuple[Callee, ...] = ()
    #: Assumptions and hints for the reader, one sentence each.
    notes: tuple[str, ...] = ()
    #: ``NAME=SPEC`` texts, as ``--arg`` takes them, of the inputs the tool made up.
    assumed_inputs: tuple[str, ...] = ()
    #: (path into the result, argument name) pairs: parts of the result that hold the constants of an
    #: argument that is partitioned, as a returned module holds its activation function.
    kept: tuple[tuple[str, str], ...] = ()
    #: Arguments that the function changes in place; the emitted one does so too.
    mutated: tuple[str, ...] = ()
    #: Calls that set the mode of arguments, ``"model.eval()"``: the emitted function makes them first.
    switches: tuple[str, ...] = ()
    #: Libraries whose layers take statistics of a batch over all devices: ``"flax.linen"``, ``"flax.nnx"``,
    #: ``"haiku"``, ``"equinox.nn"``, and sites of models of which there is one for each example,
    #: ``"numpyro:obs"``, which count for all devices; and whether maps inside the function bind axes of
    #: theirs.
    layers: tuple[str, ...] = ()
    in_maps: bool = False
    #: (place, the place before it that holds the same object) pairs of what the arguments hold: they are
    #: joined again where the arguments come in.
    shared: tuple[tuple[str, str], ...] = ()
    #: (argument index, path into the result) pairs: outputs that feed the next call's inputs.
    chain: tuple[tuple[str, str], ...] = ()
    #: The emitted code takes batches that give each device a multiple of so many rows; 1 for any.
    multiple_of: int = 1
    #: From and up to how many rows on a device, or in all, it takes no batches, as it is not equal for them.
    too_few: tuple[tuple[int, int], ...] = ()
    #: What of the inputs is to be as in the proof, besides the ranks and kinds of the batch.
    forms: tuple[FixedForm, ...] = ()
    #: Of how many groups of consecutive rows each device gets its part; 1 where it gets rows in one piece.
    minibatches: int = 1
    #: In how many groups a device works on its share, one after the other; 1 for all of it at once.
    microbatches: int = 1
    #: Sums that are taken ahead of the microbatches, and of which each has its part: what they are taken of.
    parted: tuple[str, ...] = ()
    #: Rows of what the function makes itself and the devices divide, or their largest common divisor; 0 where
    #: the arguments have the batch.
    made: int = 0
    #: Settings of jax that importing the target's module makes, with their values as Python source.
    settings: tuple[tuple[str, str], ...] = ()
    #: SHA-256 of the target's source text, to tell a plan that no longer fits.
    source_hash: str = ""
    schema_version: int = PLAN_SCHEMA_VERSION

    def takes(self, rows: int, count: int) -> bool:
        """Whether the code takes a batch of so many rows on so many devices, as far as `too_few` goes."""
        return not any(low <= each <= high for low, high in self.too_few for each in (rows, rows // count))

    @property
    def too_few_rows(self) -> str:
        """`too_few` in words: ``"1 to 3 or 8 rows"``."""
        words = " or ".join(str(low) if low == high else f"{low} to {high}" for low, high in self.too_few)
        return f"{words} row{'' if words == '1' else 's'}"

    @property
    def shares(self) -> int | None:
        """Among how many devices the batch is divided, or None for all that are there."""
        along = (axis.size for axis in self.mesh if axis.name == self.axis_name)
        return next(along, self.devices.number)

    def along(self, sync: Sync) -> tuple[str, ...]:
        """The names of the axes along which a collective goes."""
        return tuple(name or self.axis_name for name in sync.along)


def moded(arguments: Sequence[Argument], switches: Sequence[str]) -> list[Argument]:
    """Arguments with modules that are to be in the mode of the proof.

    Others have none, or have all of them in one mode by the `switches` that are made first.
    """
    made = {*switches}
    return [a for a in arguments if a.modes and made.isdisjoint((f"{a.name}.eval()", f"{a.name}.train()"))]


# --- the placements of values ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """Leaves of one value that are placed alike."""

    #: ``"replicated"``; ``"sharded 0"``, along that axis; ``"psum"``, ``"pmean"``, ``"pmax"`` or ``"pmin"``,
    #: by that collective that of the whole batch; ``"mapped"``, of each example its own under `jax.vmap`;
    #: ``"grouped"``, sharded and reshaped into groups; ``"varying"`` or ``"unknown"``.
    placement: str
    #: How many leaves.
    leaves: int
    #: Shape on the whole batch of the one leaf; None where there are several.
    shape: tuple[int, ...] | None
    #: Of the one leaf; ``""`` for a number of Python, and where there are several.
    dtype: str


@dataclass(frozen=True, slots=True)
class Placed:
    """A value, and how that of a device relates to that of the whole batch."""

    #: The expression, or the name where a statement binds it.
    span: Span
    parts: tuple[Part, ...]
    #: The statement that binds the name; None for an expression.
    bound_by: Span | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """The source of a function as it was traced, with its values in the order in which they are computed."""

    #: ``"train.py::loss_fn"``.
    function: str
    file: str
    #: Line of ``def`` in the file, counting from 1, and columns that `text` was moved to the left by.
    line: int
    indent: int
    #: From ``def`` on, without decorators.
    text: str
    #: Empty where nothing was traced on shares.
    values: tuple[Placed, ...] = ()


@dataclass(frozen=True, slots=True)
class Communication:
    """A collective in code that the user wrote."""

    sync: Sync
    #: The placements of what it is given, as `Part` has them.
    given: tuple[str, ...]
    #: Whether differentiation takes it of the derivative of the expression.
    differentiating: bool = False


@dataclass(frozen=True, slots=True)
class Inspected:
    """A parallel function that the user wrote: its source, placements and collectives."""

    listings: tuple[Listing, ...]
    communication: tuple[Communication, ...]


# --- the proof ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Check:
    """One run of the emitted code beside the reference."""

    devices: int
    #: ``"float64"`` for the verdict, ``"as given"`` for the user's own dtypes.
    precision: str
    #: Size of the batch axis after cutting it to fit.
    batch: int
    #: Chained calls.
    steps: int
    #: Largest error over all outputs, relative to each output's scale.
    error: float
    #: The bound it was held against, from the reference's own rounding.
    tolerance: float
    #: Processes that the devices were in.
    processes: int = 1


@dataclass(frozen=True, slots=True)
class Collective:
    """One kind of communication in what XLA made of the parallel function, in the user's own dtypes."""

    #: XLA's name: ``"all-reduce"``, ``"all-gather"``, ``"all-to-all"``, ``"collective-permute"``,
    #: ``"reduce-scatter"``.
    kind: str
    #: How often it stands in the program; XLA makes one of several that it can join.
    count: int
    #: Bytes of their results on one device.
    bytes: int
    #: The axes of a mesh of several along which they go; empty for one axis, and where it is not known.
    axes: tuple[str, ...] = ()
    #: How many of them stand in loops that go on for as long as their values say: in each round all devices
    #: wait for the slowest.
    rounds: int = 0
    #: How often they are done in one call, and the bytes of their results then: every round of a loop counts
    #: whose rounds are known, one of any other.
    times: int = 0
    moved: int = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """What the emitted code is on a machine that is not there; nothing was run on it."""

    #: ``"v5e:2x4"``.
    name: str
    #: ``"TPU v5 lite"``.
    kind: str
    devices: int
    #: Rows of the batch that it was compiled for.
    batch: int
    #: Bytes of memory of one chip; 0 where they are not known.
    capacity: int
    #: None where they do not suffice.
    memory: Memory | None
    collectives: tuple[Collective, ...] | None
    #: The compiler's words where the memory of a chip does not suffice.
    lacks: str = ""
    #: Whether there was no compiler for it: then `memory` is that of arguments and results, by their shapes,
    #: with what the function computes between them operation by operation on the rows of one chip, which a
    #: compiler fuses and divides along further axes; and `collectives` are those of the plan, each once.
    by_shapes: bool = False


@dataclass(frozen=True, slots=True)
class Compiled:
    """What XLA makes of emitted code for as many simulated CPU devices as its mesh has; nothing was run."""

    #: None where it was not compiled, ...
    collectives: tuple[Collective, ...] | None
    memory: Memory | None
    #: ... and why, or what there is to say of it.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fit:
    """A plan, and what its code is on a machine that is not there, where that was asked for."""

    plan: Plan
    machine: Machine | None
    #: What its code is on a mesh that the compiler divides the work over; None for other code.
    compiled: Compiled | None = None
    #: The target and the functions it calls, the target first.
    listings: tuple[Listing, ...] = ()


@dataclass(frozen=True, slots=True)
class Derivation:
    """What following placements through the traced programs showed, without any numbers.

    A derivation that came to its end shows the programs equal for all inputs, on any number of devices, as
    real numbers: of rounding, overflow, NaN and side effects it says nothing, and random numbers drawn for
    examples are equal in distribution.
    """

    #: Operations of the parallel program.
    operations: int
    #: Whether every output was derived equal.
    complete: bool
    #: Where it was not, the first operation at which the relation was lost: why, ...
    reason: str = ""
    #: ... the primitive, ...
    primitive: str = ""
    #: ... the expression in the user's source, if it is known, ...
    span: Span | None = None
    #: ... and, where the two programs compute other terms, these.
    terms: tuple[str, str] = ("", "")
    #: Primitives without a rule, whose placements were measured on random operands.
    measured: tuple[str, ...] = ()
    #: It holds where each device has a multiple of so many rows, which the emitted code sees to.
    multiple: int = 1
    #: The expressions that need it, as far as they are known.
    multiple_for: tuple[Span, ...] = ()
    #: The number of devices it holds for, those of a mesh; 0 for any.
    devices: int = 0
    #: Rows that the function makes itself: it holds for the device counts that divide them; 0 for any.
    rows_inside: int = 0

    @property
    def extent(self) -> str:
        """For what it holds where it is complete, in words."""
        if self.devices:
            return f"all inputs on {self.devices} devices"
        if self.rows_inside:
            return f"all inputs and device counts that divide {self.rows_inside}"
        return "all inputs and device counts"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was derived and what was run to show the emitted code equal to the original."""

    checks: tuple[Check, ...]
    jax_version: str
    python_version: str
    #: True when outputs that are whole on several devices were compared, bit by bit; False when there are
    #: none: all are split, or lie on one device. Copies that differ are a refusal.
    replicas_identical: bool
    #: What was not run, and why, one sentence each.
    notes: tuple[str, ...] = ()
    #: True when random numbers are drawn for examples: those of several devices are others than
    #: those of one, and the rest was shown equal with a generator that draws equal ones.
    equal_draws: bool = False
    #: What XLA made of the collectives on the largest device count; None where jax does not tell.
    collectives: tuple[Collective, ...] | None = None
    #: The memory it takes there; None where jax does not tell.
    memory: Memory | None = None
    #: Of code that works in microbatches, the same where it does not; None where that was not asked.
    at_once: Memory | None = None
    #: What it becomes on a machine that is not there; None where that was not asked.
    machine: Machine | None = None
    #: What was derived; None where that was not asked.
    derivation: Derivation | None = None

    @property
    def derived(self) -> bool:
        """Whether the code was derived equal to the original, for what `Derivation.extent` says."""
        return self.derivation is not None and self.derivation.complete

    @property
    def proved(self) -> bool:
        """Whether it was derived or run, and every check stayed within its tolerance."""
        return (bool(self.checks) or self.derived) and all(c.error <= c.tolerance for c in self.checks)

    @property
    def counts(self) -> str:
        """Where it was run, in words: ``"3, 8 devices and 4 in 2 processes"``; ``""`` for nowhere."""
        alone = sorted({check.devices for check in self.checks if check.processes == 1})
        among = sorted({(check.devices, check.processes) for check in self.checks if check.processes > 1})
        parts = [f"{', '.join(map(str, alone))} devices"] if alone else []
        parts += [f"{devices} in {number} processes" for devices, number in among]
        return " and ".join(parts)

    def worst(self, precision: str = "float64") -> Check:
        """The check nearest to its bound among those of `precision`, or of all where it has none.

        Raises:
            ValueError: there are no checks.
        """
        checks = [check for check in self.checks if check.precision == precision] or self.checks
        return max(
            checks, key=lambda check: check.error / check.tolerance if check.tolerance else check.error
        )


class Backend(enum.StrEnum):
    """The form of the emitted code."""

    PMAP = "pmap"
    SHARD_MAP = "shard_map"
    JIT = "jit"


@dataclass(frozen=True, slots=True)
class Generated:
    """The result of `generate`: code that was shown equal."""

    code: str
    plan: Plan
    backend: Backend
    evidence: Evidence
    #: The file that `code` is the new text of; None where it is a file of its own.
    edited: Source | None = None
    #: The source files that were imported, the installed ones too.
    files: tuple[str, ...] = ()
    #: The target and the functions it calls, the target first.
    listings: tuple[Listing, ...] = ()


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The result of `generate` in place for a function that was changed so before: nothing to do."""

    #: ``"train.py::train_step"``.
    target: str


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of `verify`: a parallel function that was shown equal to its reference."""

    #: ``"train.py::p_train_step"``.
    parallel: str
    #: ``"train.py::train_step"``.
    against: str
    #: (argument, form) of every argument that is not passed as to the reference: ``"devices"``, every
    #: array has a device axis in front; ``"batch"``, those that are split have. Empty: a drop-in.
    layout: tuple[tuple[str, str], ...]
    evidence: Evidence
    #: The same of a reference that is parallel itself; None of one that runs on one device.
    against_layout: tuple[tuple[str, str], ...] | None = None
    #: ``NAME=SPEC`` texts, as ``--arg`` takes them, of the inputs the tool made up.
    assumed_inputs: tuple[str, ...] = ()
    #: Arguments of which something is split; of others a device axis is one of copies.
    split: tuple[str, ...] = ()
    #: Its source, where that was asked for.
    inspected: Inspected | None = None
    #: The files that were imported or read.
    files: tuple[str, ...] = ()


# --- the question -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """Everything a user can ask of `generate`; the command line fills one of these."""

    #: ``FUNC``, ``FILE::FUNC`` or ``package.module:FUNC``.
    target: str
    #: None: the name the body's own collectives use, else ``"batch"``.
    axis_name: str | None = None
    devices: Devices = field(default_factory=Devices)
    backend: Backend = Backend.PMAP
    #: Whether the form is chosen among those that are proved (`--backend auto`).
    choose: bool = False
    #: Whether the mesh of jit code has jax's explicit axes.
    explicit: bool = False
    #: The axes in which the devices are arranged.
    mesh: tuple[MeshAxis, ...] = ()
    #: How leaves lie on them; the first rule that fits counts.
    spec: tuple[SpecRule, ...] = ()
    #: Whether large leaves that are not split are divided along the axis of the batch, too.
    fsdp: bool = False
    #: ``FILE::callable`` or ``module:callable``.
    inputs: str | None = None
    #: ``NAME=SPEC`` texts, as typed.
    args: tuple[str, ...] = ()
    #: Command line of a Python program whose first call of the target gives the function and its arguments.
    run: str | None = None
    #: Packages for which others stand in that take every use and do nothing.
    stub: tuple[str, ...] = ()
    #: ``NAME[:AXIS]`` texts: an argument or a leaf path such as ``batch['x']``.
    shard: tuple[str, ...] = ()
    replicate: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    donate: tuple[str, ...] = ()
    #: Helpers to emit although the function does not need them: ``"place"``, ``"devices"``.
    helpers: tuple[str, ...] = ()
    #: What the emitted code does with a batch that the devices do not share evenly: ``"error"``, ``"pad"``
    #: or ``"drop"``.
    remainder: str = "error"
    #: Above 1, the emitted code takes the rows of its own process, and is run in so many as well.
    processes: int = 1
    #: In how many groups a device works on its share, one after the other; 1 for all of it at once.
    accumulate: int = 1
    #: A machine to compile the emitted code for, such as ``"v5e:2x4"``.
    topology: str | None = None
    #: The user's interpreter; None: `[tool.jax-pmap] python`, $VIRTUAL_ENV, ./.venv, this one.
    python: Path | None = None
    #: Seconds of wall time for one step of the worker: loading, a round of observing, proving.
    timeout: float = DEFAULT_TIMEOUT
    #: Bytes of memory the worker may take; None: no limit of ours.
    memory: int | None = None
    #: False: the emitted code is derived equal and not run (`--no-run`).
    run_code: bool = True
    #: A plan written by `jax-pmap plan --output-format json`, to emit instead of observing.
    plan: Path | None = None
    #: Folder relative targets and shown paths start from.
    directory: Path = field(default_factory=Path.cwd)
    #: Whether the function is to be changed where it stands, in place of emitting a file of its own.
    in_place: bool = False
    #: A file, and the text it is taken to have in place of what is on the disk.
    instead: tuple[Path, str] | None = None
    #: The command line as typed, for the header of the emitted file.
    command: str = ""

    @property
    def divided_by_compiler(self) -> bool:
        """Whether the emitted code leaves it to the compiler what the devices of a mesh send each other."""
        return bool(self.mesh) and self.backend is Backend.JIT
