"""How much arithmetic a traced function does, to tell work that is shared from work that is repeated."""

import math
from collections.abc import Callable
from typing import Any

from .jaxpr.versions import opened
from .jaxpr.walk import subjaxprs


def work(jaxpr: Any, counts: Callable[[Any], bool] = lambda _: True) -> float:
    """Numbers a jaxpr computes, inner products counted by their terms; of a branch, the dearest.

    For one device: inside a mapped function shapes are those of one share. Loops of unknown
    length count once. Of operations only those that `counts` holds of.
    """
    total = 0.0
    for equation in opened(jaxpr)[0].eqns:
        inner = [work(each, counts) for each in subjaxprs(equation)]
        if inner:
            repeats = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
            total += repeats * (max(inner) if equation.primitive.name == "cond" else sum(inner))
        elif counts(equation):
            total += terms(equation) * sum(size(out) for out in equation.outvars)
    return total


def rounds(jaxpr: Any) -> int:
    """How often the loops of a jaxpr go round, those of unknown length once."""
    total = 0
    for equation in opened(jaxpr)[0].eqns:
        inner = sum(map(rounds, subjaxprs(equation)))
        total += equation.params["length"] * (1 + inner) if equation.primitive.name == "scan" else inner
    return total


def nested(jaxpr: Any) -> int:
    """How many loops of unknown length of a jaxpr are inside each other, at most."""
    inside = ((each.primitive.name == "while", subjaxprs(each)) for each in opened(jaxpr)[0].eqns)
    return max((loops + max(map(nested, inner), default=0) for loops, inner in inside), default=0)


def size(variable: Any) -> int:
    """Elements of a variable."""
    return math.prod(getattr(variable.aval, "shape", ()))


def terms(equation: Any) -> int:
    """Numbers that go into each element of the result."""
    name, operands = equation.primitive.name, [v.aval for v in equation.invars if hasattr(v, "aval")]
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return int(math.prod(operands[0].shape[axis] for axis in contracted))
    if name == "conv_general_dilated":
        features = operands[1].shape[equation.params["dimension_numbers"].rhs_spec[0]]
        return int(math.prod(operands[1].shape)) // max(1, int(features)) or 1
    if name.startswith(("reduce_", "arg")):
        return max(1, size(equation.invars[0]) // max(1, size(equation.outvars[0])))
    if name == "sort":
        return max(1, math.ceil(math.log2(max(2, size(equation.invars[0])))))
    return 1
