"""What rows hold that are added to a batch, so that devices share it evenly, and whether sums leave them out.

A function of one device, on the rows that it was given and on more, is read as a program of several
devices without any collective: the first of them has the rows that were given, the others those that were
added. A sum over the batch is then `Partial`, and whole on the first device already where the others add
zero to it.

The added rows repeat the last one, but for the masks and weights among the inputs, which are zero in them.
What is computed of these is followed here, as a number.
"""

import cmath
import enum
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from .arithmetic import FOLDED, fold
from .equation import Equation, Result, Rule, Stuck, Value
from .freezing import freeze
from .lattice import Labels, Partial, Placement, Positions, Replicated, Sharded
from .rounds import grouped, of_groups
from .terms import Term, Terms


class Content(enum.Enum):
    """What added rows hold, where that is no number."""

    #: What the last row holds: no mask went into it.
    ROW = "row"
    #: Some number, and zero times that is zero: ``exp(mask)``, say.
    FINITE = "finite"
    #: Something else, which may be infinite or NaN: ``x / mask``, say.
    UNKNOWN = "unknown"


#: What every element of the added rows is.
State: TypeAlias = "Content | complex | float | int | bool"
#: Operations that hand on a number that all elements are.
MOVED = frozenset(
    {
        "broadcast_in_dim",
        "reshape",
        "transpose",
        "squeeze",
        "expand_dims",
        "slice",
        "dynamic_slice",
        "split",
        "rev",
        "real",
        "reduce_max",
        "reduce_min",
        "reduce_and",
        "reduce_or",
    }
)
#: Operations that make zeros of zeros.
ZERO_OF_ZERO = frozenset({"neg", "square", "sqrt", "reduce_sum", "cumsum", "imag", "conj"})
#: Operations that make numbers of all numbers.
TOTAL = frozenset(
    {
        *MOVED,
        *ZERO_OF_ZERO - {"sqrt"},
        *("add", "sub", "mul", "dot_general", "conv_general_dilated", "max", "min", "select_n", "clamp"),
        *("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "is_finite", "convert_element_type"),
        *("exp", "expm1", "tanh", "logistic", "erf", "erfc", "sin", "cos", "abs", "sign", "floor", "ceil"),
        *(
            "round",
            "cbrt",
            "integer_pow",
            "concatenate",
            "pad",
            "argmax",
            "argmin",
            "scatter_add",
            "scatter_sub",
        ),
    }
)
#: Operations that make numbers of those above zero.
OF_POSITIVE = frozenset({"log", "log1p", "sqrt", "rsqrt", "pow"})
#: Products: zero where one of two operands is.
PRODUCTS = frozenset({"mul", "dot_general", "conv_general_dilated"})
#: Of sums over the batch, the operand whose rows are summed up; products have two.
SUMMED: Mapping[str, int] = {"reduce_sum": 0, "scatter_add": 2, "scatter_sub": 2}
#: Draws, which give each row numbers of its own: equal in distribution, on however many rows.
DRAWN = frozenset({"random_bits", "random_split", "random_gamma", "threefry2x32", "rng_bit_generator"})


class Added:
    """What the added rows of values hold.

    Args:
        terms: the table of the derivation.
        zeros: terms of the inputs that are zero in added rows.
    """

    def __init__(self, terms: Terms, zeros: Sequence[Term]) -> None:
        self.terms = terms
        #: Of terms of which each row has a part, and that are not ROW.
        self.contents: dict[Term, State] = dict.fromkeys(zeros, 0)
        #: Of the scans that the walk is in, by their nesting depth: what was held before, and which of the
        #: values that they carry do not stay zero.
        self.scans: dict[int, tuple[dict[Term, State], set[int]]] = {}

    def of(self, term: Term) -> State:
        """What the added rows of a term hold; the number that it is throughout, if it is one."""
        number = self.terms.value(term)
        return self.contents.get(term, Content.ROW) if number is None else number

    def _keep(self, value: Value, state: State) -> None:
        """Keep what the added rows of a value hold; what is whole has no rows, and needs none."""
        if state is Content.ROW or all(isinstance(place, Replicated) for place in value.places):
            self.contents.pop(value.term, None)
        else:
            self.contents[value.term] = state

    def result(self, found: "Rule | None", eq: Equation, places: Sequence[Placement]) -> Result:
        """What a rule gives, and where the first device has the whole of it or its rows all the same, that.

        Raises:
            Stuck: no relation is claimed.
        """
        if eq.name in DRAWN and all(isinstance(place, Replicated) for place in places):
            # Each row has draws of its own.
            axes = [eq.split(result) for result in range(len(eq.outputs[0]))]
            return tuple(Replicated() if axis is None else Sharded(axis) for axis in axes)
        if found is None or grouped(places):
            return of_groups(found, eq, places)
        try:
            result = found(eq, *places, **eq.params)
        except Stuck:
            # The first device's positions are those of the whole batch.
            rows = [Sharded(each.axis) if isinstance(each, (Positions, Labels)) else each for each in places]
            if rows == list(places):
                raise
            result = found(eq, *rows, **eq.params)
        return Replicated(result.power) if isinstance(result, Partial) and self.left_out(eq) else result

    def left_out(self, eq: Equation) -> bool:
        """Whether a sum over the batch has zeros of the added rows."""
        rows = (Replicated, Sharded, Positions, Labels)
        if not all(isinstance(place, rows) for operand in eq.operands for place in operand.places):
            return False
        if eq.name in PRODUCTS:
            return _product([self.of(operand.term) for operand in eq.operands]) == 0
        return eq.name in SUMMED and self.of(eq.operands[SUMMED[eq.name]].term) == 0

    def note(
        self, name: str, params: Mapping[str, Any], operands: Sequence[Value], made: Value, dtype: str
    ) -> None:
        """Keep what the added rows of a result hold."""
        given = [operand.term for operand in operands]
        if made.term not in given and any(term in self.contents for term in given):
            states = [self.of(term) for term in given]
            state = self._made(name, params, states, dtype)
            if (
                name == "div"
                and states[0] == 0
                and states[1] is Content.FINITE
                and self.terms.positive(given[1])
            ):
                state = 0
            if state is Content.UNKNOWN and Content.UNKNOWN not in states:
                is_number = self._is_number(name, given, states) and params.get("y", 0) >= 0
                state = Content.FINITE if is_number else state
            self._keep(made, state)

    def _is_number(self, name: str, given: Sequence[Term], states: Sequence[State]) -> bool:
        """Whether an operation makes numbers of what are some."""
        if any(not isinstance(each, Content) and not cmath.isfinite(each) for each in states):
            return False
        if name == "div":
            return self.terms.positive(given[1]) or (states[1] not in (Content.FINITE, 0))
        return name in TOTAL or (name in OF_POSITIVE and self.terms.positive(given[0]))

    def _made(self, name: str, params: Mapping[str, Any], given: Sequence[State], dtype: str) -> State:
        """What an operation makes of what the added rows of its operands hold."""
        numbers = [each for each in given if not isinstance(each, Content)]
        if name in PRODUCTS:
            return _product(given) if len(numbers) < 2 or name == "mul" or 0 in numbers else Content.UNKNOWN
        if name == "div" and given[0] == 0:
            return 0 if given[1] is Content.ROW or given[1] not in (*Content, 0) else Content.UNKNOWN
        if name == "select_n" and not isinstance(given[0], (Content, complex)):
            return given[1 + int(given[0])]
        if name == "select_n" and len({*given[1:]}) == 1 and not isinstance(given[1], Content):
            return given[1]
        if name in ("scatter_add", "scatter_sub") and given[0] == given[2] == 0:
            return 0
        if name == "and" and dtype == "bool" and False in numbers:
            return False
        if name == "or" and dtype == "bool" and True in numbers:
            return True
        if len(numbers) < len(given):
            return Content.UNKNOWN
        if name in MOVED or (name in ("concatenate", "select_n", "pad") and len(set(numbers)) == 1):
            return numbers[0]
        if name in ZERO_OF_ZERO and numbers[0] == 0:
            return 0
        if name in ("add", "sub"):
            return numbers[0] + (numbers[1] if name == "add" else -numbers[1])
        found = fold(name, freeze(dict(params)), numbers, dtype) if name in FOLDED else None
        return Content.UNKNOWN if found is None else found

    def sliced(self, made: Value, given: Value) -> None:
        """Keep what the added rows hold of a slice that a loop takes of what it is given."""
        self._keep(made, self.contents.get(given.term, Content.ROW))

    def carried(self, made: Value, first: Value, around: Sequence[Value]) -> None:
        """Keep what the added rows hold of what a loop carries.

        Zeros that a `scan` starts with are taken to stay zero, until `stays` finds that a round changes them.

        Args:
            made: the value in a round.
            first: what it is in the first round.
            around: all that the loop is given.
        """
        if any(each.term in self.contents for each in around):
            depth, index = self.terms[made.term].params[:2]
            zero = depth in self.scans and index not in self.scans[depth][1] and self.of(first.term) == 0
            self._keep(made, 0 if zero else Content.UNKNOWN)

    def scan_begins(self, depth: int) -> None:
        """Expect a `scan`, nested so deep."""
        self.scans[depth] = dict(self.contents), set()

    def stays(self, depth: int, out: Sequence[Value]) -> bool:
        """Whether a round leaves what was taken to stay zero; what follows from it is forgotten else."""
        before, changed = self.scans[depth]
        found = {
            index
            for index, value in enumerate(out)
            if any(not isinstance(place, Replicated) for place in value.places) and self.of(value.term) != 0
        }
        if found <= changed:
            return True
        changed |= found
        self.contents = dict(before)
        return False

    def scan_ends(self, depth: int) -> None:
        """Expect no more rounds of a `scan`."""
        self.scans.pop(depth, None)

    def looped(self, made: Value, around: Sequence[Term], ends: Sequence[Term]) -> None:
        """Keep what the added rows hold of a result of a loop or of a branch.

        Args:
            made: the result.
            around: all that goes into it.
            ends: what each of its elements is one of; empty where that is not followed.
        """
        if any(each in self.contents for each in around):
            found = {self.of(each) for each in ends}
            state = found.pop() if len(found) == 1 else Content.UNKNOWN
            self._keep(made, Content.UNKNOWN if isinstance(state, Content) else state)


def _product(given: Sequence[State]) -> State:
    """The product of two: zero times what is no number may be NaN."""
    if Content.UNKNOWN in given:
        return Content.UNKNOWN
    if any(each == 0 for each in given):
        return 0
    numbers = [each for each in given if not isinstance(each, Content)]
    return numbers[0] * numbers[1] if len(numbers) == len(given) else Content.UNKNOWN
