"""Primitives without a rule: what is measured of them, what of that is used, and what is not tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir
from test_placement_programs import COUNTS, ROWS, R, S, W, X, derived, floats, mean, total, whole_numbers

from jax_pmap.worker.placements.equation import Equation, Stuck
from jax_pmap.worker.placements.lattice import Partial, Replicated, Sharded, shown
from jax_pmap.worker.placements.measure import measured
from jax_pmap.worker.placements.terms import Terms


def primitive(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as a primitive of its own, which no rule knows."""
    made = Primitive(name)

    def shaped(*operands: Any, **params: Any) -> Any:
        given = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in operands]
        out = jax.eval_shape(lambda *arrays: function(*arrays, **params), *given)
        return jax.core.ShapedArray(out.shape, out.dtype)

    made.def_abstract_eval(shaped)
    mlir.register_lowering(made, mlir.lower_fun(function, multiple_results=False))
    return made.bind


by_row = primitive("by_row", lambda x: jax.nn.softmax(x, -1) * 2)
squares = primitive("squares", lambda x: jnp.sum(x * x, 0))
product = primitive("product", lambda x, w: x @ w)
by_column = primitive("by_column", lambda x: jax.nn.softmax(x, 0))
pairs = primitive("pairs", lambda x: x + jnp.roll(x.reshape(-1, 2, *x.shape[1:]), 1, 1).reshape(x.shape))
capped = primitive("capped", lambda x: jnp.clip(x, -1e3, 1e3))
zeros = primitive("zeros", lambda x: x * 0)
largest = primitive("largest", lambda x: jnp.max(x, 0))
any_positive = primitive("any_positive", lambda x: jnp.any(x > -1e9, 0))
numbered = primitive("numbered", lambda x: x + jnp.arange(len(x))[:, None])
scaled_by = primitive("scaled_by", lambda x, *, rows: x / rows)
looked_up = primitive("looked_up", lambda x, i: x[i])


def host(x: Any) -> Any:
    return np.asarray(x) * 2


HOST = jax.ShapeDtypeStruct((3,), jnp.float32)

EQUAL = {
    "by_row": (lambda a, x: mean(a, by_row(x).mean()), (X,), (S,), R),
    "squares": (lambda a, x: jnp.sqrt(total(a, squares(x))), (X,), (S,), R),
    "product": (lambda a, x, w: total(a, product(x.T @ x, w)), (X, W), (S, R), R),
    "looked_up": (lambda a, t, i: looked_up(t, i), (floats(5, 3), whole_numbers(ROWS)), (R, S), S),
}


@pytest.mark.parametrize("name", sorted(EQUAL))
def test_what_holds_is_used_and_named(name: str) -> None:
    found = derived(*EQUAL[name])
    assert found.complete, found.endings
    assert found.measured == (name,)


REFUSED = {
    "by_column": (lambda a, x: mean(a, by_column(x).mean()), (X,), (S,), R),
    "pairs": (lambda a, x: pairs(x), (X,), (S,), S),
    "numbered": (lambda a, x: numbered(x), (X,), (S,), S),
    "largest": (lambda a, x: total(a, largest(x)), (X,), (S,), R),
    "any_positive": (lambda a, x: any_positive(x), (X,), (S,), R),
    "capped": (lambda a, x: total(a, capped(x.sum(0))), (X,), (S,), R),
    "zeros": (lambda a, x: mean(a, zeros(x).mean()), (X,), (S,), R),
    "scaled_by": (lambda a, x: total(a, scaled_by(x, rows=len(x)).sum(0)), (X,), (S,), R),
    "ragged_dot_general": (
        lambda a, x, w: lax.ragged_dot(x, w, jnp.array([2, 4], jnp.int32)),
        (X, floats(2, 3, 4)),
        (S, R),
        S,
    ),
    "pure_callback": (lambda a, x: jax.pure_callback(host, x, x), (X,), (S,), S),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_does_not_hold_is_named_with_its_line(name: str) -> None:
    found = derived(*REFUSED[name])
    assert not found.complete
    assert found.endings[0].primitive == name
    assert f"`{name}` has no rule" in found.endings[0].why
    assert found.endings[0].places[0].file == __file__


def test_a_wrong_collective_behind_it_is_found() -> None:
    assert not derived(lambda a, x: mean(a, squares(x)), (X,), (S,), R).complete


def test_what_is_whole_needs_no_measuring() -> None:
    given = (X,), (S,), R
    found = derived(lambda a, x: by_column(total(a, x.T @ x)), *given)
    assert found.complete and not found.measured
    found = derived(lambda a, x: jax.pure_callback(host, HOST, total(a, x.sum(0))), *given)
    assert found.complete and not found.measured


def test_a_linear_call_is_read() -> None:
    def doubled(a: Any, x: Any) -> Any:
        return total(
            a, jax.custom_derivatives.linear_call(lambda r, x: x * r, lambda r, y: y * r, 2.0, x).sum()
        )

    found = derived(doubled, (X,), (S,), R)
    assert found.complete and not found.measured


@pytest.mark.parametrize("width", [4, 5000])
@pytest.mark.parametrize(
    ("function", "places", "wanted"),
    [
        (lambda x, w: x @ w, (Sharded(0), Replicated()), "S0"),
        (lambda x, w: x @ w, (Sharded(0, 1), Replicated(-2)), "S0*N^-1"),
        (lambda x, w: x @ w, (Partial(), Replicated(1)), "P*N"),
        (lambda x, w: x.T @ x + 0 * w[0, 0], (Sharded(0), Replicated()), "P"),
        (lambda x, w: x / jnp.sum(x), (Replicated(1), Replicated()), "R"),
        (lambda x, w: jnp.abs(x) ** 0.5, (Replicated(1), Replicated()), "R*N^1/2"),
        (lambda x, w: jnp.exp(x), (Sharded(0, 1), Replicated()), ""),
        (lambda x, w: x @ w, (Partial(), Partial()), ""),
        (lambda x, w: x / jnp.sum(x), (Sharded(0), Replicated()), ""),
    ],
)
def test_relations(width: int, function: Any, places: Any, wanted: str) -> None:
    bind = primitive("measured_here", function)
    rows = [ROWS // n if isinstance(places[0], Sharded) else ROWS for n in COUNTS]
    shapes = [[(each, width), (width, 3)] for each in rows]
    traced = [
        jax.make_jaxpr(bind)(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in each)).eqns[0] for each in shapes
    ]
    terms = Terms()
    eq = Equation(
        "measured_here",
        [each.params for each in traced],
        shapes,
        [[each.outvars[0].aval.shape] for each in traced],
        "i",
        COUNTS,
        [type("Given", (), {"term": terms.make("input", i, (), None, "float32")})() for i in range(2)],
        terms,
    )
    if not wanted:
        with pytest.raises(Stuck, match="no relation"):
            measured(eq, places, traced[0])
    else:
        assert [shown(place) for place in measured(eq, places, traced[0])] == [wanted]
