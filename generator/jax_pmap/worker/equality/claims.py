"""What is to be shown: that a parallel function is equal to its reference, for all inputs."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..arguments import LeafAxes, Packed, Values
from ..following import traced_or_none
from ..jaxpr.coincidences import Program, program_of
from ..jaxpr.trace import Traced, abstract_leaves, leaf_names
from ..protocol import Mesh, Shown
from ..trials import Question

#: Gives a function for a number of devices, while jax shows that many; it is called with values as the
#: reference is.
Made = Callable[[int], Callable[[Values], Any]]


class Untraced(Exception):
    """A parallel function is not traced, or gives something of another form; says why.

    `programs` are those on the counts of devices on which it is traced, and `found` is what is known of
    these, where they are several.
    """

    def __init__(self, why: str, programs: Sequence[Traced] = ()) -> None:
        super().__init__(why)
        self.programs = programs
        self.found: Shown | None = None


class OtherForm(Untraced):
    """A parallel function is traced, and gives something of another form."""


@dataclass(frozen=True)
class Inputs:
    """Inputs of one form, by their shapes."""

    #: The reference on one device.
    function: Callable[[Values], Any]
    packed: Packed
    leaves: Sequence[Any]
    #: The size of their batch.
    rows: int
    #: The reference's trace for them, where there is one already.
    known: Traced | None = None

    @classmethod
    def of(cls, question: Question, packed: Packed, rows: int, known: Traced | None = None) -> "Inputs":
        """Inputs like given ones with a batch of `rows`."""
        leaves = abstract_leaves(packed, question.axes, rows)
        return cls(question.traceable, packed, leaves, rows, known)

    @functools.cached_property
    def traced(self) -> Traced | None:
        """The reference's trace; None where it does not take such inputs: whoever calls it so is told."""
        return self.known or traced_or_none(self.function, self.packed, self.leaves)

    @property
    def jaxpr(self) -> Any:
        """The reference's jaxpr, which takes them."""
        assert self.traced is not None
        return self.traced.jaxpr

    @functools.cached_property
    def program(self) -> Program:
        """The reference's program, which takes them."""
        return program_of(self.jaxpr, self.rows)

    @property
    def names(self) -> list[str]:
        """What the traced leaves are called."""
        return leaf_names(self.packed)


@dataclass(frozen=True)
class Claim:
    """That a parallel function is equal to its reference, and what is known of the two."""

    #: The reference on one device, its inputs and their roles.
    question: Question
    parallel: Made
    #: A reference that is parallel itself; None where it is the one on one device.
    reference: Made | None = None
    #: Whether the parallel function is not made of the reference's own text.
    foreign: bool = False
    #: What it takes multiples of alone, as rows on a device.
    multiple: int = 1
    #: What it arranges its devices in; it is derived for their number alone then.
    mesh: Mesh | None = None
    #: Numbers of devices that the code may know.
    counts: Sequence[int] = ()
    #: From and up to how many rows, on a device or in all, the code says that it does not take.
    refused: Sequence[tuple[int, int]] = ()
    #: Whether the reference is known to be one program for batches of all sizes.
    uniform: bool = False
    #: Other sizes of the batch that a program of so many operations is derived for besides.
    telling: Callable[[int], Sequence[int]] = lambda operations: ()
    #: Bytes that a run may take, and processor time.
    room: int = 0
    seconds: float = 0.0

    @functools.cached_property
    def packed(self) -> Packed:
        """The given inputs."""
        return self.question.packed

    @property
    def axes(self) -> LeafAxes:
        """Their batch axes."""
        return self.question.axes

    @property
    def rows(self) -> int:
        """The size of their batch."""
        return self.question.rows

    @property
    def functions(self) -> dict[str, Made]:
        """The parallel functions, a reference first, by what a message says of each."""
        both = {"the reference is": self.reference, "it is": self.parallel}
        return {subject: each for subject, each in both.items() if each is not None}

    def inputs(self, rows: int, known: Traced | None = None) -> Inputs:
        """Inputs like the given ones with a batch of `rows`."""
        return Inputs.of(self.question, self.packed, rows, known)

    def original(self, inputs: Inputs) -> list[list[Traced]]:
        """The traces of a reference on one device, one for all counts; none of one that is parallel itself.

        Raises:
            Untraced: it does not take the inputs.
        """
        if self.reference is not None:
            return []
        if inputs.traced is None:
            raise Untraced("the original is not traced")
        return [[inputs.traced]]
