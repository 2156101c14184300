"""Programs for integers of other bits, which wrap around at other numbers."""

from collections.abc import Collection
from typing import Any

from .jaxpr.forward import Forward
from .jaxpr.versions import NO_MEANING, primitive_name
from .jaxpr.walk import SCATTERS, subjaxprs

#: Operations that make other integers of some, element by element.
ELEMENTWISE = frozenset(
    {"lt", "le", "gt", "ge", "eq", "ne", "add", "sub", "mul", "neg", "sign", "abs", "max", "min", "clamp"}
    | {"and", "or", "xor", "not", "select_n", "convert_element_type", "copy", "stop_gradient"}
)
#: Operations that put them elsewhere.
MOVES = frozenset(
    {"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "slice", "rev", "concatenate"}
    | {"pad", "split", "gather", "dynamic_slice"}
)
#: Operations with indices, and the first and the last operand that is one.
INDEXED = {
    "gather": (1, 1),
    "dynamic_slice": (1, None),
    "dynamic_update_slice": (2, None),
    **dict.fromkeys(SCATTERS, (1, 1)),
}
#: Parameters that say of which dtype a result is.
DTYPES = frozenset({"dtype", "new_dtype", "weak_type"})
#: What a value is made of: of nothing that is given, of other inputs, of the integers. Of these come numbers
#: of their bits, and booleans.
NOTHING, OTHERS, BOOLEANS, INTEGERS = range(4)


def only_wraps_elsewhere(one: Any, other: Any, integers: Collection[int]) -> bool:
    """Whether two programs are one, but for what they make of some integers, element by element.

    Nothing sums these, sorts them or takes the largest, which wrapping around changes for all rows at once:
    they are indices or classes, are compared, or become floats.

    Args:
        one: a jaxpr.
        other: that of the same function where some inputs have integers of other bits.
        integers: which inputs those are.
    """
    found = _operations(one, integers)
    return found is not None and found == _operations(other, integers)


def _operations(jaxpr: Any, integers: Collection[int]) -> "list[Any] | None":
    """What a program does beside making integers of some others; None where it does more with these."""
    beside = _Beside()
    facts = [INTEGERS if at in integers else OTHERS for at in range(len(jaxpr.in_avals))]
    try:
        returned = beside.run(jaxpr, facts)
    except _OtherUse:
        return None
    return [*beside.found, returned]


class _OtherUse(Exception):
    """Integers are used in another way than element by element."""


class _Beside(Forward[int]):
    """Collects the operations of a program, less those that make integers or booleans of some integers."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    def constant(self, value: Any) -> int:
        return NOTHING

    def operation(self, equation: Any, facts: list[int]) -> list[int]:
        name = primitive_name(equation)
        first, last = INDEXED.get(name, (0, -1))
        own = [fact for at, fact in enumerate(facts) if at < first or (last is not None and at > last)]
        by_element = name in ELEMENTWISE | MOVES
        if (name not in INDEXED and subjaxprs(equation)) or (INTEGERS in own and not by_element):
            raise _OtherUse
        made = min(max(facts, default=NOTHING), OTHERS)
        kinds = {getattr(each.aval.dtype, "kind", "") for each in equation.outvars}
        if by_element and max(own) > OTHERS:
            of_their_bits = INTEGERS in own and kinds <= {"i", "u"}
            made = INTEGERS if of_their_bits else BOOLEANS if kinds == {"b"} else OTHERS
        # Constants beside the integers are of their bits, too.
        theirs = made in (NOTHING, INTEGERS) and kinds <= {"i", "u"}
        if self.settled and not (made > OTHERS and name in ELEMENTWISE and OTHERS not in facts):
            ignored = NO_MEANING | (DTYPES if theirs else frozenset())
            params = {key: value for key, value in equation.params.items() if key not in ignored}
            numbers = [str(each.val) for each in equation.invars if hasattr(each, "val")]
            of = [each.aval.shape if theirs else str(each.aval) for each in equation.outvars]
            self.found.append((name, repr(params), numbers, of))
        return [made] * len(equation.outvars)

    def join(self, one: int, other: int) -> int:
        return max(one, other)

    def under(self, fact: int, choice: int) -> int:
        if choice == INTEGERS:
            raise _OtherUse
        return max(fact, min(choice, OTHERS))
