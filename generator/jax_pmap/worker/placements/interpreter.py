"""One walk through the traces of a program for several device counts at once, equation by equation."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

from ..jaxpr.copies import broadcast
from ..jaxpr.defined import definition
from ..jaxpr.owned import is_foreign
from ..jaxpr.versions import (
    NO_MEANING,
    inner_jaxpr,
    named_axes,
    opened,
    primitive_name,
    scan_sizes,
    shard_map_specs,
    without_meaning,
)
from ..jaxpr.walk import FOREIGN
from ..jaxpr.walk import equations as equations_in
from . import rules  # noqa: F401 (registers them)
from .added import Added
from .arithmetic import SINGLE, eps_of, kind_of, name_of
from .equation import (
    DIVIDED_AGAIN,
    RULES,
    Condition,
    Equation,
    Same,
    Sliced,
    Stuck,
    Unmet,
    Value,
    axes_apart,
)
from .families import IDENTITIES, linear_in
from .freezing import freeze
from .lattice import (
    WHOLE,
    Blocks,
    Copies,
    Corner,
    Dealt,
    Diagonal,
    Downward,
    Filled,
    Labels,
    Mixed,
    Offset,
    OwnKey,
    OwnKeys,
    Partial,
    Placement,
    Positions,
    Power,
    Replicated,
    Sharded,
    Spread,
    Unknown,
    times,
)
from .measure import measured, supposed
from .rounds import grouped, of_groups
from .rules.elementwise import describe, is_increment
from .rules.offsets import offset
from .terms import Shape, Term, Terms

#: Powers of the device count that numbers in a trace may have.
POWERS: "tuple[Power, ...]" = (0, 1, -1, 2, -2, Fraction(1, 2), Fraction(-1, 2))
#: Primitives of which rules are asked also where every operand is whole.
ASKED_ALWAYS = frozenset(
    {
        "axis_index",
        "psum",
        "all_gather",
        "reduce_scatter",
        "ppermute",
        "all_to_all",
        "pgather",
        "iota",
        "rng_uniform",
    }
)
#: Parameters that are sizes: those of a share become those of the whole.
SIZES = frozenset(
    {"shape", "new_sizes", "slice_sizes", "limit_indices", "sizes", "reps"}
    | {"feature_group_count", "batch_group_count"}
)
#: Primitives that XLA takes a slice through, besides those that hand on what they are given.
SLICED_THROUGH = frozenset(
    {"reshape", "squeeze", "expand_dims", "transpose", "broadcast_in_dim", "concatenate"}
)
#: Parameters that are sizes as well where they are those of groups of a device's rows.
GROUPED = {"slice": frozenset({"start_indices"}), "pad": frozenset({"padding_config"})}
#: The primitive that hands on what is to be seen, see `marks`.
MARK = "jax_pmap_mark"
#: Primitives that only run the jaxpr that they hold.
INLINED = frozenset({"jit", "composite"})
#: How many whole numbers a constant has whose values are followed, as sizes are.
FEW_NUMBERS = 16
#: What primitives make of such numbers, by their parameters and these.
COMPUTED: dict[str, Callable[..., Any]] = {
    "reduce_prod": lambda params, x: np.prod(x, params["axes"]),
    "reduce_sum": lambda params, x: np.sum(x, params["axes"]),
    "mul": lambda _, x, y: x * y,
    "slice": lambda params, x: x[
        tuple(
            map(slice, params["start_indices"], params["limit_indices"], params["strides"] or (1,) * x.ndim)
        )
    ],
    "squeeze": lambda params, x: np.squeeze(x, params["dimensions"]),
}
#: Primitives that go over mesh axes.
COLLECTIVES = frozenset(
    {"psum", "pmax", "pmin", "all_gather", "reduce_scatter", "ppermute", "all_to_all", "axis_index"}
)


#: Collectives that reduce over axes of the array too, and the reductions over those alone.
REDUCED = {"psum": "reduce_sum", "pmax": "reduce_max", "pmin": "reduce_min"}


def few_whole(numbers: Sequence[Any]) -> "list[np.ndarray] | None":
    """A constant in each trace, as exact numbers, where it is a few whole ones; None where it is not."""
    for each in numbers:
        if not isinstance(each, (int, np.integer, np.ndarray, jax.Array)) or isinstance(each, bool):
            return None
        whole = isinstance(each, int) or jax.dtypes.issubdtype(each.dtype, np.signedinteger)
        if not whole or np.size(each) > FEW_NUMBERS:
            return None
    return [np.asarray(np.asarray(each), object) for each in numbers]


def has_effects(equation: Any) -> bool:
    """Whether an equation does more than make its results of its operands: callbacks, references."""
    return any(type(effect).__name__ != "NamedAxisEffect" for effect in equation.effects)


def replaced(equation: Any, params: Mapping[str, Any], invars: Sequence[Any], outvars: Sequence[Any]) -> Any:
    """A part of what an equation does, where that stands."""
    return SimpleNamespace(
        primitive=equation.primitive,
        params=params,
        invars=invars,
        outvars=outvars,
        effects=equation.effects,
        source_info=equation.source_info,
    )


def _scalar(number: Any) -> Any:
    """A number of Python or of a 0-d array by what it is, or None where it has to be looked at."""
    if isinstance(number, (np.ndarray, np.generic)):
        return number.dtype, _signed(number.item())
    if isinstance(number, (bool, int, float)):
        # Those of jax have a dtype.
        return number.__class__, getattr(number, "dtype", None), _signed(number)
    return None


def _signed(number: Any) -> Any:
    """A number as what is another for -0.0 and for 0.0."""
    return number or str(number)


@dataclass(frozen=True, slots=True)
class Slice:
    """What a loop's body is given in each round of what the loop goes over."""

    #: All that the loop goes over, and what the slice is in one of the rounds at least.
    over: Term
    first: Term
    shape: "Shape | None"
    dtype: str
    places: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class Stacked:
    """How a loop made what it has stacked."""

    depth: int
    #: Its body in each trace, and what that is given; of what it carries, slices of all the rounds' values.
    jaxprs: Sequence[Any]
    inputs: "Sequence[Slice | Value]"
    results: Sequence[Term]


