"""Operations that work element by element."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from ..arithmetic import eps_of, kind_of, largest_integer
from ..equation import Equation, Result, Same, Stuck, rule
from ..families import FUNCTIONS
from ..lattice import (
    WHOLE,
    Blocks,
    Copies,
    Corner,
    Dealt,
    Diagonal,
    Downward,
    Extreme,
    Filled,
    Index,
    Labels,
    Loose,
    Mixed,
    Offset,
    Partial,
    Placement,
    Positions,
    Power,
    Replicated,
    Rounds,
    Row,
    RowNumber,
    Running,
    Sharded,
    Spread,
    scaled,
    shown,
)

#: Rows that positions are to have room for.
LARGEST_BATCH = 2**20
#: Increasing functions of all numbers: the largest value of several is that of the largest operand.
INCREASING = frozenset({"exp", "expm1", "tanh", "logistic", "cbrt", "floor", "ceil", "round"})


def layout(eq: Equation, places: Sequence[Placement]) -> Any:
    """How operands lie that are not replicated: one `Sharded`, `Blocks` or `Copies` without power, or None.

    Raises:
        Stuck: they lie in different ways, or are partial, or no relation of this kind holds.
    """
    found = None
    for place in places:
        if isinstance(place, Replicated):
            continue
        if not isinstance(place, (Sharded, Blocks, Copies)):
            raise Stuck(describe(place))
        bare: Any = replace(place, power=0)
        if found is not None and bare != found:
            raise Stuck("two operands are divided over the devices along different axes")
        found = bare
    return found


def alike(eq: Equation, places: Sequence[Placement]) -> Any:
    """`layout`, for work element by element on all operands, which may be `Mixed`.

    Elements at the same place then belong together, whichever they are.
    """
    mixed = [replace(place, power=0) for place in places if isinstance(place, Mixed)]
    if not mixed:
        return layout(eq, places)
    for index, place in enumerate(places):
        if isinstance(place, (Replicated, Sharded)):
            if not eq.terms.constant_along(eq.operands[index].term, mixed[0].axes):
                raise Stuck("groups of other rows than in the whole batch are not all treated alike")
        elif not isinstance(place, Mixed):
            raise Stuck(describe(place))
    sizes = {
        tuple(eq.shape(i)[axis] for axis in mixed[0].axes)
        for i, place in enumerate(places)
        if isinstance(place, Mixed)
    }
    if len(set(mixed)) > 1 or len(sizes) > 1:
        raise Stuck("rows that are divided into groups in different ways are combined")
    return mixed[0]


def describe(place: Placement) -> str:
    """Why a value in this placement cannot be used as if it were whole."""
    if isinstance(place, (Partial, Spread, Offset)):
        return "a value that is only this device's part of a sum is used as if it were the whole sum"
    if isinstance(place, Extreme):
        return f"this device's {place.op}imum is used as if it were that of the whole batch"
    if isinstance(place, (Index, Downward)):
        return "the device's index takes part in the computation"
    if isinstance(place, (Mixed, Dealt)):
        return "the groups that rows are divided into are of other rows on a device than in the whole batch"
    if isinstance(place, (Row, Filled)):
        return "one example is combined with others"
    if isinstance(place, (Loose, Rounds, Running)):
        return "sums of groups, of other rows on a device than in the whole batch, are used one by one"
    if isinstance(place, (Positions, Labels, Corner, RowNumber)):
        return "positions within the share are used as if they were positions within the batch"
    if isinstance(place, Diagonal):
        return "what tells the examples apart, as `eye` does, has those of this device alone"
    return f"what this device holds ({shown(place)}) is used as if it were whole"


def placed(how: Any, power: Power) -> Placement:
    """`how` operands lie, as `layout` says it, with a power."""
    return Replicated(power) if how is None else scaled(how, power)


def power_of(place: Placement) -> Power:
    """The exponent of a placement; 0 of one that has none."""
    found: Power = getattr(place, "power", 0)
    return found


def no_powers(eq: Equation, places: Sequence[Placement]) -> None:
    """Raise `Stuck` where an operand differs from its meaning by a power of the device count."""
    if any(power_of(place) for place in places):
        raise Stuck("a number that depends on the size of this device's share is used as if it were whole")


def partial_power(eq: Equation, operand: int, place: Placement) -> "Power | None":
    """The power with which an operand is `Partial`; None where it is zero and fits any.

    A replicated value is one N-th of itself, N times.

    Raises:
        Stuck: it is not partial.
    """
    if eq.is_zero(operand):
        return None
    if isinstance(place, Partial):
        return place.power
    if isinstance(place, Replicated):
        return place.power - 1
    raise Stuck("a part of a sum over the batch is combined with values of single examples")


def diagonal(eq: Equation, places: Sequence[Placement]) -> "tuple[int, int] | None":
    """The axes of the diagonal that the device's block of some operands is on; None where none is.

    Raises:
        Stuck: they are on different ones, or what another has in those rows and columns is not known.
    """
    found = [place for place in places if isinstance(place, Diagonal)]
    if not found:
        return None
    axes = found[0].axes
    for place in places:
        rows = isinstance(place, Sharded) and place.axis in axes and place.outer == 1
        same = isinstance(place, Diagonal) and place.axes == axes
        if not (rows or same or isinstance(place, Replicated)):
            raise Stuck(describe(found[0] if place in found else place))
    return axes


def is_alone(eq: Equation, operand: int, place: Placement) -> bool:
    """Whether an operand is zero in all blocks but those on a diagonal."""
    return eq.is_zero(operand) or (isinstance(place, Diagonal) and place.alone)


def in_rows(eq: Equation, places: Sequence[Placement]) -> Offset:
    """The sum or difference of rows, and of parts of sums over devices that are added to all of them.

    Raises:
        Stuck: parts and rows are off by powers of the device count that do not fit, or there are others.
    """
    rows = [place for place in places if isinstance(place, (Spread, Offset, Sharded))]
    axis = rows[0].axis
    powers = set[Power]()
    for i, place in enumerate(places):
        if eq.is_zero(i):
            continue
        if isinstance(place, (Sharded, Spread, Offset)):
            fits = place.axis == axis and getattr(place, "outer", 1) == 1
        else:
            fits = isinstance(place, (Partial, Replicated)) and is_alike(eq, i, axis)
        if not fits:
            raise Stuck(describe(next(p for p in places if isinstance(p, (Spread, Offset, Partial)))))
        powers.add(power_of_rows(place))
    if len(powers) > 1 or kind_of(eq.dtypes[0]) not in "fc":
        raise Stuck("a part of a sum over the batch is combined with values of single examples")
    return Offset(axis, powers.pop() if powers else 0)


def power_of_rows(place: Any) -> Power:
    """The power of rows that a value may be added to, or is: a mean over the share is N times its part."""
    power: Power = place.power
    return power + isinstance(place, (Partial, Spread))


def is_alike(eq: Equation, operand: int, axis: int) -> bool:
    """Whether an operand holds the same for all rows."""
    return eq.terms.constant_along(eq.operands[operand].term, (axis,))


@rule("add", "sub")
def add(eq: Equation, *places: Placement, **_: Any) -> Result:
    """Linear: partial sums stay partial, where they are off by the same power."""
    index = [i for i, place in enumerate(places) if isinstance(place, (Index, Positions, Labels, Corner))]
    if index and eq.name == "add":
        return add_positions(eq, *places)
    extremes = [i for i, place in enumerate(places) if isinstance(place, Extreme)]
    if extremes:
        in_order(eq)
        other = places[1 - extremes[0]]
        if len(extremes) == 1 and other == WHOLE:
            op = places[extremes[0]].op  # type: ignore[union-attr]
            return Extreme(opposite(op) if eq.name == "sub" and extremes[0] == 1 else op)
        raise Stuck(describe(places[extremes[0]]))
    if any(isinstance(place, Partial) for place in places):
        if any(isinstance(place, Sharded) and not eq.is_zero(i) for i, place in enumerate(places)):
            return in_rows(eq, places)
        powers = {p for i, place in enumerate(places) if (p := partial_power(eq, i, place)) is not None}
        if len(powers) > 1:
            raise Stuck("a part of a sum over the batch is added to what is whole already")
        return Partial(powers.pop() if powers else 0)
    axes = diagonal(eq, places)
    if axes is not None:
        alone = all(is_alone(eq, i, place) for i, place in enumerate(places))
        return Diagonal(axes, common_power(eq, places), alone)
    how = alike(eq, places)
    return placed(how, common_power(eq, places))


def is_increment(x: Placement, y: Placement) -> bool:
    """Whether a sum is of what is whole and a part of a sum over the devices: ``total + losses.sum()``."""
    return WHOLE in (x, y) and any(place in (Partial(), Replicated(1)) for place in (x, y))


def common_power(eq: Equation, places: Sequence[Placement]) -> Power:
    """The power that all operands have, those left out that are zero.

    Raises:
        Stuck: they have different ones.
    """
    powers = {power_of(place) for i, place in enumerate(places) if not eq.is_zero(i)}
    if len(powers) > 1:
        raise Stuck("numbers that depend on the size of the share in different ways are combined")
    return powers.pop() if powers else 0


def add_positions(eq: Equation, x: Placement, y: Placement) -> Result:
    """Positions within the share, and where the share begins: the device's slice of all positions."""
    for one, other, at in ((x, y, 0), (y, x, 1)):
        if isinstance(one, Positions) and isinstance(other, Index) and one.column is None:
            if other.length == one.length:
                return Same(Sharded(one.axis), at)
        if isinstance(one, (Positions, Index, Corner)) and eq.is_zero(1 - at):
            return Same(one, at)
        first = eq.value(1 - at)
        if isinstance(one, Positions) and one.column is None:
            one = Labels(one.axis, one.length)
        if isinstance(one, Labels) and not one.least and not power_of(other) and (first or 0) > 0:
            holds_positions(eq)
            return replace(one, least=first)
    raise Stuck(describe(x if isinstance(x, (Index, Positions, Corner)) else y))


