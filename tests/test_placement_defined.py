"""Primitives of libraries that say what they compute: they are read as that, and not measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir
from test_placement_programs import ROWS, R, S, X, derived, floats, mean, total

from jax_pmap.worker.jaxpr.defined import definition


def primitive(
    name: str, called: Callable[..., Any], compiled: Callable[..., Any], *, effects: Any = ()
) -> Callable[..., Any]:
    """A primitive that is one function where it is called, and perhaps another where it is compiled."""
    made = Primitive(name)

    def shaped(*operands: Any, **params: Any) -> Any:
        given = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in operands]
        out = jax.eval_shape(lambda *arrays: compiled(*arrays, **params), *given)
        return jax.core.ShapedArray(out.shape, out.dtype)

    made.def_impl(called)
    made.def_abstract_eval(shaped)
    mlir.register_lowering(made, mlir.lower_fun(compiled, multiple_results=False))
    return made.bind


def sum_over(x: Any, *, rows: int) -> Any:
    return jnp.sum(x * x, 0) / rows


mean_square = primitive("mean_square", sum_over, sum_over)
two_faced = primitive("two_faced", sum_over, lambda x, *, rows: jnp.max(x, 0) / rows)


def buffered(x: Any) -> Any:
    """Powers of each row, written one after the other into a buffer as ODE solvers do."""

    def solve(row: Any) -> Any:
        def step(carry: Any) -> Any:
            number, power, kept = carry
            return number + 1, power * row, kept.at[number].set(power)

        first = (0, jnp.ones(()), jnp.zeros(4))
        return eqxi.while_loop(
            lambda carry: carry[0] < 4, step, first, max_steps=4, buffers=lambda carry: carry[2], kind="lax"
        )[2]

    return jax.vmap(solve)(x)


def test_a_primitive_is_read_as_what_it_is_defined_by() -> None:
    found = derived(lambda a, x: jnp.sqrt(total(a, mean_square(x, rows=len(x)))), (X,), (S,), R)
    assert not found.complete  # The sum of the means of shares is another number.
    found = derived(lambda a, x: jnp.sqrt(mean(a, mean_square(x, rows=len(x)))), (X,), (S,), R)
    assert (found.complete, found.measured) == (True, ())


def test_one_that_is_compiled_to_something_else_is_not() -> None:
    found = derived(lambda a, x: mean(a, two_faced(x, rows=len(x))), (X,), (S,), R)
    assert not found.complete


def test_buffers_of_loops_of_equinox_are_followed() -> None:
    found = derived(lambda a, x: buffered(x), (floats(ROWS),), (S,), S)
    assert found.complete, found.endings


def test_what_has_no_definition_stays_as_it_is() -> None:
    jaxpr = jax.make_jaxpr(jnp.nextafter)(1.0, 2.0)
    (call,) = jaxpr.eqns
    (equation,) = call.params["jaxpr"].jaxpr.eqns if "jaxpr" in call.params else (call,)
    assert equation.primitive.name == "nextafter"
    assert definition(equation) is None
