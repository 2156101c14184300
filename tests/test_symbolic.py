"""Programs that are traced once with a symbol for the rows, and those that numbers make of them."""

import dataclasses
import enum
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax_pmap.worker.jaxpr import symbolic
from jax_pmap.worker.jaxpr.coincidences import program_of, same
from jax_pmap.worker.type_tests import Watch, identified, may_part

SIZE = 300


class Kind(enum.Enum):
    """What no number is."""

    START = 300


F32, BF16, C64 = jnp.float32, jnp.bfloat16, jnp.complex64


def means(x, w):
    return lax.pmean(jnp.mean(x @ w), "i"), lax.psum(jnp.sum(x), "i") / (x.shape[0] * lax.psum(1, "i"))


def half_of_the_rows(x, w):
    return x * (x.shape[0] * 0.5 + 1.0), w * (3.0 / x.shape[0])


def gathered(x, w):
    every = lax.all_gather(x, "i", tiled=True)
    own = lax.dynamic_slice_in_dim(every, lax.axis_index("i") * x.shape[0], x.shape[0])
    return every.T @ every, own, lax.all_gather(w, "i")


def looped(x, w):
    total, _ = lax.scan(lambda c, row: (c + lax.pmean(row.mean(), "i"), None), 0.0, x.T)
    return lax.cond(total > 0, lambda: total / x.shape[0], lambda: total), lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, x)
    )


def solved(x, w):
    inner = x.T @ x + jnp.eye(w.shape[0])
    return jnp.linalg.solve(inner, w), jax.grad(lambda w: jnp.mean(jax.nn.gelu(x @ w) ** 2))(w)


def taken(x, w):
    return x[:, 0] + x[..., -1], x[:, None, 1:4:2] * w[1], x[None], x[:, ::-1]


#: Branches and solvers compare real numbers in single precision.
WITH = [(looped, F32), (solved, F32)]
#: What older versions of jax cannot be told to slice is traced for each number of rows.
WITH += [(taken, F32)] if hasattr(sys.modules["jax._src.numpy.indexing"], "NDIndexer") else []
WITH += [(function, dtype) for function in (means, half_of_the_rows, gathered) for dtype in (F32, BF16, C64)]


@pytest.mark.parametrize(("function", "dtype"), WITH)
def test_numbers_make_of_it_what_they_are_traced_to(function, dtype):
    def traced(rows, devices):
        leaves = jax.ShapeDtypeStruct((rows, 5), dtype), jax.ShapeDtypeStruct((5,), dtype)
        return jax.make_jaxpr(function, axis_env=[("i", devices)])(*leaves)

    once = symbolic.traced(lambda: traced(symbolic.rows(), symbolic.DEVICES))
    assert symbolic.has_polynomials(once)
    for rows, devices in ((8, 3), (3, 8), (24, 1)):
        made = symbolic.Numbers(rows, devices).program(once)
        wanted = symbolic.Numbers(rows).program(traced(rows, devices))
        assert [v.aval for v in made.jaxpr.outvars] == [v.aval for v in wanted.jaxpr.outvars]
        assert same(program_of(made, rows), program_of(wanted, rows)), (made, wanted)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[: len(x) // 2],
        lambda x: jnp.arange(len(x) % 3),
        lambda x: np.zeros(len(x)),
        lambda x: x.reshape(24, 5),
        lambda x: lax.map(lambda row: x.reshape(8, 3, 5) + row, x),
    ],
)
def test_what_is_not_for_all_rows_is_found(function):
    leaf = jax.ShapeDtypeStruct((symbolic.rows(), 5), F32)
    made = symbolic.traced(lambda: jax.make_jaxpr(function)(leaf))
    assert made is None or not symbolic.has_polynomials(made)


@dataclasses.dataclass(frozen=True)
class Size:
    rows: int


@pytest.mark.parametrize(
    ("function", "asked", "rows"),
    [
        (lambda x: x * (x.shape[0] == 48), True, {48}),
        (lambda x: x * (x.shape[0] == 48.0), True, {48}),
        (lambda x: x * (2 * x.shape[0] != 96), True, {48}),
        (lambda x: x * (x.shape[0] ** 2 - 10 * x.shape[0] == -21), True, {3, 7}),
        (lambda x: x * (not (x.shape[0] - 48)), True, {48}),
        (lambda x: x * {48: 2.0}.get(x.shape[0], 1.0), True, set()),
        (lambda x: x * (f"{x.shape[0]}" == "48"), True, set()),
        (lambda x: x * (Size(x.shape[0]) == Size(48)), True, {48}),
        (lambda x: x * np.array_equal(x.shape, (48, 5)), True, {48}),
        (lambda x: x * jnp.array_equal(x, jnp.ones((48, 5))), True, {48}),
        # It is answered for all numbers of rows.
        (
            lambda x: (
                x
                * (x.shape[0] == 2 * x.shape[0])
                * bool(x.shape[0])
                * (x.shape[0] == 0)
                * (x.shape[0] is None)
            ),
            False,
            set(),
        ),
        (lambda x: x / x.shape[0] + x @ jnp.ones((5, 1)), False, None),
    ],
)
def test_numbers_that_code_asks_for_are_known(function, asked, rows):
    leaf = jax.ShapeDtypeStruct((symbolic.rows(), 5), F32)
    answer = symbolic.traced_unasked(lambda: jax.make_jaxpr(function)(leaf))
    assert answer.made is not None and answer.is_asked is asked
    assert rows is None or answer.rows >= rows


