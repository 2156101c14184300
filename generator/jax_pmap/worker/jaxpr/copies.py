"""Copies of one value that Python joins, ``jnp.stack([w] * jax.device_count())``, as the broadcast they are.

Traces for two numbers of devices have other operations there, one for each copy; of a broadcast the size
alone is another.
"""

from typing import Any

import jax

BROADCAST = "broadcast_in_dim"


def broadcast(body: Any) -> Any:
    """A jaxpr without constants in which copies of one value are broadcast and not joined.

    Of the programs that its operations hold nothing is changed.
    """
    seen: dict[Any, Any] = {}
    spread: dict[Any, tuple[Any, tuple[int, ...]]] = {}
    renamed: dict[Any, Any] = {}
    equations = []
    for equation in body.eqns:
        given = [_renamed(atom, renamed) for atom in equation.invars]
        one = _of_one(equation, given, spread)
        equation = equation.replace(invars=given) if one is None else _broadcast(equation, *one)
        if equation.primitive.name == BROADCAST and len(given := equation.invars) == 1:
            (out,), axes = equation.outvars, tuple(equation.params["broadcast_dimensions"])
            form = None if hasattr(given[0], "val") else (given[0], tuple(out.aval.shape), axes)
            if form in seen:
                renamed[out] = seen[form]
                continue
            if form is not None:
                seen[form], spread[out] = out, (given[0], axes)
        equations.append(equation)
    outvars = [_renamed(atom, renamed) for atom in body.outvars]
    used = {id(atom) for each in equations for atom in each.invars} | set(map(id, outvars))
    needed = [each for each in equations if each.primitive.name != BROADCAST or id(each.outvars[0]) in used]
    return body.replace(eqns=needed, outvars=outvars)


def _renamed(atom: Any, renamed: dict[Any, Any]) -> Any:
    return atom if hasattr(atom, "val") else renamed.get(atom, atom)


def _of_one(
    equation: Any, given: list[Any], spread: dict[Any, tuple[Any, tuple[int, ...]]]
) -> tuple[Any, tuple[int, ...]] | None:
    """The value of which an equation joins copies, and the axes that it has in them; None of any other.

    `spread` are values that were broadcast already, with what of.
    """
    if not given or any(hasattr(each, "val") for each in given):
        return None
    if equation.primitive.name == "stack" and len(set(given)) == 1:
        rank = len(equation.outvars[0].aval.shape)
        return given[0], tuple(axis for axis in range(rank) if axis != equation.params["axis"])
    if equation.primitive.name != "concatenate" or len({spread.get(each) for each in given}) > 1:
        return None
    one = spread.get(given[0])
    return one if one is not None and equation.params["dimension"] not in one[1] else None


def _broadcast(equation: Any, operand: Any, axes: tuple[int, ...]) -> Any:
    """An equation that broadcasts a value to the result of another one."""
    shape = tuple(equation.outvars[0].aval.shape)
    return equation.replace(
        primitive=jax.lax.broadcast_in_dim_p,
        invars=[operand],
        params={"shape": shape, "broadcast_dimensions": axes, "sharding": None},
    )