@dataclass(slots=True)
class Loops:
    """What is known of the loops that a walk is in, and of those behind it."""

    #: Nesting depth of loops, to tell their parameters apart.
    depth: int = 0
    #: What the programs are given that the walk is in.
    given: list[Sequence[Value]] = field(default_factory=list)
    #: What the values that loops give their bodies come of.
    first: dict[Term, Term] = field(default_factory=dict)
    #: The loops that stacked what others go over, and what slices of that are in those, by their depth.
    stacks: dict[Term, Stacked] = field(default_factory=dict)
    again: dict[tuple[int, Term], Term] = field(default_factory=dict)
    #: The loops that are run again now, whose rounds may go over each other's rows.
    running_again: list[Stacked] = field(default_factory=list)


class Apart(Exception):
    """Nothing can be said of a program: its traces for several device counts are not of one, for instance.

    Attributes:
        path: the equation that is to blame, and those in whose jaxprs it stands; empty if there is no one.
    """

    def __init__(self, why: str, path: tuple[Any, ...] = ()) -> None:
        super().__init__(why)
        self.path = path


class Met(Exception):
    """What is drawn for rows meets those of a device in another layout than it was taken to have."""

    def __init__(self, rows: int, groups: int) -> None:
        super().__init__(rows, groups)
        self.rows, self.groups = rows, groups


def traced_apart(to: str) -> Apart:
    """Why nothing can be said of a program that Python makes another one for another size of a share."""
    return Apart(f"it is traced to {to} on other numbers of devices, where shares have other sizes")


def whole_everywhere(params: Mapping[str, Any]) -> bool:
    """Whether a constraint says that every device has all of a value."""
    found = params.get("sharding", params.get("dst_sharding"))
    return bool(getattr(found, "is_fully_replicated", True))


#: What runs the programs that an equation holds: of the walk, the equation in each trace, and its operands.
Control = Callable[["Interpreter", Sequence[Any], Sequence[Value]], list[Value]]
#: Of primitives that run programs in ways of their own, what does.
CONTROL: dict[str, Control] = {}


def control(name: str) -> Callable[[Control], Control]:
    """Register what runs the programs of a primitive."""

    def register(function: Control) -> Control:
        CONTROL[name] = function
        return function

    return register


