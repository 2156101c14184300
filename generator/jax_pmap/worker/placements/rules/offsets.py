"""Rows that have a part of a sum over devices added to each, in what is linear and treats them alike."""

from typing import Any

from ..arithmetic import kind_of
from ..equation import RULES, Equation, Result, Stuck
from ..lattice import Offset, Partial, Placement, Replicated, Sharded, Spread
from .elementwise import describe, in_rows, is_alike, power_of_rows

#: What is linear in its first operand, and does the same to each row of it.
LINEAR = frozenset(
    {"neg", "real", "imag", "mul", "div", "convert_element_type", "reduce_sum", "broadcast_in_dim"}
    | {"reshape", "transpose", "squeeze", "expand_dims"}
)


def offset(eq: Equation, *places: Placement, **params: Any) -> Result:
    """What an operation makes of values of which one at least is `Offset`, or `Spread`.

    Raises:
        Stuck: it is not linear, or treats rows in different ways.
    """
    if eq.name in ("add", "sub"):
        return in_rows(eq, places)
    at, place = next((i, p) for i, p in enumerate(places) if isinstance(p, (Spread, Offset)))
    if eq.name not in LINEAR or (at and eq.name != "mul") or kind_of(eq.dtypes[0]) not in "fc":
        raise Stuck(describe(place))
    for i, other in enumerate(places):
        if i != at and not (isinstance(other, Replicated) and is_alike(eq, i, place.axis)):
            raise Stuck(describe(place))
    share = Sharded(place.axis, power_of_rows(place))
    if eq.name == "reduce_sum" and place.axis in params["axes"]:
        return Partial(share.power)
    made = RULES[eq.name](eq, *(share if i == at else other for i, other in enumerate(places)), **params)
    if not isinstance(made, Sharded) or eq.shape(at)[place.axis] != eq.out()[made.axis]:
        raise Stuck(describe(place))
    return Offset(made.axis, made.power)