@rule("mul")
def mul(eq: Equation, x: Placement, y: Placement, **_: Any) -> Result:
    """Powers add up; a partial sum times what is whole is partial."""
    for one, other, at in ((x, y, 0), (y, x, 1)):
        if eq.is_zero(1 - at) and isinstance(one, (Partial, Extreme, Index)) and not eq.varying():
            return WHOLE  # On every device it is zero.
        if isinstance(one, Index):
            size = eq.value(1 - at)
            if one.length == 0 and isinstance(other, Replicated) and size is not None:
                # The index times the size of a share, which is that of the whole divided by N.
                if other.power == 1:
                    holds_positions(eq)
                    return Same(Index(int(size)), at)
                if size == 1 and not other.power:
                    return Same(one, at)
            raise Stuck(describe(one))
        if isinstance(one, Partial):
            if not isinstance(other, Replicated):
                raise Stuck(describe(one))
            return Partial(one.power + other.power)
        if isinstance(one, Extreme) and other == WHOLE:
            in_order(eq)
            value = eq.value(1 - at)
            if value is not None and value > 0:
                return one
            if value is not None and value < 0:
                return Extreme(opposite(one.op))
    axes = diagonal(eq, (x, y))
    if axes is not None:
        return Diagonal(axes, power_of(x) + power_of(y), is_alone(eq, 0, x) or is_alone(eq, 1, y))
    return placed(alike(eq, (x, y)), power_of(x) + power_of(y))