class Interpreter:
    """Gives every value of a program its meaning and its placements.

    Args:
        terms: the table that meanings are put in; that of the reference and of the parallel program is one.
        axes: mesh axes, each with its number of devices in each trace. Without any, a reference is read.
        supposes: whether functions outside jax are taken to work row by row, and traces that are of one
            program at first are read as far as that goes: to look for collectives.
    """

    def __init__(
        self, terms: Terms, axes: Mapping[str, Sequence[int]], traces: int, *, supposes: bool = False
    ) -> None:
        self.terms = terms
        self.supposes = supposes
        self.axes = {name: tuple(counts) for name, counts in axes.items()}
        self.traces = traces
        #: For each mesh axis, the traces that differ from the first in the size of that axis alone.
        self.seen = {name: self._differing(name) for name in self.axes}
        self.whole = tuple(WHOLE for _ in self.axes)
        #: What rows hold that are added to a batch, where those take the place of other devices; see `added`.
        self.added: Added | None = None
        #: Every equation with those around it, and the values of its operands and of its results, where that
        #: is asked for.
        self.listed: list[tuple[tuple[Any, ...], Sequence[Value], Sequence[Value]]] | None = None
        #: Whether a loop that adds up what it makes of groups of a device's rows is read as what it would
        #: make of all of them at once. Read the other way, it is what a reference with the same loop is.
        self.microbatches = False
        #: By how many rows draws are for, in how many groups of rows each device has its part of them.
        self.layouts: dict[int, int] = {}
        self._begin()

    def _begin(self) -> None:
        """Forget what was met."""
        self.loops = Loops()
        #: Sizes of the mesh axes that are bound where the walk is.
        self.bound: dict[str, int] = {name: counts[0] for name, counts in self.axes.items()}
        #: How each key that is a device's own was made of the whole program's, and whose draws are whose.
        self._owned: dict[Term, Any] = {}
        #: Keys of which the devices' own are made by small numbers, as other keys are.
        self._alongside: set[Term] = set()
        #: Numbers that were met in the traces.
        self.scalars: dict[Any, Value] = {}
        self._drawn: dict[Term, bool] = {}
        #: What is drawn for rows with keys of the devices' own, and for how many.
        self._for_rows: dict[Term, int] = {}
        #: Keys that draws for all devices come of, behind those they are drawn from.
        self._behind: set[Term] = set()
        #: Operations read, and primitives without a rule whose placements were measured.
        self.operations = 0
        self.measured: dict[str, None] = {}
        #: What relations hold under, and what they would hold under, where the traces do not show it.
        self.conditions: dict[Condition, None] = {}
        self.unmet: dict[Condition, None] = {}
        #: Whether a key of a device's own was met: what is drawn with it is equal in distribution only.
        self.own_draws = False
        #: In how many groups of rows each device has its part of an input, as of minibatches handed out.
        self.minibatches = 1
        #: Sums over devices of what is whole on each of them already.
        self.repeated: list[tuple[Any, ...]] = []
        #: What was met at each mark: the value, and the axes that `vmap` had put into it.
        self.marks: dict[int, tuple[Value, tuple[int, ...]]] = {}
        #: The same where that was zero at first, and was replaced by what was met later.
        self.zeros: dict[int, tuple[Value, tuple[int, ...]]] = {}
        #: Marks at which a value was not the whole one on every device, in one round of a loop or another.
        self.not_whole: set[int] = set()
        #: Those behind which the traces are other programs, where it `supposes`: nothing is known of them.
        self.cut: set[int] = set()
        #: Sums of what is whole and a part of a sum over the devices.
        self.increments: set[Term] = set()
        #: The equations in whose jaxprs the walk is.
        self._around: list[Any] = []
        #: Whether there is a loop that may be one over microbatches.
        self.could_be_microbatches = False

    def _differing(self, name: str) -> tuple[int, ...]:
        sizes: set[int] = set()
        found = []
        for trace in range(self.traces):
            alike = all(c[trace] == c[0] for other, c in self.axes.items() if other != name)
            if alike and self.axes[name][trace] not in sizes:
                sizes.add(self.axes[name][trace])
                found.append(trace)
        return tuple(found)

    # --- values ---------------------------------------------------------------------------

    def replicated(self, term: Term) -> Value:
        """A value that is the whole one on every device."""
        return Value(term, self.whole)

    def unknown(self, reason: str, equation: Any = None) -> Value:
        """A value of which nothing is claimed."""
        made = self.terms.make("unknown", (len(self.terms.nodes),), (), None, "?")
        path = self.path(equation)
        return Value(made, tuple(Unknown(reason, path) for _ in self.axes))

    def lost(self, equation: Any, why: str) -> list[Value]:
        """Results of an equation of which nothing is known."""
        return [self.unknown(why, equation) for _ in equation.outvars]

    def is_zero(self, value: Value) -> bool:
        """Whether a value is zero throughout, on every device too."""
        return self.terms.is_zero(value.term) and all(
            isinstance(p, (Replicated, Sharded, Filled)) for p in value.places
        )

    def path(self, equation: Any) -> tuple[Any, ...]:
        """An equation, and those in whose jaxprs it stands, the innermost first."""
        if isinstance(equation, tuple):
            return equation
        around = tuple(reversed(self._around))
        return around if equation is None or equation in around[:1] else (equation, *around)

    def known(self, numbers: Sequence[Any]) -> Value:
        """The value of a constant, by what it is in each trace."""
        first = numbers[0]
        if np.ndim(first) == 0:
            key = tuple(map(_scalar, numbers))
            found = self.scalars.get(key) if None not in key else None
            if found is None:
                found = self._constant(numbers)
                if None not in key:
                    self.scalars[key] = found
            return found
        return self._constant(numbers)

    def _constant(self, numbers: Sequence[Any]) -> Value:
        found, few = self._number(numbers), few_whole(numbers)
        return found if few is None else replace(found, numbers=few)

    def empty(
        self, variables: Sequence[Any], operands: Sequence[Value], inputs: Sequence[Sequence[Shape]]
    ) -> Value | None:
        """The value of an array of numbers without elements, by its shape in each trace; None of others.

        It lies in any way that its shape allows: in groups of rows, where `operands` do, of such shapes as
        `inputs` in each trace.
        """
        shapes = [getattr(each.aval, "shape", ()) for each in variables]
        dtype = getattr(variables[0].aval, "dtype", None)
        if any(0 not in shape for shape in shapes) or not isinstance(dtype, np.dtype):
            return None
        ways: list[tuple[Placement, ...]] = [self.whole]
        for at in range(len(self.whole)):
            rows = [
                [given[index][place.axis] // place.outer for given in inputs]
                for index, each in enumerate(operands)
                if isinstance(place := each.places[at], Sharded)
            ]
            for axis in range(len(shapes[0])):
                sizes = [shape[axis] for shape in shapes]
                for outer in dict.fromkeys([*(times(sizes, row) or 1 for row in rows), 1]):
                    ways.append((*self.whole[:at], Sharded(axis, outer=outer), *self.whole[at + 1 :]))
        for places in ways:
            if (shape := self.whole_shape(shapes, places)) is not None:
                return Value(self.terms.constant(np.zeros(shape, dtype)), places)
        return None

    def _number(self, numbers: Sequence[Any]) -> Value:
        first = numbers[0]
        if all(each is first for each in numbers) or self._equal(numbers):
            return self.replicated(self.terms.constant(first))
        arrays = [np.asarray(each) for each in numbers]
        shape = arrays[0].shape
        if any(array.shape != shape for array in arrays):
            return self._known_shapes(arrays)
        if not shape or all(np.all(array == array.flat[0]) for array in arrays):
            values = [array.flat[0] for array in arrays]
            # Numbers of jax's own, which are Python's, say what they are.
            dtype = name_of(getattr(first, "dtype", arrays[0].dtype))
            found = self._powers(values, dtype)
            if found is not None:
                powers, whole = found
                if not all(float(np.real(value)).is_integer() for value in values):
                    # Whole numbers, as sizes are, are what they are; others were rounded.
                    whole = self.terms.multiplied(whole, dtype)
                return Value(self.terms.fill(whole, shape, dtype), tuple(Replicated(p) for p in powers))
        return self.unknown("a number depends on the device count in a way that is not followed")

    def _equal(self, numbers: Sequence[Any]) -> bool:
        first = numbers[0]
        if any(type(each) is not type(first) for each in numbers):
            return False
        if isinstance(first, jax.Array) and jax.dtypes.issubdtype(first.dtype, jax.dtypes.prng_key):
            numbers = [jax.random.key_data(each) for each in numbers]
        elif not isinstance(first, (np.ndarray, np.generic, jax.Array, bool, int, float, complex)):
            return bool(self._same_object(numbers))
        arrays = [np.asarray(each) for each in numbers]
        return all(
            a.shape == arrays[0].shape and a.dtype == arrays[0].dtype and a.tobytes() == arrays[0].tobytes()
            for a in arrays
        )

    @staticmethod
    def _same_object(numbers: Sequence[Any]) -> bool:
        try:
            return all(each == numbers[0] for each in numbers)
        except Exception:
            return False

    def _known_shapes(self, arrays: Sequence[np.ndarray]) -> Value:
        """A constant whose shape depends on the share: known where it holds the same for every row."""
        shapes = [array.shape for array in arrays]
        places = self._sharded_by_shape(shapes)
        whole = self.whole_shape(shapes, places) if places is not None else None
        if places is not None and whole is not None and all(array.size for array in arrays):
            (place,) = places
            assert isinstance(place, Sharded)
            row = np.take(arrays[0], [0], place.axis)
            if all(array.tobytes() == np.broadcast_to(row, array.shape).tobytes() for array in arrays):
                return Value(self.terms.constant(np.broadcast_to(row, whole)), places)
        return self.unknown("an array that is known while tracing depends on the size of the share")

    def _sharded_by_shape(self, shapes: Sequence[Shape]) -> "tuple[Placement, ...] | None":
        if len({len(shape) for shape in shapes}) > 1 or len(self.axes) != 1:
            return None
        apart = axes_apart(shapes)
        return (Sharded(apart[0]),) if len(apart) == 1 else None

    def _powers(self, values: Sequence[Any], dtype: str) -> "tuple[tuple[Any, ...], Any] | None":
        """The power of each mesh axis's count that a number is off by, and the number itself."""
        kind = kind_of(dtype)
        if kind not in "fiuc" or not self.axes:
            return None
        if kind in "iu":
            found = self._integer_powers([int(value) for value in values])
            # Of larger batches it would be a number that has no room in so few bits.
            return None if found is not None and any(found[0]) and np.dtype(dtype).itemsize < 4 else found
        unit = 8 * min(eps_of(dtype), SINGLE)
        given: list[Any] = [complex(value) if kind == "c" else float(value) for value in values]
        if not all(np.isfinite(given)):
            return None
        for powers in itertools.product(POWERS, repeat=len(self.axes)):
            whole = [
                value
                * float(
                    np.prod(
                        [float(n[i]) ** float(p) for n, p in zip(self.axes.values(), powers, strict=True)]
                    )
                )
                for i, value in enumerate(given)
            ]
            if all(abs(each - whole[0]) <= unit * abs(whole[0]) for each in whole):
                return powers, whole[0]
        return None

    def _integer_powers(self, given: Sequence[int]) -> "tuple[tuple[Any, ...], int] | None":
        """The same of whole numbers, exactly."""
        integers = [power for power in POWERS if isinstance(power, int)]
        for powers in itertools.product(integers, repeat=len(self.axes)):
            whole = {
                value
                * math.prod(
                    Fraction(counts[i]) ** power
                    for counts, power in zip(self.axes.values(), powers, strict=True)
                )
                for i, value in enumerate(given)
            }
            if len(whole) == 1 and (found := whole.pop()).denominator == 1:
                return powers, int(found)
        return None

    def whole_shape(self, shapes: Sequence[Shape], places: Sequence[Placement]) -> "Shape | None":
        """The shape of the meaning of a value, or None where the traces do not agree on it."""
        found: set[Shape] = set()
        for index, shape in enumerate(shapes):
            sizes = list(shape)
            for place, counts in zip(places, self.axes.values(), strict=True):
                if isinstance(place, (Sharded, Spread, Offset, Positions, Labels, Mixed, Dealt, Filled)):
                    if place.axis >= len(sizes):
                        return None
                    sizes[place.axis] *= counts[index]
                elif isinstance(place, (Corner, Diagonal)):
                    axes = (place.axis, place.other) if isinstance(place, Corner) else place.axes
                    if max(axes) >= len(sizes):
                        return None
                    for axis in axes:
                        sizes[axis] *= counts[index]
                elif isinstance(place, Blocks):
                    sizes[place.axis : place.axis + 2] = [sizes[place.axis] * sizes[place.axis + 1]]
                elif isinstance(place, (Copies, OwnKeys)):
                    del sizes[place.axis]
            found.add(tuple(sizes))
        return found.pop() if len(found) == 1 else None

    # --- walking --------------------------------------------------------------------------

    def follow(self, jaxprs: Sequence[Any], inputs: Sequence[Value]) -> list[Value]:
        """`run` a whole program: anew, where rows that are drawn for turn out to be others than was taken."""
        while True:
            try:
                return self.run(jaxprs, inputs)
            except Met as met:
                self._begin()
                self.layouts[met.rows] = met.groups

    def run(self, jaxprs: Sequence[Any], inputs: Sequence[Value]) -> list[Value]:
        """The values that a program makes of others; `jaxprs` is its trace for each device count."""
        pairs = [opened(jaxpr) for jaxpr in jaxprs]
        bodies = [body for body, _ in pairs]
        if len({tuple(len(each.invars) for each in body.eqns) for body in bodies}) > 1:
            bodies = [broadcast(body) for body in bodies]
        alike = len({len(body.eqns) for body in bodies}) == 1
        forms = {tuple(map(len, (body.constvars, body.invars, body.outvars))) for body in bodies}
        if len(forms) > 1 or not (alike or self.supposes):
            raise traced_apart("other operations")
        constants = [self.known(row) for row in zip(*(consts for _, consts in pairs), strict=True)]
        environment: dict[Any, Value] = {}
        first = bodies[0]
        for variable, value in zip(first.constvars, constants, strict=True):
            environment[variable] = value
        for variable, value in zip(first.invars, inputs, strict=True):
            environment[variable] = value

        def read(variables: Sequence[Any]) -> Value:
            found = None if isinstance(variables[0], Literal) else environment[variables[0]]
            if any(isinstance(v, Literal) is not (found is None) for v in variables):
                raise traced_apart("other operations")
            return self.known([v.val for v in variables]) if found is None else found

        #: Variables of the other traces, each with that of the first which it is.
        twins: list[dict[Any, Any]] = [
            dict(zip((*body.constvars, *body.invars), (*first.constvars, *first.invars), strict=True))
            for body in bodies[1:]
        ]

        def same(variables: Sequence[Any]) -> bool:
            return all(
                isinstance(one, Literal) or twin.get(one) is variables[0]
                for one, twin in zip(variables[1:], twins, strict=True)
            )

        def step(equations: Sequence[Any]) -> None:
            one = equations[0]
            if any(len(e.invars) != len(one.invars) or _ranks(e) != _ranks(one) for e in equations[1:]):
                raise traced_apart("other operations")
            rows = [*zip(*(e.invars for e in equations), strict=True)]
            if twins and not all(map(same, rows)):
                raise traced_apart("operations on other values")
            for other, twin in zip(equations[1:], twins, strict=True):
                twin.update(zip(other.outvars, one.outvars, strict=True))
            operands = [read(row) for row in rows]
            results = self.equation(equations, operands)
            if self.listed is not None:
                self.listed.append((self.path(one), operands, results))
            for variable, value in zip(one.outvars, results, strict=True):
                environment[variable] = value

        for at, equations in enumerate(zip(*(body.eqns for body in bodies), strict=alike)):
            try:
                step(equations)
            except Apart as apart:
                if not self.supposes:
                    raise
                return self._cut(first, at, str(apart))
        if not alike:
            return self._cut(first, min(len(body.eqns) for body in bodies), "its traces end apart")
        if not all(same(row) for row in zip(*(body.outvars for body in bodies), strict=True)):
            raise traced_apart("operations on other values")
        return [read(row) for row in zip(*(body.outvars for body in bodies), strict=True)]

    def _cut(self, body: Any, at: int, why: str) -> list[Value]:
        """The results of a body of which the traces are other programs from an equation on: lost values."""
        for mark in equations_in(body.replace(eqns=body.eqns[at:])):
            if primitive_name(mark) == MARK:
                index = mark.params["index"]
                self.marks.setdefault(index, (self.unknown(why), mark.params["mapped"]))
                self.cut.add(index)
        return [self.unknown(why) for _ in body.outvars]

    def equation(self, equations: Sequence[Any], operands: Sequence[Value]) -> list[Value]:
        """The results of one equation."""
        names = {primitive_name(e) for e in equations}
        if len(names) > 1:
            raise traced_apart(" and ".join(sorted(names)))
        name = names.pop()
        if name == MARK:
            # Of what is met again the first time: later ones may lose it for another reason. Zeros tell
            # nothing, and what a solver starts with may be the product with a first guess of zeros.
            index = equations[0].params["index"]
            before = self.marks.get(index)
            if before is None or self.is_zero(before[0]):
                self.marks[index] = (operands[0], equations[0].params["mapped"])
                if before is not None:
                    self.zeros.setdefault(index, before)
            self.not_whole |= {index} if operands[0].places != self.whole else set()
            return list(operands)
        special = CONTROL.get(name)
        params = [e.params for e in equations]
        bodies = [inner_jaxpr(p) for p in params] if name in INLINED else self._defined(name, equations)
        if special is not None or (bodies and bodies[0] is not None):
            if len({static_form(e) for e in equations}) > 1:
                raise traced_apart("other operations")
            self._around.append(equations[0])
            self.loops.given.append(operands)
            try:
                if special is None:
                    return self.run(bodies, operands)
                return special(self, equations, operands)
            finally:
                self._around.pop()
                self.loops.given.pop()
        self.operations += 1
        computed = self._computed(name, equations, operands)
        if computed is not None:
            return [computed]
        if name in REDUCED and any(isinstance(axis, int) for axis in params[0].get("axes", ())):
            equations, operands = self._over_rows(name, equations, operands)
            params = [e.params for e in equations]
        if name in COLLECTIVES and not self._same_form(params):
            return self.lost(equations[0], "what it does depends on the number of devices")
        if name in COLLECTIVES and not set(named_axes(params[0])) & set(self.axes):
            one = all(self.bound.get(axis) == 1 for axis in named_axes(params[0]))
            alone = self._on_one_device(name, equations[0], operands) if one else None
            return alone or self.lost(equations[0], "a collective over an axis that is not followed")
        if name == "sharding_constraint" and operands[0].sliced and not whole_everywhere(params[0]):
            raise Apart(DIVIDED_AGAIN, self.path(equations[0]))
        made = self.apply(name, params, equations, operands)
        if name != "dynamic_slice" and not any(operand.sliced for operand in operands):
            return made
        return [replace(value, sliced=self._sliced(value, name, equations, operands)) for value in made]

    def _computed(self, name: str, equations: Sequence[Any], operands: Sequence[Value]) -> Value | None:
        """What is made of a few known numbers, as of ``jnp.array(x.shape[:2])`` the product of both.

        Of the array itself nothing is claimed where one of its numbers is the size of a share.
        """
        given = [operand.numbers for operand in operands]
        arrays = [numbers for numbers in given if numbers is not None and numbers[0].ndim]
        if name not in COMPUTED or not arrays or len(given) != sum(each is not None for each in given):
            return None
        rows = zip(*(numbers for numbers in given if numbers is not None), strict=True)
        made = [
            np.asarray(COMPUTED[name](equation.params, *row), object)
            for equation, row in zip(equations, rows, strict=True)
        ]
        held = np.iinfo(equations[0].outvars[0].aval.dtype)
        if any(not held.min <= number <= held.max for each in made for number in each.flat):
            return None  # It wraps around.
        return self.known([each.astype(held.dtype) for each in made])

    def _defined(self, name: str, equations: Sequence[Any]) -> list[Any]:
        """The programs that a library's primitive is defined by, where it has them and we have no rule."""
        if name in RULES or name in CONTROL or name in COLLECTIVES or name in FOREIGN:
            return []
        bodies = [definition(equation) for equation in equations]
        return [] if any(body is None for body in bodies) else bodies

    def _sliced(self, made: Value, name: str, equations: Sequence[Any], operands: Sequence[Value]) -> Sliced:
        """Whether a slice that may reach beyond the end went into a result, and how.

        What is not compiled is executed one operation after the other.
        """
        if name == "dynamic_slice" and self._around and self._may_clamp(equations, operands):
            return Sliced.MOVED
        given = max((operand.sliced for operand in operands), default=Sliced.NOT)
        if name == "optimization_barrier":
            return min(given, Sliced.BEHIND_BARRIER)
        if name == "sharding_constraint" and given is Sliced.BEHIND_BARRIER:
            return Sliced.NOT
        moved = name in SLICED_THROUGH or any(
            operand.sliced is Sliced.MOVED and operand.term == made.term for operand in operands
        )
        return given if moved else min(given, Sliced.COMPUTED)

    def _may_clamp(self, equations: Sequence[Any], operands: Sequence[Value]) -> bool:
        """Whether a slice may reach beyond the end, so that it begins earlier than it is asked to."""
        for axis, start in enumerate(operands[1:]):
            at = self.terms.value(start.term)
            room = min(e.invars[0].aval.shape[axis] - e.params["slice_sizes"][axis] for e in equations)
            if at is None or start.places != self.whole or not 0 <= at <= room:  # type: ignore[operator]
                return True
        return False

    def _over_rows(
        self, name: str, equations: Sequence[Any], operands: Sequence[Value]
    ) -> "tuple[list[Any], list[Value]]":
        """A collective over axes of the array too, as `vmap` leaves it: first the reduction over those."""
        reduced = []
        for index, operand in enumerate(operands):
            parts = []
            for each in equations:
                axes = tuple(axis for axis in each.params["axes"] if isinstance(axis, int))
                made = SimpleNamespace(aval=each.outvars[index].aval)
                parts.append(replaced(each, {"axes": axes}, [each.invars[index]], [made]))
            [value] = self.apply(REDUCED[name], [e.params for e in parts], parts, [operand])
            reduced.append(value)
        rest = [
            replaced(each, {**each.params, "axes": named_axes(each.params)}, each.outvars, each.outvars)
            for each in equations
        ]
        return rest, reduced

    def _on_one_device(self, name: str, equation: Any, operands: Sequence[Value]) -> "list[Value] | None":
        """A collective over mesh axes of one device: it hands on what it is given; None where it does not."""
        if name == "axis_index":
            return [self.replicated(self.terms.fill(0, (), str(equation.outvars[0].aval.dtype)))]
        shapes = [
            (v.aval.shape, w.aval.shape) for v, w in zip(equation.invars, equation.outvars, strict=True)
        ]
        return list(operands) if all(one == other for one, other in shapes) else None

    def apply(
        self,
        name: str,
        params: Sequence[Mapping[str, Any]],
        equations: Sequence[Any],
        operands: Sequence[Value],
    ) -> list[Value]:
        """The results of a primitive, by its rule along each mesh axis and by its meaning."""
        count = len(equations[0].outvars)
        inputs = [[getattr(v.aval, "shape", ()) for v in e.invars] for e in equations]
        outputs = [[getattr(v.aval, "shape", ()) for v in e.outvars] for e in equations]
        dtypes = [name_of(getattr(v.aval, "dtype", "?")) for v in equations[0].outvars]
        if count and has_effects(equations[0]):
            why = f"`{name}` reads or changes what is not among its operands"
            return [self.unknown(why, self.path(equations[0])) for _ in range(count)]
        if name == "select_n":
            which = self.terms.value(operands[0].term)
            if which is not None and all(isinstance(p, (Replicated, Sharded)) for p in operands[0].places):
                return [operands[1 + int(which)]]  # type: ignore[arg-type]
        # `jnp.pad` puts nothing before and behind the axes that it leaves as they are.
        empty = [
            self.empty(row, operands, inputs) for row in zip(*(e.outvars for e in equations), strict=True)
        ]
        if count and None not in empty:
            return [each for each in empty if each is not None]
        if name == "concatenate":
            joined = [i for i in range(len(operands)) if any(0 not in shapes[i] for shapes in inputs)]
            if len(joined) == 1:
                return [operands[joined[0]]]
            operands = [operands[i] for i in joined]
            inputs = [[shapes[i] for i in joined] for shapes in inputs]
        columns: list[Sequence[Placement | Same]] = []
        for at, (axis, counts) in enumerate(self.axes.items()):
            places = [operand.places[at] for operand in operands]
            lost = next((place for place in places if isinstance(place, Unknown)), None)
            if lost is not None:
                columns.append([lost] * count)
                continue
            if name == "psum" and axis in named_axes(params[0]):
                whole = [isinstance(place, Replicated) and place.power <= 0 for place in places]
                if any(w and self.terms.value(o.term) is None for w, o in zip(whole, operands, strict=True)):
                    self.repeated.append(self.path(equations[0]))
            seen = self.seen[axis]
            if name not in ASKED_ALWAYS and all(place is WHOLE or place == WHOLE for place in places):
                alike = all(outputs[i] == outputs[seen[0]] for i in seen[1:])
                if alike and not named_axes(params[0]):
                    columns.append([WHOLE] * count)
                    continue
            eq = Equation(
                name,
                [params[i] for i in seen],
                [inputs[i] for i in seen],
                [outputs[i] for i in seen],
                axis,
                [counts[i] for i in seen],
                operands,
                self.terms,
                dtypes,
                tuple(self.axes),
                layouts=self.layouts,
            )
            columns.append(self._along(eq, places, equations[0], count))
        made = self._meanings(name, params, equations[0], operands, columns, outputs, dtypes)
        if name == "add" and any(map(is_increment, *(operand.places for operand in operands))):
            self.increments.add(made[0].term)
        return made

    def _along(
        self, eq: Equation, places: Sequence[Placement], equation: Any, count: int
    ) -> "Sequence[Placement | Same]":
        """Placements of the results along one mesh axis."""
        found = RULES.get(eq.name)
        groups = grouped(places) and eq.name not in IDENTITIES
        if eq.name not in ("psum", *IDENTITIES) and any(isinstance(p, (Spread, Offset)) for p in places):
            found, groups = offset, False
        places = aligned(eq, places)
        self._lie_alike(eq, places)
        if found is None and not groups:
            try:
                if self.supposes and eq.name in FOREIGN:
                    return supposed(eq, places)
                rows = measured(eq, places, equation)
            except Stuck as stuck:
                return [Unknown(str(stuck), self.path(equation))] * count
            self.measured.setdefault(eq.name)
            return rows
        try:
            if self.added is not None:
                result = self.added.result(found, eq, places)
            elif found is None or groups:
                result = of_groups(found, eq, places)
            else:
                result = found(eq, *places, **eq.params)
            if self.added is not None and isinstance(result, Offset):
                raise Stuck(describe(result))  # The rows that are added would have the sum added, too.
        except Stuck as stuck:
            unmet = eq.conditions if isinstance(stuck, Unmet) else ()
            self.unmet.update((replace(each, path=self.path(equation)), None) for each in unmet)
            return [Unknown(str(stuck), self.path(equation))] * count
        self.conditions.update((replace(each, path=self.path(equation)), None) for each in eq.conditions)
        if isinstance(result, Partial) and any(eq.is_zero(at) for at in linear_in(eq.name, eq.params)):
            result = Replicated()  # A sum of zeros is zero on every device.
        return list(result) if isinstance(result, tuple) else [result] * count

    def _lie_alike(self, eq: Equation, places: Sequence[Placement]) -> None:
        """See that what is drawn for rows lies as the rows do that it meets.

        Raises:
            Met: it does not.
        """
        if len(self.axes) > 1 or all(getattr(place, "outer", 1) == 1 for place in places):
            return
        rows = [
            (eq.whole_size(at, place.axis), place.outer, eq.operands[at].term)
            for at, place in enumerate(places)
            if isinstance(place, Sharded)
        ]
        in_groups = {size: groups for size, groups, _ in rows if groups > 1}
        for size, groups, term in rows:
            known = size not in in_groups or size in self.layouts
            if groups == 1 and not known and size in self._drawn_for(term):
                raise Met(size, in_groups[size])

    def _drawn_for(self, term: Term) -> set[int]:
        """For how many rows that was drawn which a term is made of."""
        found, ahead, seen = set[int](), [term], {term}
        while ahead:
            each = ahead.pop()
            if each in self._for_rows:
                found.add(self._for_rows[each])
                continue
            more = set(self.terms[each].operands) - seen
            seen |= more
            ahead += more
        return found

    def _meanings(
        self,
        name: str,
        params: Sequence[Mapping[str, Any]],
        equation: Any,
        operands: Sequence[Value],
        columns: "Sequence[Sequence[Placement | Same]]",
        outputs: Sequence[Sequence[Shape]],
        dtypes: Sequence[str],
    ) -> list[Value]:
        """The values of an equation's results."""
        made: list[Value] = []
        whole: Any = None
        for result, dtype in enumerate(dtypes):
            row = [column[result] for column in columns]
            same = next((each for each in row if isinstance(each, Same)), None)
            places = tuple(each.place if isinstance(each, Same) else each for each in row)
            self.own_draws |= any(isinstance(place, OwnKey) for place in places)
            if any(isinstance(place, Unknown) for place in places):
                lost = next(place for place in places if isinstance(place, Unknown))
                made.append(self.unknown(lost.reason, lost.equations))
                continue
            if same is not None:
                if not self._same_form(params):
                    why = "what it does depends on the number of devices"
                    made.append(self.unknown(why, equation))
                    continue
                term = operands[same.of].term
                # What is handed on as it is (`random_clone`) makes no key.
                handed_on = places == operands[same.of].places
                why = "" if handed_on else self._mixes_keys(term, places, name, operands)
                if why:
                    made.append(self.unknown(why, equation))
                    continue
                if same.shape is not None:
                    term = self.terms.apply("reshape", (), (term,), same.shape, self.terms[term].dtype)
                made.append(self._value(term, places))
                continue
            if name in IDENTITIES:
                made.append(Value(operands[result].term, places))
                continue
            size = self.whole_shape([shapes[result] for shapes in outputs], places)
            try:
                if size is None:
                    raise Stuck("the sizes of its result depend on the number of devices")
                grouped = self._of_groups(name, params, operands)
                scaled = SIZES | GROUPED[name] if grouped else SIZES
                whole = self.whole_params(params, scaled, equation) if whole is None else whole
            except Stuck as stuck:
                made.append(self.unknown(str(stuck), equation))
                continue
            key = whole if len(dtypes) == 1 else (*whole, ("result", result))
            before = len(self.terms.nodes)
            term = self.terms.apply(name, key, [operand.term for operand in operands], size, dtype)
            if name in DRAWS and self.axes:
                own = any(
                    isinstance(operand.places[at], OwnKey)
                    for operand in operands
                    for at in range(len(places))
                )
                if self._drawn.setdefault(operands[0].term, own) is not own:
                    why = "numbers are drawn with a key for all devices, and with one of this device's own"
                    made.append(self.unknown(why, equation))
                    continue
                shared = all(isinstance(place, Replicated) for place in operands[0].places)
                if shared and self._comes_of_own(operands[0].term):
                    made.append(self.unknown(SAME_KEY, equation))
                    continue
            if term >= before:
                self.terms.made_by.setdefault(term, self.path(equation))
            if any(isinstance(place, OwnKey) for operand in operands for place in operand.places):
                divided = [place.axis for place in places if isinstance(place, Sharded)]
                self._for_rows.update((term, size[axis]) for axis in divided)
            if self.added is not None:
                self.added.note(name, params[0], operands, Value(term, places), dtype)
            made.append(self._value(term, places))
        return made

    def _value(self, term: Term, places: tuple[Placement, ...]) -> Value:
        """A value; zeros are as much times any power of the device count."""
        if self.terms.is_zero(term):
            places = tuple(replace(p, power=0) if isinstance(p, (Replicated, Sharded)) else p for p in places)
        if self.terms[term].op == "input":
            groups = (place.outer for place in places if isinstance(place, Sharded))
            self.minibatches = max(self.minibatches, *groups, 1)
        return Value(term, places)

    @staticmethod
    def _same_form(params: Sequence[Mapping[str, Any]]) -> bool:
        """Whether parameters are the same in all traces, those left out that are sizes or say nothing."""
        left_out = NO_MEANING | SIZES | {"axis_size"}
        forms = [
            [(name, freeze(each[name])) for name in sorted(each) if name not in left_out] for each in params
        ]
        return all(form == forms[0] for form in forms[1:])

    def _mixes_keys(
        self, key: Term, places: Sequence[Placement], name: str, operands: Sequence[Value]
    ) -> str:
        """Why a key of a device's own may not be made of this one: "" where it may."""
        if not any(isinstance(place, (OwnKey, OwnKeys)) for place in places):
            return ""
        way = (name, *((operand.term, operand.places) for operand in operands))
        # No `split` and no counter reaches the numbers that the index counts down.
        apart = any(isinstance(place, Downward) for operand in operands for place in operand.places)
        if self._owned.setdefault(key, way) != way:
            return "two keys of this device's own are made of one key of the whole program"
        keys = [key]
        while key in self.loops.first and (apart or key not in self._behind):
            key = self.loops.first[key]  # What a loop is given is in one of its rounds a key from outside.
            self._owned.setdefault(key, way)
            keys.append(key)
        if apart:
            return ""
        self._alongside.update(keys)
        return SAME_KEY if key in self._behind else ""

    def _comes_of_own(self, key: Term) -> bool:
        """Whether a key for all devices comes of one of which the devices' own are made.

        `fold_in(key, 1)` and `split(key)[1]` are the same key, and so is what device 1 makes with its index.
        """
        ahead = {key}
        while ahead:
            node = self.terms[ahead.pop()]
            # A key may be chosen among several; numbers that are drawn are no key of the program.
            found = frozenset() if node.op in DRAWS else frozenset(node.operands) - self._behind
            self._behind |= found
            ahead |= found
        return not self._behind.isdisjoint(self._alongside)

    def _of_groups(self, name: str, params: Sequence[Mapping[str, Any]], operands: Sequence[Value]) -> bool:
        """Whether a slice begins, on any number of devices, with one of the groups of a device's rows.

        Or whether there is padding of whole groups, which the rule has seen to.
        """
        if name != "slice":
            return name in GROUPED
        rows = [each["start_indices"] for each in params]
        return all(
            all(rows[i][axis] == start for i in self.seen[mesh_axis])
            or (isinstance(place, Sharded) and place.outer > 1 and place.axis == axis)
            for mesh_axis, place in zip(self.axes, operands[0].places, strict=True)
            for axis, start in enumerate(rows[self.seen[mesh_axis][0]])
        )

    def whole_params(self, params: Sequence[Mapping[str, Any]], sizes: frozenset[str], equation: Any) -> Any:
        """The parameters of the whole-batch program: `sizes` of shares become those of the batch.

        A primitive of the user's is the same where it is one object, whatever else has its name.

        Raises:
            Stuck: one depends on the device count in another way.
        """
        left_out, found = without_meaning(equation), []
        if is_foreign(equation.primitive):
            sizes, found = frozenset(), [("primitive", equation.primitive)]
        for name in sorted(params[0]):
            if name in left_out:
                continue
            values = [freeze(each[name]) for each in params]
            if self.supposes and name == "callback":
                # Traced anew with other collectives in it, its code is another, and its name is not.
                values = [
                    str(getattr(each[name], "callback_func", each[name])).split(" at ")[0] for each in params
                ]
            if all(value == values[0] for value in values[1:]):
                found.append((name, values[0]))
            elif name not in sizes:
                raise Stuck(f"its parameter `{name}` depends on the size of the share")
            else:
                found.append((name, self._whole_parameter(name, values)))
        return tuple(found)

    def _whole_parameter(self, name: str, values: Sequence[Any]) -> Any:
        if all(isinstance(value, tuple) and len(value) == len(values[0]) for value in values):
            return tuple(
                row[0] if all(each == row[0] for each in row) else self._whole_parameter(name, row)
                for row in zip(*values, strict=True)
            )
        if all(isinstance(value, (int, np.integer)) and not isinstance(value, bool) for value in values):
            for used in itertools.product((0, 1), repeat=len(self.axes)):
                sizes = {
                    value
                    * int(
                        np.prod([n[i] for n, u in zip(self.axes.values(), used, strict=True) if u], initial=1)
                    )
                    for i, value in enumerate(values)
                }
                if len(sizes) == 1:
                    return sizes.pop()
        raise Stuck(f"its parameter `{name}` depends on the size of the share")


def aligned(eq: Equation, places: Sequence[Placement]) -> Sequence[Placement]:
    """Placements of operands, those that hold the same for all examples in as many groups as the others."""
    if len({place.outer for place in places if isinstance(place, Sharded)}) < 2:
        return places

    def alike(at: int, place: Sharded) -> bool:
        return eq.terms.constant_along(eq.operands[at].term, (place.axis,))

    rows = [(at, place) for at, place in enumerate(places) if isinstance(place, Sharded)]
    fixed = {place.outer for at, place in rows if not alike(at, place)} or {max(p.outer for _, p in rows)}
    if len(fixed) > 1:
        return places
    outer, made = fixed.pop(), list(places)
    for at, place in rows:
        if all(shapes[at][place.axis] % outer == 0 for shapes in eq.inputs):
            made[at] = replace(place, outer=outer)
    return made


#: Why draws are not independent of each other, as they are on one device.
SAME_KEY = "numbers for all devices are drawn with a key that comes of one that is made this device's own"

#: Primitives that draw random numbers.
DRAWS = frozenset({"random_bits", "random_gamma", "rng_bit_generator", "threefry2x32"})


def _ranks(equation: Any) -> tuple[int, ...]:
    """How many axes each result has."""
    return tuple(len(getattr(each.aval, "shape", ())) for each in equation.outvars)


def static_form(equation: Any) -> Any:
    """What must be the same in all traces of an equation that runs programs."""
    params = equation.params
    names = ("reverse", "cond_nconsts", "body_nconsts", "in_axes", "out_axes", "check_vma", "check_rep")
    sizes = scan_sizes(params) if primitive_name(equation) == "scan" else ()
    specs = shard_map_specs(params) if primitive_name(equation) == "shard_map" else ()
    return repr((sizes, specs, [params.get(name) for name in names], len(params.get("branches", ()))))
