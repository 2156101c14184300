"""How finely values of a program are known, where it goes through narrower dtypes than its inputs have."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_pmap.worker import prove, units
from jax_pmap.worker.arguments import Packed
from jax_pmap.worker.jaxpr.trace import Traced

FINE, SINGLE, BRAIN = (float(jnp.finfo(kind).eps) for kind in (np.float64, np.float32, jnp.bfloat16))


def mask(x: Any) -> Any:
    return (x > 0).astype(jnp.float32)


@pytest.mark.parametrize(
    ("function", "exact"),
    [
        (lambda x, k: jnp.sum(x) * jnp.sum(mask(x)), FINE),
        (lambda x, k: jnp.sum(x * mask(x)) / jnp.maximum(mask(x).sum(), 1), FINE),
        (lambda x, k: x @ (jax.nn.one_hot(k, 5, dtype=jnp.float32) @ jnp.ones(5)), FINE),
        (lambda x, k: jnp.sum(x) + k.astype(jnp.float32).sum(), FINE),
        (lambda x, k: x * jnp.where(k > 2, jnp.float32(2), jnp.float32(-1)), FINE),
        (lambda x, k: x * jnp.cumsum(mask(x)), FINE),
        (lambda x, k: jnp.sum(x) + (x > 0).astype(jnp.bfloat16).sum(), FINE),
        # A mean is rounded, and so is what no float of the kind holds, and what came of floats.
        (lambda x, k: jnp.sum(x) * jnp.mean(mask(x)), SINGLE),
        (lambda x, k: jnp.sum(x) + (x * 9).astype(jnp.int32).astype(jnp.float32).sum(), SINGLE),
        (lambda x, k: jnp.sum(x) + (x > 0).astype(jnp.bfloat16).sum() * k.size, BRAIN),
        (lambda x, k: jnp.sum(x.astype(jnp.float32)) * 1.0, SINGLE),
        (lambda x, k: jnp.sum(x) + 300 * k.astype(jnp.bfloat16).sum(), BRAIN),
        (lambda x, k: jnp.sum(x) * mask(x).sum() ** 0.5, SINGLE),
    ],
)
def test_whole_numbers_are_not_rounded_in_a_narrow_float(function: Callable[..., Any], exact: float) -> None:
    values = {"x": np.linspace(-1, 1, 24), "k": np.arange(24, dtype=np.uint8)}
    packed = Packed(values, ())
    with prove.x64(True):
        found = Traced.of(lambda given: function(given["x"], given["k"]), packed, packed.leaves)
        rounding = units.rounding_of(found, [0.0, 0.0])
    assert set(rounding.leaves) == {exact}
    assert rounding.coarsest == exact
    assert rounding.by_dtype is not None and min(rounding.by_dtype.leaves) >= SINGLE


def test_what_computes_as_another_one_does_is_no_coarser_than_dtypes_make_that() -> None:
    by_dtype = units.Rounding(SINGLE, (SINGLE, FINE))
    exact = units.Rounding(FINE, (FINE, FINE), by_dtype)
    assert exact.with_that_of(None) == by_dtype
    assert exact.with_that_of(units.Rounding(BRAIN, (FINE, BRAIN))) == units.Rounding(SINGLE, (FINE, FINE))
    assert exact.with_that_of(units.Rounding(BRAIN, (BRAIN, FINE))).leaves == (SINGLE, FINE)