@rule("div")
def div(eq: Equation, x: Placement, y: Placement, **_: Any) -> Result:
    """Powers are subtracted; a partial sum may be divided by what is whole."""
    whole_numbers = not (eq.dtypes and eq.dtypes[0][:5] in ("float", "bfloa", "compl"))
    if isinstance(x, Partial) and isinstance(y, Replicated) and not whole_numbers:
        return Partial(x.power - y.power)
    if isinstance(x, Extreme) and y == WHOLE and (eq.value(1) or 0) > 0:
        return x
    axes = None if whole_numbers else diagonal(eq, (x, y))
    if axes is not None:
        if is_alone(eq, 1, y):
            raise Stuck("what is zero for all other examples divides")
        return Diagonal(axes, power_of(x) - power_of(y), is_alone(eq, 0, x))
    how = alike(eq, (x, y))
    if whole_numbers:
        no_powers(eq, (x, y))
    return placed(how, power_of(x) - power_of(y))


@rule("complex")
def complex_(eq: Equation, *places: Placement, **_: Any) -> Result:
    """Linear in both parts together."""
    if any(isinstance(place, Partial) for place in places):
        powers = {p for i, place in enumerate(places) if (p := partial_power(eq, i, place)) is not None}
        if len(powers) > 1:
            raise Stuck("a part of a sum over the batch is joined with what is whole already")
        return Partial(powers.pop() if powers else 0)
    return placed(alike(eq, places), common_power(eq, places))


def holds_positions(eq: Equation) -> None:
    """Raise `Stuck` where positions are held in so few bits that those of a larger batch are others.

    Within a share they may still have room: row 300 of the batch is row 44 to uint8, and row 44 of a device.
    """
    dtype = eq.dtypes[0]
    room = 1 / eps_of(dtype) if kind_of(dtype) == "f" else largest_integer(dtype)
    if room < LARGEST_BATCH:
        raise Stuck(f"positions are held as {dtype}, which has no room for those of a larger batch")