@pytest.mark.parametrize(
    ("function", "asked"),
    [
        (lambda n: n is SIZE, True),
        (lambda n: 1 if n is not SIZE else 2, True),
        (lambda n: (n is None, n is not True, n is ...), False),
        (lambda n: n == SIZE, False),
        (lambda n: (n is Kind.START, n is not Kind, n is jnp.float32), False),
        (lambda n: n is Kind.START.value, True),
    ],
)
def test_identity_of_a_size_is_seen(function, asked):
    watch = Watch()
    with watch([globals()]):
        function(symbolic.rows())
    assert identified(watch) is asked
    assert may_part()
    assert bool(symbolic.rows() - 48)


def test_sizes_of_so_many_devices_and_rows_are_those_of_others():
    rows = symbolic.rows()
    numbers = symbolic.Numbers(rows=8, devices=3)
    assert numbers.number(symbolic.DEVICES * rows + 1) == 25
    assert numbers.number(rows * rows * 2 + 5) == 133
    assert numbers.number(symbolic.DEVICES) == 3
    assert numbers.number(7) == 7
    with pytest.raises(ValueError, match="no polynomial"):
        numbers.number(rows // 2)


def test_what_nothing_uses_makes_no_other_program():
    def again(x):
        jnp.sin(x + np.arange(5.0))
        return x * 2

    leaves = [jax.ShapeDtypeStruct((rows, 5), F32) for rows in (symbolic.rows(), 24)]
    once, other = (jax.make_jaxpr(f)(x) for f, x in zip((lambda x: x * 2, again), leaves, strict=True))
    assert symbolic.is_at(once, 24, other)
    assert not symbolic.is_at(once, 24, jax.make_jaxpr(lambda x: x * 3)(leaves[1]))


def test_a_number_made_of_that_of_devices_makes_another_program():
    def mean(x):
        return jax.lax.psum(x, "i") / jax.lax.psum(1, "i")

    def scaled(x):
        return jax.lax.psum(x, "i") * (1 / jax.lax.psum(1, "i"))

    leaves = [jax.ShapeDtypeStruct((rows, 5), F32) for rows in (symbolic.rows(), 8)]
    for function, is_same in ((mean, True), (scaled, False)):
        once, other = (
            jax.make_jaxpr(function, axis_env=[("i", devices)])(leaf)
            for leaf, devices in zip(leaves, (symbolic.DEVICES, 3), strict=True)
        )
        assert symbolic.is_at(once, 8, other, devices=3) is is_same


@pytest.mark.parametrize("compiled", [jax.jit, jax.checkpoint])
def test_what_a_compiled_function_hands_on_of_a_size_makes_no_other_program(compiled):
    def slope(x, scale):
        loss = compiled(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2) * scale)
        return jax.grad(lambda w: loss(w) ** 2)(jnp.ones(5))

    leaves = [jax.ShapeDtypeStruct((rows, 5), F32) for rows in (symbolic.rows(), 24)]
    once, other = (jax.make_jaxpr(lambda x: slope(x, 2.0))(leaf) for leaf in leaves)
    assert symbolic.is_at(once, 24, other)
    assert not symbolic.is_at(once, 24, jax.make_jaxpr(lambda x: slope(x, 3.0))(leaves[1]))


def test_compiled_functions_in_the_rounds_of_a_loop_make_no_other_program():
    def fit(x, rate):
        loss = jax.jit(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))
        return jax.lax.scan(lambda w, _: (w - rate * jax.grad(loss)(w), w), jnp.ones(5), length=3)

    leaves = [jax.ShapeDtypeStruct((rows, 5), F32) for rows in (symbolic.rows(), 24)]
    once, other = (jax.make_jaxpr(lambda x: fit(x, 2.0))(leaf) for leaf in leaves)
    assert symbolic.is_at(once, 24, other)
    assert not symbolic.is_at(once, 24, jax.make_jaxpr(lambda x: fit(x, 3.0))(leaves[1]))


def test_positions_of_rows_make_no_other_program():
    """With a symbol, jax counts from a start and by a step."""
    leaves = [jax.ShapeDtypeStruct((rows, 5), F32) for rows in (symbolic.rows(), 24)]
    once, other = (jax.make_jaxpr(lambda x: x.T * jnp.arange(x.shape[0]))(leaf) for leaf in leaves)
    assert symbolic.is_at(once, 24, other)
    for another in (
        lambda x: x.T * (jnp.arange(x.shape[0]) * 2),
        lambda x: x.T * (jnp.arange(x.shape[0]) + 1),
    ):
        assert not symbolic.is_at(once, 24, jax.make_jaxpr(another)(leaves[1]))


def test_what_jax_keeps_of_other_draws_is_compared_by_chance():
    key = jax.random.key(0)
    for rows in range(2, 200):
        jax.eval_shape(lambda rows=rows: jax.random.normal(key, (rows, 3)))
    leaf = jax.ShapeDtypeStruct((symbolic.rows(), 3), F32)
    for width in range(2, 40):
        draw = jax.make_jaxpr(lambda x, width=width: jax.random.normal(key, (*x.shape, width)))
        assert not symbolic.traced_unasked(lambda draw=draw: draw(leaf)).is_asked


def test_a_trace_that_makes_too_many_sizes_is_given_up(monkeypatch):
    """Of strided convolutions along the rows, jax compares what is many times as long with each layer."""

    def padded():
        x = jax.ShapeDtypeStruct((symbolic.rows(), 3), jnp.float32)
        return jax.make_jaxpr(lambda x: [jnp.pad(x, ((n, 0), (0, 0))).sum() for n in range(20)])(x)

    assert symbolic.traced_unasked(padded).made is not None
    monkeypatch.setattr(symbolic, "MOST_MADE", 10)
    assert symbolic.traced_unasked(padded).made is None
    assert sum(symbolic.rows() * 0 + n for n in range(20)) == 190
