"""What a rule is given, and the table of rules."""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from .lattice import Filled, Placement, Replicated, Sharded
from .terms import Shape, Term, Terms


class Stuck(Exception):
    """No relation is claimed of what an equation makes; says why, in words for the user."""


class Unmet(Stuck):
    """A relation holds for shares that are multiples of a number, which not all traced ones are."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What a relation holds under: devices have a multiple of a number of rows."""

    #: That number, and how many rows all devices together have in the traces.
    multiple: int
    length: int
    #: The mesh axis.
    axis: str
    #: The equation that it is of, and those in whose jaxprs it stands.
    path: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Same:
    """An output whose meaning is that of operand `of`, in another `shape` if given."""

    place: Placement
    of: int = 0
    shape: "Shape | None" = None


class Sliced(enum.IntEnum):
    """What became of a `dynamic_slice` that may reach beyond the end, and then begins earlier than told.

    Of two slices in a row XLA makes one, and forgets that (openxla/xla#49121). Of what the compiler divides
    it makes the second one itself, of that which this was computed from.
    """

    NOT = 0
    #: If it is said to be whole there, nothing is made one with it.
    BEHIND_BARRIER = 1
    COMPUTED = 2
    #: Its elements are moved at most: a slice of these is one of it.
    MOVED = 3


@dataclass(frozen=True, slots=True)
class Value:
    """A value: its meaning, and its placement along each mesh axis of the derivation, in their order."""

    term: Term
    places: tuple[Placement, ...]
    #: Whether a slice that may reach beyond the end went into it.
    sliced: Sliced = Sliced.NOT
    #: What it is in each trace, where that is a few whole numbers that are known, as sizes are.
    numbers: "Sequence[np.ndarray] | None" = field(default=None, compare=False)


#: Why nothing is claimed of a device's part: of one that is cut by hand, and of one that the compiler cuts.
CUT_AGAIN = (
    "this device's part is a slice of a slice, of which XLA makes one that reads other rows where the first "
    "reaches beyond the end: take `rows.reshape(devices, size, ...)[axis_index]`"
)
DIVIDED_AGAIN = (
    "what is divided comes of a slice, of which and of each device's part XLA makes one that reads other "
    "rows where the slice reaches beyond the end: put `jax.lax.optimization_barrier` around the slice, and "
    "constrain that to be whole on every device"
)


@dataclass(frozen=True, slots=True)
class Equation:
    """An equation in the traces for several device counts at once, seen along one mesh axis.

    The traces are those of one program on several counts of devices; what differs between them depends on
    the count. Rules see one mesh axis at a time: the others are as good as not there.
    """

    name: str
    #: Parameters in each trace.
    every: Sequence[Mapping[str, Any]]
    #: Shapes on a device, of each operand and each result, in each trace.
    inputs: Sequence[Sequence[Shape]]
    outputs: Sequence[Sequence[Shape]]
    #: The mesh axis, and how many devices there are along it in each trace.
    axis: str
    counts: Sequence[int]
    #: Operands with their meanings, and the table that those are in.
    operands: Sequence[Value]
    terms: Terms
    #: dtypes of the results.
    dtypes: Sequence[str] = ()
    #: All mesh axes, in the order of the mesh.
    mesh: tuple[str, ...] = ()
    #: What a rule says its answer holds under.
    conditions: list[Condition] = field(default_factory=list)
    #: By how many rows all devices draw for, in how many groups of rows each has its part of them.
    layouts: Mapping[int, int] = field(default_factory=dict)

    @property
    def params(self) -> Mapping[str, Any]:
        """The parameters in the first trace."""
        return self.every[0]

    def shape(self, operand: int) -> Shape:
        """Shape of an operand on a device, in the first trace."""
        return self.inputs[0][operand]

    def out(self, result: int = 0) -> Shape:
        """Shape of a result on a device, in the first trace."""
        return self.outputs[0][result]

    def varying(self, result: int = 0) -> tuple[int, ...]:
        """Axes of a result whose sizes differ between the traces."""
        return axes_apart([shapes[result] for shapes in self.outputs])

    def drawn(self, axis: int, result: int) -> Placement:
        """The placement of what is drawn with a key of the device's own, for its rows along an axis.

        The rows are independent of each other, so that any of them may be a device's: those that it has of
        what its draws meet.
        """
        groups = self.layouts.get(self.outputs[0][result][axis] * self.counts[0], 1)
        fits = all(shapes[result][axis] % groups == 0 for shapes in self.outputs)
        return Sharded(axis, outer=groups if fits else 1)

    def varying_input(self, operand: int) -> tuple[int, ...]:
        """Axes of an operand whose sizes differ between the traces."""
        return axes_apart([shapes[operand] for shapes in self.inputs])

    def split(self, result: int = 0) -> "int | None":
        """The one axis of a result that has a device's share of it, or None where it is whole.

        Raises:
            Stuck: sizes depend on the device count in another way.
        """
        axes = self.varying(result)
        if not axes:
            return None
        sizes = {
            shapes[result][axes[0]] * count for shapes, count in zip(self.outputs, self.counts, strict=True)
        }
        if len(axes) > 1 or len(sizes) > 1:
            raise Stuck("the sizes of its result depend on the number of devices")
        return axes[0]

    def whole_size(self, operand: int, axis: int) -> int:
        """Size along a sharded axis of an operand on all devices together."""
        return self.inputs[0][operand][axis] * self.counts[0]

    def in_multiples(self, axis: int, multiple: int) -> None:
        """Say that the rule holds where the first operand's share along an axis is a multiple of a number.

        Raises:
            Unmet: those in the traces are not all so.
        """
        self.conditions.append(Condition(multiple, self.whole_size(0, axis), self.axis))
        if any(shapes[0][axis] % multiple for shapes in self.inputs):
            raise Unmet(f"each device needs a multiple of {multiple} of them")

    def value(self, operand: int) -> Any:
        """The number that an operand holds throughout, or None."""
        return self.terms.value(self.operands[operand].term)

    def is_zero(self, operand: int) -> bool:
        """Whether an operand is zero throughout, on every device too: zeros fit every placement."""
        value = self.operands[operand]
        return self.terms.is_zero(value.term) and all(
            isinstance(p, (Replicated, Sharded, Filled)) for p in value.places
        )


def axes_apart(shapes: Sequence[Shape]) -> tuple[int, ...]:
    """Axes along which shapes of one rank differ."""
    first = shapes[0]
    if all(shape == first for shape in shapes[1:]):
        return ()
    return tuple(
        axis for axis in range(len(first)) if any(shape[axis] != first[axis] for shape in shapes[1:])
    )


Result: TypeAlias = "Placement | Same | tuple[Placement | Same, ...]"
#: ``rule(equation, *placements of its operands, **parameters of its primitive)``; one placement for all
#: results, or a tuple. Raises `Stuck`.
Rule: TypeAlias = Callable[..., Result]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of primitives, by the names that `versions.primitive_name` gives them."""

    def register(function: Rule) -> Rule:
        for name in names:
            assert name not in RULES, name
            RULES[name] = function
        return function

    return register