def in_order(eq: Equation) -> None:
    """Raise `Stuck` where arithmetic does not keep the order of numbers: in uint8, -5 is 251 and -0 is 0."""
    dtype = eq.dtypes[0]
    if wraps(dtype):
        raise Stuck(f"numbers of {dtype} wrap around, and this device's extreme may then be none")


def wraps(dtype: str) -> bool:
    """Whether numbers of a dtype are taken to wrap around: those below zero, or of few bits."""
    few = kind_of(dtype) == "i" and largest_integer(dtype) < largest_integer("int32")
    return few or kind_of(dtype) == "u"


@rule("neg", "real", "imag", "conj")
def linear(eq: Equation, x: Placement, **_: Any) -> Result:
    """Linear in one operand: every placement stays."""
    if isinstance(x, Extreme) and eq.name == "neg":
        in_order(eq)
        return Extreme(opposite(x.op))
    if isinstance(x, (Partial, Replicated, Diagonal)):
        return x
    return placed(alike(eq, (x,)), power_of(x))


@rule(
    "copy",
    "stop_gradient",
    "optimization_barrier",
    "pvary",
    "name",
    "device_put",
    "sharding_constraint",
    "random_clone",
    "jax_pmap_mark",
)
def identity(eq: Equation, *places: Placement, **_: Any) -> Result:
    """Each result is its operand."""
    return tuple(Same(place, i) for i, place in enumerate(places))


@rule("convert_element_type", "reduce_precision")
def convert(eq: Equation, x: Placement, **params: Any) -> Result:
    """Between floats, and from whole numbers: linear. To whole numbers: what is cut off differs."""
    if isinstance(x, (Index, Positions)) and kind_of(eq.dtypes[0]) in "iuf":
        # The index has no meaning in the whole-batch program; positions have one. Either may wrap around.
        holds_positions(eq)
        return Same(x) if isinstance(x, Index) else x
    if isinstance(x, Downward) and eq.dtypes[0] == "uint32":
        return Same(x)
    given, made = eq.terms[eq.operands[0].term].dtype, eq.dtypes[0]
    if isinstance(x, Extreme):
        if not (given == "bool" or kind_of(made) == "f" or widens(given, made)):
            raise Stuck(describe(x))
        return x
    if isinstance(x, Partial) and given != made and wraps(given):
        # Parts may have wrapped around, and only their sum in that width comes back.
        raise Stuck(describe(x))
    if kind_of(made) in "iub" and not widens(given, made):
        if isinstance(x, Partial):
            raise Stuck(describe(x))
        if made == "bool" or not all_integers(eq, x):
            no_powers(eq, (x,))
    return linear(eq, x)


def widens(given: str, made: str) -> bool:
    """Whether a dtype of whole numbers holds all that another one does."""
    if given == "bool":
        return kind_of(made) in "iuf"
    return (
        kind_of(given) == kind_of(made)
        and kind_of(given) in "iu"
        and largest_integer(given) <= largest_integer(made)
    )


def all_integers(eq: Equation, x: Placement) -> bool:
    """Whether a number that depends on the share is an integer in every trace, so that nothing is cut off."""
    value = eq.value(0)
    if not isinstance(x, Replicated) or value is None or isinstance(value, complex):
        return False
    local = [float(value) / float(count) ** float(x.power) for count in (1, *eq.counts)]
    return all(abs(each - round(each)) < 1e-9 for each in local)


@rule("max", "min")
def extreme(eq: Equation, x: Placement, y: Placement, **_: Any) -> Result:
    """Of values that are off by the same power; a device's maximum and a whole value give a maximum."""
    for one, other in ((x, y), (y, x)):
        if isinstance(one, Extreme):
            # Either grows with its operand, so that the largest of the maxima stays the largest.
            if other == WHOLE or (other == one and one.op == eq.name):
                return one
            raise Stuck(describe(one))
    return placed(alike(eq, (x, y)), common_power(eq, (x, y)))


