"""What a library's own primitive is defined by, as a program of jax's operations."""

from typing import Any

import jax

from .versions import inner_jaxpr, opened

#: Definitions of this process, by primitive, parameters and operands.
_KNOWN: dict[Any, Any] = {}


def definition(equation: Any) -> Any:
    """The closed jaxpr of what an equation's primitive is defined by; None where it has no such program.

    A primitive says twice what it computes: by the function that is called outside of a compiled program, and
    by what it is lowered to inside of one. The function is taken where both give the same program, to the
    letter, for the shapes and parameters of the equation, as those of Equinox do.
    """
    primitive, params = equation.primitive, equation.params
    avals = [variable.aval for variable in (*equation.invars, *equation.outvars)]
    if equation.effects or not all(map(_is_array, avals)):
        return None
    given = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals[: len(equation.invars)]]
    made = [(aval.shape, aval.dtype) for aval in avals[len(given) :]]
    key = (primitive, tuple(sorted(params.items())), tuple((each.shape, each.dtype) for each in given), *made)
    try:
        hash(key)
    except TypeError:
        return _definition(primitive, params, given, made)
    if key not in _KNOWN:
        _KNOWN[key] = _definition(primitive, params, given, made)
    return _KNOWN[key]


def _definition(primitive: Any, params: dict[str, Any], given: list[Any], made: list[Any]) -> Any:
    def bound(*operands: Any) -> Any:
        return primitive.bind(*operands, **params)

    def called(*operands: Any) -> Any:
        return primitive.impl(*operands, **params)

    try:
        jaxpr = jax.make_jaxpr(called)(*given)
        if _holds(jaxpr, primitive) or [(aval.shape, aval.dtype) for aval in jaxpr.out_avals] != made:
            return None
        if _lowered(bound, given) != _lowered(called, given):
            return None
    except Exception:  # Whatever a library does, its primitive stays one without a definition.
        return None
    return jaxpr


def _is_array(aval: Any) -> bool:
    return isinstance(aval, jax.core.ShapedArray) and not jax.dtypes.issubdtype(
        aval.dtype, jax.dtypes.extended
    )


def _holds(jaxpr: Any, primitive: Any) -> bool:
    """Whether a program has a primitive in it, or in what it calls: jax's own are called by themselves."""
    return any(
        equation.primitive is primitive
        or (inner_jaxpr(equation.params) is not None and _holds(inner_jaxpr(equation.params), primitive))
        for equation in opened(jaxpr)[0].eqns
    )


def _lowered(function: Any, given: list[Any]) -> str:
    """The text of what a function is compiled to."""

    def main(*operands: Any) -> Any:
        return function(*operands)

    return str(jax.jit(main, keep_unused=True).lower(*given).as_text())