@rule("eq", "ne", "lt", "le", "gt", "ge", "eq_to", "le_to", "lt_to")
def compare(eq: Equation, x: Placement, y: Placement, **_: Any) -> Result:
    """Of values off by the same power the order is that of the whole ones."""
    for one, other, at in ((x, y, 0), (y, x, 1)):
        if isinstance(one, (Positions, Index)) and eq.is_zero(1 - at):
            # Neither is ever negative; whatever else is asked of them depends on the device.
            if (eq.name, at) in (("lt", 0), ("gt", 1), ("ge", 0), ("le", 1)):
                return Sharded(one.axis) if isinstance(one, Positions) else WHOLE
            raise Stuck(describe(one))
        if isinstance(one, Labels) and eq.name in ("eq", "ne"):
            if eq.is_zero(1 - at) and one.least > 0:
                return Sharded(one.axis)
            if isinstance(other, Labels) and (other.least > 0) == (one.least > 0):
                if (other.axis, other.length) == (one.axis, one.length):
                    return Sharded(one.axis)
    if isinstance(x, Corner) and y == Corner(x.other, x.axis) and eq.name == "eq":
        return Diagonal((min(x.axis, x.other), max(x.axis, x.other)))
    common_power(eq, (x, y))
    return placed(alike(eq, (x, y)), 0)


@rule("select_n")
def select(eq: Equation, which: Placement, *cases: Placement, **_: Any) -> Result:
    """A choice element by element: of partial sums, where the choice is the same on all devices."""
    if power_of(which):
        raise Stuck("a choice depends on the size of the share")
    if any(isinstance(case, Partial) for case in cases):
        if which != WHOLE:
            raise Stuck(describe(next(case for case in cases if isinstance(case, Partial))))
        powers = {p for i, case in enumerate(cases) if (p := partial_power(eq, i + 1, case)) is not None}
        if len(powers) > 1:
            raise Stuck("a part of a sum over the batch is exchanged for what is whole already")
        return Partial(powers.pop() if powers else 0)
    if which == WHOLE and len(set(cases)) == 1 and isinstance(cases[0], Extreme):
        return cases[0]
    axes = diagonal(eq, (which, *cases))
    how = alike(eq, (which, *cases)) if axes is None else None
    powers = {power_of(case) for i, case in enumerate(cases) if not eq.is_zero(i + 1)}
    if len(powers) > 1:
        raise Stuck("numbers that depend on the size of the share in different ways are exchanged")
    power = powers.pop() if powers else 0
    if axes is not None:
        return Diagonal(axes, power, all(is_alone(eq, i, case) for i, case in enumerate(cases, 1)))
    return placed(how, power)


@rule("sqrt", "rsqrt", "cbrt", "abs", "sign", "square", "integer_pow")
def homogeneous(eq: Equation, x: Placement, **params: Any) -> Result:
    """A constant factor comes out of these in front, to some degree."""
    if isinstance(x, Extreme) and eq.name in INCREASING:
        return x
    degree = {
        "sqrt": Fraction(1, 2),
        "rsqrt": Fraction(-1, 2),
        "cbrt": Fraction(1, 3),
        "abs": 1,
        "sign": 0,
        "square": 2,
        "integer_pow": params.get("y", 1),
    }[eq.name]
    return placed(alike(eq, (x,)), reduced(power_of(x) * degree))


def reduced(power: Power) -> Power:
    """A whole power as an int."""
    return int(power) if Fraction(power).denominator == 1 else power


@rule(*FUNCTIONS)
def function(eq: Equation, *places: Placement, **_: Any) -> Result:
    """Of values as they are in the whole-batch program, and no others."""
    if len(places) == 1 and isinstance(places[0], Extreme) and eq.name in INCREASING:
        return places[0]
    if eq.name in ("or", "and") and any(isinstance(p, Extreme) for p in places):
        # Truth values: `or` is their maximum, `and` their minimum.
        return extreme_of_truths(eq, *places)
    if eq.name == "not" and isinstance(places[0], Extreme):
        return Extreme(opposite(places[0].op))
    if eq.name == "not" and places[0] == Index():
        return Same(Downward())
    # Bits may come from, or go to, an axis of their own.
    how = (layout if eq.name == "bitcast_convert_type" else alike)(eq, places)
    no_powers(eq, places)
    return placed(how, 0)


def extreme_of_truths(eq: Equation, x: Placement, y: Placement) -> Result:
    """`or` of maxima, `and` of minima."""
    op = "max" if eq.name == "or" else "min"
    if eq.dtypes[0] == "bool" and {x, y} <= {WHOLE, Extreme(op)}:
        return Extreme(op)
    raise Stuck(describe(x if isinstance(x, Extreme) else y))


def opposite(op: str) -> str:
    """``"min"`` of ``"max"``, and the reverse."""
    return "min" if op == "max" else "max"
